"""Freeing idle memory from the live screen: shown, confirmed, ended, and what is refused."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.codes import ReapResult
from gpuwatchd.tui.screens.idle import ReapScreen
from gpuwatchd.view.queries import current_state, reaping
from gpuwatchd.view.query import Query
from tests.cli.test_reap import ACTIONS, CARD, OTHER, Stage, stage
from tests.conftest import ON_LINUX, present
from tests.store.world import rows
from tests.tui.viewing import opened, press, screen, settled, words

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["stage"]

pytestmark = [
    ON_LINUX,
    pytest.mark.usefixtures("own_pids"),
    pytest.mark.slow,
]


async def until(happened: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


async def test_y_ends_it_while_the_screen_goes_on(stage: Stage) -> None:
    with stage.holder("SIGTERM", "stay") as job, stage.daemon():
        stage.listed("idle")
        view = current_state.load_view(Query())
        with stage.driver(job, CARD, OTHER):
            async with opened(view, "z", "x", size=(100, 24)) as (app, pilot):
                assert "SIGTERM" in words(app)
                assert rows(stage.folder / "state", ACTIONS) == []
                await press(pilot, "y")
                await until((stage.folder / "notes").exists)
                await press(pilot, "escape", "x", "y")  # a second y asks for nothing
                screen(app, ReapScreen)
                run = present(reaping.latest(job.pid))
                assert run.under_way
                assert [row[:2] for row in rows(stage.folder / "state", ACTIONS)] == [
                    ("asked", "idle")
                ]
                job.kill()
                await until(run.outcome.done)
                await settled(pilot)
                outcome = run.outcome.result()
                assert outcome.text in words(app)
    assert (outcome.result, outcome.sent) == (ReapResult.ENDED, ("SIGTERM",))
    assert outcome.still_held_bytes == 0
    assert (stage.folder / "notes").read_text() == "SIGTERM\n"
    assert [row[:2] for row in rows(stage.folder / "state", ACTIONS)] == [
        ("asked", "idle"), ("done", "ended"),
    ]  # fmt: skip


async def test_what_reap_refuses_is_refused_with_the_command(stage: Stage) -> None:
    with stage.holder("SIGTERM", env={**os.environ, "SLURM_JOB_ID": "4711"}) as job, stage.daemon():
        stage.listed("idle")
        view = current_state.load_view(Query())
        async with opened(view, size=(100, 24)) as (app, pilot):
            (use,) = present(view.devices[0].processes)
            app.shared.select(view.devices[0].device.uid, use.info.key)
            app.open("x")
            await press(pilot, "y")
            assert "scancel -b --signal=TERM 4711" in words(app)
        assert job.poll() is None
        assert not (stage.folder / "notes").exists()
