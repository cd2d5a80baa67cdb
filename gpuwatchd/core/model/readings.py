"""What is seen: devices, processes, samples, events, and what serving engines say."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuwatchd.core.codes import LimitKind, NameKind
from gpuwatchd.core.model.base import DeviceState, EventKind, MemoryKind, Value

_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
"""Flags of Python whose value follows."""
_CODE = re.compile(r"-[bBdEhIOPqsSuvVx]*c.*", re.DOTALL)
_SCRIPT = re.compile(r"[\w.+-]+")
"""What a file may be called: code, or a title written over the command line, has other signs."""
Count = Annotated[int, Meta(ge=0, le=10**15)]
Amount = Annotated[int, Meta(ge=-(10**15), le=10**15)]
Reading = Annotated[float, Meta(ge=-1e15, le=1e15)]
Share = Annotated[float, Meta(ge=0, le=1)]
"""What a job says is believed within bounds, so that all can be worked out."""
_ID_CHARS = 12
"""So many of a container's id its tools print."""


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
    parent_index: int | None = None
    """Position of that card: instances count from 0 on each."""
    source: str = ""
    """Name of the source that reads it: "nvml", "replay", "simulate", ..."""
    pci_bus: str | None = None

    @property
    def recorded(self) -> bool:
        """Whether it is replayed or simulated: its pids are not those of this machine."""
        return self.source in {"replay", "simulate"}

    @property
    def label(self) -> str:
        """Return "GPU 0"; without an index the beginning of its UUID: "GPU 1a2b3c4d".

        An instance is "MIG 3:0", the first one of GPU 3, as nvidia-smi counts.
        """
        return f"{'MIG' if self.parent_uid else 'GPU'} {self.number}".rstrip()

    @property
    def number(self) -> str:
        """Return the label without the kind of device: "0", "3:0", "1a2b3c4d"; "" without any."""
        if self.index is not None:
            card = "" if self.parent_index is None else f"{self.parent_index}:"
            return f"{card}{self.index}"
        tail = self.uid.rpartition("/")[2].removeprefix("GPU-").removeprefix("MIG-")
        return tail.partition("-")[0][:12]


class ProcessKey(Value, frozen=True, kw_only=True):
    """Identity of a process, safe against pid reuse."""

    pid: int
    started_at_s: float | None
    """Start time in epoch seconds; None where it cannot be read (foreign pid namespace, a log)."""


class AllocatorReading(Value, frozen=True, kw_only=True):
    """What the allocator of a framework says of one process on one device at one instant."""

    key: ProcessKey
    device_uid: str
    at_s: float
    allocated_bytes: int
    """In tensors."""
    reserved_bytes: int
    """Taken from the device: in tensors, or held ready for them."""
    inactive_split_bytes: int | None = None
    """Held ready in pieces, beside tensors."""
    peak_bytes: int | None = None
    """The most that was in tensors at once so far."""
    limit_bytes: int | None = None
    """The most that the allocator may take, where it has such a limit; not stored."""


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
    frameworks: tuple[str, ...] = ()
    """Every framework whose libraries it has loaded, in order of precedence."""
    role: str | None = None
    """Part that it plays in what it belongs to: "notebook kernel", "engine", "launcher"."""
    uid: int | None = None
    unit: str | None = None
    """systemd unit: "ollama.service", "session-3.scope"."""
    pod: str | None = None
    """Kubernetes pod uid."""
    group: str | None = None
    """Job whose ranks belong together: "torchrun 7f3a", "slurm 42.0", "ray 01000000"."""
    rank: int | None = None
    world: int | None = None
    """Ranks of that job, on all machines together."""
    model: str | None = None
    """Model that it serves, where that is known beyond doubt."""
    parents: tuple[str, ...] = ()
    """Ancestors, nearest first: "torchrun[4700]", "bash[4600]"; up to the shell of a terminal."""
    foreign: bool = False
    """The pid is of another pid namespace: no name is true here, and no signal may be sent."""
    program: str | None = None
    """Key of what it runs (see ``analysis.program_key``); None: it may be anything next time."""
    name_kind: NameKind = NameKind.OWN
    was: str = ""
    """Of one that has ended: what it was called, where that is known."""

    @property
    def label(self) -> str:
        """Name with the script or module an interpreter runs: "python train.py".

        Ten jobs called "python" tell nobody whose fault it is.
        """
        flag, entry = self.entry_point
        return f"{self.name} {flag}{entry}" if entry else self.name

    @property
    def entry_point(self) -> tuple[str, str]:
        """The script or module that an interpreter runs, after the flag that it needs.

        ("", "train.py") or ("-m ", "torch.distributed.run"); ("", "") where there is none to name.
        """
        if not self.name.startswith("python") or len(self.argv) < 2:
            return "", ""
        words = iter(self.argv[1:])
        for word in words:
            if word == "-m":
                return "-m ", next(words, "")
            if word in _WITH_VALUE:
                next(words, None)
            elif word == "-" or _CODE.fullmatch(word):
                break
            elif not word.startswith("-"):
                script = word.rpartition("/")[2]
                plain = script.endswith(".py") or _SCRIPT.fullmatch(script)
                return "", script if plain else ""
        return "", ""

    @property
    def numbered(self) -> str:
        """Label with the pid: "python train.py[4711]"; one that has no name bears it already."""
        return self._with_pid(self.label or "process")

    @property
    def name_and_pid(self) -> str:
        """Name with the pid: "python[4711]"; one that has no name bears it already."""
        return self._with_pid(self.name)

    def _with_pid(self, words: str) -> str:
        return words if self.name_kind is NameKind.STAND_IN else f"{words}[{self.key.pid}]"

    @property
    def team(self) -> tuple[str, int | str | None] | None:
        """Whom its ranks are known by: two users may call their jobs the same, as Ray does."""
        if self.group is None:
            return None
        return self.group, self.user if self.uid is None else self.uid

    @property
    def short_container(self) -> str | None:
        """Container with its id as its tools print it; other names stay whole.

        Examples
        --------
        >>> key = ProcessKey(pid=1, started_at_s=None)
        >>> ProcessInfo(key=key, name="x", container="docker " + "ab" * 32).short_container
        'docker abababababab'
        >>> ProcessInfo(key=key, name="x", container="lxc web").short_container
        'lxc web'
        """
        if self.container is None:
            return None
        kind, _, name = self.container.rpartition(" ")
        if len(name) > _ID_CHARS and all(c in "0123456789abcdef" for c in name):
            name = name[:_ID_CHARS]
        return f"{kind} {name}".strip()

    @property
    def place(self) -> str | None:
        """Job, else pod, else container; None where it is in none that is known."""
        if self.job is not None:
            return self.job
        return f"pod {self.pod[:8]}" if self.pod is not None else self.short_container

    @property
    def attribution(self) -> str:
        """Who is to blame, the most telling first: "slurm 42.0 - alice - vLLM - pid 4711".

        Job, pod or container - user - program - model - pid; of a process in another pid namespace
        only its number. A script says more than its framework, a module or bare name says less.
        """
        if self.foreign:
            return self.name
        flag, script = self.entry_point
        plain = bool(flag) or not script.endswith(".py")
        runs = self.framework if self.framework and self.framework_sure and plain else self.label
        parts = (self.place, self.user, runs, self.model, f"pid {self.key.pid}")
        return " - ".join(part for part in parts if part)


class ProcessUse(Value, frozen=True, kw_only=True):
    """What one process holds on one device."""

    key: ProcessKey
    used_bytes: int | None
    """None when the driver lists the process but not its memory (WDDM, WSL2)."""
    kind: str = "C"
    """C compute, G graphics, M MPS; joined with + when it is in several lists."""
    sm_pct: float | None = None
    """Share of the compute units' time that it used lately, 0-100."""
    host_bytes: int | None = None
    """Anonymous memory and swap that it holds on the host; the same figure on every device."""


class MemoryLimit(Value, frozen=True, kw_only=True):
    """The most that a process, or a control group, may hold on one device."""

    kind: LimitKind
    name: str
    """Directory of the control group, or the variable that says it."""
    hard_bytes: int | None = None
    """Beyond it nothing is allocated; None: no such limit."""
    soft_bytes: int | None = None
    """Beyond it memory may be taken away."""
    used_bytes: int | None = None
    """What the control group holds."""
    process_bytes: float | None = None
    """Where the process itself runs out by it: without what others of its group hold."""

    def ends_at(self, held_bytes: float | None) -> float | None:
        """Return where a process that holds so much runs out by it; None: not by this limit.

        One that holds more than it was told to take grows beside what that limits.
        """
        if self.process_bytes is None or held_bytes is None:
            return None
        if self.kind in {LimitKind.MPS, LimitKind.FRAMEWORK}:
            return self.process_bytes if held_bytes < self.process_bytes else None
        return max(self.process_bytes, held_bytes)


class DeviceReading(Value, frozen=True, kw_only=True):
    """One look at one device."""

    device_uid: str
    used_bytes: int | None
    """Without the driver's reserve where that is known separately."""
    free_bytes: int | None
    total_bytes: int | None
    reserved_bytes: int | None = None
    resident_bytes: int | None = None
    """What of the used memory is in the machine's memory now, where that is told apart (Apple)."""
    util_pct: float | None = None
    memory_util_pct: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    uses: tuple[ProcessUse, ...] | None = None
    """Processes; () is "none", None is unknown (then ``uses_reason`` says why)."""
    uses_reason: str | None = None
    per_instance: bool = False
    """The card of MIG instances: nothing is missing, they have lists of their own."""
    state: DeviceState = "ok"
    memory_api: str | None = None
    """Which call gave the memory ("v2", "v1", "unified", ...): one series, one call."""
    throttle: tuple[str, ...] | None = None
    """Why clocks are held down now, in words; None where that cannot be read."""
    ecc_errors: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    retired_pages: int | None = None
    """Pages or rows of memory taken out of use; more of them need a reset or an exchange."""
    limits: tuple[MemoryLimit, ...] = ()
    """What the driver allows the control groups of its processes, where it limits one."""


class Fault(Value, frozen=True, kw_only=True):
    """Something that could not be read, and why."""

    where: str
    """"source", "source/device" or "source/device/field"."""
    why: str
    device_uid: str | None = None
    brief: str = ""
    """Why in few words, where that is longer."""

    @property
    def text(self) -> str:
        """Where, as far as that is known, and why."""
        return f"{self.where}: {self.why}" if self.where else self.why


class Event(Value, frozen=True, kw_only=True):
    """Something that happened to a device: once, at an instant."""

    at_s: float
    kind: EventKind
    device_uid: str | None = None
    text: str
    """One sentence, without the device's name."""
    code: int | None = None
    """XID number, or NVML's code."""
    hardware: bool | None = None
    """True: look at the hardware or driver first; False: the application's doing; None: neither."""
    pid: int | None = None
    """The process that it is about, as the driver numbers it."""
    peak_bytes: int | None = None
    """What that process held at most."""


class Sample(Value, frozen=True, kw_only=True):
    """One tick of one source (or, merged, of all sources)."""

    taken_at_s: float
    taken_mono_s: float
    boot_id: str
    readings: tuple[DeviceReading, ...]
    processes: tuple[ProcessInfo, ...] = ()
    """Only what the source itself knows (replay, simulate); live pids are looked up by the host."""
    faults: tuple[Fault, ...] = ()
    events: tuple[Event, ...] = ()
    """What happened since the last sample."""


FOR_GOOD_S = 10 * 365 * 86400.0
"""Ollama gives a day centuries ahead for a model that stays until somebody unloads it."""


class ServedModel(Value, frozen=True, kw_only=True):
    """A model that a serving engine has loaded."""

    name: str
    size_bytes: int | None = None
    vram_bytes: int | None = None
    """Ollama's estimate at load; 0 is "on the CPU"."""
    expires_at_s: float | None = None


class ServerReading(Value, frozen=True, kw_only=True):
    """What a serving engine on this machine says of itself."""

    kind: str
    """"Ollama", "vLLM", "SGLang" or "llama.cpp"."""
    url: str
    at_s: float
    pid: int | None = None
    ok: bool = True
    why: str = ""
    """Why it did not answer."""
    models: tuple[ServedModel, ...] | None = None
    """Loaded models; () is none, None is unknown."""
    kv_share: float | None = None
    """Share of the KV cache in use, 0-1; a prefix cache that can be evicted does not count."""
    running: int | None = None
    """Requests being worked on."""
    waiting: int | None = None
    pool_share: float | None = None
    """Share of the device that its pool was set to take, 0-1."""
    version: str | None = None
    facts: dict[str, float] = msgspec.field(default_factory=dict)


class FunctionCalls(Value, frozen=True, kw_only=True):
    """What a job says of a function of its own: its calls, and what they add beyond those within.

    Bytes of one device; None where it uses none.
    """

    name: str
    call_count: Count
    total_memory_growth: Amount | None = None
    average_growth_per_call: Reading | None = None
    positive_growth_ratio: Share | None = None
    """Share of the calls that add memory."""
    peak_bytes: Amount | None = None
    grown_bytes: Amount | None = None
    """What the calls that add memory add."""
    reserved_bytes: Amount | None = None
    inactive_split_bytes: Amount | None = None
    points: Annotated[
        tuple[tuple[Reading, Reading, Reading, Reading], ...], Meta(max_length=256)
    ] = ()
    """Each of some calls in a row: when the last one ended (of any clock, in seconds), the lowest
    and highest allocated at their ends, and what the function has added by then."""
