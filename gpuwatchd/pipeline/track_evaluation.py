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
from gpuwatchd.analysis.attribution import ledger
from gpuwatchd.core.codes import DIED, Ending, Hold, Reason
from gpuwatchd.core.model import Alert, AlertSubject, Finding, Pattern, Series, Severity
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.core.model.findings import (
    Clause,
    dismissed_finding,
    reason_fields,
    with_blame,
    with_reason,
)
from gpuwatchd.pipeline.clock import carried_over
from gpuwatchd.pipeline.track import Track, calm_reason, of_host, unless_explained

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.model import Device, ProcessInfo
    from gpuwatchd.pipeline.state import Settings
    from gpuwatchd.pipeline.track import JobKey

# Ranks of one job among the tracks: one alert stands for all that leak alike.

_OPEN = frozenset({"watch", "firing"})


class Ranks:
    """Who belongs to which job on this machine, on all of its devices."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, dict[str, Track]] = {}

    def place(self, track: Track, info: ProcessInfo) -> None:
        """Take note of who a track is."""
        track.info = info
        job = (info.team, track.subject.host) if info.team else None
        if job != track.job:
            self.leave(track)
            if job is not None:
                self._jobs.setdefault(job, {})[track.subject.id] = track
            track.job = job

    def leave(self, track: Track) -> None:
        """Forget a track."""
        if track.job is None:
            return
        members = self._jobs.get(track.job, {})
        members.pop(track.subject.id, None)
        if not members:
            self._jobs.pop(track.job, None)
        track.job = None

    def judged(self, track: Track, finding: Finding) -> Finding:
        """Return a judgement as that of a job, where it is one; set ``lead`` and ``leads``."""
        track.lead, track.leads = None, Title()
        members = self._jobs.get(track.job) if track.job is not None else None
        if members is None or len(members) < 2 or not ledger.leaks(finding):
            return finding
        own = _rank(track, finding)
        others = [_rank(member, None) for member in members.values() if member is not track]
        for member in members.values():
            if (
                member.hush is not None
                and member.hush.job
                and track.peak <= member.hush.level_bytes
            ):
                # What the user said of the alert was meant for all that it stood for.
                return dismissed_finding(finding, member.hush.why, Reason.NORMAL)
        alike = ledger.group_ranks(own, others)
        if not alike:
            text = ledger.lone_leak_text(own, others)
            return with_reason(finding, text) if text else finding
        # One for whom a rank stands that does not leak as this one does cannot speak for it.
        named = {rank.subject for rank in alike}
        chief = ledger.lead_rank(
            [
                rank
                for rank in alike
                if (lead := members.get(rank.subject, track).lead) is None
                or lead.subject.id in named
            ]
        )
        if chief.subject != own.subject:
            track.lead = members[chief.subject]
            text = f"one alert for its job: see {chief.name}"
            return with_reason(finding, text, Reason.RANK, chief.name)
        track.leads = ledger.title(alike, host=track.subject.host)
        return ledger.joined_finding(
            own, alike, len({own.process, *(other.process for other in others)})
        )

    def heir(self, track: Track) -> Track | None:
        """Return who goes on with the alert of a lead that is going; None without any."""
        alert = track.alert
        if not track.leads or track.job is None or alert is None or alert.state not in _OPEN:
            return None
        mine = track.subject.process
        led = [
            one
            for one in self._jobs.get(track.job, {}).values()
            if one.lead is track and one.subject.process != mine
        ]
        if not led:
            return None
        chief = ledger.lead_rank([_rank(one, None) for one in led])
        return next(one for one in led if one.subject.id == chief.subject)

    @staticmethod
    def goes_on(track: Track, finding: Finding, was: Track) -> bool:
        """Say whether a rank still leaks, by itself or for others, whose lead leaks no more."""
        alert = was.alert
        return (
            track.lead is None
            and ledger.leaks(finding)
            and alert is not None
            and alert.state in _OPEN
            and not was.leads
            and not ledger.leaks(was.finding)
        )

    def pass_on(self, track: Track, heir: Track, why: Ending) -> Alert:
        """Move the open alert of a lead to another rank; return it there."""
        alert = track.alert
        assert alert is not None  # noqa: S101 - asked for by heir()
        finding = alert.finding if heir.finding is None else heir.finding
        heir.alert = msgspec.structs.replace(
            alert, key=f"leak:{heir.subject.id}", subject=heir.subject, finding=finding
        )
        heir.lead, heir.leads = None, track.leads
        heir.fate = why if why in DIED else track.fate
        for one in self._jobs.get(track.job, {}).values() if track.job is not None else ():
            if one.lead is track:
                one.lead = heir
        return heir.alert


def suppress_for_lead(alert: Alert | None, lead: Track) -> Alert | None:
    """Return the alert of a rank for which another one's stands: it never opens."""
    if alert is None or alert.state == "resolved":
        return None
    return msgspec.structs.replace(
        alert,
        state="pending",
        watch_at_s=None,
        firing_at_s=None,
        next_notice_at_s=None,
        **wording.hold_fields(Hold.PART_OF_JOB, job=str(lead.leads or lead.title)),
    )


def unsuppress(alert: Alert) -> Alert:
    """Return the alert of a rank that is told of by itself, or for others: nothing holds it."""
    if alert.held_code is not Hold.PART_OF_JOB:
        return alert
    return msgspec.structs.replace(alert, **wording.hold_fields(None))


def _rank(track: Track, finding: Finding | None) -> ledger.Rank:
    assert track.info is not None  # noqa: S101 - it was placed
    alert = track.alert
    if finding is None:
        # After a restart, what its alert was last based on, until it is judged anew.
        finding = track.finding
        if finding is None and alert is not None:
            finding = alert.finding
    part = track.device.parent_uid is not None
    return ledger.Rank(
        subject=track.subject.id,
        info=track.info,
        gpu=None if part else track.device.index,
        instance=track.device.label if part else "",
        finding=finding,
        state=None if alert is None else alert.state,
        opened_at_s=0.0 if alert is None else alert.opened_at_s,
    )


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
_MOST_DEAD = 4
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

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tracks: dict[str, Track] = {}
        self.ranks = Ranks()
        self.passed_on: list[Alert] = []
        """Alerts that went on with another rank of their job, until somebody takes them."""
        self.looks = 0
        """Judgements ever made, and subjects forgotten."""
        self.unjudged: dict[str, str] = {}
        """Subject id -> why its last judgement failed."""
        self.died: dict[str, Track] = {}
        """Key of an alert -> what ran out of memory last: its curve goes with the message."""

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

    def judge(self, tracks: Iterable[Track], now_s: float) -> list[Alert]:
        """Judge these tracks; return the alerts whose state changed."""
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
                finding = unless_explained(track, series, finding, self.tracks.values())
            finding = track.hushed(finding)
            finding = expected(finding, self.settings.rules, track.device, track.info, level)
            change = self._apply(track, finding, now_s)
            changed += self.passed_on
            self.passed_on.clear()
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
            if subject not in self.unjudged:
                log.exception("failed part=detectors subject=%s", subject)
            self.unjudged[subject] = f"{subject} could not be evaluated: {error!r}"
            return [None]
        if self.unjudged:
            for series in batch:
                self.unjudged.pop(series.subject.id, None)
        return findings

    def _findings(self, batch: list[Series]) -> list[Finding | None]:
        # numpy and the detectors are loaded when something is judged for the first time.
        from gpuwatchd.analysis import screen, verdict  # noqa: PLC0415

        settings = self.settings.config.detection
        return [
            flat_finding(series, pattern)
            if pattern is not None and series.allocator is None
            else _unless_it_draws(verdict.judge(series, settings))
            for series, pattern in zip(batch, screen.first_look(batch, settings), strict=True)
        ]

    def judge_days(self, track: Track, hours: ArrayLike, now_s: float) -> None:
        """Judge the record of a subject, hour by hour, for when its last hours say less."""
        from gpuwatchd.analysis import verdict  # noqa: PLC0415 - 400 ms with numpy

        memo = track.memo
        memo.days_s, memo.days_moves = now_s, track.window.moves
        memo.days = verdict.judge_days(track.series(), hours, self.settings.config.detection)

    def forget(self, track: Track) -> None:
        """Judge a track no more: its subject has gone."""
        self.tracks.pop(track.subject.id, None)
        self.looks += 1
        self.unjudged.pop(track.subject.id, None)
        self.ranks.leave(track)

    def retire(
        self, tracks: Iterable[Track], why: Ending, now_s: float, *, quietly: bool = False
    ) -> list[Alert]:
        """Judge these tracks no more; return the alerts that this ended."""
        ended = []
        for track in tracks:
            alert = self.end(track, why, now_s, quietly=quietly)
            self.forget(track)
            if alert is not None:
                ended.append(alert)
        return ended

    def _schedule(self, track: Track, finding: Finding, now_s: float) -> None:
        alert = track.alert if track.lead is None else track.lead.alert
        calm = finding.pattern in _CALM and finding.tier == "none" and alert is None
        track.calm_looks = track.calm_looks + 1 if calm else 0
        young = finding.samples < 2 * self.settings.config.detection.minimum_samples
        track.pause_s = alerts.pause_s(finding, alert, young=young, calm_looks=track.calm_looks)
        whole = track.subject.process is None and not track.subject.unattributed
        if whole and finding.tier == "none" and alert is None and track.room.is_owned(now_s):
            # Its parts are judged; it is looked at sooner when it passes what was seen of it.
            longer = min(1 + track.calm_looks // 3, _JOINT_LONGER)
            track.pause_s = max(track.pause_s, _JOINT_PAUSE_S * longer)
        track.due_s = now_s + track.pause_s

    def _apply(self, track: Track, finding: Finding, now_s: float) -> Alert | None:
        was, led = track.lead, track.leads
        finding = self.ranks.judged(track, finding)
        if was is not None and self.ranks.goes_on(track, finding, was):
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
            self.settings.rules,
            now_s=now_s,
            title=str(track.named),
        )
        if before is None and outcome.alert is not None:
            opened = msgspec.structs.replace(outcome.alert, title_parts=track.named.parts)
            outcome = msgspec.structs.replace(outcome, alert=opened)
        track.finding = finding
        self.looks += 1
        track.room.note(finding)
        if track.lead is not None:
            if before is None or before.state == "pending":
                track.alert = suppress_for_lead(outcome.alert, track.lead)
                return None
            if track.lead.alert is not None:
                track.lead.alert = alerts.inherited(track.lead.alert, before)
            job: Facts = {"job": str(track.lead.leads)}
            return self.end(track, Ending.PART_OF_JOB, now_s, quietly=True, facts=job)
        if outcome.alert is not None and track.job is not None:
            alert = unsuppress(outcome.alert)
            if led != track.leads:
                alert = msgspec.structs.replace(alert, **track.named.fields)
            outcome = msgspec.structs.replace(outcome, alert=alert)
        return self._settle(track, outcome)

    def _follow(self, track: Track, was: Track, now_s: float) -> None:
        """Have a rank that still leaks go on with the alert of its lead that leaks no more."""
        leads = track.leads
        alert = self.ranks.pass_on(was, track, Ending.OTHER_RANK)
        ended = self.end(was, Ending.OTHER_RANK, now_s, quietly=True)
        track.leads = leads
        track.alert = msgspec.structs.replace(alert, **track.named.fields)
        self.passed_on += [track.alert] if ended is None else [ended, track.alert]

    def end(
        self,
        track: Track,
        why: Ending,
        now_s: float,
        *,
        quietly: bool = False,
        facts: Facts | None = None,
    ) -> Alert | None:
        """Resolve a track's alert because its subject has gone; return it if it was open.

        ``quietly`` tells nobody: another alert goes on in its place.
        """
        track.room.growing.pop(track.subject.id, None)
        if track.alert is None:
            return None
        heir = None if quietly else self.ranks.heir(track)
        if heir is not None:
            self.passed_on.append(self.ranks.pass_on(track, heir, why))
            why, quietly = Ending.OTHER_RANK, True
        elif track.fate is not None:
            why = track.fate
        outcome = alerts.ended(
            track.alert, why, self.settings.rules, now_s=now_s, quietly=quietly, facts=facts
        )
        return self._settle(track, outcome)

    def _settle(self, track: Track, outcome: alerts.Outcome) -> Alert | None:
        alert = outcome.alert
        track.alert = alert
        if alert is not None and alert.state == "resolved":
            track.alert, track.leads = None, Title()
            if alert.ended_code is Ending.STOPPED_GROWING:
                why = calm_reason(track, alert)
                alert = msgspec.structs.replace(alert, **wording.ending(why))
            if alert.ran_out:
                self.died = dict([*self.died.items(), (alert.key, track)][-_MOST_DEAD:])
        return alert if outcome.changed else None
