"""Looking for checkpoints in a thread: one at a time, and a look that hangs holds up nothing."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.host.checkpoint_files import Saved
from gpuwatchd.pipeline.checkpoint_search import DEADLINE_S, Saves
from tests.making import LEAKER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.store.checkpoints import Checkpoint


def collected(saves: Saves) -> list[Checkpoint]:
    end_s = time.monotonic() + 60.0
    while saves.busy and time.monotonic() < end_s:
        found = saves.collect()
        if found:
            return found
        time.sleep(0.005)
    return []


def test_what_is_found_comes_back() -> None:
    saves = Saves(lambda patterns, _info, _now: Saved(5.0, patterns[0]))
    saves.ask(("/a",), (LEAKER,), 10.0)
    (one,) = collected(saves)
    saves.close()
    assert (one.process, one.saved_at_s, one.said_by, one.detail) == (
        LEAKER.key, 5.0, "file", "/a",
    )  # fmt: skip
    assert not saves.busy


def test_nobody_to_ask_about_needs_no_thread() -> None:
    saves = Saves()
    before = threading.active_count()
    saves.ask((), (LEAKER,), 10.0)
    saves.ask(("/a",), (), 10.0)
    assert threading.active_count() == before
    assert not saves.busy


def test_one_that_fails_does_not_stop_the_next() -> None:
    calls = []

    def look(patterns: Sequence[str], _info: ProcessInfo, _now_s: float) -> Saved | None:
        calls.append(patterns)
        if len(calls) == 1:
            raise OSError("stale file handle")
        return Saved(1.0, "/x")

    saves = Saves(look)
    saves.ask(("/a",), (LEAKER, LEAKER), 10.0)
    assert len(collected(saves)) == 1
    saves.close()


def test_a_look_that_hangs_is_told_and_asked_nothing_more() -> None:
    free, now = threading.Event(), [0.0]

    def look(*_: object) -> Saved | None:
        free.wait(30.0)
        return None

    saves = Saves(look, mono=lambda: now[0])
    try:
        saves.ask(("/nfs/*",), (LEAKER,), 10.0)
        begun_s = time.monotonic()
        saves.ask(("/nfs/*",), (LEAKER,), 20.0)
        assert saves.collect() == []
        assert time.monotonic() - begun_s < 1.0
        assert saves.problem == ""
        now[0] = DEADLINE_S + 1.0
        assert "has not come back for 31 s" in saves.problem
    finally:
        free.set()
        saves.close()
    assert collected(saves) == []


@pytest.mark.parametrize("times", [1, 3])
def test_one_thread_serves_all_looks(times: int) -> None:
    names = set()

    def look(*_: object) -> Saved | None:
        names.add(threading.current_thread().name)
        return Saved(1.0, "/x")

    saves = Saves(look)
    for _ in range(times):
        saves.ask(("/a",), (LEAKER,), 10.0)
        assert collected(saves)
    saves.close()
    assert names == {"checkpoints"}
