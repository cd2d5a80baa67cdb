"""What the daemon saw in its last tick, and what it is asked: small files between programs.

The live state is written to a temporary name, then renamed: a reader sees the old or the new one,
never half of it. It stays when the daemon dies, which is when it is needed. The request to let go
of the GPUs names an instant, so that a daemon that starts anew honours the rest of the time.
"""

import errno
import functools
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import compress
from operator import attrgetter, is_not
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from gpuwatchd.core import decoding
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import (
    Alert,
    ChannelHealth,
    Device,
    DeviceReading,
    Event,
    Finding,
    Holding,
    Ledger,
    MemoryLimit,
    ProcessInfo,
    ServerReading,
    Severity,
    Silence,
    Value,
)
from gpuwatchd.store import private_files

RELEASE_FILE: Final = "release.json"
SHORTEST_RELEASE_S: Final = 10.0
LONGEST_RELEASE_S: Final = 86_400.0
_MOST_RELEASE_BYTES: Final = 4096


class ReleaseRequest(Value, frozen=True, kw_only=True):
    """The GPUs are not to be held until an instant."""

    until_at_s: float
    asked_at_s: float

    @property
    def duration_s(self) -> float:
        """For how long it was asked."""
        return self.until_at_s - self.asked_at_s

    def left_s(self, now_s: float) -> float:
        """Return how much is left of it; never more than was asked for, wherever the clock is."""
        return min(self.until_at_s - now_s, self.duration_s)


def release_stamp(directory: Path) -> tuple[int, int, int] | None:
    """Return what changes when the file does; None without a file. Cheap, for every tick."""
    try:
        stat_result = os.lstat(f"{directory}/{RELEASE_FILE}")  # once a tick: joining costs more
    except OSError:
        return None
    return stat_result.st_ino, stat_result.st_mtime_ns, stat_result.st_size


def ask_release(directory: Path, duration_s: float, now_s: float) -> ReleaseRequest:
    """Ask for so long from now on; an earlier request is extended, never shortened.

    Raises
    ------
    StoreError
        When the file cannot be written.
    """
    until_s = now_s + min(max(duration_s, SHORTEST_RELEASE_S), LONGEST_RELEASE_S)
    try:
        before = read_release(directory, now_s)
    except StoreError:
        before = None
    if before is not None:
        until_s = max(until_s, now_s + before.left_s(now_s))
    request = ReleaseRequest(until_at_s=until_s, asked_at_s=now_s)
    path = directory / RELEASE_FILE
    temporary = directory / f"{RELEASE_FILE}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600)
        with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor
            private_files.fit(handle, directory)
            file.write(msgspec.json.encode(request))
        temporary.replace(path)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written: {error.strerror}",
            hint="check the runtime directory's owner and free space",
            page="errors#directory",
        ) from error
    return request


def end_release(directory: Path) -> bool:
    """Take the request back; return whether there was one.

    Raises
    ------
    StoreError
        When the file cannot be removed.
    """
    path = directory / RELEASE_FILE
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be removed: {error.strerror}", page="errors#directory"
        ) from error
    return True


def read_release(directory: Path, now_s: float) -> ReleaseRequest | None:
    """Return the request that is in force, None when there is none or its time is over.

    Raises
    ------
    StoreError
        When there is a file that is no such request: not ours, too large, not understood, or for
        longer than the longest time.
    """
    path = directory / RELEASE_FILE
    try:
        # Not blocking: something else than a file at this place must not hold the daemon up.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            stat_result = os.fstat(handle)
            # Before it is read: a directory opens, too.
            ours = {os.geteuid(), 0, os.stat(directory).st_uid}  # noqa: PTH116 - raises as open does
            if not stat.S_ISREG(stat_result.st_mode) or stat_result.st_uid not in ours:
                raise StoreError(f"{path}: is not a file of ours", page="errors#directory")
            content = os.read(handle, _MOST_RELEASE_BYTES + 1)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}", page="errors#directory"
        ) from error
    request = None
    with suppress(msgspec.MsgspecError, RecursionError):
        request = decoding.decode(content, ReleaseRequest)
    if request is None or not request.duration_s <= LONGEST_RELEASE_S + 1.0:
        why = "is not a request" if request is None else "asks for more than a day"
        hint = "gpuwatchctl release --end"
        raise StoreError(f"{path}: {why}", hint=hint, page="errors#release-request")
    return request if request.until_at_s > now_s else None


FILE_NAME = "state.json"
FORMAT = 1
MAX_BYTES = 64 * 2**20
"""No state is larger: 1,000 processes take 1 MiB."""


class KnownRuns(Value, frozen=True, kw_only=True):
    """What a judgement could rest on beside the curve."""

    runs: int = 0
    """Earlier runs of the same program, newest five and those that the user spoke of."""
    word: Literal["normal", "leak"] | None = None
    """What the user last said of one of them, or of this one."""
    siblings: int = 0
    yesterday: bool = False


class LiveProcess(Value, frozen=True, kw_only=True):
    """One process on one device."""

    info: ProcessInfo
    used_bytes: int | None = None
    kind: str = "C"
    finding: Finding | None = None
    history: KnownRuns | None = None
    """None where the program cannot be known again."""
    sm_pct: float | None = None
    host_bytes: int | None = None
    """Anonymous memory and swap on the host."""
    host_finding: Finding | None = None
    """The judgement on that memory."""
    limit: MemoryLimit | None = None
    """What else than the device limits it first."""


class LiveDevice(Value, frozen=True, kw_only=True):
    """One device."""

    device: Device
    reading: DeviceReading | None
    """None when it could not be read in the last tick; ``uses`` is left out (see processes)."""
    unattributed_bytes: int | None = None
    finding: Finding | None = None
    """The judgement shown for the device: its own, or that of its worst process."""
    processes: tuple[LiveProcess, ...] | None = None
    """None when the list is unknown and none is remembered."""
    processes_age_s: float | None = None
    """Age of the list where the newest could not be read; None where it is of now."""
    ledger: Ledger | None = None
    events: tuple[Event, ...] = ()
    """The newest, oldest first."""
    recent_bytes: tuple[int | None, ...] = ()
    """Up to 32 values, oldest first, evenly spaced, for a sparkline; None is a gap."""
    recent_step_s: float = 0.0
    samples: int = 0
    faults: tuple[str, ...] = ()

    @property
    def used_bytes(self) -> int | None:
        """What is taken of its memory."""
        return None if self.reading is None else self.reading.used_bytes

    @property
    def total_bytes(self) -> int | None:
        """All of its memory, as it was read last."""
        total = None if self.reading is None else self.reading.total_bytes
        return self.device.memory_total_bytes if total is None else total


class UndeliveredAlert(Value, frozen=True, kw_only=True):
    """An alert that reached nobody before it was over."""

    key: str
    code: str
    title: str
    severity: Severity
    ended: str
    """What became of it."""
    ended_at_s: float


class LiveState(Value, frozen=True, kw_only=True):
    """The whole file."""

    format: int = FORMAT
    pid: int
    version: str
    started_at_s: float
    taken_at_s: float
    interval_s: float
    ticks: int = 0
    boot_id: str = ""
    """Identity of the boot in which it was written; empty where that is unknown."""
    clock_ahead_s: float | None = None
    """By how much the wall clock was ahead of the monotonic one: tells whether it was set since."""
    stopped: bool = False
    """True in the file that a daemon leaves behind when it stops in order."""
    devices: tuple[LiveDevice, ...] = ()
    alerts: tuple[Alert, ...] = ()
    """Those that are open: watch and firing."""
    pending: tuple[Alert, ...] = ()
    """Those that have not opened: for the next daemon, and shown to nobody."""
    problems: tuple[str, ...] = ()
    """What is missing or broken, one sentence each."""
    problem_codes: tuple[ProblemCode, ...] = ()
    """Of each, what it is about."""
    rss_bytes: int | None = None
    holdings: tuple[Holding, ...] = ()
    servers: tuple[ServerReading, ...] = ()
    channels: tuple[ChannelHealth, ...] = ()
    untold: tuple[str, ...] = ()
    """Keys of open alerts that were to be told and have reached nobody so far."""
    lost: tuple[UndeliveredAlert, ...] = ()
    """Alerts that have reached nobody and are over, badly, since less than a day."""
    deaths: tuple[Alert, ...] = ()
    """Alerts of the last day whose subject ran out of memory, newest first; none with feedback."""
    silences: tuple[Silence, ...] = ()
    """Those in force."""
    coded: bool = False
    """Codes stand beside its sentences; an older daemon wrote none."""


_ENCODER = msgspec.json.Encoder()
_HERE = msgspec.Raw(b"\0")
"""Where a list of processes goes: no JSON has this byte."""
_MOST_PIECES = 512
"""Linux and macOS take 1,024 at once."""


class _Piece(NamedTuple):
    """What one process was encoded to."""

    process: LiveProcess
    encoded: bytes
    rest: bytes
    """Without its figures and first brace: as a rule nothing else changes."""


_NO_FIGURES: dict[str, Any] = dict.fromkeys(("used_bytes", "sm_pct", "host_bytes"))
_without_figures = attrgetter(*[f for f in LiveProcess.__struct_fields__ if f not in _NO_FIGURES])


class Pieces:
    """What processes and alerts were encoded to, while they are the very same objects.

    Two levels: the list of a device, and each of its processes; both are kept alive with what they
    became, so that an identity is never that of another.
    """

    def __init__(self) -> None:
        self.lists: dict[int, tuple[tuple[LiveProcess, ...], bytes]] = {}
        self.each: dict[int, dict[int, _Piece]] = {}
        """By position of the device, the processes of its list, by the identity of who they are."""
        self.alerts: dict[int, tuple[Alert, msgspec.Raw]] = {}


_SPARSE = (Finding, ProcessInfo)
"""In alerts and processes: small values are encoded whole, which costs a fifth."""


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[list[str], list[object]]:
    """Return the fields' names in JSON and their defaults; without one it has no equal."""
    fields = msgspec.structs.fields(kind)
    return [field.encode_name for field in fields], [field.default for field in fields]


def _known(value: msgspec.Struct) -> Iterator[tuple[str, object]]:
    """Yield the fields that are not as they are by default."""
    names, defaults = _fields(type(value))
    values = astuple(value)
    # Most are the very default: those are left out without a look.
    rest = compress(zip(names, values, defaults, strict=True), map(is_not, values, defaults))
    return ((name, found) for name, found, default in rest if found != default)


def _lean(value: msgspec.Struct) -> dict[str, object]:
    """Return a value's fields, without those that are as they are by default.

    A reader fills those in; most of a process is unknown, calm, or not there.
    """
    return {
        name: _lean(found) if isinstance(found, _SPARSE) else found for name, found in _known(value)
    }


def encode(state: LiveState, pieces: Pieces) -> list[bytes]:
    """Return the file's content, in pieces: what was made before is not copied any more.

    ``pieces`` are from the last call: what is the very same need not be encoded again.
    """
    pairs, pieces.lists = pieces.lists, {}
    devices, lists = [], []
    for position, device in enumerate(state.devices):
        processes = device.processes
        if processes:
            piece = pairs.get(id(processes)) or (processes, _list(processes, pieces.each, position))
            pieces.lists[id(processes)] = piece
            lists.append(piece[1])
            device = replace(device, processes=_HERE)  # noqa: PLW2901
        devices.append(device)
    known = pieces.alerts.copy()
    pieces.alerts.clear()
    for alert in (*state.alerts, *state.pending):
        pieces.alerts[id(alert)] = known.get(id(alert)) or (
            alert,
            msgspec.Raw(_ENCODER.encode(_lean(alert))),
        )
    alerts, pending = (
        [pieces.alerts[id(alert)][1] for alert in of] for of in (state.alerts, state.pending)
    )
    whole = _ENCODER.encode(replace(state, devices=tuple(devices), alerts=alerts, pending=pending))
    between = whole.split(bytes(_HERE))
    content = between[:1]
    for encoded, rest in zip(lists, between[1:], strict=True):
        content += (encoded, rest)
    return content


def _list(
    processes: tuple[LiveProcess, ...],
    each: dict[int, dict[int, _Piece]],
    position: int,
) -> bytes:
    before, now = each.get(position, {}), {}
    encoded = []
    for process in processes:
        # Who it is is kept alive with the piece, and the same as long as it is the same object.
        piece = before.get(id(process.info))
        if piece is None or piece.process is not process:
            piece = _piece(process, piece)
        now[id(process.info)] = piece
        encoded.append(piece.encoded)
    each[position] = now
    return b"[" + b",".join(encoded) + b"]"


def _piece(process: LiveProcess, before: _Piece | None) -> _Piece:
    """Encode one process, without what is equal to what it was before."""
    if before is not None and _without_figures(before.process) == _without_figures(process):
        rest = before.rest
    else:
        rest = _ENCODER.encode(_lean(replace(process, **_NO_FIGURES)))[1:]
    figures: dict[str, float | None] = {"used_bytes": process.used_bytes}
    if process.sm_pct is not None:
        figures["sm_pct"] = process.sm_pct
    if process.host_bytes is not None:
        figures["host_bytes"] = process.host_bytes
    encoded = _ENCODER.encode(figures)[:-1] + b"," + rest
    return _Piece(process, encoded, rest)


def write(directory: Path, state: LiveState, pieces: Pieces | None = None) -> None:
    """Replace the state file; with ``pieces`` for one who writes again and again (:func:`encode`).

    Raises
    ------
    StoreError
        When the directory cannot be written.
    """
    target = f"{directory}/{FILE_NAME}"  # once a tick: Path costs 20 µs
    temporary = f"{target}.new"
    content = encode(state, Pieces() if pieces is None else pieces)
    if len(content) > _MOST_PIECES:
        content = [b"".join(content)]
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            private_files.fit(handle, directory)
            if os.writev(handle, content) < sum(map(len, content)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)
        os.replace(temporary, target)  # noqa: PTH105
    except OSError as error:
        raise StoreError(
            f"{target}: cannot write the live state: {error.strerror}",
            hint="check the runtime directory's owner and free space",
            page="errors#directory",
        ) from error


def was_read(directory: Path) -> bool:
    """Say whether somebody has read the state file since (where times of access are kept)."""
    try:
        status = os.stat(f"{directory}/{FILE_NAME}")  # noqa: PTH116 - once a tick
    except OSError:
        return False
    return status.st_atime_ns > status.st_mtime_ns


class _RawDevice(LiveDevice, frozen=True, kw_only=True):
    processes: tuple[msgspec.Raw, ...] | None = None  # type: ignore[assignment]


class _RawState(LiveState, frozen=True, kw_only=True):
    devices: tuple[_RawDevice, ...] = ()


def _decoded(content: bytes, known: dict[bytes, LiveProcess]) -> LiveState:
    """Return the state, with the very same processes where nothing has changed."""
    state = decoding.decode(content, _RawState)
    decode, before = decoding.decoder(LiveProcess).decode, known.copy()
    known.clear()
    devices = []
    for device in state.devices:
        processes = None
        if device.processes is not None:
            pieces = [*map(bytes, device.processes)]
            known.update((piece, before.get(piece) or decode(piece)) for piece in pieces)
            processes = tuple(map(known.__getitem__, pieces))
        devices.append(replace(device, processes=processes))
    return replace(state, devices=tuple(devices))


def read(directory: Path, known: dict[bytes, LiveProcess] | None = None) -> LiveState | None:
    """Return the last state, or None when there is none (or it is not ours to understand).

    For one who reads again and again ``known`` has the processes of the last call: most are as they
    were, and are not decoded anew.
    """
    try:
        content = _content(directory)
        state = decoding.decode(content, LiveState) if known is None else _decoded(content, known)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if state.coded:
        return state
    return _with_codes(state)


def _with_codes(state: LiveState) -> LiveState:
    """Return what an older daemon has left, with the codes of its sentences."""
    from gpuwatchd.store import legacy_text as legacy  # noqa: PLC0415 - 1 ms, rarely needed

    devices = []
    for device in state.devices:
        finding = functools.partial(legacy.finding, events=device.events)
        processes = None
        if device.processes is not None:
            processes = tuple(
                replace(
                    each,
                    info=legacy.process(each.info),
                    finding=each.finding and finding(each.finding),
                    host_finding=each.host_finding and finding(each.host_finding),
                )
                for each in device.processes
            )
        known = replace(
            device,
            reading=device.reading and legacy.reading(device.reading),
            finding=device.finding and finding(device.finding),
            processes=processes,
        )
        devices.append(known)
    return replace(
        state,
        devices=tuple(devices),
        alerts=tuple(map(legacy.alert, state.alerts)),
        pending=tuple(map(legacy.alert, state.pending)),
        holdings=tuple(map(legacy.holding, state.holdings)),
        problem_codes=tuple(map(legacy.problem, state.problems)),
    )


def _content(directory: Path) -> bytes:
    # Not blocking: something else than a file at this place must not hold the reader up.
    path = os.path.join(directory, FILE_NAME)  # noqa: PTH118
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor
        stat_result = os.fstat(handle)
        if not stat.S_ISREG(stat_result.st_mode) or stat_result.st_size > MAX_BYTES:
            raise OSError("not a live state")
        return file.read(MAX_BYTES)
