"""The live state file: what the daemon saw in its last tick, for ``status`` and friends.

Written to a temporary name in the same directory, then renamed: a reader sees the old or the new
state, never half of one. It stays when the daemon dies, which is when it is needed.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Literal

import msgspec

from gpuwatchd.errors import StoreError
from gpuwatchd.model import (
    Alert,
    Device,
    DeviceReading,
    Event,
    Finding,
    Holding,
    Ledger,
    ProcessInfo,
    ServerReading,
    Value,
)

if TYPE_CHECKING:
    from pathlib import Path

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
    used_bytes: int | None
    kind: str = "C"
    finding: Finding | None = None
    history: KnownRuns | None = None
    """None where the program cannot be known again."""
    sm_pct: float | None = None
    host_bytes: int | None = None
    """Anonymous memory and swap on the host."""
    host_finding: Finding | None = None
    """The judgement on that memory."""


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


class LiveState(Value, frozen=True, kw_only=True):
    """The whole file."""

    format: int = FORMAT
    pid: int
    version: str
    started_at_s: float
    taken_at_s: float
    interval_s: float
    ticks: int = 0
    stopped: bool = False
    """True in the file that a daemon leaves behind when it stops in order."""
    devices: tuple[LiveDevice, ...] = ()
    alerts: tuple[Alert, ...] = ()
    problems: tuple[str, ...] = ()
    """What is missing or broken, one sentence each."""
    rss_bytes: int | None = None
    holdings: tuple[Holding, ...] = ()
    servers: tuple[ServerReading, ...] = ()


_ENCODER = msgspec.json.Encoder()
Pieces = dict[int, tuple[tuple[LiveProcess, ...], msgspec.Raw]]
"""What processes were encoded to, by the identity of their tuple, which is kept alive with it."""


def encode(state: LiveState, pieces: Pieces) -> bytes:
    """Return the file's content.

    Parameters
    ----------
    pieces
        From the last call: the very same processes of a device need not be encoded again.
    """
    known = dict(pieces)
    pieces.clear()
    devices = []
    for device in state.devices:
        processes = device.processes
        if processes:
            piece = known.get(id(processes))
            if piece is None:
                piece = (processes, msgspec.Raw(_ENCODER.encode(processes)))
            pieces[id(processes)] = piece
            device = msgspec.structs.replace(device, processes=piece[1])  # noqa: PLW2901
        devices.append(device)
    return _ENCODER.encode(msgspec.structs.replace(state, devices=tuple(devices)))


def write(directory: Path, state: LiveState, pieces: Pieces | None = None) -> None:
    """Replace the state file of ``directory``.

    Parameters
    ----------
    pieces
        For one who writes again and again: see :func:`encode`.

    Raises
    ------
    StoreError
        When the directory cannot be written.
    """
    target = os.path.join(directory, FILE_NAME)  # noqa: PTH118 - once a tick: Path costs 20 µs
    temporary = f"{target}.new"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            content = encode(state, {} if pieces is None else pieces)
            if os.write(handle, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)
        os.replace(temporary, target)  # noqa: PTH105
    except OSError as error:
        raise StoreError(
            f"{target}: cannot write the live state: {error.strerror}",
            hint="check the runtime directory's owner and free space",
        ) from error


def read(directory: Path) -> LiveState | None:
    """Return the last state, or None when there is none (or it is not ours to understand)."""
    try:
        return msgspec.json.decode(_content(directory), type=LiveState)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def _content(directory: Path) -> bytes:
    # Not blocking: something else than a file at this place must not hold the reader up.
    path = os.path.join(directory, FILE_NAME)  # noqa: PTH118
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise OSError("not a live state")
        return file.read(MAX_BYTES)
