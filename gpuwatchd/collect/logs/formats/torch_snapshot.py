"""PyTorch's memory snapshots (``torch.cuda.memory._dump_snapshot``): allocated and reserved.

A snapshot is a pickle, and a pickle can run code when it is loaded. This one is loaded by an
unpickler that knows no class at all: what a snapshot is made of (dictionaries, lists, texts,
numbers) needs none, and anything else is refused.

The layout is the one that PyTorch's documentation describes ("Understanding CUDA Memory Usage",
section on the snapshot's interface); not verified with a snapshot made on hardware.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from gpuwatchd.collect.logs.collector import Place
from gpuwatchd.core.text import clean
from gpuwatchd.core.units import size as in_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.core.model import FloatArray

NAME: Final = "pytorch-snapshot"
MOST_BYTES: Final = 512 << 20
"""A larger file is not loaded."""
MOST_DEVICES: Final = 128
_ROOM_BYTES: Final = 1 << 30
"""Address space that loading may take; a pickle of a few bytes can ask for far more."""
_ROOM_PER_BYTE: Final = 12
"""And so much more for each byte that was read."""
_STEP_BYTES: Final = 1 << 20
"""After so many bytes the room is measured anew."""
_POINTS: Final = 20_000
"""A trace holds an event per allocation: of more points than this the last of each cell stays."""
_SITES: Final = 3
_MUCH_BYTES: Final = 256 << 20
_LITTLE: Final = 0.2
"""Allocated memory that grows by less than this share of the reserved did not cause the growth."""
_OUR_FRAMES: Final = ("/torch/", "/site-packages/torch", "??", "/build/", "/pytorch/")

_HINT: Final = "make one with torch.cuda.memory._dump_snapshot(FILE)"
_RESERVED: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_ALLOCATED: Final = {"alloc": 1, "free_completed": -1}


class SnapshotError(Exception):
    """Why a file is no snapshot, in one sentence, with a hint."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


class _Plain(pickle.Unpickler):
    """Loads plain values only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse: naming a class is how a pickle runs code."""
        what = clean(f"{module}.{name}", limit=80)
        raise SnapshotError(
            f"this pickle asks for {what}, which could run code: it is not opened",
            "a snapshot of torch.cuda.memory._dump_snapshot holds plain values only",
        )

    def persistent_load(self, _pid: object) -> NoReturn:
        """Refuse: a snapshot refers to nothing outside."""
        raise SnapshotError("this is a pickle of something else than a memory snapshot", _HINT)


def is_pickle(head: bytes) -> bool:
    r"""Say whether a file begins like a pickle of protocol 2 or later.

    Examples
    --------
    >>> is_pickle(b"\x80\x04\x95"), is_pickle(b"timestamp")
    (True, False)
    """
    return head[:1] == b"\x80" and head[1:2] in {b"\2", b"\3", b"\4", b"\5"}


def read(raw: IO[bytes], sink: Collector) -> None:
    """Put the series of a snapshot into the collector.

    Every device gives two subjects: what the allocator has reserved from the driver, and what of
    it is allocated to live tensors. Levels are absolute: the trace is followed backwards from the
    state at its end, since it keeps the newest events only.

    Raises
    ------
    SnapshotError
        When the file is no snapshot, or not one that may be opened.
    """
    data = _load(raw)
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise SnapshotError("this pickle is no memory snapshot of PyTorch", _HINT)
    segments = _dicts(data["segments"])
    recorded = data.get("device_traces")
    traces = [_dicts(trace) for trace in recorded] if isinstance(recorded, list) else []
    devices = {number for each in segments if (number := _whole(each.get("device"))) is not None}
    devices |= {number for number, trace in enumerate(traces[:MOST_DEVICES]) if trace}
    crashes = 0
    for device in sorted(devices)[:MOST_DEVICES]:
        events = traces[device] if 0 <= device < len(traces) else []
        crashes += sum(each.get("action") == "oom" for each in events)
        mine = [each for each in segments if _whole(each.get("device")) == device]
        _device(sink, device, mine, events)
    if crashes:
        times = "once" if crashes == 1 else f"{crashes} times"
        sink.note(f"the trace shows that memory ran out {times}")
    if not any(traces):
        sink.note(
            "no history in this snapshot: call torch.cuda.memory._record_memory_history() first"
        )
    for site in _sites(segments):
        sink.note(site)


def _dicts(values: object) -> list[dict[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _load(raw: IO[bytes]) -> Any:
    # A file is refused by its size before a byte of it is loaded; a stream has none.
    with suppress(OSError):
        if os.fstat(raw.fileno()).st_size > MOST_BYTES:
            raise _too_large()
    try:
        with _bounded() as room, _without_collector():
            return _Plain(_Counted(raw, room)).load()
    except SnapshotError:
        raise
    except MemoryError:
        raise SnapshotError("this pickle needs more memory than a snapshot should", _HINT) from None
    except Exception as error:
        # Whatever a damaged pickle makes of the unpickler, it is damage.
        why = clean(str(error) or type(error).__name__, limit=120)
        raise SnapshotError(f"this pickle is damaged or cut off: {why}", _HINT) from error


def _too_large() -> SnapshotError:
    return SnapshotError(
        f"this snapshot is larger than {in_units(MOST_BYTES)}",
        "record fewer events: _record_memory_history(max_entries=100000)",
    )


class _Counted:
    """A file that ends, at the latest, after ``MOST_BYTES``; what is read makes room."""

    def __init__(self, raw: IO[bytes], room: Callable[[int], None]) -> None:
        self._raw = raw
        self._room = room
        self._bytes = self._noted = 0

    def read(self, size: int = -1) -> bytes:
        left = MOST_BYTES - self._bytes + 1
        return self._took(self._raw.read(min(size, left) if size >= 0 else left))

    def readline(self) -> bytes:
        return self._took(self._raw.readline(MOST_BYTES - self._bytes + 1))

    def _took(self, data: bytes) -> bytes:
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise _too_large()
        if self._bytes - self._noted >= _STEP_BYTES:
            self._noted = self._bytes
            self._room(self._bytes)
        return data


@contextmanager
def _without_collector() -> Iterator[None]:
    """Spare the search for cycles: loading throws nothing away, and is twice as fast so."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _bounded() -> Iterator[Callable[[int], None]]:
    """Let loading take no more than so much address space, where the system can see to that.

    Yields what is to be told how many bytes were read: what an honest snapshot takes grows with
    it (7 to 9 times as much), so that one that asks for more is refused after its first bytes.
    """
    if not sys.platform.startswith("linux"):
        yield lambda _: None
        return
    import resource  # noqa: PLC0415 - not on every system

    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - one small read
        now = int(file.read().split()[0]) * resource.getpagesize()

    def set_limit(read_bytes: int) -> None:
        most = now + _ROOM_BYTES + _ROOM_PER_BYTE * read_bytes
        if before[0] != resource.RLIM_INFINITY:
            most = min(most, before[0])
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))

    set_limit(0)
    try:
        yield set_limit
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _amount(value: object) -> int:
    """Return a size in bytes; 0 for what is none."""
    number = _whole(value)
    return number if number is not None and 0 <= number < 1 << 50 else 0


def _device(
    sink: Collector, number: int, segments: list[dict[str, Any]], events: list[dict[str, Any]]
) -> None:
    now = {
        "reserved": sum(_amount(each.get("total_size")) for each in segments),
        "allocated": sum(_amount(each.get("allocated_size")) for each in segments),
    }
    grown: dict[str, float] = {}
    for kind, signs in (("reserved", _RESERVED), ("allocated", _ALLOCATED)):
        row = Place(uuid=f"cuda:{number} {kind}", index=number, name=f"PyTorch {kind}")
        place = sink.places.find(row)
        t, used = _level(events, signs, float(now[kind]))
        if not t.size:
            sink.point(place, None, float(now[kind]))
            continue
        track = sink.track(place, timed=True)
        if track is not None:
            sink.rows += t.size
            track.add(t, used, None)
            grown[kind] = float(used[-1] - used[0])
    reserved, allocated = grown.get("reserved", 0.0), grown.get("allocated", 0.0)
    if reserved > _MUCH_BYTES and allocated < _LITTLE * reserved:
        sink.note(
            f"cuda:{number}: reserved grew by {in_units(reserved)}, allocated by"
            f" {in_units(max(0.0, allocated))}: fragmentation rather than a leak of tensors;"
            " try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )


def _level(
    events: list[dict[str, Any]], signs: dict[str, int], end: float
) -> tuple[FloatArray, FloatArray]:
    """Return seconds (n,) and bytes (n,) of one sum over a trace that ends at ``end`` bytes."""
    times = [(time, each) for each in events if (time := _whole(each.get("time_us"))) is not None]
    rows = [
        (time, sign * _amount(each.get("size")))
        for time, each in times
        if (sign := signs.get(str(each.get("action")))) is not None and 0 <= time < 1 << 62
    ]
    if not rows:
        return np.empty(0), np.empty(0)
    # Both sums go on until the newest event.
    rows.append((max(time for time, _ in times), 0))
    table = np.array(rows, dtype=np.float64)
    t, change = table[np.argsort(table[:, 0], kind="stable")].T
    t = t / 1e6
    level = end - (change.sum() - np.cumsum(change))
    # A trace that lost events, or a free of what was there before it, must not go below nothing.
    level = np.maximum(level - min(0.0, float(level.min())), 0.0)
    cells = np.floor((t - t[0]) / max((t[-1] - t[0]) / _POINTS, 1e-3))
    last = np.append(np.flatnonzero(np.diff(cells)), t.size - 1)
    return t[last], level[last]


def _sites(segments: list[dict[str, Any]]) -> Iterable[str]:
    """Yield where the largest live allocations were made, where their stacks were recorded."""
    held: Counter[str] = Counter()
    for segment in segments:
        for block in _dicts(segment.get("blocks")):
            if block.get("state") == "active_allocated":
                site = _site(block.get("frames"))
                if site is not None:
                    held[site] += _amount(block.get("size"))
    for site, amount in held.most_common(_SITES):
        yield f"{in_units(amount)} live, allocated at {site}"


def _site(frames: object) -> str | None:
    """Return the innermost frame that is not PyTorch's own."""
    for frame in _dicts(frames):
        file = str(frame.get("filename"))
        if file.endswith(".py") and not any(part in file for part in _OUR_FRAMES):
            line, name = frame.get("line"), frame.get("name")
            return clean(f"{file.rpartition('/')[2]}:{line} {name}", limit=80)
    return None
