"""The child in which the heap is read."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from _gpuwatchd_probe import heap, inspection

from tests.conftest import ON_LINUX
from tests.probe import gate

pytestmark = ON_LINUX


def test_an_answer_comes_back_with_the_pause() -> None:
    answer = heap.in_child(lambda: {"text": "x" * 300_000, "pid": os.getpid()})
    assert len(answer["text"]) == 300_000
    assert answer["pid"] != os.getpid()
    assert answer["pause_ms"] > 0


def test_a_fork_of_the_job_ends_a_census_that_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops = iter([True])
    seen = inspection.steps((), limit_s=20.0, is_stopping=lambda: next(stops, False))
    monkeypatch.setattr(inspection, "_in_child", lambda *_, **__: gate.hang())
    next(seen)
    assert next(seen)["error"] is None
    with pytest.raises(heap.HeapError, match="stopped"):
        heap.in_child(gate.hang, is_stopping=lambda: True)


@pytest.mark.parametrize(
    ("work", "code"), [(gate.hang, "timeout"), (gate.crash, "died"), (lambda: 1 / 0, "died")]
)
def test_a_child_without_an_answer_leaves_nothing(work: Any, code: str) -> None:
    files, before = len([*Path("/proc/self/fd").iterdir()]), gate.children()
    interval = sys.getswitchinterval()
    with pytest.raises(heap.HeapError) as caught:
        heap.in_child(work, limit_s=0.3)
    assert caught.value.code == code
    assert gate.children() == before
    assert len([*Path("/proc/self/fd").iterdir()]) == files
    assert sys.getswitchinterval() == interval


def test_a_job_that_waits_for_any_child_may_take_ours() -> None:
    taken: list[int] = []
    done = threading.Event()

    def wait() -> None:
        while not taken and not done.is_set():
            with contextlib.suppress(ChildProcessError):
                taken.append(os.waitpid(-1, 0)[0])

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(10):
        assert heap.in_child(lambda: {"pid": os.getpid()})["pid"] not in {0, os.getpid()}
    done.set()
    thread.join()


def test_the_frames_of_other_threads_are_there() -> None:
    def stand(marker: str) -> None:
        ready.set()
        done.wait(10)

    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=stand, args=("here",))
    thread.start()
    ready.wait(10)

    def names() -> dict[str, Any]:
        found = []
        for frame in sys._current_frames().values():
            above: Any = frame
            while above is not None:
                found.append(above.f_code.co_name)
                above = above.f_back
        return {"names": found}

    seen = heap.in_child(names)["names"]
    done.set()
    thread.join()
    assert "stand" in seen


def test_too_little_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"/proc/meminfo": {"MemAvailable": 199}, "/proc/self/status": {"RssAnon": 100}}
    monkeypatch.setattr(heap, "_sizes", sizes.__getitem__)
    with pytest.raises(heap.HeapError, match="memory"):
        heap.in_child(dict)


def test_the_pause_is_expected_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"Anonymous": 8 * heap.GIB, "AnonHugePages": 0}
    monkeypatch.setattr(heap, "_sizes", lambda _: small)
    expected = heap.expected_pause_s()
    assert 0.2 < expected < 0.3
    monkeypatch.setattr(heap, "_sizes", lambda _: small | {"AnonHugePages": 8 * heap.GIB})
    assert heap.expected_pause_s() < expected / 3


@pytest.mark.slow
def test_the_gate() -> None:
    seen = gate.run(sys.executable, 2, 20, 10)
    assert gate.harmless(seen), seen
    assert seen["objects"] == gate.run(sys.executable, 2, 0, 0)["objects"]
