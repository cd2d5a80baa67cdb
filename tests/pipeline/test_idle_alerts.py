"""Idle memory: one alert per process, told when it lasts, over when it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import Config, PolicySection
from gpuwatchd.core.model import Holding, ProcessInfo, ProcessKey, ProcessUse
from gpuwatchd.pipeline.condition_alerts import BUSY_S, GONE_S, HOLD_S
from gpuwatchd.pipeline.state import Settings
from tests.making import CARD
from tests.pipeline.test_condition_alerts import OTHER, T0, World

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert

GIB = 2**30
ALICE = ProcessInfo(
    key=ProcessKey(pid=4711, started_at_s=90_000.0), name="python", user="alice",
    argv=("python", "train.py"),
)  # fmt: skip


def holding(since_s: float = T0, **changes: object) -> Holding:
    values: dict[str, object] = {
        "kind": "idle", "device_uid": CARD.uid, "process": ALICE, "held_bytes": 12 * GIB,
        "since_s": since_s, "evidence": "0 % of the GPU for 3h", "gib_hours": 36.0,
        "advice": ("ask alice",), "cost_usd": 1.2,
    }  # fmt: skip
    return Holding(**{**values, **changes})  # type: ignore[arg-type]


USE = ProcessUse(key=ALICE.key, used_bytes=12 * GIB)


def holding_world() -> tuple[World, Alert]:
    """Return a world with idle memory, and the alert on it."""
    world = World(CARD, tell_held=("idle",))
    world.now_s += 1000
    world.set(CARD, "ok", (USE,))
    world.state.holdings = (holding(),)
    (opened,) = world.run(60)
    return world, opened


def test_what_is_held_is_told_once_with_its_owner_and_what_frees_it() -> None:
    world = World(CARD, tell_held=("idle",))
    world.set(CARD, "ok", (USE,))
    world.state.holdings = (holding(T0),)
    assert world.run(HOLD_S - 10) == []
    world.state.holdings = (holding(T0),)
    world.run(5)
    world.state.holdings = (holding(T0),)
    (opened,) = world.run(60)
    assert (opened.kind, opened.severity, opened.opened_at_s) == ("held", "warning", T0)
    assert opened.title == "GPU 0 (A100): python train.py[4711] of alice"
    assert opened.finding.reason == (
        "12.0 GiB held by an idle process; 0 % of the GPU for 3h; 36.0 GiB-hours so far"
    )
    assert opened.finding.advice[-1] == "ask alice"
    assert "alice" in opened.finding.advice[0]
    for _ in range(20):
        world.state.holdings = (holding(T0),)
        assert world.run(30) == []
    world.state.holdings = ()
    assert world.run(BUSY_S - 10) == []
    (over,) = world.run(30)
    assert over.ended_code is Ending.AT_WORK


def test_one_process_on_two_gpus_is_one_alert() -> None:
    world = World(CARD, OTHER, tell_held=("idle",))
    world.now_s += 1000
    world.state.holdings = (holding(), holding(device_uid=OTHER.uid, held_bytes=4 * GIB))
    (opened,) = world.run(60)
    assert opened.finding.reason.startswith("16.0 GiB on 2 GPUs")
    world.state.holdings = world.state.holdings[::-1]
    assert world.run(600) == []
    assert [alert.subject.device_uid for alert in world.open] == [CARD.uid]


def test_only_the_kinds_that_were_asked_for() -> None:
    world = World(CARD, tell_held=("gone", "ghost"))
    world.now_s += 1000
    world.state.holdings = (holding(), holding(kind="ghost", process=None))
    (opened,) = world.run(60)
    assert opened.subject.unattributed
    assert opened.key == f"held:{CARD.uid}/unattributed"
    world = World(CARD)
    world.now_s += 1000
    world.state.holdings = (holding(),)
    assert world.run(60) == []


def test_a_process_that_ended_ends_its_alert_soon_and_an_unknown_list_never() -> None:
    world, _ = holding_world()
    world.state.holdings = ()
    world.set(CARD, "lost")
    world.state.settings = Settings(
        Config(policy=PolicySection(tell_held=("idle",), tell_hardware=False))
    )
    assert world.run(3600) == []
    world.set(CARD, "ok", ())
    (over,) = world.run(GONE_S + 10)
    assert over.ended_code is Ending.MEMORY_RELEASED


def test_a_held_alert_of_an_earlier_run_waits_for_the_first_looks() -> None:
    world, opened = holding_world()
    again = World(CARD, tell_held=("idle",))
    again.now_s = world.now_s
    again.set(CARD, "ok", (USE,))
    again.alarms.adopt(opened, again.now_s)
    assert again.run(120) == []
    again.state.holdings = (holding(),)
    assert again.run(600) == []
    assert [alert.key for alert in again.open] == [opened.key]


@pytest.mark.parametrize("restarted", [True, False])
def test_what_lasts_over_a_time_without_looks_is_not_over(restarted: bool) -> None:
    world, opened = holding_world()
    world.state.holdings = ()  # after a night nobody knows for how long it has done nothing
    if restarted:
        world = World(CARD, tell_held=("idle",))
        world.set(CARD, "ok", (USE,))
        world.alarms.adopt(opened, world.now_s)
    world.now_s += 8 * 3600
    idle_after_s = float(Config().zombies.idle_after)
    assert world.run(idle_after_s) == []
    world.state.holdings = (holding(),)
    assert world.run(600) == []
    assert [alert.key for alert in world.open] == [opened.key]
    world.state.holdings = ()
    (over,) = world.run(BUSY_S + 60)
    assert over.ended_code is Ending.AT_WORK


def test_what_works_after_a_time_without_looks_is_over_soon() -> None:
    world, opened = holding_world()
    world.state.holdings = ()
    world.now_s += 8 * 3600
    world.run(60)
    world.set(CARD, "ok", (ProcessUse(key=ALICE.key, used_bytes=12 * GIB, sm_pct=50),))
    world.run(60)
    world.set(CARD, "ok", (USE,))
    (over,) = world.run(BUSY_S)
    assert (over.key, over.ended_code) == (opened.key, Ending.AT_WORK)
