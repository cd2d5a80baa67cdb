"""Judge each subject that is due: its window, the screen, the detectors, its open alert.

The same :class:`Watcher` judges live samples and recorded logs; only where the window comes from
differs. It does no I/O and has no clock: time is that of the samples.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts import wording
from gpuwatchd.analysis import attribution, frameworks
from gpuwatchd.core.codes import Ending, Hold, Reason
from gpuwatchd.core.model import Alert, AlertSubject, Finding, Pattern, Series, Severity
from gpuwatchd.core.model.findings import (
    Clause,
    reason_fields,
    with_blame,
    with_reason,
)
from gpuwatchd.pipeline.clock import carried_over
from gpuwatchd.pipeline.track import Track, of_host, unjudged, unless_explained
from gpuwatchd.pipeline.tracks import suppress_for_lead, unsuppress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.model import Device, ProcessInfo
    from gpuwatchd.pipeline.state import Settings, State
    from gpuwatchd.pipeline.track import TrackedDevice

# Whom a judgement is about, and what the rules of its user say of it before anything opens.


def subject_facts(
    device: Device | None, info: ProcessInfo | None, finding: Finding
) -> AlertSubject:
    """Return whom a judgement is about, in the words that rules are written in."""
    gpu = ""
    if device is not None and device.index is not None:
        parent = device.parent_index
        gpu = f"{parent}:{device.index}" if device.parent_uid and parent is not None else ""
        gpu = gpu or str(device.index)
    process = finding.subject.process
    known = AlertSubject(
        gpu=gpu,
        card_uid="" if device is None else device.parent_uid or "",
        gpu_name="" if device is None else device.name,
        pid=None if process is None else process.pid,
        framework=finding.framework or "",
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


def expected(
    finding: Finding,
    rules: alerts.Rules,
    device: Device,
    info: ProcessInfo | None,
    level_bytes: float,
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
        about=subject_facts(device, info, finding),
    )
    rule = alerts.may_grow(as_alert, alerts.rules_for(as_alert, rules), level_bytes)
    if rule is None:
        return finding
    why = wording.hold(Hold.MAY_GROW, rule)
    return msgspec.structs.replace(with_reason(finding, why, Reason.NORMAL), tier="watch")


log = logging.getLogger("gpuwatchd")

_BATCH = 8
_JOINT_PAUSE_S, _JOINT_LONGER = 300.0, 3
_STIR_BYTES = 8 * 1024**2
_CALM: frozenset[Pattern] = frozenset({"stable", "plateau", "preallocated", "sawtooth"})
_FLAT_REASON: dict[Pattern, Clause | str] = {
    "stable": Clause(about="memory ", text="is flat", verb=True),
    "unknown": "too little data for a verdict",
}


def flat_finding(series: Series, pattern: Pattern) -> Finding:
    """Return the finding of a series that the screen has settled without the detectors."""
    samples = int(series.t_s.size)
    return Finding(
        id=series.subject.id,
        subject=series.subject,
        judged_at_s=float(series.t_s[-1]) if samples else 0.0,
        pattern=pattern,
        tier="none",
        severity="info",
        confidence=0.0,
        rate_bytes_per_s=None if pattern == "unknown" else 0.0,
        eta=None,
        **reason_fields(_FLAT_REASON.get(pattern, f"{pattern}, no growth")),
        framework=series.framework,
        limit_bytes=series.limit_bytes,
        samples=samples,
    )


def _unless_it_draws(finding: Finding) -> Finding:
    """Return a judgement that is a watch at most where a display server or a browser grows.

    What draws grows with the windows that people open, and they need no alert to close them.
    """
    if finding.tier != "alert" or finding.framework not in frameworks.GRAPHICS:
        return finding
    severity: Severity = "info" if finding.severity == "info" else "warning"
    return msgspec.structs.replace(finding, tier="watch", severity=severity)


def _moves(track: Track) -> int:
    return track.evidence.moves + (0 if track.allocator is None else track.allocator.moves)


class Watcher:
    """Judges tracks when they are due and keeps their alerts."""

    def __init__(self, state: State) -> None:
        self.state = state

    def due(self, track: Track, now_s: float) -> bool:
        """Say whether a track deserves a look now; must cost next to nothing."""
        if now_s < track.due_s - track.pause_s + alerts.FAST_S and now_s < track.due_s:
            return False
        newest = (track.window if track.joint is None else track.joint).last
        if newest is None or newest[0] <= track.judged_s:
            # The same data once more would confirm nothing.
            return False
        if now_s >= track.due_s:
            return True
        # What was quiet passes everything seen so far: look sooner than the usual pace says.
        quiet = track.finding is not None and track.finding.tier == "none"
        return quiet and newest[1] > track.peak + _STIR_BYTES

    def due_of(self, source: str, now_s: float) -> list[Track]:
        """Return the tracks of a source's devices that are due for a judgement now."""
        due, fast_s = self.due, alerts.FAST_S
        tracks: list[Track] = []
        # The same as in due(), which would be called for every process: most are not.
        for device in self.state.devices.values():
            if device.source != source:
                continue
            processes = device.processes.values()
            others = beside(device, now_s)
            if device.still:
                # What stands still cannot have passed what it was before.
                early = [track for track in processes if now_s >= track.due_s]
                early += [t for t in others if t.subject.host or now_s >= t.due_s]
            else:
                early = [*processes, *others]
            tracks += [
                track
                for track in early
                if (now_s >= track.due_s - track.pause_s + fast_s or now_s >= track.due_s)
                and due(track, now_s)
            ]
        return tracks

    def judge(self, tracks: Iterable[Track], now_s: float) -> list[Alert]:
        """Judge these tracks; return the alerts whose state changed, one for each growth."""
        return _take_over(self.state, self.judge_each(tracks, now_s), now_s)

    def judge_each(self, tracks: Iterable[Track], now_s: float) -> list[Alert]:
        """Judge each of these tracks by itself; return the alerts whose state changed."""
        changed: list[Alert] = []
        moved: list[Track] = []
        for track in tracks:
            if self._unmoved(track):
                track.due_s = now_s + alerts.SLOW_S
            elif track.evidence.last is not None:
                moved.append(track)
        # In small batches: windows are copied for the detectors, and eight hours of eighty
        # subjects at once would be the largest thing in this process.
        for start in range(0, len(moved), _BATCH):
            changed += self._judge_batch(moved[start : start + _BATCH], now_s)
        return changed

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
            newest = track.evidence.last
            track.judged_s = newest[0] if newest is not None else now_s
            if judged is None:
                track.due_s = now_s + alerts.SLOW_S
                continue
            track.peak = float(series.used_bytes.max())
            track.moves = _moves(track)
            level = float(series.used_bytes[-1])
            finding = judged
            if track.memo.days is not None:
                finding = _unless_it_draws(track.over_days(track.memo.days, judged))
            if track.subject.unattributed:
                finding = attribution.above_baseline(finding, level, track.baseline_bytes)
            elif track.subject.host:
                finding = of_host(finding)
            elif track.subject.process is None:
                finding = unless_explained(track, series, finding, self.state.tracks.values())
            finding = track.hushed(finding)
            finding = expected(finding, self.state.settings.rules, track.device, track.info, level)
            change = self._apply(track, finding, now_s)
            changed += self.state.tracks.take_passed_on()
            self._schedule(track, finding, now_s)
            if change is not None:
                changed.append(change)
        return changed

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

        settings = self.state.settings.config.detection
        return [
            flat_finding(series, pattern)
            if pattern is not None and series.allocator is None
            else _unless_it_draws(verdict.judge(series, settings))
            for series, pattern in zip(batch, screen.first_look(batch, settings), strict=True)
        ]

    def _schedule(self, track: Track, finding: Finding, now_s: float) -> None:
        alert = track.alert if track.lead is None else track.lead.alert
        calm = finding.pattern in _CALM and finding.tier == "none" and alert is None
        track.calm_looks = track.calm_looks + 1 if calm else 0
        young = finding.samples < 2 * self.state.settings.config.detection.minimum_samples
        track.pause_s = alerts.pause_s(finding, alert, young=young, calm_looks=track.calm_looks)
        whole = track.subject.process is None and not track.subject.unattributed
        if whole and finding.tier == "none" and alert is None and track.room.is_owned(now_s):
            # Its parts are judged; it is looked at sooner when it passes what was seen of it.
            longer = min(1 + track.calm_looks // 3, _JOINT_LONGER)
            track.pause_s = max(track.pause_s, _JOINT_PAUSE_S * longer)
        track.due_s = now_s + track.pause_s

    def _apply(self, track: Track, finding: Finding, now_s: float) -> Alert | None:
        was, led = track.lead, track.leads
        finding = self.state.tracks.ranks.judged(track, finding)
        if was is not None and self.state.tracks.ranks.goes_on(track, finding, was):
            self._follow(track, was, now_s)
        before = track.alert
        if before is not None and track.finding is None:
            before = carried_over(before, finding, now_s)
        if before is not None and finding.tier != "none" and not finding.blame and not led:
            # Asked for when the alert opened; it stays until its state changes.
            finding = with_blame(finding, before.finding.blame)
        outcome = alerts.evaluate(
            finding,
            before,
            self.state.settings.rules,
            now_s=now_s,
            title=str(track.named),
        )
        if before is None and outcome.alert is not None:
            opened = msgspec.structs.replace(outcome.alert, title_parts=track.named.parts)
            outcome = msgspec.structs.replace(outcome, alert=opened)
        track.finding = finding
        self.state.tracks.looks += 1
        track.room.note(finding)
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

    def _follow(self, track: Track, was: Track, now_s: float) -> None:
        """Have a rank that still leaks go on with the alert of its lead that leaks no more."""
        leads = track.leads
        alert = self.state.tracks.ranks.pass_on(was, track, Ending.OTHER_RANK)
        ended = self.state.end(was, Ending.OTHER_RANK, now_s, quietly=True)
        track.leads = leads
        track.alert = msgspec.structs.replace(alert, **track.named.fields)
        self.state.tracks.passed_on += [track.alert] if ended is None else [ended, track.alert]


def judge_days(track: Track, settings: Settings, hours: ArrayLike, now_s: float) -> None:
    """Judge the record of a subject, hour by hour, for when its last hours say less."""
    from gpuwatchd.analysis import verdict  # noqa: PLC0415 - 400 ms with numpy

    memo = track.memo
    memo.days_s, memo.days_moves = now_s, track.window.moves
    memo.days = verdict.judge_days(track.series(), hours, settings.config.detection)


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


def beside(device: TrackedDevice, now_s: float) -> list[Track]:
    """Return the tracks to be judged at present beside those of processes on the device."""
    tracks = list(device.hosts.values()) if device.hosts_s == device.taken_s else []
    owned, explained = is_owned(device, now_s), _is_explained(device)
    if owned and device.device.memory_kind == "coherent":
        return tracks  # Pages stay taken after a process has ended: its series is no evidence.
    for track in device.others:
        # An alert on the whole device that people were told of is followed to its end.
        told = track.alert is not None and track.alert.state == "firing"
        if track.subject.unattributed:
            judged = owned
        elif owned:
            judged = told or _has_parts(device)
        else:
            judged = told or not explained
        if judged:
            tracks.append(track)
    return tracks


def _has_parts(device: TrackedDevice) -> bool:
    """Say whether the device is more than one process that is judged by itself."""
    rest = device.others[1].finding if len(device.others) > 1 else None
    return len(device.processes) > 1 or (rest is not None and rest.pattern not in _STILL)


def _is_explained(device: TrackedDevice) -> bool:
    """Say whether one of a list that lacks some is told of: the device would only be an echo."""
    reading = device.reading
    lacks = reading is not None and reading.uses is not None and reading.uses_reason is not None
    return lacks and any(
        track.alert is not None and track.alert.state == "firing"
        for track in device.processes.values()
    )


def is_owned(device: TrackedDevice, now_s: float) -> bool:
    """Say whether it is known, or was until a moment ago, who holds the device's memory."""
    return device.room.is_owned(now_s)


def drop_whole(state: State, device: TrackedDevice, now_s: float) -> list[Alert]:
    """End what was only suspected of the whole device, once its processes are known."""
    before, device.apart = device.apart, is_owned(device, now_s)
    if device.others and device.arrivals is not None:
        for position, ring in device.arrivals.rings.items():
            device.others[position].joint = ring if device.apart else None
    if device.device.memory_kind == "coherent" and device.apart:
        return _unjudged(state, device, now_s)
    if not device.others or not ((device.apart and not before) or _is_explained(device)):
        return []
    alert = device.others[0].alert
    if alert is None or alert.state == "firing":
        return []
    ended = state.end(device.others[0], Ending.HOLDER_KNOWN, now_s, quietly=True)
    return [] if ended is None else [ended]


def _unjudged(state: State, device: TrackedDevice, now_s: float) -> list[Alert]:
    """Say of a device whose pages the kernel keeps why it is not judged as a whole."""
    ended = []
    for track in device.others:
        if track.finding is None or track.finding.code is not Reason.PAGES_KEPT:
            track.finding = unjudged(track.subject, KEPT, Reason.PAGES_KEPT, now_s)
            track.room.note(track.finding)
            state.tracks.looks += 1
        alert = state.end(track, Ending.PAGES_KEPT, now_s, quietly=True)
        if alert is not None:
            ended.append(alert)
    return ended


def _take_over(state: State, changes: Iterable[Alert], now_s: float) -> list[Alert]:
    """Return the changes, with alerts that have just fired in the place of those they replace."""
    out: list[Alert] = []
    for alert in changes:
        track = state.tracks.get(alert.subject.id)
        device = state.devices.get(alert.subject.device_uid)
        # What a process holds on the host is another memory: it stands for nothing of the device.
        fired = alert.state == "firing" and alert.firing_at_s == now_s and not alert.subject.host
        if fired and track is not None and track.alert is None:
            continue  # taken over in this very tick
        if not fired or track is None or track.alert is None or device is None or not device.others:
            out.append(alert)
            continue
        whole = track is device.others[0]
        if is_owned(device, now_s) and (whole or not _stands_for(device)):
            out.append(alert)  # What the parts do not explain is another growth.
            continue
        why = Ending.HOLDER_UNKNOWN if whole else Ending.HOLDER_KNOWN
        for rival in (
            [*device.processes.values(), *device.others[1:]] if whole else device.others[:1]
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


def _stands_for(device: TrackedDevice) -> bool:
    """Say whether the parts of a device that grow explain what is told of the whole."""
    told = device.others[0].alert
    share = sum(device.room.growing.values())
    rate = None if told is None else told.finding.rate_bytes_per_s
    return share >= attribution.EXPLAINED_SHARE * (rate or 0.0)
