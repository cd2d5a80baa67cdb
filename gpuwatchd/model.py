"""The values that travel through gpuwatchd: frozen, keyword-only, unit last in the name.

Bytes are ``int`` (in arrays ``float64``). Instants ``*_at_s`` are UTC epoch seconds, for people;
``*_mono_s`` are monotonic seconds since boot, for arithmetic. Unknown is ``None``: never 0, -1,
"N/A" or NaN. Nothing here imports numpy at run time, so that reading a state file stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

MemoryKind = Literal["dedicated", "unified"]
DeviceState = Literal[
    "ok", "asleep", "lost", "no-permission", "unsupported", "hung", "reset-required"
]
Pattern = Literal[
    "gradual",
    "step",
    "cyclic",
    "spike",
    "plateau",
    "sawtooth",
    "stable",
    "preallocated",
    "unknown",
]
Tier = Literal["none", "watch", "alert"]
Severity = Literal["info", "warning", "critical"]
DecisionKind = Literal["notify", "act", "hold"]
NoticeKind = Literal["firing", "escalated", "repeat", "resolved", "test"]
AlertState = Literal["pending", "watch", "firing", "resolved"]

LEAK_PATTERNS: frozenset[Pattern] = frozenset({"gradual", "step", "cyclic"})


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value: immutable, keyword-only, encodable to JSON by msgspec."""


class Device(Value, frozen=True, kw_only=True):
    """One GPU, one MIG instance or one simulated card."""

    uid: str
    """Vendor UUID: survives reboot and reorder. For a log without UUIDs, a synthetic stable id."""
    vendor: str
    index: int | None
    """Position for display only; never identity."""
    name: str
    memory_total_bytes: int | None
    memory_kind: MemoryKind = "dedicated"
    parent_uid: str | None = None
    """UUID of the physical card when this is a MIG instance."""
    source: str = ""
    """Name of the source that reads it: "nvml", "replay", "simulate", ..."""
    pci_bus: str | None = None


class ProcessKey(Value, frozen=True, kw_only=True):
    """Identity of a process, safe against pid reuse."""

    pid: int
    started_at_s: float | None
    """Start time in epoch seconds; None where it cannot be read (foreign pid namespace, a log)."""


class ProcessInfo(Value, frozen=True, kw_only=True):
    """Who a process is. Read once per key and cached; every text is already cleaned."""

    key: ProcessKey
    name: str
    user: str | None = None
    argv: tuple[str, ...] = ()
    """Command line, secrets masked."""
    parent_pid: int | None = None
    state: str | None = None
    container: str | None = None
    job: str | None = None
    framework: str | None = None
    framework_sure: bool = False
    """False when the framework is guessed from the command line only."""
    program: str | None = None
    """Key of what it runs (see :mod:`gpuwatchd.programs`); None: it may be anything next time."""

    @property
    def label(self) -> str:
        """Name with the script or module an interpreter runs: "python train.py".

        Ten jobs called "python" tell nobody whose fault it is.
        """
        if not self.name.startswith("python") or len(self.argv) < 2:
            return self.name
        for word, following in zip(self.argv[1:], (*self.argv[2:], ""), strict=True):
            if word == "-m" and following:
                return f"{self.name} -m {following}"
            if not word.startswith("-"):
                script = word.rpartition("/")[2]
                return f"{self.name} {script}" if script.endswith(".py") else self.name
        return self.name


class ProcessUse(Value, frozen=True, kw_only=True):
    """What one process holds on one device."""

    key: ProcessKey
    used_bytes: int | None
    """None when the driver lists the process but not its memory (WDDM, WSL2)."""
    kind: str = "C"
    """C compute, G graphics, M MPS; joined with + when it is in several lists."""


class DeviceReading(Value, frozen=True, kw_only=True):
    """One look at one device."""

    device_uid: str
    used_bytes: int | None
    """Without the driver's reserve where that is known separately."""
    free_bytes: int | None
    total_bytes: int | None
    reserved_bytes: int | None = None
    util_pct: float | None = None
    memory_util_pct: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    uses: tuple[ProcessUse, ...] | None = None
    """Processes; () is "none", None is unknown (then ``uses_reason`` says why)."""
    uses_reason: str | None = None
    state: DeviceState = "ok"


class Fault(Value, frozen=True, kw_only=True):
    """Something that could not be read, and why."""

    where: str
    """"source", "source/device" or "source/device/field"."""
    why: str
    device_uid: str | None = None


class Sample(Value, frozen=True, kw_only=True):
    """One tick of one source (or, merged, of all sources)."""

    taken_at_s: float
    taken_mono_s: float
    boot_id: str
    readings: tuple[DeviceReading, ...]
    processes: tuple[ProcessInfo, ...] = ()
    """Only what the source itself knows (replay, simulate); live pids are looked up by the host."""
    faults: tuple[Fault, ...] = ()


class Subject(Value, frozen=True, kw_only=True):
    """What a judgement is about: a process on a device, the device, or what nobody owns on it."""

    device_uid: str
    process: ProcessKey | None = None
    unattributed: bool = False

    @property
    def id(self) -> str:
        """Stable text id: ``uid``, ``uid/pid@start`` or ``uid/unattributed``."""
        if self.process is not None:
            started = self.process.started_at_s
            return f"{self.device_uid}/{self.process.pid}@{started if started is not None else '?'}"
        return f"{self.device_uid}/unattributed" if self.unattributed else self.device_uid


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


class Series(Value, frozen=True, kw_only=True, eq=False):
    """Memory over time of one subject.

    ``t_s`` (n,) is strictly ascending; ``used_bytes`` (n,) is finite; gaps are absent points.
    ``limit_bytes`` is where this subject runs out: what it uses now plus what is free on its
    device; None when the total is unknown (then there is no ETA).
    """

    subject: Subject
    t_s: FloatArray
    used_bytes: FloatArray
    limit_bytes: float | None
    total_bytes: float | None = None
    """Memory of the whole device; scale for "large"."""
    framework: str | None = None
    util_pct: float | None = None
    """Mean GPU utilisation over the last minutes, where known."""
    others_bytes_per_s: float = 0.0
    """Growth of everybody else on the device: it takes from the same free memory."""
    history: tuple[Profile, ...] = ()
    """Earlier runs of the same program, newest last; siblings; yesterday."""
    age_s: float | None = None
    """Age of the process at the last sample, where known: the window may begin later."""


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
    facts: dict[str, float] = {}


class Blame(Value, frozen=True, kw_only=True):
    """Whose growth explains a device's growth."""

    process: ProcessKey | None
    name: str
    share: float
    rate_bytes_per_s: float


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


class Alert(Value, frozen=True, kw_only=True):
    """The life of one finding: opened, escalated, resolved. Kept in the store."""

    key: str
    """Kind + subject: one open alert per key."""
    kind: str
    subject: Subject
    state: AlertState
    severity: Severity
    finding: Finding
    opened_at_s: float
    changed_at_s: float
    watch_at_s: float | None = None
    firing_at_s: float | None = None
    resolved_at_s: float | None = None
    confirmations: int = 0
    """Evaluations in a row that support at least a watch."""
    held_since_s: float | None = None
    """Since when they have."""
    alert_confirmations: int = 0
    """Evaluations in a row that support an alert."""
    alert_since_s: float | None = None
    clears: int = 0
    """Evaluations in a row that support nothing."""
    clear_since_s: float | None = None
    notices: int = 0
    last_notice_at_s: float | None = None
    next_notice_at_s: float | None = None
    title: str = ""
    """Who it is about, in words that outlive it: "GPU 0 (A100): python[4711] of alice"."""
    ended: str = ""
    """Why it was resolved, in words."""
    held_back: str = ""
    """Why no notice went out although one was due; empty when none was held back."""


class Decision(Value, frozen=True, kw_only=True):
    """What policy wants done about a finding; a held alert says why too."""

    finding_id: str
    alert_key: str
    kind: DecisionKind
    target: str
    """Channel or action name; "" for a hold."""
    notice: NoticeKind
    reason: str
    at_s: float


class Message(Value, frozen=True, kw_only=True):
    """What a notifier sends. Plain text only; each notifier escapes for its own sink."""

    id: str
    """Stable across retries: the same message sent twice carries the same id."""
    notice: NoticeKind
    severity: Severity
    subject: str
    """At most 78 characters."""
    body: str
    facts: dict[str, str] = {}
    """Label -> value, in the order to show."""
    command: str = ""
    """What to type next."""
    thread: str | None = None
    """Message id of the incident's first message, for replies."""
    finding: Finding | None = None


class Delivery(Value, frozen=True, kw_only=True):
    """One attempt to deliver one decision on one channel."""

    alert_key: str
    channel: str
    message: Message
    state: Literal["pending", "sent", "failed"]
    attempts: int
    created_at_s: float
    next_try_at_s: float | None = None
    sent_at_s: float | None = None
    error: str | None = None
    dry_run: bool = False
    row: int | None = None
    """Row id in the store, once it has one."""


class Availability(Value, frozen=True, kw_only=True):
    """Whether a source or channel can work here, and why not."""

    ok: bool
    reason: str
    hint: str = ""
