"""What the feed looks at, and when it does not."""

from __future__ import annotations

import os
import queue
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import live
from gpuwatchd.tui import polling
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.queries.current_view import View
from gpuwatchd.view.query import Query
from tests.tui import world

if TYPE_CHECKING:
    from pathlib import Path

    from textual.message import Message


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    write(folder)
    return folder


def write(folder: Path, cards: int = 2, **changes: int) -> None:
    live.write(folder, world.state(cards, 1, at_s=time.time(), pid=os.getpid(), **changes))


def made(flags: Query | None = None) -> polling.Feed:
    return polling.Feed(flags or Query(), lambda message: None, every_s=1.0)


def seen(message: Message | None) -> View:
    assert isinstance(message, polling.ViewRead)
    return message.view


def test_the_same_file_is_not_decoded_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = made()
    assert len(seen(one.read()).devices) == 2
    monkeypatch.setattr(current_state, "load_view", lambda *_, **__: pytest.fail("looked again"))
    assert one.read() is None


def test_a_new_file_is_seen_at_once(home: Path) -> None:
    one = made()
    before = seen(one.read()).devices
    write(home, cards=3, shift=1)
    now = seen(one.read()).devices
    assert len(now) == 3
    assert now[1].processes == before[1].processes != now[0].processes


def test_an_old_file_is_asked_again_whether_its_daemon_lives(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("gpuwatchd.tui.polling.time.monotonic", lambda: clock[0])
    one = made()
    one.read()
    clock[0] += polling.UNCHANGED_S - 0.1
    assert one.read() is None
    clock[0] += 0.2
    assert seen(one.read()).daemon.running


@pytest.mark.parametrize("left", [False, True])
def test_where_no_daemon_writes_it_looks_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    clock, looks = [100.0], []

    def see(flags: Query, **_: object) -> View:
        looks.append(flags)
        return View("database", 0.0, world.state(1, 1).devices)

    monkeypatch.setattr("gpuwatchd.tui.polling.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(current_state, "load_view", see)
    if left:  # what a daemon that died has left is there still
        (tmp_path / "run").mkdir(mode=0o700)
        write(tmp_path / "run")
    one = made()
    assert seen(one.read()).source == "database"
    for _ in range(4):
        clock[0] += 1.0
        assert one.read() is None
    clock[0] += 1.0
    assert seen(one.read()).source == "database"
    assert len(looks) == 2


def test_a_look_that_costs_much_is_rare(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, spent = [100.0], [0.0]

    def see(flags: Query, **_: object) -> View:
        spent[0] += 0.4
        return View("database", 0.0, world.state(1, 1).devices)

    monkeypatch.setattr("gpuwatchd.tui.polling.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("gpuwatchd.tui.polling.time.thread_time", lambda: spent[0])
    monkeypatch.setattr(current_state, "load_view", see)
    one = made()
    one.read()
    clock[0] += 0.4 / polling.LOOK_SHARE - 0.1
    assert one.read() is None
    write(home, cards=3)
    seen(one.read())  # what a daemon writes anew is seen at once
    clock[0] += 0.4 / polling.LOOK_SHARE + 0.1
    assert len(seen(one.read()).devices) == 1


def test_what_fails_is_told_and_costs_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(Query(gpu=["9"])).read()
    assert isinstance(found, polling.Failed)
    assert "no GPU matches 9" in found.error.message

    def broken(flags: Query, **_: object) -> View:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(current_state, "load_view", broken)
    found = made().read()
    assert isinstance(found, polling.Failed)
    assert found.error.message == "internal error: ZeroDivisionError: a mistake"


def test_it_looks_in_a_thread_of_its_own_until_it_is_stopped(home: Path) -> None:
    got: queue.Queue[object] = queue.Queue()
    one = polling.Feed(Query(), got.put, every_s=0.01)
    one.start()
    try:
        assert isinstance(got.get(timeout=60), polling.ViewRead)
        write(home, cards=4)
        found = got.get(timeout=60)
        assert isinstance(found, polling.ViewRead)
        assert len(found.view.devices) == 4
    finally:
        one.stop()
    write(home, cards=5)
    with pytest.raises(queue.Empty):
        got.get(timeout=0.2)
