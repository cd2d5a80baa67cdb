"""Read one memory snapshot of PyTorch: ``python -m gpuwatchd.collect.logs.snapshot_reader BYTES``.

A pickle can run code when it is loaded, ask for any amount of memory, or refer to itself so often
that nobody gets to its end. So this is a process of its own, bounded in memory and time, whose
unpickler knows no class at all: what a snapshot is made of (dictionaries, lists, texts, numbers)
needs none, and anything else is refused. The pickle, of so many bytes, comes on standard input; an
:class:`Answer` leaves as JSON.

The layout is the one that PyTorch's documentation describes ("Understanding CUDA Memory Usage"), as
``tests/data/h200`` has it; of PyTorch before 2.1, whose blocks have a ``history``, as
``torch/cuda/_memory_viz.py`` reads it.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import resource
import sys
from collections import defaultdict
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import numpy as np

from gpuwatchd.core.codes import SiteKind
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

SNAPSHOT_HINT: Final = "make one with torch.cuda.memory._dump_snapshot(FILE)"
MOST_SITES: Final = 10_000
_MOST_DEVICES: Final = 128
_MOST_SEGMENTS: Final = 1 << 16
_ROOM_BYTES: Final = 1 << 30
"""Address space that loading may take; a pickle of a few bytes can ask for far more."""
_ROOM_PER_BYTE: Final = 12
"""And so much more for each byte of the pickle: an honest one takes 7 to 9."""
_POINTS: Final = 20_000
"""A trace holds an event per allocation: of more points than this the last of each cell stays."""
_RESERVED: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_ALLOCATED: Final = {"alloc": 1, "free_completed": -1}
_TORCH: Final = re.compile(
    r"(?:site|dist)-packages/(?:torch|triton)/|/torchinductor_"
    # Built from its source, where a folder of the user may be called torch too.
    r"|(?:^|/)torch/(?:_\w*|amp|autograd|cuda|distributed|functional|fx|jit|nn|optim|utils)[./]"
    r"|/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)|/Python3\d+/Lib/(?!site-packages/)"
)
_LIBRARY: Final = re.compile(r"(?:site|dist)-packages/")
_TYPED_IN: Final = ("<stdin>", "<string>", "<ipython", "<console>")


Curve = tuple[list[float], list[float]]
"""Seconds (n,) and bytes (n,) over the trace; both are empty where nothing of it was recorded."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A line, or what stands for blocks without one, and what of it is live on a device."""

    kind: SiteKind
    device: int
    file: str = ""
    line: int | None = None
    function: str = ""
    live_bytes: int = 0
    block_count: int = 0


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator holds of one device when the snapshot is taken."""

    index: int
    reserved_bytes: int
    allocated_bytes: int
    inactive_split_bytes: int
    """Free, beside blocks in use; as PyTorch counts it, so none of expandable segments."""
    segments: tuple[int, ...]
    """Their addresses: those of another process are others."""
    reserved: Curve
    allocated: Curve


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot holds."""

    devices: tuple[DeviceMemory, ...]
    sites: tuple[Site, ...]
    """Most live bytes first."""
    oom_count: int
    recorded: bool
    """There is a history."""
    newest_at_s: float | None
    """Of its last event."""


class Answer(msgspec.Struct, kw_only=True):
    """A snapshot, or why there is none."""

    snapshot: Snapshot | None = None
    error: str = ""
    hint: str = ""


class SnapshotError(Exception):
    """Why a file is no snapshot, in one sentence, with a hint."""

    def __init__(self, why: str, hint: str = SNAPSHOT_HINT) -> None:
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
        raise SnapshotError("this is a pickle of something else than a memory snapshot")


def answer(raw: IO[bytes]) -> Answer:
    """Return what a pickle holds; never raises."""
    try:
        return Answer(snapshot=summary(_loaded(raw)))
    except SnapshotError as error:
        return Answer(error=str(error), hint=error.hint)
    except MemoryError:
        why = "this pickle needs more memory than a snapshot should"
        return Answer(error=why, hint=SNAPSHOT_HINT)


def _loaded(raw: IO[bytes]) -> Any:
    try:
        return _Plain(raw).load()
    except (SnapshotError, MemoryError):
        raise
    except Exception as error:
        # Whatever a damaged pickle makes of the unpickler, it is damage.
        why = clean(str(error) or type(error).__name__, limit=120)
        raise SnapshotError(f"this pickle is damaged or cut off: {why}") from error


def summary(data: object) -> Snapshot:
    """Return what a loaded snapshot holds; SnapshotError where it is none.

    Levels are absolute: the trace is followed backwards from the state at its end, since it keeps
    the newest events only.
    """
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise SnapshotError("this pickle is no memory snapshot of PyTorch")
    segments: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for segment in _dicts(data["segments"]):
        if (number := _whole(segment.get("device"), 1 << 10)) is not None:
            segments[number].append(segment)
    recorded = data.get("device_traces")
    traces = recorded[:_MOST_DEVICES] if isinstance(recorded, list) else []
    events = {number: found for number, trace in enumerate(traces) if (found := _dicts(trace))}
    numbers = sorted(segments.keys() | events.keys())[:_MOST_DEVICES]
    devices = [_memory(number, segments[number], events.get(number, [])) for number in numbers]
    every = [event for trace in events.values() for event in trace]
    times = [time for event in every if (time := _time(event)) is not None]
    return Snapshot(
        devices=tuple(devices),
        sites=_sites({number: segments[number] for number in numbers}, events),
        oom_count=sum(_action(event) == "oom" for event in every),
        recorded=bool(events),
        newest_at_s=max(times) / 1e6 if times else None,
    )


def _dicts(values: object) -> list[dict[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _whole(value: object, below: int) -> int | None:
    """Return a number from 0 on; None for what is none."""
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 <= value < below else None  # type: ignore[operator, return-value]


def _amount(value: object) -> int:
    """Return a size in bytes; 0 for what is none."""
    return _whole(value, 1 << 50) or 0


def _time(event: dict[str, Any]) -> int | None:
    return _whole(event.get("time_us"), 1 << 62)


def _action(event: dict[str, Any]) -> str:
    return action if isinstance(action := event.get("action"), str) else ""


def _total(amounts: Iterable[int]) -> int:
    return min(sum(amounts), 1 << 60)


def _memory(
    number: int, segments: list[dict[str, Any]], events: list[dict[str, Any]]
) -> DeviceMemory:
    reserved = _total(_amount(each.get("total_size")) for each in segments)
    allocated = _total(_amount(each.get("allocated_size")) for each in segments)
    split = 0
    for segment in segments:
        blocks = _dicts(segment.get("blocks"))
        if len(blocks) > 1 and not segment.get("is_expandable"):
            free = (each for each in blocks if each.get("state") == "inactive")
            split += sum(_amount(each.get("size")) for each in free)
    places = (_whole(each.get("address"), 1 << 63) for each in segments[:_MOST_SEGMENTS])
    return DeviceMemory(
        index=number,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        inactive_split_bytes=_total([split]),
        segments=tuple(place for place in places if place is not None),
        reserved=_curve(events, _RESERVED, float(reserved)),
        allocated=_curve(events, _ALLOCATED, float(allocated)),
    )


def _curve(events: list[dict[str, Any]], signs: dict[str, int], end: float) -> Curve:
    """Return one sum over a trace that ends at ``end`` bytes."""
    times = [(time, each) for each in events if (time := _time(each)) is not None]
    rows = [
        (time, sign * _amount(each.get("size")))
        for time, each in times
        if (sign := signs.get(_action(each))) is not None
    ]
    if not rows:
        return [], []
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
    return t[last].tolist(), level[last].tolist()


def _sites(
    segments: dict[int, list[dict[str, Any]]], events: dict[int, list[dict[str, Any]]]
) -> tuple[Site, ...]:
    """Return where what is live was allocated, most bytes first."""
    held: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for device, own in segments.items():
        allocs = [each for each in events.get(device, ()) if _action(each) == "alloc"]
        recorded = {_whole(each.get("addr"), 1 << 64) for each in allocs} - {None}
        for segment in own:
            cursor = _whole(segment.get("address"), 1 << 64) or 0
            for block in _dicts(segment.get("blocks")):
                size, address = _amount(block.get("size")), _whole(block.get("address"), 1 << 64)
                if block.get("state") == "active_allocated":
                    frames = _frames(block)
                    known = bool(frames) or (cursor if address is None else address) in recorded
                    sums = held[device, *_place(frames, recorded=known)]
                    sums[0] += size
                    sums[1] += 1
                cursor += size
    # Where no stack of Python was recorded at all, that a block has none says nothing.
    python = {SiteKind.LINE, SiteKind.LIBRARY} & {kind for _, kind, *_ in held}
    ranked = sorted(held.items(), key=lambda item: -item[1][0])[:MOST_SITES]
    return tuple(
        Site(
            device=device,
            kind=SiteKind.NO_STACK if kind is SiteKind.BACKWARD and not python else kind,
            file=file,
            line=line,
            function=function,
            live_bytes=_total([size]),
            block_count=count,
        )
        for (device, kind, file, line, function), (size, count) in ranked
    )


def _frames(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stack of a block, innermost frame first."""
    if "frames" in block:
        return _dicts(block["frames"])
    history = _dicts(block.get("history"))
    return _dicts(history[0].get("frames")) if history else []


def _place(
    frames: list[dict[str, Any]], *, recorded: bool
) -> tuple[SiteKind, str, int | None, str]:
    """Return the innermost frame of the user, else of a library, else of PyTorch."""
    best, rank = None, 3
    for frame in frames:
        file = frame.get("filename")
        of_file = _rank(file) if isinstance(file, str) else None
        if of_file is not None and of_file < rank:
            best, rank = frame, of_file
            if not rank:
                break
    if best is None:
        return SiteKind.BACKWARD if recorded else SiteKind.BEFORE_RECORDING, "", None, ""
    name = best.get("name")
    return (
        SiteKind.LIBRARY if rank else SiteKind.LINE,
        clean(best["filename"], limit=1024),
        _whole(best.get("line"), 1 << 31),
        clean(name) if isinstance(name, str) else "",
    )


@lru_cache(maxsize=1 << 14)
def _rank(file: str) -> int | None:
    """Return 0 for a file of the user, 1 of a library, 2 of PyTorch or Python; None of C++."""
    if file.startswith("<"):
        return 0 if file.startswith(_TYPED_IN) else 2
    if not file.endswith(".py"):
        return None
    path = file.replace("\\", "/")
    return 2 if _TORCH.search(path) else 1 if _LIBRARY.search(path) else 0


def _bound(read_bytes: int, limit_s: int) -> None:
    """Bound this process, also where nobody waits for it any more."""
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, limit_s)]
    with suppress(OSError):  # there is none on macOS, which bounds no address space either
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits.append((resource.RLIMIT_AS, now + _ROOM_BYTES + _ROOM_PER_BYTE * read_bytes))
    for which, most in limits:
        hard = resource.getrlimit(which)[1]
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(which, (wanted, hard))


def main() -> NoReturn:
    """Read what standard input holds and write the answer."""
    _bound(*map(int, sys.argv[1:3]))
    gc.disable()  # loading throws nothing away, and is twice as fast so
    sys.stdout.buffer.write(msgspec.json.encode(answer(sys.stdin.buffer)))
    sys.stdout.buffer.flush()
    os._exit(0)  # to free a million values takes longer than to read them


if __name__ == "__main__":
    main()
