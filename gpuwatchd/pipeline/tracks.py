"""Who is watched: the tracks of all devices, who their processes are, and whose turn it is."""

from __future__ import annotations

import math
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts import wording
from gpuwatchd.analysis import frameworks
from gpuwatchd.analysis.attribution import ledger
from gpuwatchd.core.codes import DIED, Ending, Hold, Reason
from gpuwatchd.core.model import Finding, Pattern
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.core.model.findings import (
    LOADED_S,
    STARTED_S,
    Clause,
    collecting,
    dismissed_finding,
    reason_fields,
    with_reason,
)
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Alert, ProcessInfo, ProcessKey, Subject
    from gpuwatchd.pipeline.track import EndedProcess, JobKey, Track

_MOST_ENDED = 256


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

    def for_job(self, track: Track, finding: Finding) -> Finding:
        """Return a judgement as that of a job, where it is one; set ``lead`` and ``leads``."""
        track.lead, track.leads = None, Title()
        members = self._jobs.get(track.job) if track.job is not None else None
        if members is None or len(members) < 2 or not ledger.leaks(finding):
            return finding
        own = _rank(track, finding)
        others = [_rank(member, None) for member in members.values() if member is not track]
        for member in members.values():
            if (
                member.suppression is not None
                and member.suppression.job
                and track.peak <= member.suppression.level_bytes
            ):
                # What the user said of the alert was meant for all that it stood for.
                return dismissed_finding(finding, member.suppression.why, Reason.NORMAL)
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
    def takes_over(track: Track, finding: Finding, was: Track) -> bool:
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
        heir.lead_ending = why if why in DIED else track.lead_ending
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
    return msgspec.structs.replace(alert, **wording.NOT_HELD)


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


class ProcessInfos(dict["ProcessKey", "ProcessInfo"]):
    """Who everybody is; counts its changes, so that nobody need compare.

    One who is the same as before stays the same object.
    """

    changes = 0

    def __setitem__(self, key: ProcessKey, info: ProcessInfo) -> None:
        before = self.get(key)
        if before is not info and before != info:
            self.changes += 1
            super().__setitem__(key, info)

    def __delitem__(self, key: ProcessKey) -> None:
        self.changes += 1
        super().__delitem__(key)

    def setdefault(self, key: ProcessKey, default: ProcessInfo) -> ProcessInfo:
        """Return who this is; ``default`` from now on where that is not known."""
        process = self.get(key)
        if process is None:
            self[key] = process = default
        return process


class Tracks(dict[str, "Track"]):
    """The tracks by subject id, and what has become of those that have gone."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks = Ranks()
        self.passed_on: list[Alert] = []
        """Alerts that went on with another rank of their job, until somebody takes them."""
        self.evaluations = 0
        """Judgements ever made, and subjects forgotten: ``findings`` is cached by it."""
        self.unjudged: dict[str, str] = {}
        """Subject id -> why its last judgement failed."""
        self.died: dict[str, Track] = {}
        """Key of an alert -> what ran out of memory last: its curve goes with the message."""
        self.ended: deque[EndedProcess] = deque(maxlen=_MOST_ENDED)
        """Who has ended and has not been learned from."""
        self.created = 0
        """Tracks ever made."""
        self.limited: dict[str, Track] = {}
        """Subject id -> those that run out by something else than their device first."""
        self.renamed = False
        """Whether what a process runs has become known since."""
        self._findings: tuple[int, dict[str, Finding]] = (-1, {})

    def findings(self) -> dict[str, Finding]:
        """Return every newest judgement; the same dictionary until there is a newer one."""
        evaluations, findings = self._findings
        if evaluations != self.evaluations:
            findings = {key: it.finding for key, it in self.items() if it.finding is not None}
            self._findings = (self.evaluations, findings)
        return findings

    def take_passed_on(self) -> list[Alert]:
        """Return the alerts that went on with another rank, once."""
        passed_on, self.passed_on = self.passed_on, []
        return passed_on


# Most subjects are flat for as long as they live: they are settled by what their ring knows of
# itself, without the detectors and without numpy, which takes 13 MiB.

_FLAT_REASON: dict[Pattern, Clause] = {
    "stable": Clause(about="memory ", text="is flat", verb=True),
    "unknown": Clause(text="too little data for a verdict"),
}
_COUNTED_POINTS, _NO_GAP_S = 256, 60.0
"""Of so many points the pauses are looked at one by one; one of a minute is never a gap."""


def flat_finding(
    subject: Subject,
    pattern: Pattern,
    *,
    at_s: float,
    samples: int,
    framework: str | None,
    limit_bytes: float | None,
) -> Finding:
    """Return the finding of a subject that is settled without the detectors."""
    return Finding(
        id=subject.id,
        subject=subject,
        judged_at_s=at_s,
        pattern=pattern,
        tier="none",
        severity="info",
        confidence=0.0,
        rate_bytes_per_s=None if pattern == "unknown" else 0.0,
        eta=None,
        **reason_fields(_FLAT_REASON[pattern]),
        framework=framework,
        limit_bytes=limit_bytes,
        samples=samples,
    )


def unjudged_finding(subject: Subject, why: str, code: Reason, now_s: float) -> Finding:
    """Return the finding of a subject that is not judged."""
    return msgspec.structs.replace(
        flat_finding(subject, "unknown", at_s=now_s, samples=0, framework=None, limit_bytes=None),
        **reason_fields(why, code=code),
    )


def _is_flat(track: Track, newest_bytes: float, settings: DetectionSection) -> bool:
    """Say whether a subject has surely not grown by what makes a candidate; next to no cost."""
    ring = track.evidence
    if not isinstance(ring, Ring) or track.allocator is not None:
        return False
    limit_bytes, total_bytes, _ = track.limits(newest_bytes)
    low, high = ring.bounds
    # Figures that left the newest cell are kept in single precision.
    return high - low + 2.0**-22 * high < settings.least_growth_bytes(total_bytes or limit_bytes)


def settled_finding(track: Track, settings: DetectionSection) -> Finding | None:
    """Return what the detectors would say of a flat subject; None where they must be asked.

    The same as the first look at its series, and before that what the verdict says of it.
    """
    ring, newest = track.evidence, track.evidence.last
    if newest is None or not isinstance(ring, Ring) or not _is_flat(track, newest[1], settings):
        return None
    limit_bytes, total_bytes, _ = track.limits(newest[1])
    scale = total_bytes or limit_bytes
    if scale and newest[1] >= frameworks.POOL_SHARE * scale:
        return None  # It may be a pool, which has a name of its own.
    process = track.subject.process
    begun_s = None if process is None else process.started_at_s
    if begun_s is not None:
        begin_s, end_s = begun_s + LOADED_S, begun_s + STARTED_S
        track.base_at(max(0.0, newest[0] - begun_s), lambda: ring.lowest(begin_s, end_s))
    (samples, span_s), least_s = ring.extent(), float(settings.minimum_duration)
    enough = samples >= settings.minimum_samples and span_s >= least_s
    finding = flat_finding(
        track.subject,
        "stable" if enough else "unknown",
        at_s=newest[0],
        samples=samples,
        framework=track.judged_framework,
        limit_bytes=limit_bytes,
    )
    if enough:
        return finding
    if samples > _COUNTED_POINTS or ring.has_gap(_NO_GAP_S):
        return None
    missing = collecting(samples, settings.minimum_samples, span_s, least_s)
    reason = reason_fields(missing, code=Reason.COLLECTING)
    return msgspec.structs.replace(finding, **reason)


# A judgement of what grows takes a millisecond: where many grow at once they take turns.

JUDGED_PER_S: Final = 1.5
"""Judgements a second of what grows, for as long as it takes: seven in a tick of five seconds."""
_SOON_S, _SOON_PER_S, _MOST_PER_S = 3600.0, 1.0 / 30.0, 5.0
"""For each that has less time left than this, and nobody knows, so many more, up to so many."""
SAVED: Final = 400.0
"""Judgements that were not needed are kept, up to so many, for a crowd that begins at once."""
MOST: Final = 32.0
"""At most so many of these in one tick."""
FEW: Final = 5.0
"""So many that are due at once are all judged; of more, those whose pace among many has come."""
_LONGEST_TICK_S = 600.0
_CALM_COST, _FLAT_COST = 1.0 / 2.0, 1.0 / 16.0
"""What moves without growing takes half the time, what is flat next to none."""
_CALM_SHARE = 1.0 / 3.0
"""For one judgement of what grows, so much time for the others that wait."""
_NOTIFIED_S = 120.0
"""What people know is looked at so often."""
_NEAR, _NEARER = 60.0, 600.0
"""What they do not know, so many times before memory is full; the second of a leak suspected."""
_FAR_S, _FAR_LEFT_S = 480.0, 4 * 3600.0
"""What has more time left, and is no leak so far or one that people know: at least so often."""


class Turns:
    """Says who of those that are due is judged now: no tick takes long, and nobody waits for good.

    Whom there is no time for stays due. What grows, or may, goes first; of these, and of the
    others, the one that has waited longest for its pace. What grows alone never waits.
    """

    def __init__(self) -> None:
        self._saved = SAVED
        self._owed = 0.0
        """Judgements (see ``_cost``) due to those that do not grow before the next that does."""
        self._at_s: float | None = None
        self.waiting: list[Track] = []
        """Whose memory on the host was due, and had no time."""

    def move(self, by_s: float) -> None:
        """Follow a step of the wall clock: no time has passed in which anybody was not judged."""
        self._at_s = None if self._at_s is None else self._at_s + by_s

    def take(
        self, due: list[Track], settings: Iterable[DetectionSection], now_s: float
    ) -> list[Track]:
        """Return those who are judged now, in the order of ``due``; ``now_s``: epoch seconds.

        ``settings``: by which each of them is judged.
        """
        passed_s = 0.0 if self._at_s is None else min(max(now_s - self._at_s, 0.0), _LONGEST_TICK_S)
        left = [_left_s(track) for track in due]
        waits = [
            (_stretch(track, now_s, left_s), track, *_cost(track, own))
            for track, left_s, own in zip(due, left, settings, strict=True)
        ]
        soon = sum(
            [
                grows and left_s < _SOON_S and not _is_told(track)
                for (_, track, _, grows), left_s in zip(waits, left, strict=True)
            ]
        )
        per_s = min(JUDGED_PER_S + _SOON_PER_S * soon, _MOST_PER_S)
        self._at_s, gained = now_s, per_s * passed_s
        self._saved = min(self._saved + gained, SAVED)
        whole = sum([cost for _, _, cost, _ in waits])
        if whole <= min(self._saved, FEW):
            self._saved -= whole
            self.waiting = []
            return due
        waits.sort(key=itemgetter(0))
        growing = [(wait, cost, track) for wait, track, cost, grows in waits if grows]
        if len(growing) > FEW:
            growing = [one for one in growing if one[0] >= 1.0]
        calm = [(wait, cost, track) for wait, track, cost, grows in waits if not grows]
        chosen = self._choose(growing, calm, max(gained, FEW))
        self.waiting = [track for track in due if track.subject.host and id(track) not in chosen]
        return [track for track in due if id(track) in chosen]

    def _choose(
        self,
        growing: list[tuple[float, float, Track]],
        calm: list[tuple[float, float, Track]],
        usual: float,
    ) -> set[int]:
        """Return the ids of those who are judged; of both, the most urgent are the last.

        For the ``calm`` nothing was saved: they are judged within the ``usual`` time of a tick.
        """
        chosen: set[int] = set()
        spent, most = 0.0, min(self._saved, max(MOST, usual))
        while growing or calm:
            fits = bool(calm) and spent + calm[-1][1] <= usual
            is_calm = fits and (not growing or self._owed >= calm[-1][1])
            queue = calm if is_calm else growing
            if not queue or spent + queue[-1][1] > most:
                break
            _, cost, track = queue.pop()
            chosen.add(id(track))
            spent += cost
            owed = self._owed - cost if is_calm else self._owed + _CALM_SHARE * cost
            self._owed = min(max(owed, 0.0), 1.0)
        self._saved -= spent
        return chosen


def _cost(track: Track, settings: DetectionSection) -> tuple[float, bool]:
    """Return what a judgement counts, of that of one that grows, and whether it does.

    It does as far as is known, or where it has passed all that was seen of it.
    """
    if track.alert is not None or (track.finding is not None and track.finding.tier != "none"):
        return 1.0, True
    newest = track.evidence.last
    if newest is None:
        return _CALM_COST, False
    if _is_flat(track, newest[1], settings):
        return _FLAT_COST, False
    return (1.0, True) if newest[1] > track.peak else (_CALM_COST, False)


def _is_told(track: Track) -> bool:
    alert = track.alert if track.lead is None else track.lead.alert
    return alert is not None and alert.state == "firing"


def _stretch(track: Track, now_s: float, left_s: float) -> float:
    """Return for how many times its pace a subject has waited, the pace where many grow.

    The nearer its limit, the sooner it is looked at; what can still be told, and all the more who
    is about to be, comes before what people know, and before a device whose processes are judged.
    """
    waited_s, usual_s = now_s - track.judged_s, max(track.pause_s, alerts.FAST_S)
    is_far = _FAR_LEFT_S <= left_s < math.inf and usual_s >= alerts.SLOW_S
    far_s = min(left_s / _NEAR, _FAR_S) if is_far else 0.0
    if _is_told(track):
        return waited_s / max(usual_s, _NOTIFIED_S, far_s)
    alert = track.alert if track.lead is None else track.lead.alert
    most_s = _NOTIFIED_S if alert is not None else min(usual_s, _NOTIFIED_S)
    if alert is None and track.evidence is not track.window:
        return waited_s / most_s
    if alert is None or (alert.state == "watch" and not alert.alert_confirmations):
        return waited_s / (far_s or max(min(left_s / _NEAR, most_s), alerts.FAST_S))
    pace_s = min(left_s / _NEARER, most_s) * (2.0 if is_far else 1.0)
    stretch = waited_s / max(pace_s, alerts.FAST_S)
    if stretch < 1.0:
        return stretch
    # How often it was confirmed says who goes first of those whose pace has come.
    return stretch * (1.0 + max(alert.alert_confirmations, alert.confirmations) / 3.0)


def _left_s(track: Track) -> float:
    """Return the seconds until memory is full, as judged last, or as all has risen since.

    The latter where nothing was judged, and where that was hours: much may have happened since.
    """
    finding, newest = track.finding, track.evidence.last
    eta_s = math.inf if finding is None or finding.eta is None else finding.eta.mid_s
    if newest is None or eta_s < _FAR_LEFT_S:
        return eta_s
    limit_bytes, _, among = track.limits(newest[1])
    rate = max(newest[1] - track.peak, 0.0) / max(newest[0] - track.judged_s, 1.0)
    # What others of the device take is not taken from a limit of its own.
    fall = track.headroom.fall_bytes_per_s if among is None else 0.0
    rate = max(rate + sum(track.headroom.others(track.subject, among)), fall)
    return min(eta_s, (limit_bytes - newest[1]) / rate) if limit_bytes and rate > 0.0 else eta_s
