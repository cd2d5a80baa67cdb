"""What memory the functions of a job add: ``span``, ``watch``, and ``report`` of both.

The figures of the current device are read when a span begins and ends; what spans within have
added is theirs alone. Nothing is reset, nothing raises. Without a device calls are counted, no
more. The allocator is the whole process's: what other threads do meanwhile is charged too.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import types
from typing import Any, Callable, Dict, List, TypeVar, overload

from . import counters

MOST_FUNCTIONS = 200
"""Later names are counted together."""
MOST_SENT, MOST_NAME = 50, 72
"""So many, with names of so many characters, fit into a mailbox whatever they are."""
MOST_POINTS = 256
"""A full series has its points joined in pairs: it covers the whole run, however long that is."""
_GENERATOR, _COROUTINE, _UNMEASURED = 0x20, 0x80, 0x300
"""Flags of code; the last: old-style coroutines and asynchronous generators."""
F = TypeVar("F", bound=Callable[..., Any])
_clock = time.monotonic
_functions: Dict[str, _Function] = {}
_lock = threading.RLock()  # a signal handler may have spans of its own
_local = threading.local()


def _forget() -> None:
    """Begin anew in a forked child, where a thread that is gone may seem to hold the lock."""
    global _lock, _local
    _lock, _local = threading.RLock(), threading.local()
    _functions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def span(name: str) -> _Span:
    """Charge what a block adds to a name: ``with span("train_step"):``.

    Where the block waits (``await``, ``yield``), it is charged with what runs meanwhile too; a
    function that :func:`watch` wraps is not.
    """
    return _Span(name if type(name) is str else _clean(name))


@overload
def watch(function: F, *, name: str | None = None) -> F: ...
@overload
def watch(function: str | None = None, *, name: str | None = None) -> Callable[[F], F]: ...
def watch(function: Any = None, *, name: str | None = None) -> Any:
    """Charge what each call of a function adds: ``@watch``, or ``@watch("step")``.

    Functions, coroutine functions and generators. Classes and asynchronous generators stay as
    they are.
    """
    if function is None or type(function) is str:
        return lambda decorated: watch(decorated, name=function or name)
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    kinds = (type, staticmethod, classmethod)
    if not callable(function) or isinstance(function, kinds) or flags & _UNMEASURED:
        return function
    module = getattr(function, "__module__", "__main__")
    named = str(getattr(function, "__qualname__", type(function).__qualname__))
    named = _clean(name or (named if module == "__main__" else "%s.%s" % (module, named)))
    if flags & _COROUTINE:

        async def _call(*args: Any, **kwargs: Any) -> Any:
            return await _awaited(named, function(*args, **kwargs))

    elif flags & _GENERATOR:

        def _call(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            return (yield from _steps(named, function(*args, **kwargs)))

    else:

        def _call(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            with _Span(named):
                return function(*args, **kwargs)

    return functools.wraps(function)(_call)


@types.coroutine
def _awaited(name: str, coroutine: Any) -> Any:
    return (yield from _steps(name, coroutine.__await__()))


def _steps(name: str, steps: Any) -> Any:
    """Do as ``yield from`` does, charging what is added while the steps themselves run."""
    call, resume, value = _Span(name, parts=True), steps.send, None
    try:
        while True:
            with call:
                item = resume(value)
            try:
                resume, value = steps.send, (yield item)
            except BaseException as error:
                resume, value = steps.throw, error
    except StopIteration as stop:
        return stop.value
    finally:
        value = None  # an exception is not to be kept by a frame in its own traceback


def _clean(name: Any) -> str:
    """Return the end of a name as plain text, calling nothing of the user's."""
    try:
        return str.__getitem__(name, slice(-MOST_NAME, None)).encode("utf-8", "replace").decode()
    except TypeError:
        return "?"


class _Span:
    """One call; with ``parts`` it begins and ends many times, and an exception ends it."""

    inner = growth = peak = 0
    before: Any = None
    after: Any = None
    known = False

    def __init__(self, name: str, *, parts: bool = False) -> None:
        self.name, self.parts = name, parts
        self.stack: List[_Span] = []

    def __enter__(self) -> None:
        try:
            self.stack = _local.__dict__.setdefault("stack", [])
            self.stack.append(self)
            self.inner, self.before = 0, None
            self.before = _read(None)
        except Exception:  # nothing of ours may reach the job
            pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stack.remove(self)
            self.after, before = None, self.before
            self.after = after = _read(before and before[0])
            if before and after and before[0] == after[0]:
                self._charge(after[1] - before[1], before, after)
        except Exception:  # nothing of ours may reach the job
            pass
        try:
            if kind is not None or not self.parts:
                with _lock:
                    name = self.name
                    if name not in _functions:
                        name = name if len(_functions) < MOST_FUNCTIONS else "(others)"
                        _functions.setdefault(name, _Function(_clean(name)))
                    _functions[name].add(self)
        except Exception:  # nothing of ours may reach the job
            pass

    def _charge(self, added: int, before: Any, after: Any) -> None:
        self.known, self.growth = True, self.growth + added - self.inner
        # A record of the process that is new was set within: a peak for which nothing is reset.
        record = after[4] if after[4] and before[4] and after[4] > before[4] else 0
        self.peak = max(self.peak, before[1], after[1], record)
        for around in reversed(self.stack):
            if around.before and around.before[0] == after[0]:
                around.has_within(added, self.peak)
                break

    def has_within(self, added: int, peak: int) -> None:
        """Leave out what a span within has added."""
        self.inner, self.peak = self.inner + added, max(self.peak, peak)


def _read(source: Any) -> Any:
    """Return (source, allocated, reserved, inactive split, peak); None where no device is in use.

    ``source``: what was read before, so that of several devices it is the same.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        index = source if type(source) is int else cuda.current_device()
        stats = cuda.memory_stats_as_nested_dict(index)
        allocated = stats["allocated_bytes"]["all"]
        reserved, split = stats["reserved_bytes"]["all"], stats["inactive_split_bytes"]["all"]
        return index, allocated["current"], reserved["current"], split["current"], allocated["peak"]
    for name in ("jax", "tensorflow", "mlx", "cupy"):
        rows = counters.read(name) if name in sys.modules else None
        if rows:
            sums = [sum(row.get(key, 0) for row in rows) for key in ("allocated", "reserved")]
            return name, sums[0], sums[1] or None, None, None
    return None


class _Function:
    """The calls of one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = self.known = self.positive = self.growth = self.grown = self.peak = 0
        self.last: Any = (None,) * 5
        self.points: List[List[float]] = []
        self.each = 1

    def add(self, call: _Span) -> None:
        """Add one call."""
        self.calls += 1
        if call.known:
            self.known += 1
            self.positive += call.growth > 0
            self.growth += call.growth
            self.grown += max(call.growth, 0)
            self.peak = max(self.peak, call.peak)
        if call.after and self.last[0] in (None, call.after[0]):  # of one device, the first
            self.last, held = call.after, call.after[1]
            point = [round(_clock(), 3), held, held, self.growth]
            if self.points and self.calls % self.each:
                point = _joined(self.points.pop(), point)
            self.points.append(point)
            if len(self.points) >= MOST_POINTS:
                self.points = list(map(_joined, self.points[::2], self.points[1::2]))
                self.each *= 2

    def facts(self) -> Dict[str, Any]:
        """Return its figures; None where they are not known."""
        known = self.known
        return {
            "name": self.name,
            "call_count": self.calls,
            "total_memory_growth": self.growth if known else None,
            "average_growth_per_call": self.growth / known if known else None,
            "positive_growth_ratio": self.positive / known if known else None,
            "peak_bytes": self.peak if known else None,
        }


def _joined(first: List[float], then: List[float]) -> List[float]:
    return [then[0], min(first[1], then[1]), max(first[2], then[2]), then[3]]


def most(*, calls: bool = False) -> List[Dict[str, Any]]:
    """Return the figures of the functions that add most; with ``calls``, the series of each too.

    A point: when a call ended, the lowest and highest that was allocated at the ends of the calls
    that it stands for, and what the function has added by then.
    """
    with _lock:
        chosen = sorted(_functions.values(), key=lambda one: (-abs(one.growth), -one.calls))
        rows = [(one, one.facts()) for one in chosen[:MOST_SENT]]
        for one, row in rows if calls else ():
            row.update(points=one.points[:], grown_bytes=one.grown if one.known else None)
            row.update(reserved_bytes=one.last[2], inactive_split_bytes=one.last[3])
    return [row for _, row in rows]


def report() -> Dict[str, Any]:
    """Return the figures of each function, with its spikes and its trend.

    The standard library works them out and no detector: whether growth is a leak,
    ``gpuwatchctl inspect PID --functions`` says.
    """
    with _lock:
        rows = [(one.facts(), one.points[:]) for one in _functions.values()]
    return {"functions": [dict(facts, **_shape(points)) for facts, points in rows]}


def _shape(points: List[List[float]]) -> Dict[str, Any]:
    if len(points) < 8:
        return {"spikes": None, "trend": None}
    from statistics import mean, quantiles  # 39 ms, where nobody asks

    at_s, low, high, _ = zip(*points)
    first, median, third = quantiles(high, n=4, method="inclusive")
    threshold = third + max(1.5 * (third - first), 0.05 * median, 1 << 20)
    spikes = {"count": sum(held > threshold for held in high), "threshold_bytes": threshold}
    spikes.update(largest_bytes=max(high), median_bytes=median)
    middle_s, middle = mean(at_s), mean(low)
    tx = sum((at - middle_s) * (held - middle) for at, held in zip(at_s, low))
    tt = sum((at - middle_s) ** 2 for at in at_s)
    both = (tt * sum((held - middle) ** 2 for held in low)) ** 0.5
    trend = {"rate_bytes_per_s": tx / tt if tt else 0.0, "r": tx / both if both else 0.0}
    return {"spikes": spikes, "trend": dict(trend, span_s=at_s[-1] - at_s[0])}
