"""The daemon's own pace: slower only while nothing moves, nothing is open and nobody reads."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuwatchd.core.config import Config
from gpuwatchd.daemon import main
from gpuwatchd.store import live
from tests import making
from tests.pipeline.play import Script
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Sample

GIB = 2**30


class World:
    """One GPU with one process, a daemon's pace, and their common clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.util_pct, self.folder = 1000.0, 0.0, folder
        first = making.sample(0.0, [(making.LEAKER, GIB)]).readings[0]
        self.reading = first
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(main, "time", clock)
        self.pipeline = make_pipeline(
            config=Config(), sources=[Script(self._sample)], runtime_dir=folder,
            wall=lambda: self.now_s, mono=lambda: self.now_s,
        )  # fmt: skip
        self.pace = main.Pace(self.pipeline, folder)

    def _sample(self, _: int) -> Sample:
        whole = making.sample(self.now_s, [(making.LEAKER, GIB)])
        return replace(whole, readings=(replace(self.reading, util_pct=self.util_pct),))

    def go(self, seconds: float) -> float:
        """Tick at the chosen pace for so long; return the last pause."""
        until_s, pause_s = self.now_s + seconds, 5.0
        while self.now_s < until_s:
            self.now_s += pause_s
            self.pace.before_tick()
            pause_s = self.pace.pause_s(5.0, self.pipeline.tick())
        return pause_s

    def reads(self) -> None:
        """Let somebody read the live state, as far as the file's times tell."""
        file = self.folder / live.FILE_NAME
        written_s = file.stat().st_mtime
        os.utime(file, (written_s + 1, written_s))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world at rest."""
    return World(tmp_path, monkeypatch)


def test_what_rests_is_looked_at_a_third_as_often_and_what_moves_at_once_as_before(
    world: World,
) -> None:
    assert world.go(main.STILL_S - 10) == 5.0
    assert world.go(30) == 15.0
    world.reading = replace(world.reading, used_bytes=GIB + 2**20)
    assert world.go(5) == 5.0
    assert world.go(main.STILL_S + 30) == 15.0
    world.util_pct = 3.0
    assert world.go(main.STILL_S + 30) == 5.0


def test_who_reads_sees_what_is_of_the_usual_pace(world: World) -> None:
    assert world.go(main.STILL_S + 30) == 15.0
    assert world.pipeline.tick().state.interval_s == 15.0
    world.reads()
    assert world.go(1) == 5.0
    assert world.pipeline.tick().state.interval_s == 5.0
    assert world.go(1) == 15.0


@pytest.mark.parametrize(("interval_s", "pause_s"), [(1.0, 3.0), (5.0, 15.0), (30.0, 30.0)])
def test_a_longer_interval_of_the_user_stays(
    world: World, interval_s: float, pause_s: float
) -> None:
    world.go(main.STILL_S + 30)
    assert world.pace.pause_s(interval_s, world.pipeline.tick()) == pause_s
