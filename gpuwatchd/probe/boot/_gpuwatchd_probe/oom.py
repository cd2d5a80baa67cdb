"""What torch's CUDA allocator records: who allocated a block, and what was there at an OOM.

Only in a job that was started with ``run --record``. Not run on a GPU so far.
"""

from __future__ import annotations

import inspect
import random
import sys
import threading
import time
from types import FrameType
from typing import Any, Dict, List, Optional, Tuple

from . import (
    attributes,
    census,
    counters,
    heap,
    holders,
    inspection,
    mailbox,
    names,
    places,
    requests,
)
from . import tensors as tensor_facts

RECORD = {
    "enabled": "all",
    "context": "alloc",
    "stacks": "python",
    "max_entries": 20_000,
    "skip_actions": ["free_requested", "segment_alloc", "segment_free", "snapshot"],
}
"""Torch's own defaults keep every entry, with C++ stacks that take minutes to be resolved."""
LIMIT_S = 5.0
LONGEST_PAUSE_S = 0.3
APART_S = 600.0
KEPT = 3
MOST_THREADS, MOST_FRAMES, MOST_GROUPS = 32, 50, 6


def begin(box: mailbox.Mailbox) -> Optional[Recorder]:
    """Return what records, from now on; None before CUDA is initialised."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    recorder = Recorder(box)
    try:
        recorder.start(torch)
    except Exception:  # names of torch that are not public may come to mean something else
        pass
    return recorder


class Recorder:
    """Has the allocator record, unless somebody else does, and keeps what is there at an OOM."""

    def __init__(self, box: mailbox.Mailbox) -> None:
        self.recording = False
        self._box = box
        self._lock = threading.Lock()
        self._number = 0
        self._next_s = time.monotonic()

    def start(self, torch: Any) -> None:
        """Record and wait for an OOM, so far as this torch can."""
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self.observe)
        is_on = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        record = getattr(torch.cuda.memory, "_record_memory_history", None)
        if is_on is None or record is None or is_on():
            return
        known = inspect.signature(record).parameters
        if "max_entries" in known:  # without a bound the record is a leak itself
            record(**{name: value for name, value in RECORD.items() if name in known})
            self.recording = True

    def observe(self, device: int, requested: int, limit: int, free: int) -> None:
        """Write down what is there; the allocator calls it in the thread that gets no memory."""
        try:
            if time.monotonic() >= self._next_s and self._lock.acquire(blocking=False):
                try:
                    self._save(device=device, requested=requested, limit=limit, free=free)
                finally:
                    self._lock.release()
        except Exception:  # the user's own error must come, not ours
            pass

    def _save(self, **figures: int) -> None:
        began_s = time.monotonic()
        self._next_s = began_s + APART_S
        self._number += 1
        record = dict(figures, at_s=time.time(), devices=counters.read("torch"))
        self._write(record)  # what comes first is kept where the job is killed meanwhile
        record["threads"] = stacks()
        self._write(record)
        left_s = LIMIT_S - (time.monotonic() - began_s)
        if requests.counters_only() or heap.expected_pause_s() > min(left_s, LONGEST_PAUSE_S):
            return
        types = tensor_facts.types()
        record.update(heap.in_child(lambda: _census(types, time.monotonic() + left_s / 2), left_s))
        self._write(record)

    def _write(self, record: Dict[str, Any]) -> None:
        name = "oom-%d" % (self._number % KEPT)
        self._box.leave(name, mailbox.encoded(dict(self._box.head, **record)))


def stacks() -> List[Dict[str, Any]]:
    """Return where each thread is, the calling one first: names of functions and files alone."""
    threads = {key: thread.name for key, thread in list(threading._active.items())}  # type: ignore[attr-defined]
    own = threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda one: one[0] != own)
    try:
        return [
            {"thread_name": threads.get(key), "frames": _frames(frame)}
            for key, frame in frames[:MOST_THREADS]
        ]
    finally:
        del frames  # the first is this function's own: it would keep itself and the job's variables


def _frames(frame: Optional[FrameType]) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not file.startswith(places.PROBE):
            found.append({"name": name[:100], "filename": file[-200:], "line": frame.f_lineno})
        frame = frame.f_back
    return found


def _census(types: Tuple[type, ...], end_s: float) -> Dict[str, Any]:
    """Return which tensors take most memory, and what holds them (in the child)."""
    attributes.remember_dicts()
    calls = inspection.frames_of(sys._getframe())
    own = {id(frame) for frame in calls if frame.f_code.co_filename.startswith(places.PROBE)}
    with inspection.without_torch_functions():
        taken = census.take(types)
        namer = names.Namer(set(map(id, taken.objects)), own)
        groups = []
        largest = sorted(taken.fine.items(), key=lambda one: -one[1].size)
        for key, group in largest[:MOST_GROUPS]:
            sampled = set(random.sample(group.ids, min(inspection.SAMPLED, len(group.ids))))
            members = [obj for obj in taken.found if id(obj) in sampled]
            budget_s = end_s - time.monotonic()
            walked = holders.walk(members, types, budget_s, namer) if budget_s > 0 else []
            found = {"group": key, "counts": [group.total], "bytes": group.size}
            groups.append(dict(found, holder=walked[0] if walked else None))
    return {"groups": groups}


def add_lines(groups: List[Dict[str, Any]]) -> None:
    """Say of each group where the allocator recorded that a member was allocated (in the job)."""
    memory = getattr(getattr(sys.modules.get("torch"), "cuda", None), "memory", None)
    trace_of: Any = getattr(memory, "_allocation_traceback", None)
    for group in groups:
        addresses = group.pop("addresses", [])
        try:
            frames = next(filter(None, map(trace_of, addresses)), ())
            users = [frame for frame in frames if places.is_users(frame["filename"])]
            for frame in (users or frames)[:1]:
                group["line"] = {key: frame[key] for key in ("name", "filename", "line")}
        except Exception:  # a build without CUDA has the function and nothing behind it
            continue
