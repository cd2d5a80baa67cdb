"""What is known at one look: plain facts about who holds memory, with unknown as None."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

import msgspec

from gpuwatchd.core.model import HoldingKind

if TYPE_CHECKING:
    from gpuwatchd.core.model import Ledger, ProcessInfo, ProcessKey, ServerReading

ORDER: Final[tuple[HoldingKind, ...]] = get_args(HoldingKind)
"""What is surest comes first; a process is listed once, as the first of them that it is."""

DAEMONS: Final[frozenset[str]] = frozenset(
    {"nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced"}
)
"""The driver's own helpers: what they hold is nobody's leftover."""

STOPPED: Final = {"T": "it is stopped (state T)", "t": "a debugger has stopped it (state t)"}
"""Letters of the kernel for processes that wait for somebody to let them go on."""


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one process holds on one device."""

    info: ProcessInfo
    used_bytes: int | None
    kind: str = "C"
    busy_pct: float | None = None
    """Its own share of the compute units' time, 0-100; None where only the device's is known."""
    exists: bool | None = None
    """False: there is no such process; None: it cannot be told from here."""
    state: str | None = None
    """Letter of the kernel: R, S, D, Z, ..."""
    cpu_pct: float | None = None
    """Share of one core that it used since the last look, 0-100 and beyond."""
    parent: str | None = None
    """Who its parent is now: "bash[4600]"."""
    orphan: bool = False
    """Whoever started it has ended since."""
    exempt: bool = False
    """Never listed: the daemon itself, what draws the screen, the driver's helpers."""


class DeviceSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One device."""

    uid: str
    total_bytes: int | None = None
    util_pct: float | None = None
    """Highest utilisation seen since the last look."""
    memory_util_pct: float | None = None
    """Share of the time in which its memory was read or written."""
    ledger: Ledger | None = None
    """None also where the device's own figures prove nothing (unified memory, MIG parents)."""
    uses: tuple[ProcessMemory, ...] | None = None
    """None: the list is unknown."""
    complete: bool = True
    """False: the list is known to lack some."""
    contained: bool = False
    """We are inside a container: others may hold memory that is not listed here."""


class Server(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a serving engine says."""

    reading: ServerReading
    members: frozenset[ProcessKey] = frozenset()
    """Processes on a GPU that are known to belong to it."""
    kv_left: float | None = None
    """Share of its KV cache, 0-1, that stays taken although no request is worked on."""
    kv_idle_s: float | None = None
    """For how long that has been so."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What counts."""

    minimum_bytes: float = 512 * 2**20
    idle_after_s: float = 7200.0
    looks: int = 3
    """Good looks in a row before anything is listed."""
    gap_s: float = 600.0
    """After a longer time without a look nothing is known of the time before."""


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One look's reason to think that memory is idle."""

    kind: HoldingKind
    device_uid: str
    process: ProcessInfo | None = None
    held_bytes: int | None = None
    needs_s: float = 0.0
    """It must have been so for this long."""
    flat: bool = False
    """What is held must stay the same meanwhile."""
    begun_s: float | None = None
    """Since when it has been so, where that is known better than by looking."""
    evidence: str = ""
    left: bool = False
    """Of a rank: others of its job, or its launcher, have ended."""
    advice: tuple[str, ...] = ()
    command: str = ""
    """What is to be typed at the end of the first line of advice."""


# What would free memory that is held: advice with its limits, never a promise.

ON_THE_HOST: Final = "this is a container: look on its host, where the pids are valid"
_RESET: Final = "else only a GPU reset, with nothing running on it, or a reboot frees it"
GONE: Final = (
    "no signal can help: there is no process to get one",
    "a thread or child of it may live on in another pid namespace: see who holds /dev/nvidia*",
    _RESET,
)
DRIVER_WAIT: Final = (
    "no signal helps while it waits in the kernel, SIGKILL included",
    "the kernel's log may say why (NVRM, Xid); a hanging network file system has the same effect",
    "if it is the driver, only a GPU reset with nothing else running on it, or a reboot helps",
)
GHOST: Final = (
    "after a crash in a container another pid namespace may hold it: see who holds /dev/nvidia*",
    _RESET,
)
GHOST_BESIDE: Final = (
    "it may be managed or shared memory of a listed process: see whether it falls as that ends",
    *GHOST,
)
ORPHANED_RUNNER: Final = (
    "restart Ollama (systemctl restart ollama): its runners end with it",
    "it is a known fault of some versions: see whether a newer one is out",
)
LEFT_RUNNER: Final = (
    "end it (SIGTERM first): a new Ollama server starts its own runners, not this one",
)
NO_MODEL: Final = ("restart the server, or end it: it has no model loaded",)
LEAKED_KV: Final = (
    "restart the server: cache blocks that it has lost come back with it",
    "requests that were cut off or timed out are the usual cause: see its log",
)
DUMP: Final = "py-spy dump --pid PID"
HUNG_RANK: Final = (
    f"see where it stands: {DUMP}",
    "ending it (SIGTERM first) frees its memory; the job has to start from its last checkpoint",
)
ELSEWHERE: Final = (
    "see whether it needs this GPU: CUDA_VISIBLE_DEVICES at its start limits it to the others",
)
RANK_LEFT: Final = (
    "its siblings will not come back: unless it is still saving something, end it (SIGTERM first)",
)
_STOPPED: Final = {
    "T": "it was stopped (Ctrl-Z, SIGSTOP): resume it with fg or SIGCONT, or end it",
    "t": "a debugger stopped it: resume it there, or end it",
}


def defunct(held: ProcessMemory) -> tuple[str, ...]:
    """Return what would let a process go that has ended already."""
    parent = f"its parent {held.parent}" if held.parent else "its parent"
    return (
        f"{parent} must collect it; if that ends, init collects it",
        "if one of its threads still waits in the driver, only a GPU reset or a reboot helps",
    )


def idle(held: ProcessMemory) -> tuple[str, ...]:
    """Return what would free the memory of a process that does nothing."""
    info = held.info
    if is_notebook(info):
        return ("restart the notebook's kernel (or shut it down): results in memory are lost",)
    texts = []
    if held.state in _STOPPED:
        texts.append(_STOPPED[held.state])
    if held.orphan:
        texts.append("its parent process ended: it runs until you stop it")
    if info.framework == "Ollama":
        texts.append("ollama stop MODEL unloads it; a shorter OLLAMA_KEEP_ALIVE does so by itself")
    elif info.framework in {"vLLM", "SGLang", "Triton Server", "llama.cpp"}:
        texts.append("a server that waits for requests: stop it while it gets none")
    if info.unit and info.unit.endswith(".service"):
        texts.append(f"systemctl stop {info.unit} ends it")
    elif info.job:
        texts.append(f"it belongs to {info.job}: cancel that where it was submitted")
    elif info.container:
        texts.append(f"it runs in {info.container}: stop it if it is not needed")
    elif not texts:
        texts.append(f"ask {info.user or 'its owner'}; ending it (SIGTERM first) frees the memory")
    return tuple(texts)


def is_notebook(info: ProcessInfo) -> bool:
    """Return whether a process is a notebook's kernel."""
    return any("ipykernel" in word or "jupyter" in word for word in (info.name, *info.argv[:4]))
