"""What is on its way to the terminal: in order, never waited for, cut where we leave."""

from __future__ import annotations

import os
import pty
import threading
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.tui.driver import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 20.0
_MUCH = "x" * 1_000_000


class Told:
    """A writer into a pipe, and what it said."""

    def __init__(self) -> None:
        self.end, self.start = os.pipe()
        self.idle, self.gone = threading.Event(), threading.Event()
        self.writer = Writer(self.start, self.start, idle=self.idle.set, gone=self.gone.set)

    def rest(self) -> bytes:
        """Return what is written from now on, until the writer has ended."""
        found: list[bytes] = []
        reader = threading.Thread(target=self._read, args=(found,))
        reader.start()
        assert self.writer.stop(_PATIENCE_S)
        os.close(self.start)
        reader.join(_PATIENCE_S)
        return b"".join(found)

    def _read(self, found: list[bytes]) -> None:
        while data := os.read(self.end, 65536):
            found.append(data)


@pytest.fixture
def told() -> Iterator[Told]:
    """Return a writer that has begun."""
    told = Told()
    told.writer.start()
    yield told
    os.close(told.end)


def test_what_is_given_is_written_in_order(told: Told) -> None:
    told.writer.write("one ")
    told.writer.write("zwei│ ", picture=True)
    told.writer.write("three")
    assert told.idle.wait(_PATIENCE_S)
    assert not told.writer.busy
    assert told.rest().decode() == "one zwei│ three"


def test_nobody_waits_for_a_reader_that_stopped(told: Told) -> None:
    for _ in range(100):
        told.writer.write(_MUCH, picture=True)
    assert told.writer.busy
    assert not told.writer.stop(0.05), "it cannot have written all of that"
    assert told.writer.drop()
    assert len(told.rest()) < len(_MUCH)


def test_a_picture_is_cut_and_what_restores_the_terminal_is_not(told: Told) -> None:
    told.writer.write(_MUCH, picture=True)
    told.writer.write("later", picture=True)
    told.writer.write("needed")
    assert told.writer.drop()
    told.writer.write("\x1b[?1049l")
    text = told.rest().decode()
    assert text.endswith("\x1b[?2026l\x1b[0mneeded\x1b[?1049l")
    assert "later" not in text


def test_there_is_nothing_to_cut_where_all_is_written(told: Told) -> None:
    told.writer.write("all", picture=True)
    assert told.idle.wait(_PATIENCE_S)
    assert not told.writer.drop()
    assert told.rest() == b"all"


def test_a_terminal_that_is_gone_is_told_once_and_never_waited_for() -> None:
    master, slave = pty.openpty()
    gone: list[bool] = []
    over = threading.Event()

    def ended() -> None:
        gone.append(True)
        over.set()

    writer = Writer(slave, slave, idle=lambda: None, gone=ended)
    writer.start()
    os.close(master)
    assert over.wait(_PATIENCE_S), "nothing was written, and it is seen all the same"
    for _ in range(100):
        writer.write("frame")
    assert writer.stop(_PATIENCE_S)
    assert (gone, writer.busy) == ([True], False)
    os.close(slave)
