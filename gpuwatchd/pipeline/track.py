"""What is remembered between two ticks: of each subject under watch, and of each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from gpuwatchd.analysis import attribution, declared, frameworks
from gpuwatchd.core import units
from gpuwatchd.core.codes import Ending, Reason
from gpuwatchd.core.model import (
    LEAK_PATTERNS,
    Alert,
    Device,
    Finding,
    ProcessInfo,
    Profile,
    Series,
    Subject,
    Value,
    limit_of,
)
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.core.model.findings import (
    STARTED_S,
    Clause,
    base_of,
    dismissed_finding,
    reason_fields,
)
from gpuwatchd.pipeline.allocator import Allocator, ending_of
from gpuwatchd.pipeline.clock import moved_alert, moved_finding
from gpuwatchd.pipeline.device_rings import Activity, Arrivals, Feeder, RecentActivity
from gpuwatchd.store.live import KnownRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.analysis.attribution import Baseline
    from gpuwatchd.core.model import (
        DeviceReading,
        Fault,
        FloatArray,
        GrowthFact,
        Ledger,
        MemoryLimit,
        ProcessKey,
        ProcessUse,
    )

# Why something is over, as far as the facts support it.

FULL_SHARE = 0.05
"""Less than this share of a device that is free is near the limit."""
_FELL_BY = 0.1
_CALM_LOOK_S = 600.0
"""The look that first finds nothing may come so long after the crash."""


def end_reason(track: Track) -> Ending:
    """Return why the alert on a process that has gone is over."""
    if track.allocator is not None and track.info is not None:
        written = ending_of(track.info.key, track.info.uid)
        if written is not None:
            return written
    last, full_s = track.window.last, track.headroom.full_at_s
    crashed = last is not None and full_s is not None and full_s >= last[0]
    full_bytes = None if track.limit is None or last is None else track.limit.ends_at(last[1])
    held_bytes = 0.0 if last is None else last[1]
    filled = full_bytes is not None and held_bytes >= (1.0 - FULL_SHARE) * full_bytes
    full = crashed or filled or _filled_it(track)
    return Ending.ENDED_NEAR_LIMIT if full else Ending.PROCESS_ENDED


def _filled_it(track: Track) -> bool:
    """Say whether a process came near its limit between two samples, where its peak is known."""
    most, last, total = track.most_bytes, track.window.last, track.headroom.total_bytes
    finding = track.alert.finding if track.alert is not None else track.finding
    limit = None if finding is None else finding.limit_bytes
    if most is None or limit is None or total is None or (last is not None and most <= last[1]):
        return False
    return limit - most <= FULL_SHARE * total


def calm_reason(track: Track, alert: Alert) -> Ending:
    """Return why an alert is over whose subject does not grow any more."""
    last, full_s, since_s = track.window.last, track.headroom.full_at_s, alert.clear_since_s
    if last is None or full_s is None or since_s is None or full_s < since_s - _CALM_LOOK_S:
        return Ending.STOPPED_GROWING
    held = alert.finding.limit_bytes
    fell = held is not None and last[1] < (1.0 - FULL_SHARE - _FELL_BY) * held
    return Ending.FELL_NEAR_LIMIT if fell else Ending.STOPPED_GROWING


JobKey = tuple[tuple[str, int | str | None], bool]
"""``ProcessInfo.team``, and whether it is about the host's memory."""


class Window(Protocol):
    """Where a track's points come from: a ring, or a recorded series."""

    @property
    def count(self) -> int:
        """How many samples there were."""

    @property
    def moves(self) -> int:
        """How often the value has changed: what has not moved needs no second look."""

    @property
    def last(self) -> tuple[float, float] | None:
        """The newest point."""

    def window(self) -> tuple[FloatArray, FloatArray]:
        """Return times and values, (n,) each."""


GRACE_S = 300.0
"""The processes of a device count as known until they have been unknown for this long."""


_MARK_S = 300.0
"""So often free memory is marked; the last two say how fast it has become less."""


class Headroom(msgspec.Struct, kw_only=True):
    """What is left on one device, as last read."""

    total_bytes: float | None = None
    free_bytes: float | None = None
    used_bytes: float | None = None
    util_pct: float | None = None
    attributed_at_s: float | None = None
    """When every process of the device was last known with its memory."""
    full_at_s: float | None = None
    """When less than 5 % of it was last free."""
    growing: dict[str, float] = {}
    """Subject id -> bytes/s at which it is being seen to leak: all take from the same headroom."""
    activity: Activity | None = None
    """What the device did lately."""
    marks: tuple[tuple[float, float], ...] = ()
    """When its free memory was so much: now and then, of the last minutes."""
    taken_s: float = 0.0
    """When it was last read."""

    @property
    def fall_bytes_per_s(self) -> float:
        """How fast its free memory has become less in the last five to ten minutes, from 0."""
        if not self.marks or self.free_bytes is None:
            return 0.0
        at_s, free_bytes = self.marks[0]
        return max(free_bytes - self.free_bytes, 0.0) / max(self.taken_s - at_s, _MARK_S / 5.0)

    def limit(self, newest: float | None, *, whole: bool, joint: bool = False) -> float | None:
        """Return where a subject that holds ``newest`` bytes runs out; None when unknown.

        ``joint``: the whole device, less what its processes brought.
        """
        all_of_it = whole and not joint and self.used_bytes is not None
        held = self.used_bytes if all_of_it else newest
        limit = limit_of(held, self.free_bytes)
        return self.total_bytes if limit is None and whole else limit

    def take(
        self,
        now_s: float,
        total_bytes: float | None,
        free_bytes: float | None,
        used_bytes: float | None = None,
        util_pct: float | None = None,
    ) -> None:
        """Take over what was read, and remember when hardly any was left last."""
        self.total_bytes, self.free_bytes = total_bytes, free_bytes
        self.used_bytes, self.util_pct = used_bytes, util_pct
        self.taken_s = now_s
        if free_bytes is not None and (not self.marks or now_s - self.marks[-1][0] >= _MARK_S):
            self.marks = (*self.marks[-1:], (now_s, free_bytes))
        if free_bytes is not None and free_bytes <= FULL_SHARE * (total_bytes or 0.0):
            self.full_at_s = now_s

    def move(self, by_s: float) -> None:
        """Move what is remembered in time: the wall clock was stepped."""
        if self.attributed_at_s is not None:
            self.attributed_at_s += by_s
        if self.full_at_s is not None:
            self.full_at_s += by_s
        self.marks, self.taken_s = (), self.taken_s + by_s
        if isinstance(self.activity, RecentActivity):
            self.activity.move(by_s)

    def others(self, subject: Subject, among: frozenset[str] | None = None) -> tuple[float, ...]:
        """Return the bytes/s at which each other is being seen to leak; never negative.

        ``among``: of these alone, by their ids.
        """
        mine, rates = subject.id, self.growing.items()
        return tuple(
            [rate for key, rate in rates if key != mine and (among is None or key in among)]
        )

    def owners_known(self, now_s: float) -> bool:
        """Say whether it is known, or was until a moment ago, who holds the device's memory."""
        known = self.attributed_at_s
        return known is not None and now_s - known < GRACE_S

    def note(self, finding: Finding) -> None:
        """Remember the rate of a leak, for its neighbours; forget it when it is none."""
        subject = finding.subject
        part = subject.process is not None or subject.unattributed
        leaks = finding.tier != "none" and finding.pattern in LEAK_PATTERNS
        if part and leaks and finding.rate_bytes_per_s:
            self.growing[subject.id] = max(0.0, finding.rate_bytes_per_s)
        else:
            self.growing.pop(subject.id, None)


def _grew(finding: Finding, stopped_at_s: float | None, now_s: float) -> str:
    """Return "grew by 2.1 GiB, stopped 5 min ago"."""
    text = "grew" if finding.growth_bytes is None else f"grew by {units.size(finding.growth_bytes)}"
    ago_s = 0.0 if stopped_at_s is None else now_s - stopped_at_s
    when = f"{units.duration(ago_s)} ago" if ago_s >= 1.0 else "just now"
    return f"{text}, stopped {when}"


class Suppression(Value, frozen=True, kw_only=True):
    """Up to which level a subject stays quiet because the user said that it is normal."""

    level_bytes: float
    why: str
    job: bool = False
    """Whether that was said of an alert that stood for several ranks of its job."""


class TrackBaseline(msgspec.Struct, kw_only=True, eq=False):
    """The memory of one track."""

    asked: str | None = None
    """Program that the runs were looked up for."""
    key: str | None = None
    """That program on this model of card."""
    label_row: int | None = None
    """Row of the :class:`.tables.UserLabel` that is applied to it."""
    runs: tuple[Profile, ...] = ()
    own: bool = False
    """Whether one of them is what the subject itself had done when the user labelled it."""
    siblings: tuple[Profile, ...] = ()
    yesterday: tuple[Profile, ...] = ()
    live: Profile | None = None
    """What the subject itself has done so far, for its siblings."""
    live_s: float = float("-inf")
    live_moves: int = -1
    """The window's count of moves then: what has not moved has done nothing new."""
    shown: KnownRuns = KnownRuns()
    """The same for people."""
    days: Finding | None = None
    """What its record of days says by itself, where it says anything."""
    days_s: float = float("-inf")
    days_moves: int = -1
    siblings_s: float = float("-inf")
    yesterday_s: float = float("-inf")

    @property
    def history(self) -> tuple[Profile, ...]:
        """Everything, as a series carries it."""
        return (*self.runs, *self.siblings, *self.yesterday)


DAYS_BACK_S, DAYS_EVERY_S = 21 * 86_400.0, 3600.0
"""How far back a record of days is looked at, and how often."""
_SETTLED = frozenset({Reason.NORMAL, Reason.BOUNDED, Reason.FREE_CACHE})
_SHOWN = frozenset({"finding", "alert", "lead", "run_baseline", "limit"})


class Track(msgspec.Struct, kw_only=True, eq=False):
    """One subject under watch."""

    subject: Subject
    device: Device
    window: Window
    headroom: Headroom
    title: Title
    evidence: Window
    """What it is judged on: its window, or while processes are known one of ``Arrivals.rings``."""
    framework: str | None = None
    info: ProcessInfo | None = None
    """Who it is, where it is a process."""
    baseline_bytes: float | None = None
    """What is normal of memory that no process owns."""
    job: JobKey | None = None
    """Job that it is a rank of, and whether it is about the host's memory."""
    lead: Track | None = None
    """The rank of its job whose alert stands for this one too."""
    leads: Title = Title()
    """Title of the alert that stands for several ranks; empty for everybody else."""
    lead_ending: Ending | None = None
    """Why the rank that led its job before ended; None when that did not run out of memory."""
    finding: Finding | None = None
    alert: Alert | None = None
    most_bytes: float | None = None
    """What it held at most, as somebody else counted it; known once it has ended."""
    # From when on it is judged again, on the clock of its source.
    due_s: float = 0.0
    peak: float = -1.0
    """Highest bytes of the last window; what was calm and passes it is looked at sooner."""
    judged_s: float = float("-inf")
    """Time of the newest point at the last judgement."""
    # From its last judgement to ``due_s``.
    pause_s: float = 0.0
    # Judgements in a row that found nothing: the more, the longer the pause.
    calm_looks: int = 0
    moves: int = -1
    """How often its figures had changed at the last judgement."""
    program: str | None = None
    """Key of the program, where it has one."""
    history: tuple[Profile, ...] = ()
    """Earlier runs of it, siblings, yesterday."""
    suppression: Suppression | None = None
    run_baseline: TrackBaseline = msgspec.field(default_factory=TrackBaseline)
    allocator: Allocator | None = None
    """What its framework says, where the process is prepared."""
    base_bytes: float | None = None
    """What it held when its process had started, where that was seen."""
    sizes: declared.Declared = declared.Declared()
    """What it was told of sizes, and what its model server says."""
    limit: MemoryLimit | None = None
    """What else than its device it runs out by first."""
    sharing: frozenset[str] = frozenset()
    """Ids of those that take from the same limit, its own among them."""

    changes: ClassVar[int] = 0
    """How often what is shown of any track has changed: as long as it has not, nobody looks."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _SHOWN:
            Track.changes += 1
        super().__setattr__(name, value)

    @staticmethod
    def mark_changed() -> None:
        """Say that what is shown beside the judgement has changed: what is known of its past."""
        Track.changes += 1

    def take(self, finding: Finding) -> None:
        """Take over a judgement, for people and for its neighbours; alerts change after it."""
        self.finding = finding
        self.headroom.note(finding)

    def series(self, *, raw: bool = False) -> Series:
        """Return what it is judged on as the detectors want it; ``raw``: its window in any case."""
        t_s, values = (self.window if raw else self.evidence).window()
        whole = self.subject.process is None and not self.subject.unattributed
        newest = float(values[-1]) if values.size else None
        begun_s = None if self.subject.process is None else self.subject.process.started_at_s
        age_s = None if begun_s is None or not values.size else max(0.0, float(t_s[-1]) - begun_s)
        info, framework = self.info, self.judged_framework
        limit_bytes, total_bytes, among = self.limits(newest, raw=raw)
        return Series(
            subject=self.subject,
            t_s=t_s,
            used_bytes=values,
            limit_bytes=limit_bytes,
            neighbours_bytes_per_s=() if whole else self.headroom.others(self.subject, among),
            total_bytes=total_bytes,
            framework=framework,
            role=None if info is None else frameworks.role(info.argv, info.name),
            util_pct=self.headroom.util_pct,
            history=self.history,
            age_s=age_s,
            base_bytes=self.base_at(age_s, lambda: base_of(t_s, values, age_s)),
            alerted=None if self.alert is None else self.alert.finding,
            allocator=None if self.allocator is None else self.allocator.series(),
            holder=None if self.allocator is None else self.allocator.holder,
            facts=self._facts(framework, age_s),
            activity=None if self.headroom.activity is None else self.headroom.activity.period,
        )

    @property
    def judged_framework(self) -> str | None:
        """What holds the memory that is judged: on the host, whatever the process runs."""
        info = self.info
        return info.framework if self.subject.host and info is not None else self.framework

    def limits(
        self, newest: float | None, *, raw: bool = False
    ) -> tuple[float | None, float | None, frozenset[str] | None]:
        """Return where it runs out, of how much, and who shares that where not all do; bytes."""
        whole = self.subject.process is None and not self.subject.unattributed
        joint = not raw and self.evidence is not self.window
        limit_bytes = self.headroom.limit(newest, whole=whole, joint=joint)
        total_bytes, own = self.headroom.total_bytes, self.limit
        end_bytes = None if own is None else own.ends_at(newest)
        if own and end_bytes is not None and (limit_bytes is None or end_bytes < limit_bytes):
            # It is on a smaller card, so to speak, with those who share its limit.
            sizes = [float(size) for size in (total_bytes, own.hard_bytes) if size]
            return end_bytes, min(sizes, default=None), self.sharing
        return limit_bytes, total_bytes, None

    def _facts(self, framework: str | None, age_s: float | None) -> tuple[GrowthFact, ...]:
        """Return what is known beside its curve; its command line as shown stands in till read."""
        if self.subject.process is None:
            return ()
        sizes = self.sizes
        if sizes.settings is None and self.info is not None:
            sizes = sizes._replace(settings=declared.of_shown_argv(self.info.argv))
        return declared.facts(
            sizes,
            framework=framework,
            card_bytes=self.headroom.total_bytes,
            age_s=age_s,
            host=self.subject.host,
        )

    def base_at(self, age_s: float | None, seen: Callable[[], float | None]) -> float | None:
        """Return what a process held at its start: what ``seen`` finds in the window, kept."""
        if age_s is not None and (self.base_bytes is None or age_s < STARTED_S):
            base_bytes = seen()
            self.base_bytes = self.base_bytes if base_bytes is None else base_bytes
        return self.base_bytes

    def limit_to(self, limit: MemoryLimit | None, sharing: frozenset[str]) -> None:
        """Take over what limits it below its device, with the ids of those who share that."""
        self.sharing = sharing
        if limit != self.limit:
            self.limit = limit

    def declare(self, sizes: declared.Declared) -> None:
        """Take over what its process was told."""
        self.sizes = sizes

    @property
    def explained(self) -> bool:
        """Whether its alert fires, or it is known to be harmless: its device says nothing of it."""
        lead = self.lead or self
        finding, alert = lead.finding, lead.alert
        if finding is None or (alert is not None and alert.state == "firing"):
            return finding is not None
        harmless = finding.tier == "none" and bool(finding.facts)
        return harmless or finding.code in _SETTLED or finding.framework in frameworks.GRAPHICS

    def prepared(self, span_s: float) -> Allocator:
        """Return what is remembered of the allocator of its process, from now on."""
        if self.allocator is None:
            self.allocator = Allocator.begun(span_s, self.alert)
        return self.allocator

    def hurry(self, now_s: float) -> None:
        """Have it judged at the next look."""
        self.due_s = now_s

    @property
    def named(self) -> Title:
        """The title of its alert."""
        return self.leads or self.title

    def wants_days(self, now_s: float) -> bool:
        """Say whether its record of days is to be judged again: once an hour, while it moves."""
        baseline = self.run_baseline
        if abs(now_s - baseline.days_s) < DAYS_EVERY_S:
            return False
        return baseline.days is not None or baseline.days_moves != self.window.moves

    @staticmethod
    def over_days(days: Finding, finding: Finding) -> Finding:
        """Return the judgement on its last hours, or that on its days where these say less."""
        settled = finding.pattern == "preallocated" or finding.code in _SETTLED
        if finding.tier == "alert" or settled:
            return finding
        surer = finding.tier != "none" and finding.confidence >= days.confidence
        if surer or finding.judged_at_s - days.judged_at_s > 2.0 * DAYS_EVERY_S:
            return finding
        return msgspec.structs.replace(
            days,
            judged_at_s=finding.judged_at_s,
            limit_bytes=finding.limit_bytes,
            samples=finding.samples,
        )

    def suppressed(self, finding: Finding) -> Finding:
        """Return a judgement that is none as long as this is what the user called normal."""
        normal = self.suppression
        if normal is None or finding.tier == "none" or self.peak > normal.level_bytes:
            return finding
        return dismissed_finding(finding, normal.why, Reason.NORMAL)

    def move(self, by_s: float) -> None:
        """Move what is remembered in time: the wall clock was stepped. Not the window."""
        self.due_s += by_s
        self.judged_s += by_s
        if self.allocator is not None:
            self.allocator.move(by_s)
        if self.run_baseline.days is not None:
            self.run_baseline.days = moved_finding(self.run_baseline.days, by_s)
        if self.finding is not None:
            self.finding = moved_finding(self.finding, by_s)
        if self.alert is not None:
            self.alert = moved_alert(self.alert, by_s)

    def shown(self) -> Finding | None:
        """Return the judgement as people should see it: with the tier that has been opened."""
        alert = self.alert if self.lead is None else self.lead.alert
        if alert is None or alert.state not in {"watch", "firing"}:
            if self.finding is None or self.finding.tier == "none":
                return self.finding
            return msgspec.structs.replace(self.finding, tier="none", severity="info")
        current = self.finding
        finding = alert.finding
        if current is not None and current.tier != "none":
            finding = current
        elif current is not None and current.pattern != "unknown":
            # It is not growing now: say so, instead of a rate and a time that no longer hold.
            grew = _grew(finding, alert.clear_since_s, current.judged_at_s)
            *first, last = current.parts or (Clause(text=""),)
            now = msgspec.structs.replace(last, text=f"{last.text} now")
            lasts = f"{alert.state} until that has lasted"
            reason = reason_fields(grew, *first, now, lasts, code=Reason.STOPPED)
            finding = msgspec.structs.replace(finding, **reason, eta=None, rate_bytes_per_s=0.0)
        return msgspec.structs.replace(
            finding,
            tier="alert" if alert.state == "firing" else "watch",
            severity=alert.severity,
        )


class TrackedDevice(msgspec.Struct, kw_only=True):
    """One device as last seen."""

    device: Device
    reading: DeviceReading | None
    headroom: Headroom
    processes: dict[ProcessKey, Track] = {}
    own_tracks: list[Track] = []
    """The device's own track, then that of its unattributed memory."""
    host_tracks: dict[ProcessKey, Track] = {}
    """Host memory of processes; one that is on several devices is with one of them."""
    taken_s: float = 0.0
    """Time of the newest reading."""
    ledger: Ledger | None = None
    """Who has its memory now; None while it is not read, and for a card that is cut into parts."""
    baseline: Baseline | None = None
    """What nobody owns on it while it is idle."""
    uses: tuple[ProcessUse, ...] | None = None
    """The newest process list that could be read; ``uses_s`` says when that was."""
    uses_s: float = 0.0
    feeder: Feeder = msgspec.field(default_factory=Feeder)
    """Takes the figures to the rings of its tracks."""
    fed: tuple[int | None, int | None, int] | None = None
    """What of the device itself it took there last; None when tracks have changed since."""
    still: bool = False
    """Whether no figure of its memory has changed since the look before."""
    host_read_s: float = float("-inf")
    """When the host memory of its processes was last read; compared with ``taken_s``."""
    missing: set[ProcessKey] = msgspec.field(default_factory=set)
    """Processes that the last list did not name any more."""
    listed: list[ProcessKey] | None = None
    """Processes that the last list named."""
    names_updates: int = -1
    """``ProcessNames.updates`` at that list."""
    faults: tuple[Fault, ...] = ()
    source: str = ""
    arrivals: Arrivals | None = None
    """What its processes brought as they came; None in logs, where that is known at once."""
    judged_by_process: bool = False
    """Whether its processes are known, and so judged instead of the device as a whole."""

    def tracks(self) -> tuple[Track, ...]:
        """Return every track of the device."""
        return (*self.processes.values(), *self.own_tracks, *self.host_tracks.values())


def unless_explained(
    whole: Track, series: Series, finding: Finding, tracks: Iterable[Track]
) -> Finding:
    """Return the judgement on a device, none where its parts are judged and account for it."""
    firing = whole.alert is not None and whole.alert.state == "firing"
    if finding.tier == "none" or firing or not whole.headroom.owners_known(float(series.t_s[-1])):
        return finding
    uid = whole.subject.device_uid
    parts = [
        (track.series(), track.explained)
        for track in tracks
        if track.subject.device_uid == uid and track is not whole and not track.subject.host
    ]
    if not attribution.explain(series, parts, since_s=finding.onset_at_s or 0.0):
        return finding
    return dismissed_finding(finding, "its processes account for it", Reason.PARTS)


class EndedProcess(msgspec.Struct, kw_only=True):
    """A process that has ended, on one device."""

    track: Track
    program: str | None = None
    label: str = ""
    unobserved: bool = False
    """It ended while nobody watched: the history knows what it was."""
