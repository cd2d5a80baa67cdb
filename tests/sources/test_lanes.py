"""Lanes by themselves: no driver, only work that takes time."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwatchd.collect import device_threads as module
from gpuwatchd.collect.device_threads import DeviceThreads
from tests.real.stage import until


def test_answers_come_by_lane_and_errors_are_answers() -> None:
    lanes = DeviceThreads()
    answers = lanes.run({"a": lambda: 1, "b": lambda: 1 // 0, "c": lambda: "x"}, 1.0)
    assert (answers["a"], answers["c"]) == (1, "x")
    assert isinstance(answers["b"], ZeroDivisionError)
    assert lanes.busy == {}
    lanes.close()


@pytest.mark.parametrize("stuck", [1, 3])
def test_a_stuck_lane_is_left_behind_and_its_late_answer_dropped(stuck: int) -> None:
    lanes, gate = DeviceThreads(), threading.Event()
    jobs = {str(n): (gate.wait if n < stuck else (lambda: "ok")) for n in range(8)}
    began = time.monotonic()
    answers = lanes.run(jobs, 0.2)
    assert time.monotonic() - began < 2.0
    assert sorted(answers) == [str(n) for n in range(stuck, 8)]
    assert sorted(lanes.busy) == [str(n) for n in range(stuck)]
    assert (lanes.busy_s("0") or 0.0) >= 0.2
    free = {lane: work for lane, work in jobs.items() if lane not in lanes.busy}
    assert sorted(lanes.run(free, 0.2)) == sorted(free)
    gate.set()
    assert until(lambda: not lanes.busy)
    assert lanes.busy_s("0") is None
    assert lanes.run({"0": lambda: "again"}, 1.0) == {"0": "again"}
    lanes.close()


def test_who_takes_over_has_the_whole_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, gate, clock, waits = DeviceThreads(), threading.Event(), [0.0], list[float]()

    def wait(turn: module.ReadRound, seconds: float) -> bool:
        waits.append(seconds)
        assert until(lambda: len(lanes.busy) == min(len(waits), 2))
        clock[0] += seconds
        return False

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module.ReadRound, "wait", wait)
    assert lanes.run({"a": gate.wait, "b": gate.wait}, 1.0) == {}
    # The second thread begins after the first wait; its lane is left behind a second later.
    assert waits == [0.1, 0.1, pytest.approx(0.9)]
    gate.set()
    assert until(lambda: not lanes.busy)
    lanes.close()


def test_threads_that_stood_in_end() -> None:
    lanes, gate = DeviceThreads(), threading.Event()
    before = set(threading.enumerate())

    def mine() -> int:
        return len(set(threading.enumerate()) - before)

    lanes.run({str(n): gate.wait for n in range(6)}, 0.1)
    assert mine() == 6
    gate.set()
    assert until(lambda: mine() <= 1)
    lanes.close()
    assert until(lambda: mine() == 0)
    assert lanes.busy == {}


def test_an_answer_that_is_waited_for_counts_however_late() -> None:
    lanes, gate = DeviceThreads(), threading.Event()
    task = lanes.begin("driver", gate.wait)
    assert not task.wait(0.05)
    assert "driver" in lanes.busy
    gate.set()
    assert task.wait(60.0)
    assert task.answers == {"driver": True}
    assert until(lambda: not lanes.busy)
    lanes.close()


def test_waiting_for_others_ends_when_they_do() -> None:
    lanes, gate = DeviceThreads(), threading.Event()
    lanes.begin("card", gate.wait)
    task = lanes.begin("driver", lambda: lanes.wait_for_others("driver"))
    assert not task.wait(0.1)
    gate.set()
    assert task.wait(60.0)
    lanes.close()


def test_no_work_is_no_wait() -> None:
    assert DeviceThreads().run({}, 60.0) == {}


def test_a_lane_is_free_before_its_answer_can_be_seen() -> None:
    lanes, gate = DeviceThreads(), threading.Event()
    busy: list[bool] = []

    class Answers(dict[str, Any]):
        def __setitem__(self, lane: str, answer: object) -> None:
            busy.append(lane in lanes.busy)
            super().__setitem__(lane, answer)

    task = lanes.begin("driver", gate.wait)
    task.answers = Answers()
    gate.set()
    assert task.wait(60.0)
    assert busy == [False]  # else a lane that is entered again would be taken for the former
    lanes.close()


def test_a_lane_that_is_taken_when_time_is_up_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, taken, gate = DeviceThreads(), threading.Event(), threading.Event()

    class Slow(deque[Any]):
        def popleft(self) -> Any:
            item = super().popleft()
            taken.wait(0.5)  # as if the machine stood still here
            return item

    monkeypatch.setattr(module, "deque", Slow)
    assert lanes.run({"card": gate.wait}, 0.02) == {}
    assert "card" in lanes.busy
    taken.set()
    gate.set()
    assert until(lambda: not lanes.busy)
    lanes.close()
