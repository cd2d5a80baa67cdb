"""PyTorch's memory snapshots (``torch.cuda.memory._dump_snapshot``): allocated and reserved.

They are read by a process of its own, ``gpuwatchd.collect.logs.snapshot_reader``, as plain data.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

from gpuwatchd.collect.logs.collector import Place
from gpuwatchd.collect.logs.snapshot_reader import Answer, SnapshotError
from gpuwatchd.core import run_program, text
from gpuwatchd.core.decoding import decode
from gpuwatchd.core.units import size as in_units

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.snapshot_reader import DeviceMemory, Snapshot

NAME: Final = "pytorch-snapshot"
MOST_BYTES: Final = 512 << 20
"""A larger file is not loaded."""
_PROGRAM: Final = ("-m", "gpuwatchd.collect.logs.snapshot_reader")
_LIMIT_S: Final = 30
_BYTES_PER_S: Final = 2 << 20
"""So much more time: 300,000 blocks and as many events, 118 MiB, take 7 s of a processor."""
_MUCH_BYTES: Final = 256 << 20
_LITTLE: Final = 0.2
_FRAGMENTED: Final = 0.3
_PIECES: Final = "fragmentation (try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
"""Allocated memory that grows by less than this share of the reserved did not cause the growth."""


def is_pickle(head: bytes) -> bool:
    r"""Say whether a file begins like a pickle of protocol 2 or later.

    Examples
    --------
    >>> is_pickle(b"\x80\x04\x95"), is_pickle(b"timestamp")
    (True, False)
    """
    return head[:1] == b"\x80" and head[1:2] in {b"\2", b"\3", b"\4", b"\5"}


def read(raw: IO[bytes], sink: Collector) -> Snapshot:
    """Return a snapshot, and put its two series of each device into the collector.

    SnapshotError where the file is no snapshot, or not one that may be opened.
    """
    answer = _asked(_content(raw))
    snapshot = answer.snapshot
    if snapshot is None:
        raise SnapshotError(answer.error, answer.hint)
    timed = any(memory.reserved[0] or memory.allocated[0] for memory in snapshot.devices)
    for memory in snapshot.devices:
        _device(sink, memory, timed=timed)
    if snapshot.oom_count:
        times = "once" if snapshot.oom_count == 1 else f"{snapshot.oom_count} times"
        sink.note(f"the trace shows that memory ran out {times}")
    if not snapshot.recorded:
        sink.note(
            "no history in this snapshot: call torch.cuda.memory._record_memory_history() first"
        )
    return snapshot


def _content(raw: IO[bytes]) -> bytes:
    # A file is refused by its size before a byte of it is read; a stream has none.
    size = 0
    with suppress(OSError):
        size = os.fstat(raw.fileno()).st_size
    data = raw.read(MOST_BYTES + 1) if size <= MOST_BYTES else b""
    if max(size, len(data)) > MOST_BYTES:
        raise SnapshotError(
            f"this snapshot is larger than {in_units(MOST_BYTES)}",
            "record fewer events: _record_memory_history(max_entries=100000)",
        )
    return data


def _asked(data: bytes) -> Answer:
    limit_s = _LIMIT_S + len(data) // _BYTES_PER_S
    argv = [sys.executable, *_PROGRAM, str(len(data)), str(limit_s)]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        found = run_program.ask(argv, data, environ=environ, timeout_s=limit_s)
    except (OSError, ValueError) as error:
        raise SnapshotError(f"the reader of snapshots cannot be started: {error}", "") from error
    if found.code in (None, -signal.SIGXCPU):
        raise SnapshotError(f"this pickle was not read within {limit_s} s")
    if found.code:
        how = f"signal {-found.code}" if found.code < 0 else f"exit {found.code}"
        why = text.clean(b"".join(found.said.splitlines()[-1:]), limit=120) or how
        raise SnapshotError(f"the process that read this pickle has ended early: {why}")
    return decode(found.out, Answer)


def _device(sink: Collector, memory: DeviceMemory, *, timed: bool) -> None:
    grown: dict[str, float] = {}
    for kind, now, (at_s, used) in (
        ("reserved", memory.reserved_bytes, memory.reserved),
        ("allocated", memory.allocated_bytes, memory.allocated),
    ):
        uuid = f"cuda:{memory.index} {kind}"
        place = sink.places.find(Place(uuid=uuid, index=memory.index, name=f"PyTorch {kind}"))
        if at_s and (track := sink.track(place, timed=True)) is not None:
            sink.counts.good(len(at_s))
            track.add(at_s, used)
            grown[kind] = used[-1] - used[0]
        elif not timed:  # beside series with times a level without one is no use
            sink.point(place, None, float(now))
    reserved, allocated = grown.get("reserved", 0.0), grown.get("allocated", 0.0)
    if reserved > _MUCH_BYTES and allocated < _LITTLE * reserved:
        split = memory.inactive_split_bytes >= _FRAGMENTED * memory.reserved_bytes
        sink.note(
            f"cuda:{memory.index}: reserved grew by {in_units(reserved)}, allocated by"
            f" {in_units(max(0.0, allocated))}: {_PIECES if split else 'free cache'} rather than a"
            " leak of tensors"
        )
