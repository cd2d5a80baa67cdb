"""What is judged: series, signals, findings, whose memory it is, idle memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gpuwatchd.core import units
from gpuwatchd.core.codes import EARLIER, AllocatorVerdict, FactName, Reason
from gpuwatchd.core.model.base import (
    LEAK_PATTERNS,
    HoldingKind,
    LedgerState,
    Pattern,
    Severity,
    Tier,
    Value,
)
from gpuwatchd.core.model.readings import ProcessInfo, ProcessKey

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]


class Subject(Value, frozen=True, kw_only=True):
    """What a judgement is about: a process on a device, the device, or what nobody owns on it."""

    device_uid: str
    process: ProcessKey | None = None
    unattributed: bool = False
    host: bool = False
    """With a process: its anonymous memory and swap on the host instead of the device's memory."""

    @property
    def id(self) -> str:
        """Stable text id: ``uid``, ``uid/pid@start[/host]`` or ``uid/unattributed``."""
        if self.process is not None:
            started = self.process.started_at_s
            tail = "/host" if self.host else ""
            begun = started if started is not None else "?"
            return f"{self.device_uid}/{self.process.pid}@{begun}{tail}"
        return f"{self.device_uid}/unattributed" if self.unattributed else self.device_uid


class Stage(Value, frozen=True, array_like=True):
    """A rise of a run that stayed: a stair, a ramp, or a straight part of one that bends."""

    age_s: float
    """Age of the process when it began."""
    rise_s: float
    """How long it rose."""
    rise_bytes: float


class Profile(Value, frozen=True, kw_only=True):
    """What one earlier run of the same program did with its memory, in a few numbers.

    A sibling of the same job that runs now, or the same hour of yesterday, is a profile too.
    """

    kind: Literal["run", "sibling", "yesterday"] = "run"
    ended_at_s: float
    run_s: float
    """Length of the run, as far as it was seen."""
    base_bytes: float
    """Lowest value of minutes 2 to 6."""
    hold_s: float
    """Longest time that memory was held before it was given back, at the end."""
    proven_bytes: float
    """Highest level at which it then stood, under load, long enough to call it a stop."""
    top_bytes: float
    """Highest level that it retained."""
    grown_bytes: tuple[float, ...] = ()
    """Largest harmless growth within each of ``forecast.PROFILE_LOOKBACKS_S``; never falls."""
    rose_bytes: tuple[float, ...] = ()
    """The same of any growth: what is normal once the user says so."""
    late_bytes: tuple[float, ...] = ()
    """Largest harmless growth after each of ``forecast.PROFILE_AGES_S``, as far as it lived."""
    near_limit: bool = False
    """It ended within 5 % of the limit."""
    alerted: bool = False
    """The ordinary score was at the level of an alert when it ended."""
    word: Literal["normal", "leak"] | None = None
    """What the user said of this run; worth more than five runs without a word."""
    stages: tuple[Stage, ...] = ()
    """Its large rises above its base in their order, at most 16; together they draw its curve."""


class FunctionGrowth(Value, frozen=True, kw_only=True):
    """What the calls of a function that a job marks have added so far."""

    name: str
    call_count: int
    growth_bytes: float


class FunctionRemark(Value, frozen=True):
    """A finding or an insight about functions that a job marks."""

    kind: str
    weight: str
    """Severity of a finding, impact of an insight."""
    functions: tuple[str, ...]
    facts: dict[str, float]
    confidence: float = 1.0


class AllocatorSeries(Value, frozen=True, kw_only=True, eq=False):
    """What ``readings.AllocatorReading`` says over time, of a process on a device; (n,) each."""

    t_s: "FloatArray"
    allocated_bytes: "FloatArray"
    reserved_bytes: "FloatArray"
    peak_bytes: "FloatArray | None" = None
    inactive_split_bytes: float | None = None
    """The newest figure, as is the next."""
    limit_bytes: float | None = None
    functions: tuple[FunctionGrowth, ...] = ()
    """The functions that have added most."""
    remarks: tuple[FunctionRemark, ...] = ()
    """What stood out of these when they were last asked, and their score of 100."""
    score: int | None = None
    fragmentation_ratio: float = 0.3
    """Share of ``reserved_bytes`` in pieces from which on that is called fragmentation."""


class Holder(Value, frozen=True, kw_only=True):
    """A variable that keeps what grows, as it was found inside its process."""

    name: str
    """As it is written in the program: ``losses in train()``."""
    kind: str
    """Its type."""
    at_s: float
    """When it was found."""
    length: int | None = None
    file: str | None = None
    line: int | None = None
    graph: bool = False
    """It keeps tensors with their graph: more memory than can be counted."""
    held_bytes: float = 0.0
    rate_bytes_per_s: float = 0.0
    """How fast what it keeps grew while it was looked at."""
    bounded_at_bytes: float | None = None
    """What it keeps once it is full; None: no bound was found."""

    @property
    def place(self) -> str:
        """Where it is, for people: ``losses in train() (train.py:22)``."""
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{self.name} ({where})" if self.file else self.name


class AllocatorState(Value, frozen=True, kw_only=True):
    """What the allocator of a framework says of a judged process."""

    verdict: AllocatorVerdict
    allocated_bytes: float
    reserved_bytes: float
    inactive_split_bytes: float | None = None
    functions: tuple[FunctionGrowth, ...] = ()
    remarks: tuple[FunctionRemark, ...] = ()
    score: int | None = None


BEYOND_WEIGHT = 0.1
"""Below this weight the level that earlier runs reached lies behind."""


class GrowthFact(Value, frozen=True, kw_only=True):
    """One thing that is known beside the curve, and what it says of its growth."""

    name: FactName
    source: str
    """Where it is known from: ``command line``, ``VLLM_GPU_FRACTION``, ``train.yaml``, ``vLLM``."""
    weight: float
    """0-1: chance that growth ends at its bound, where it has not ended at a lower one; of a fact
    without a bound, that growth is what it is about."""
    level_bytes: float | None = None
    """What the subject holds at most, by this fact."""
    part_bytes: float | None = None
    """What a part of it holds once it is full: it may grow by so much."""
    text: str = ""
    """For people: ``told to take 0.9 of the card``."""

    @property
    def beyond(self) -> bool:
        """Whether growth has gone beyond what earlier runs did."""
        return self.name in EARLIER and self.weight < BEYOND_WEIGHT


class Period(Value, frozen=True, kw_only=True):
    """Epochs of the job on a device, as its activity shows them."""

    source: str
    """``utilisation`` or ``power``."""
    period_s: float
    weight: float
    """0-1: how surely it is one."""
    boundaries_s: tuple[float, ...]
    """When activity fell (evaluation, checkpoint, loading), oldest first, on the samples' clock."""


class Series(Value, frozen=True, kw_only=True, eq=False):
    """Memory over time of one subject.

    ``t_s`` (n,) is strictly ascending; ``used_bytes`` (n,) is finite; gaps are absent points.
    ``limit_bytes`` is where this subject runs out (:func:`limit_of`); None when that is unknown
    (then there is no ETA).
    """

    subject: Subject
    t_s: "FloatArray"
    used_bytes: "FloatArray"
    limit_bytes: float | None
    total_bytes: float | None = None
    """Memory of the whole device; scale for "large"."""
    framework: str | None = None
    role: str | None = None
    """Part that its process plays ("notebook kernel"): for the advice alone."""
    util_pct: float | None = None
    """Mean GPU utilisation over the last minutes, where known."""
    neighbours_bytes_per_s: tuple[float, ...] = ()
    """Growth of each other subject on the device: it takes from the same free memory."""
    history: tuple[Profile, ...] = ()
    """Earlier runs of the same program, newest last; siblings; yesterday."""
    age_s: float | None = None
    """Age of the process at the last sample, where known: the window may begin later."""
    alerted: "Finding | None" = None
    """What its open alert was judged by last: its growth may have begun before the window."""
    allocator: AllocatorSeries | None = None
    holder: Holder | None = None
    """The variable that its memory was last found to be kept by."""
    facts: tuple[GrowthFact, ...] = ()
    base_bytes: float | None = None
    """What it held when its process had started, where that was seen."""
    activity: Callable[[float], Period | None] | None = None
    """Says the epochs of its device's job at an instant; it costs something: only what grows is
    worth it."""


LOADED_S, STARTED_S = 120.0, 360.0
"""Between these ages a process holds what it needs before anything grows."""


def base_of(t_s: "FloatArray", used_bytes: "FloatArray", age_s: float | None) -> float | None:
    """Return the lowest value of minutes 2 to 6 of a process; None where they were not seen.

    Bytes, of a series (n,) at whose end the process has the age.
    """
    if age_s is None or not t_s.size:
        return None
    begun_s = float(t_s[-1]) - age_s
    first, last = t_s.searchsorted((begun_s + LOADED_S, begun_s + STARTED_S)).tolist()
    return float(used_bytes[first:last].min()) if first < last else None


class EtaRange(Value, frozen=True, kw_only=True):
    """Seconds until out of memory: 5, 50 and 95 per cent quantiles, a 90 % interval.

    ``high_s`` None is open-ended: the growth may level off before it gets there.
    """

    low_s: float
    mid_s: float
    high_s: float | None


class Signal(Value, frozen=True, kw_only=True):
    """What one detector says about one series."""

    detector: str
    pattern: Pattern
    rate_bytes_per_s: float
    confidence: float
    """0-1: how well this pattern describes the series."""
    since_s: float
    """Onset, on the series' own clock."""
    n: int
    """Number of samples (or events) that it rests on."""
    facts: dict[str, float] = msgspec.field(default_factory=dict)


class Blame(Value, frozen=True, kw_only=True):
    """Whose growth explains a device's growth."""

    process: ProcessKey | None
    name: str
    share: float
    rate_bytes_per_s: float
    rank: str | UnsetType = UNSET
    """Of a rank: its name without the device, to which its pid is to be added."""


class Clause(Value, frozen=True, kw_only=True):
    """One part of a reason; a semicolon stands between two."""

    text: str
    about: str = ""
    """What stands before it where it does not stand alone: "host memory ", "collecting, "."""
    short: str | None = None
    """The text for who names rate, duration, amount and time left elsewhere; None: the same."""
    verb: bool = False
    """It begins with a verb of which memory is the subject: "grows steadily"."""
    forecast: bool = False
    """It says when it is full."""

    @property
    def whole(self) -> str:
        """All of it."""
        return f"{self.about}{self.text}"


class Grounds(Value, frozen=True, kw_only=True):
    """What decides where the reason of a finding is only shown."""

    code: Reason = Reason.OTHER
    clauses: tuple[Clause, ...] = ()
    """The parts of the reason."""
    lead: str = ""
    """Of a rank for which another one's alert stands: what that rank is called."""


class Finding(Value, frozen=True, kw_only=True):
    """The judgement on one subject at one instant: at most one per subject.

    Benign and unknown patterns are findings of tier "none", so that ``status`` can say them.
    """

    id: str
    subject: Subject
    judged_at_s: float
    pattern: Pattern
    tier: Tier
    """The tier that the evidence of this instant supports, before hysteresis (policy's work)."""
    severity: Severity
    confidence: float
    rate_bytes_per_s: float | None
    eta: EtaRange | None
    r_squared: float | None = None
    p_value: float | None = None
    detector: str | None = None
    onset_at_s: float | None = None
    reason: str = ""
    blame: tuple[Blame, ...] = ()
    framework: str | None = None
    growth_bytes: float | None = None
    limit_bytes: float | None = None
    levels_off_bytes: float | None = None
    """Level at which slowing growth is expected to end, where that is below the limit."""
    samples: int = 0
    signals: tuple[Signal, ...] = ()
    advice: tuple[str, ...] = ()
    grounds: Grounds | UnsetType = UNSET
    commands: tuple[str, ...] | UnsetType = UNSET
    """What is to be typed at the end of each line of advice; "" for nothing."""
    hardware_at_s: tuple[float, ...] | UnsetType = UNSET
    """When the hardware broke, of each of the first lines of advice that tell of it."""
    allocator: AllocatorState | UnsetType = UNSET
    holder: Holder | UnsetType = UNSET
    facts: tuple[GrowthFact, ...] | UnsetType = UNSET
    """What was known beside the curve, and counted."""

    @property
    def code(self) -> Reason:
        """What its reason comes to."""
        return self.grounds.code if self.grounds else Reason.OTHER

    @property
    def lead(self) -> str:
        """See :attr:`Grounds.lead`."""
        return self.grounds.lead if self.grounds else ""

    @property
    def parts(self) -> tuple[Clause, ...]:
        """The parts of its reason, as far as these are known."""
        if self.grounds:
            return self.grounds.clauses
        return (Clause(text=self.reason),) if self.reason else ()

    @property
    def shown_rate_bytes_per_s(self) -> float | None:
        """How fast it grows, for people; None of a plateau: it has no pace that lasts."""
        return None if self.pattern == "plateau" else self.rate_bytes_per_s

    @property
    def public(self) -> Self:
        """The same without what is for this program alone: no JSON has a field that is unset."""
        blame = tuple([replace(share, rank=UNSET) for share in self.blame])
        return replace(self, blame=blame, grounds=UNSET, commands=UNSET, hardware_at_s=UNSET)


STALE_S = 600.0
"""A judgement that is older than this is said to be; until then its figures are those of now."""


def outdated_s(judged_at_s: float, mid_s: float | None, now_s: float) -> float:
    """Return by how much the time that is left is shorter than it was judged, seconds.

    0 until the judgement is old, or would have come true (``mid_s`` after it): till then every view
    says its figures, and one thing has one number.
    """
    age_s = now_s - judged_at_s
    return age_s if age_s > min(STALE_S, STALE_S if mid_s is None else mid_s) else 0.0


def limit_of(held_bytes: float | None, free_bytes: float | None) -> float | None:
    """Return where a subject runs out: what it holds and what is free; None when unknown.

    Neither the driver's reserve nor what others hold is ever free. What grows keeps the limit that
    it was judged by: :attr:`Finding.limit_bytes`.
    """
    if held_bytes is None or free_bytes is None:
        return None
    return float(held_bytes) + free_bytes


def with_blame(finding: Finding, blame: tuple[Blame, ...]) -> Finding:
    """Return a finding with whose growth explains it.

    Its subject has the pace that was judged; of the others there is only what they grew.
    """
    own, pace = finding.subject.process, finding.rate_bytes_per_s
    return replace(
        finding,
        blame=tuple(
            [
                share
                if own is None or pace is None or share.process != own
                else replace(share, rate_bytes_per_s=pace)
                for share in blame
            ]
        ),
    )


def reason_fields(
    *parts: Clause | str, code: Reason = Reason.OTHER, lead: str = ""
) -> dict[str, Any]:
    """Return the fields of a finding that hold its reason; empty parts are left out."""
    clauses = tuple(
        [Clause(text=part) if isinstance(part, str) else part for part in parts if part]
    )
    reason = "; ".join([clause.whole for clause in clauses])
    return {"reason": reason, "grounds": Grounds(code=code, clauses=clauses, lead=lead)}


def collecting(samples: int, least_samples: int, span_s: float, least_s: float) -> Clause:
    """Return what a record is still short of for a verdict: samples, or else seconds."""
    if samples < least_samples:
        text = f"{samples} of {least_samples} samples"
    elif least_s <= 600.0:
        text = f"{span_s:.0f} s of {least_s:.0f} s"
    else:
        text = f"{units.duration(span_s)} of {units.duration(least_s)}"
    return Clause(about="collecting, ", text=text)


def with_reason(
    finding: Finding, part: str, code: Reason = Reason.OTHER, lead: str = ""
) -> Finding:
    """Return a finding with one more part of its reason."""
    code, lead = code or finding.code, lead or finding.lead
    return replace(finding, **reason_fields(*finding.parts, part, code=code, lead=lead))


def dismissed_finding(finding: Finding, why: str, code: Reason = Reason.OTHER) -> Finding:
    """Return a judgement that is none: why that is so, with its own reason behind it."""
    first, *others = finding.parts or (Clause(text=""),)
    clauses = [replace(first, about=f"{why} ({first.about}", verb=False), *others]
    clauses[-1] = replace(clauses[-1], text=f"{clauses[-1].text})")
    return replace(finding, tier="none", severity="info", **reason_fields(*clauses, code=code))


def with_host_reason(finding: Finding) -> Finding:
    """Return a judgement on the host's memory with a reason that says so.

    Examples
    --------
    >>> subject = Subject(device_uid="u", host=True)
    >>> with_host_reason(Finding(id="s", subject=subject, judged_at_s=0.0,
    ...                 pattern="stable", tier="none", severity="info", confidence=0.0, eta=None,
    ...                 rate_bytes_per_s=0.0, reason="flat at 2 MiB")).reason
    'host memory: flat at 2 MiB'
    """
    first, *others = finding.parts or (Clause(text=""),)
    about = "host memory " if first.verb else f"host memory: {first.about}"
    first = replace(first, about=about)
    reason = reason_fields(first, *others, code=finding.code, lead=finding.lead)
    return replace(finding, **reason)


class Ledger(Value, frozen=True, kw_only=True):
    """Who has the memory of one device: total = free + reserved + owned + unattributed.

    Nothing is clamped: processes that share memory make ``unattributed_bytes`` negative.
    """

    state: LedgerState
    """whole; partial: some process's memory is unknown, so that ``unattributed_bytes`` is an upper
    bound; overlap: processes hold more than is used; none: the list itself is unknown."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    owned_bytes: int | None = None
    unattributed_bytes: int | None = None
    baseline_bytes: int | None = None
    """What nobody owns while the device is idle: the driver's contexts."""


class Holding(Value, frozen=True, kw_only=True):
    """Idle memory."""

    kind: HoldingKind
    device_uid: str
    process: ProcessInfo | None = None
    held_bytes: int | None = None
    since_s: float | None = None
    """Instant (epoch seconds) since when it has been so, as far as it was seen."""
    evidence: str = ""
    """The facts, in one sentence with its numbers."""
    left: bool = False
    """Of a rank: others of its job, or its launcher, have ended."""
    advice: tuple[str, ...] = ()
    """What would free it; advice, not a promise."""
    command: str = ""
    """What is to be typed at the end of the first line of advice."""
    gib_hours: float | None = None
    """Memory times time so far."""
    cost_usd: float | None = None
    """Its share of the device's price so far; None without a price."""

    @property
    def id(self) -> str:
        """Stable text id."""
        who = "" if self.process is None else f"/{self.process.key.pid}"
        return f"{self.kind}/{self.device_uid}{who}"


class IdleJob(Value, frozen=True, kw_only=True):
    """A job of Slurm that holds GPUs of this node without a process on them."""

    number: str
    user: str
    running_s: float
    gpu_count: int
    """That it was given on this node."""
    device_uids: tuple[str, ...] | None = None
    """Those without a process; None: all of them, but which they are is not known."""


def is_leak(finding: Finding | None) -> bool:
    """Return whether a judgement says "leak": a leaking pattern that policy did not wave off."""
    return finding is not None and finding.pattern in LEAK_PATTERNS and finding.tier != "none"
