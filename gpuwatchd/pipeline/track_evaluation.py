"""Judge each subject that is due: its window, the screen, the detectors, its open alert.

The same :class:`Evaluator` judges live samples and recorded logs; only where the window comes from
differs. It does no I/O and has no clock: time is that of the samples.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts import wording
from gpuwatchd.analysis import attribution, frameworks
from gpuwatchd.core.codes import Ending, Hold, Reason
from gpuwatchd.core.model import Alert, AlertSubject, Finding, Pattern, Series, Severity
from gpuwatchd.core.model.findings import (
    with_blame,
    with_host_reason,
    with_reason,
)
from gpuwatchd.pipeline.track import Track, unless_explained
from gpuwatchd.pipeline.tracks import (
    Turns,
    flat_finding,
    settled_finding,
    suppress_for_lead,
    unjudged_finding,
    unsuppress,
)
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Device, FloatArray, ProcessInfo, Subject
    from gpuwatchd.pipeline.state import Settings, State
    from gpuwatchd.pipeline.track import TrackedDevice, Window

# Whom a judgement is about, and what the rules of its user say of it before anything opens.


def subject_facts(
    device: Device | None, info: ProcessInfo | None, subject: Subject, framework: str | None
) -> AlertSubject:
    """Return whom a judgement is about, in the words that rules are written in."""
    gpu = ""
    if device is not None and device.index is not None:
        parent = device.parent_index
        gpu = f"{parent}:{device.index}" if device.parent_uid and parent is not None else ""
        gpu = gpu or str(device.index)
    process = subject.process
    known = AlertSubject(
        gpu=gpu,
        card_uid="" if device is None else device.parent_uid or "",
        gpu_name="" if device is None else device.name,
        pid=None if process is None else process.pid,
        framework=framework or "",
    )
    if info is None:
        return known
    return msgspec.structs.replace(
        known,
        user=info.user or "",
        process=info.name,
        framework=info.framework or known.framework,
        command=" ".join(info.argv),
        job=info.group or info.job or "",
        container=info.short_container or "",
        program=info.program or "",
        unit=info.unit or "",
        model=info.model or "",
    )


def _cap_by_rules(
    finding: Finding, track: Track, level_bytes: float, rules: alerts.Rules
) -> Finding:
    """Return a judgement that is a watch at most where a rule says that it may grow."""
    if finding.tier != "alert" or not any(
        override.grows or override.grows_to_bytes for override in rules.overrides
    ):
        return finding
    as_alert = Alert(
        key=f"leak:{finding.subject.id}",
        kind="leak",
        subject=finding.subject,
        state="pending",
        severity=alerts.grade(finding),
        finding=finding,
        opened_at_s=finding.judged_at_s,
        changed_at_s=finding.judged_at_s,
        about=subject_facts(track.device, track.info, finding.subject, finding.framework),
    )
    rule = alerts.may_grow(as_alert, alerts.rules_for(as_alert, rules), level_bytes)
    if rule is None:
        return finding
    why = wording.hold(Hold.MAY_GROW, rule)
    return msgspec.structs.replace(with_reason(finding, why, Reason.NORMAL), tier="watch")


def thresholds(track: Track, settings: Settings) -> DetectionSection:
    """Return what a subject is judged by: ``[detection]``, or what an override has instead."""
    if not settings.overrides:
        return settings.config.detection
    about = subject_facts(track.device, track.info, track.subject, track.judged_framework)
    return settings.detection_of(about, track.subject.device_uid)


log = logging.getLogger("gpuwatchd")

_BATCH = 8
_JOINT_PAUSE_S, _JOINT_LONGER = 300.0, 3
_STIR_BYTES = 8 * 1024**2
_CALM: frozenset[Pattern] = frozenset({"stable", "plateau", "preallocated", "sawtooth"})


def _cap_graphics(finding: Finding) -> Finding:
    """Return a judgement that is a watch at most where a display server or a browser grows.

    What draws grows with the windows that people open, and they need no alert to close them.
    """
    if finding.tier != "alert" or finding.framework not in frameworks.GRAPHICS:
        return finding
    severity: Severity = "info" if finding.severity == "info" else "warning"
    return msgspec.structs.replace(finding, tier="watch", severity=severity)


def _highest(window: Window) -> float:
    return window.bounds[1] if isinstance(window, Ring) else -1.0


def _moves(track: Track) -> int:
    return track.evidence.moves + (0 if track.allocator is None else track.allocator.moves)


class Evaluator:
    """Judges tracks when they are due and keeps their alerts."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.turns = defaultdict[str, Turns](Turns)
        """By source: one with many that grow delays nobody of another."""

    def due(self, tracks: list[Track], now_s: float) -> list[Track]:
        """Return those of these tracks that deserve a look now; must cost next to nothing."""
        fast_s = alerts.FAST_S
        early = [t for t in tracks if now_s >= t.due_s - t.pause_s + fast_s or now_s >= t.due_s]
        newest = [track.evidence.last for track in early]
        # The same data once more would confirm nothing. What was quiet and passes everything seen
        # so far is looked at sooner than the usual pace says.
        return [
            track
            for track, point in zip(early, newest, strict=True)
            if point is not None
            and point[0] > track.judged_s
            and (now_s >= track.due_s or point[1] > track.peak + _STIR_BYTES)
            and (
                now_s >= track.due_s or (track.finding is not None and track.finding.tier == "none")
            )
        ]

    def due_of(self, source: str, now_s: float) -> list[Track]:
        """Return the tracks of a source's devices that are due for a judgement now."""
        tracks: list[Track] = []
        for device in self.state.devices.values():
            if device.source != source:
                continue
            processes = device.processes.values()
            others = further_tracks(device)
            if device.still:
                # What stands still cannot have passed what it was before.
                tracks += [track for track in processes if now_s >= track.due_s]
                tracks += [t for t in others if t.subject.host or now_s >= t.due_s]
            else:
                tracks += [*processes, *others]
        return self.due(tracks, now_s)

    def in_turns(self, source: str, now_s: float) -> list[Track]:
        """Return those who are judged in this tick: not all that are due, where many grow."""
        turns, tracks = self.turns[source], self.state.tracks
        # Memory of the host is offered only when it was read, but waits for its turn like others.
        waiting = [track for track in turns.waiting if tracks.get(track.subject.id) is track]
        chosen = dict.fromkeys([*self.due_of(source, now_s), *self.due(waiting, now_s)])
        unmoved = [track for track in chosen if self._unmoved(track)]
        moved = [track for track in chosen if not self._unmoved(track)]
        own = [thresholds(track, self.state.settings) for track in moved]
        return unmoved + turns.take(moved, own, now_s)

    def judge(self, tracks: Iterable[Track], now_s: float) -> list[Alert]:
        """Judge these tracks; return the alerts whose state changed, one for each growth."""
        return _replace_superseded(self.state, self.judge_each(tracks, now_s), now_s)

    def judge_each(self, tracks: Iterable[Track], now_s: float) -> list[Alert]:
        """Judge each of these tracks by itself; return the alerts whose state changed."""
        changed: list[Alert] = []
        moved: list[Track] = []
        for track in tracks:
            if self._unmoved(track):
                track.due_s = now_s + alerts.SLOW_S
            elif track.evidence.last is not None:
                flat = self._settled(track)
                if flat is None:
                    moved.append(track)
                else:
                    changed += self._judged(track, None, flat, now_s)
        # In small batches: windows are copied for the detectors, and eight hours of eighty
        # subjects at once would be the largest thing in this process.
        for start in range(0, len(moved), _BATCH):
            changed += self._judge_batch(moved[start : start + _BATCH], now_s)
        return changed

    def _settled(self, track: Track) -> Finding | None:
        """Return what is said of a flat subject; None: the detectors are asked, as on a fault."""
        try:
            return settled_finding(track, thresholds(track, self.state.settings))
        except Exception:
            # Whatever is odd about one subject, the others are judged; so is it, by the detectors.
            log.exception("failed part=detectors subject=%s", track.subject.id)
            return None

    @staticmethod
    def _unmoved(track: Track) -> bool:
        """Say whether a track was stable at its last judgement and has not moved since."""
        finding = track.finding
        return (
            finding is not None
            and finding.pattern == "stable"
            and track.alert is None
            and track.moves == _moves(track)
        )

    def _judge_batch(self, chosen: list[Track], now_s: float) -> list[Alert]:
        batch = [track.series() for track in chosen]
        changed: list[Alert] = []
        for track, series, judged in zip(chosen, batch, self._judgements(batch), strict=True):
            changed += self._judged(track, series, judged, now_s)
        return changed

    def _judged(
        self, track: Track, series: Series | None, judged: Finding | None, now_s: float
    ) -> list[Alert]:
        """Take over a judgement; return the alerts that it changed. None: it cannot be judged."""
        newest = track.evidence.last
        track.judged_s = now_s if newest is None else newest[0]
        if judged is None or newest is None:
            track.due_s = now_s + alerts.SLOW_S
            return []
        track.moves = _moves(track)
        track.peak = _highest(track.evidence) if series is None else float(series.used_bytes.max())
        level = newest[1] if series is None else float(series.used_bytes[-1])
        finding = judged
        if track.run_baseline.days is not None:
            finding = _cap_graphics(track.over_days(track.run_baseline.days, judged))
        if track.subject.unattributed:
            finding = attribution.above_baseline(finding, level, track.baseline_bytes)
        elif track.subject.host:
            finding = with_host_reason(finding)
        elif track.subject.process is None and finding.tier != "none":
            series = series or track.series()
            finding = unless_explained(track, series, finding, self.state.tracks.values())
        if track.suppression is not None:
            finding = track.suppressed(finding)
        finding = _cap_by_rules(finding, track, level, self.state.settings.rules)
        change = self._apply(track, finding, now_s)
        changed = self.state.tracks.take_passed_on() if self.state.tracks.passed_on else []
        self._schedule(track, finding, now_s)
        return changed if change is None else [*changed, change]

    def _judgements(self, batch: list[Series]) -> list[Finding | None]:
        """Return the judgements; None for a series that cannot be judged, which costs no other."""
        try:
            findings = self._findings(batch)
        except Exception as error:
            if len(batch) > 1:
                return [finding for series in batch for finding in self._judgements([series])]
            subject = batch[0].subject.id
            if subject not in self.state.tracks.unjudged:
                log.exception("failed part=detectors subject=%s", subject)
            self.state.tracks.unjudged[subject] = f"{subject} could not be evaluated: {error!r}"
            return [None]
        unjudged = self.state.tracks.unjudged
        if unjudged:
            for series in batch:
                unjudged.pop(series.subject.id, None)
        return findings

    def _findings(self, batch: list[Series]) -> list[Finding | None]:
        # numpy and the detectors are loaded when something is judged for the first time.
        from gpuwatchd.analysis import screen, verdict  # noqa: PLC0415

        settings, by = self.state.settings, [self.state.settings.config.detection] * len(batch)
        if settings.overrides:
            by = [thresholds(self.state.tracks[series.subject.id], settings) for series in batch]
            patterns = [screen.first_look([it], own)[0] for it, own in zip(batch, by, strict=True)]
        else:
            patterns = screen.first_look(batch, settings.config.detection)
        return [
            flat_finding(
                series.subject,
                pattern,
                at_s=float(series.t_s[-1]) if series.t_s.size else 0.0,
                samples=int(series.t_s.size),
                framework=series.framework,
                limit_bytes=series.limit_bytes,
            )
            if pattern is not None and series.allocator is None
            else _cap_graphics(verdict.judge(series, own))
            for series, pattern, own in zip(batch, patterns, by, strict=True)
        ]

    def _schedule(self, track: Track, finding: Finding, now_s: float) -> None:
        alert = track.alert if track.lead is None else track.lead.alert
        quiet = finding.tier == "none" and alert is None
        calm = quiet and finding.pattern in _CALM
        track.calm_looks = track.calm_looks + 1 if calm else 0
        young = finding.samples < 2 * self.state.settings.config.detection.minimum_samples
        track.pause_s = alerts.pause_s(finding, alert, young=young, calm_looks=track.calm_looks)
        whole = track.subject.process is None and not track.subject.unattributed
        if whole and quiet and track.headroom.owners_known(now_s):
            # Its parts are judged; it is looked at sooner when it passes what was seen of it.
            longer = min(1 + track.calm_looks // 3, _JOINT_LONGER)
            track.pause_s = max(track.pause_s, _JOINT_PAUSE_S * longer)
        track.due_s = now_s + track.pause_s

    def _rules(self, track: Track) -> alerts.Rules:
        settings = self.state.settings
        if not settings.overrides:
            return settings.rules
        least = thresholds(track, settings).confidence_threshold
        return msgspec.structs.replace(settings.rules, alert_confidence=least)

    def _apply(self, track: Track, finding: Finding, now_s: float) -> Alert | None:
        was, led = track.lead, track.leads
        finding = self.state.tracks.ranks.for_job(track, finding)
        if was is not None and self.state.tracks.ranks.takes_over(track, finding, was):
            self._take_over_alert(track, was, now_s)
        before = track.alert
        if before is not None and track.finding is None:
            before = carried_over(before, finding, now_s)
        if before is not None and finding.tier != "none" and not finding.blame and not led:
            # Asked for when the alert opened; it stays until its state changes.
            finding = with_blame(finding, before.finding.blame)
        outcome = alerts.evaluate(
            finding,
            before,
            self._rules(track),
            now_s=now_s,
            title=str(track.named),
        )
        if before is None and outcome.alert is not None:
            opened = msgspec.structs.replace(outcome.alert, title_parts=track.named.parts)
            outcome = msgspec.structs.replace(outcome, alert=opened)
        track.take(finding)
        self.state.tracks.evaluations += 1
        if track.lead is not None:
            if before is None or before.state == "pending":
                track.alert = suppress_for_lead(outcome.alert, track.lead)
                return None
            if track.lead.alert is not None:
                track.lead.alert = alerts.inherited(track.lead.alert, before)
            job: Facts = {"job": str(track.lead.leads)}
            return self.state.end(track, Ending.PART_OF_JOB, now_s, quietly=True, facts=job)
        if outcome.alert is not None and track.job is not None:
            alert = unsuppress(outcome.alert)
            if led != track.leads:
                alert = msgspec.structs.replace(alert, **track.named.fields)
            outcome = msgspec.structs.replace(outcome, alert=alert)
        return self.state.settle(track, outcome)

    def _take_over_alert(self, track: Track, was: Track, now_s: float) -> None:
        """Have a rank that still leaks go on with the alert of its lead that leaks no more."""
        leads = track.leads
        alert = self.state.tracks.ranks.pass_on(was, track, Ending.OTHER_RANK)
        ended = self.state.end(was, Ending.OTHER_RANK, now_s, quietly=True)
        track.leads = leads
        track.alert = msgspec.structs.replace(alert, **track.named.fields)
        self.state.tracks.passed_on += [track.alert] if ended is None else [ended, track.alert]


def carried_over(alert: Alert, finding: Finding, now_s: float) -> Alert:
    """Return the alert of an earlier run, at the first judgement of its subject in this one.

    After a pause its evidence counts for the growth that began before the pause, not for another.
    """
    last_s, onset_s = alert.finding.judged_at_s, finding.onset_at_s
    same = onset_s is not None and onset_s <= last_s
    if same or now_s - last_s <= 2.0 * alerts.SLOW_S or alert.state == "firing":
        return alert
    return msgspec.structs.replace(
        alert,
        confirmations=0,
        held_since_s=None,
        alert_confirmations=0,
        alert_since_s=None,
        evidence=None,
    )


def judge_days(
    track: Track,
    settings: Settings,
    hours: Sequence[tuple[float, float, float]] | FloatArray,
    now_s: float,
) -> None:
    """Judge the record of a subject, hour by hour, for when its last hours say less."""
    baseline = track.run_baseline
    baseline.days_s, baseline.days_moves = now_s, track.window.moves
    lows, days = [low for _, low, _ in hours], None
    detection = thresholds(track, settings)
    if max(lows, default=0.0) - min(lows, default=0.0) >= detection.least_growth_bytes(None):
        from gpuwatchd.analysis import verdict  # noqa: PLC0415 - 400 ms with numpy

        days = verdict.judge_days(track.series(), hours, detection)
    baseline.days = days


# Who an alert is about may change while the memory grows: the device, or one who holds it.
# While its processes are known they are judged, what none of them owns, and all of it together
# without what came and went with processes: many may grow by little each, or hand memory to one
# another, so that none is plain. The whole speaks only where its parts do not explain its growth.
# While they are not known it is judged alone, even where the kernel keeps pages of processes that
# have ended: there is nothing better then. An alert of the one kind that fires takes over from one
# of the other kind: people are told once about one growth, and nothing stays open that nobody
# judges any more.

_STILL = frozenset({"stable", "unknown"})
KEPT = "the kernel keeps pages of ended processes: monitored per process instead"


def further_tracks(device: TrackedDevice) -> list[Track]:
    """Return the tracks to be judged at present beside those of processes on the device."""
    tracks = list(device.host_tracks.values()) if device.host_read_s == device.taken_s else []
    owned = device.judged_by_process
    if owned and device.device.memory_kind == "coherent":
        return tracks  # Pages stay taken after a process has ended: its series is no evidence.
    for track in device.own_tracks:
        # An alert on the whole device that people were told of is followed to its end.
        firing = track.alert is not None and track.alert.state == "firing"
        if track.subject.unattributed:
            judged = owned
        elif owned:
            judged = firing or _has_parts(device)
        else:
            judged = firing or not _is_explained(device)
        if judged:
            tracks.append(track)
    return tracks


def _has_parts(device: TrackedDevice) -> bool:
    """Say whether the device is more than one process that is judged by itself."""
    rest = device.own_tracks[1].finding if len(device.own_tracks) > 1 else None
    return len(device.processes) > 1 or (rest is not None and rest.pattern not in _STILL)


def _is_explained(device: TrackedDevice) -> bool:
    """Say whether one of a list that lacks some has a firing alert: the device would repeat it."""
    reading = device.reading
    lacks = reading is not None and reading.uses is not None and reading.uses_reason is not None
    return lacks and any(
        track.alert is not None and track.alert.state == "firing"
        for track in device.processes.values()
    )


def drop_whole(state: State, device: TrackedDevice, now_s: float) -> list[Alert]:
    """End what was only suspected of the whole device, once its processes are known."""
    before, by_process = device.judged_by_process, device.headroom.owners_known(now_s)
    device.judged_by_process = by_process
    if device.own_tracks and device.arrivals is not None:
        for position, ring in device.arrivals.rings.items():
            track = device.own_tracks[position]
            track.evidence = ring if by_process else track.window
    if device.device.memory_kind == "coherent" and by_process:
        return _mark_unjudged(state, device, now_s)
    if not device.own_tracks or not ((by_process and not before) or _is_explained(device)):
        return []
    alert = device.own_tracks[0].alert
    if alert is None or alert.state == "firing":
        return []
    ended = state.end(device.own_tracks[0], Ending.HOLDER_KNOWN, now_s, quietly=True)
    return [] if ended is None else [ended]


def _mark_unjudged(state: State, device: TrackedDevice, now_s: float) -> list[Alert]:
    """Say of a device whose pages the kernel keeps why it is not judged as a whole."""
    ended = []
    for track in device.own_tracks:
        if track.finding is None or track.finding.code is not Reason.PAGES_KEPT:
            track.take(unjudged_finding(track.subject, KEPT, Reason.PAGES_KEPT, now_s))
            state.tracks.evaluations += 1
        alert = state.end(track, Ending.PAGES_KEPT, now_s, quietly=True)
        if alert is not None:
            ended.append(alert)
    return ended


def _replace_superseded(state: State, changes: Iterable[Alert], now_s: float) -> list[Alert]:
    """Return the changes, with alerts that have just fired in the place of those they replace."""
    out: list[Alert] = []
    for alert in changes:
        track = state.tracks.get(alert.subject.id)
        device = state.devices.get(alert.subject.device_uid)
        # What a process holds on the host is another memory: it stands for nothing of the device.
        fired = alert.state == "firing" and alert.firing_at_s == now_s and not alert.subject.host
        if fired and track is not None and track.alert is None:
            continue  # taken over in this very tick
        if not fired or track is None or track.alert is None or not (device and device.own_tracks):
            out.append(alert)
            continue
        whole = track is device.own_tracks[0]
        if device.headroom.owners_known(now_s) and (whole or not _parts_explain(device)):
            out.append(alert)  # What the parts do not explain is another growth.
            continue
        why = Ending.HOLDER_UNKNOWN if whole else Ending.HOLDER_KNOWN
        for rival in (
            [*device.processes.values(), *device.own_tracks[1:]] if whole else device.own_tracks[:1]
        ):
            before = rival.alert
            if before is None or (whole and before.state != "firing"):
                continue
            ended = state.end(rival, why, now_s, quietly=True)
            if ended is not None:
                out.append(ended)
            track.alert = alerts.inherited(track.alert, before)
        out.append(track.alert)
    return out


def _parts_explain(device: TrackedDevice) -> bool:
    """Say whether the parts of a device that grow explain the alert on the whole."""
    alert = device.own_tracks[0].alert
    share = sum(device.headroom.growing.values())
    rate = None if alert is None else alert.finding.rate_bytes_per_s
    return share >= attribution.EXPLAINED_SHARE * (rate or 0.0)


# Whose growth explains the device's: asked when an alert opens, not at every look.


def _with_attribution(alert: Alert, device: TrackedDevice, state: State) -> Alert:
    """Return the alert with the shares of those who grew since its onset; its track has it, too."""
    finding = alert.finding
    if alert.state not in {"watch", "firing"} or finding.onset_at_s is None:
        return alert
    track = state.tracks.get(alert.subject.id)
    if not device.own_tracks or alert.subject.host or (track is not None and track.leads):
        return alert
    kind, ledger = device.device.memory_kind, device.ledger
    fresh = device.uses is not None and device.uses_s == device.taken_s
    # The whole beside its parts is told of without those who came since.
    joint = track is device.own_tracks[0] and device.judged_by_process
    processes = {key: track.series() for key, track in device.processes.items()} if fresh else {}
    if joint:
        processes = {k: s for k, s in processes.items() if s.t_s[0] <= finding.onset_at_s}
    shares = attribution.share(
        None if kind == "coherent" else device.own_tracks[0].series(raw=not joint),
        # What was last known of a list that cannot be read now says nothing of the growth since.
        processes,
        since_s=finding.onset_at_s,
        names={
            key: info.attribution
            for key in device.processes
            if (info := state.infos.get(key)) is not None
        },
        complete=fresh and kind == "dedicated" and ledger is not None and ledger.state == "whole",
    )
    alert = msgspec.structs.replace(alert, finding=with_blame(finding, shares))
    if track is not None and track.alert is not None and track.alert.key == alert.key:
        track.alert = alert
    return alert


def with_causes(alert: Alert, state: State) -> Alert:
    """Return an alert that has changed with who caused it, and with what broke meanwhile."""
    device = state.devices.get(alert.subject.device_uid)
    if device is None:
        return alert
    alert = _with_attribution(alert, device, state)
    return state.events.with_hardware_advice(alert, device.device, state.tracks)
