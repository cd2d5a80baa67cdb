"""Spans: what is charged to whom, and that the job sees nothing of it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from _gpuwatchd_probe import report, span, spans, watch

from gpuwatchd.collect import mailboxes

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


class Cuda:
    """The counters of a device."""

    held = peak = device = 0

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return self.device

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        held = {"current": self.held if index == 0 else 7, "peak": self.peak}
        inner = {"all": held}
        names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
        return dict.fromkeys(names, inner)

    def add(self, mib: int) -> int:
        self.held += mib * MIB
        self.peak = max(self.peak, self.held)
        return mib


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    device = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=device))
    spans._forget()
    yield device
    spans._forget()


def facts(name: str) -> dict[str, Any]:
    (row,) = [row for row in spans.most() if row["name"] == name]
    return row


def test_each_is_charged_with_its_own_growth(cuda: Cuda) -> None:
    for _ in range(4):
        with span("step"):
            cuda.add(1)
            with span("inner"):
                cuda.add(10)
                cuda.add(-7)
    assert facts("inner") == {
        "name": "inner",
        "call_count": 4,
        "total_memory_growth": 12 * MIB,
        "average_growth_per_call": 3.0 * MIB,
        "positive_growth_ratio": 1.0,
        "peak_bytes": (3 * 4 + 1 * 4 + 7) * MIB,
    }
    assert facts("step")["total_memory_growth"] == 4 * MIB
    assert facts("step")["peak_bytes"] == facts("inner")["peak_bytes"]


def test_a_span_stays_with_the_device_where_it_began(cuda: Cuda) -> None:
    with span("outer"):
        cuda.device = 1
        with span("other"):
            cuda.add(5)
    assert facts("outer")["total_memory_growth"] == 5 * MIB
    assert facts("other")["total_memory_growth"] == 0


def test_what_is_wrapped_is_as_it_was(cuda: Cuda) -> None:
    @watch
    def plain(value: int) -> int:
        """Add."""
        if value < 0:
            raise ValueError(value)
        return cuda.add(value)

    @watch("named")
    def named() -> None: ...

    class Kind:
        method = watch(staticmethod(named))

    async def many() -> Any:
        yield 1

    assert (plain(3), plain.__doc__, plain.__name__) == (3, "Add.", "plain")
    with pytest.raises(ValueError, match="-1"):
        plain(-1)
    named()
    assert watch(Kind) is Kind
    assert watch(many) is many
    assert Kind.method() is None
    assert facts("named")["call_count"] == 2
    assert facts(f"{__name__}.{plain.__qualname__}")["call_count"] == 2


def test_a_generator_is_charged_while_it_runs_itself(cuda: Cuda) -> None:
    @watch(name="steps")
    def steps() -> Any:
        cuda.add(1)
        try:
            sent = yield "first"
        except KeyError:
            sent = "caught"
        cuda.add(2)
        yield sent
        return "end"

    assert inspect.isgeneratorfunction(steps)
    for error in (None, KeyError()):
        running = steps()
        assert next(running) == "first"
        cuda.add(100)
        assert (running.throw(error) if error else running.send("x")) in {"x", "caught"}
        with pytest.raises(StopIteration) as end:
            next(running)
        assert end.value.value == "end"
    early = steps()
    next(early)
    early.close()
    assert facts("steps")["call_count"] == 3
    assert facts("steps")["total_memory_growth"] == 7 * MIB


def test_coroutines_that_take_turns_are_told_apart(cuda: Cuda) -> None:
    @watch(name="one")
    async def one() -> int:
        for _ in range(3):
            cuda.add(1)
            await asyncio.sleep(0)
        return 1

    @watch(name="two")
    async def two() -> int:
        for _ in range(3):
            cuda.add(10)
            await asyncio.sleep(0)
        raise KeyError

    async def both() -> list[Any]:
        cancelled = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        cancelled.cancel()
        return list(await asyncio.gather(one(), two(), cancelled, return_exceptions=True))

    done = asyncio.run(both())
    assert [done[0], *map(type, done[1:])] == [1, KeyError, asyncio.CancelledError]
    assert inspect.iscoroutinefunction(one)
    assert facts("one")["total_memory_growth"] == 4 * MIB
    assert facts("two")["total_memory_growth"] == 30 * MIB
    assert facts("one")["call_count"] == 2


def test_threads_have_their_own_nesting(cuda: Cuda) -> None:
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with span("thread"):
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=work)
    with span("main"):
        thread.start()
        inside.wait(30)
        cuda.add(3)
    done.set()
    thread.join()
    assert facts("main")["total_memory_growth"] == 3 * MIB
    assert facts("thread")["call_count"] == 1


@pytest.mark.parametrize("broken", [SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())])
def test_without_figures_calls_are_counted(
    broken: Any, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", broken)
    bad: Any = [object(), "a\ud800", "é" * 300]
    for name in ("cpu", *bad):
        with span(name):
            pass
    assert facts("cpu") == dict.fromkeys(facts("cpu")) | {"name": "cpu", "call_count": 1}
    assert facts("?")["call_count"] == facts("a?")["call_count"] == 1
    assert report()["functions"][0]["trend"] is None


def test_what_is_kept_and_sent_is_bounded(cuda: Cuda) -> None:
    for number in range(spans.MOST_FUNCTIONS + 50):
        with span(f"{number} " + "\U0001f600" * 300):
            cuda.add(1)
    for number in range(5000):
        with span("one more"):
            cuda.held = 10**12 + (number == 4000) * 10**11
    assert len(spans._functions) == spans.MOST_FUNCTIONS + 1
    others = report()["functions"][-1]
    assert (others["call_count"], others["spikes"]["count"]) == (5050, 1)
    assert len(json.dumps(spans.most())) < mailboxes.MOST_BYTES - 8192
    for one in spans._functions.values():
        one.points = one.points * 300
        del one.points[spans.MOST_POINTS :]
    assert len(json.dumps(spans.most(calls=True))) < mailboxes.MOST_ANSWER_BYTES


def test_a_series_covers_the_whole_run(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(spans, "_clock", lambda: float(next(clock)))
    for _ in range(5000):
        with span("step"):
            cuda.add(1)
    (row,) = spans.most(calls=True)
    points = row["points"]
    assert spans.MOST_POINTS / 2 <= len(points) < spans.MOST_POINTS
    assert points[0][0] < 64
    assert (points[-1][0], points[-1][3]) == (4999.0, 5000 * MIB)
    (shape,) = report()["functions"]
    assert shape["trend"]["rate_bytes_per_s"] == pytest.approx(MIB, rel=0.02)
    assert shape["trend"]["r"] > 0.99
    assert shape["spikes"]["count"] == 0


def test_a_child_begins_anew(cuda: Cuda) -> None:
    with span("parent"):
        pid = os.fork()
        if not pid:
            with span("child"):
                pass
            os._exit(0 if [row["name"] for row in spans.most()] == ["child"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
