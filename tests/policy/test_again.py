"""What comes back, comes and goes, or gets worse: when that is told, and when it is no news."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatchd.model import EtaRange
from gpuwatchd.policy import Rules
from tests.policy.world import ETAS, HOUR_S, World, one


def test_a_clock_that_is_set_back_while_nobody_watches_makes_no_cooldown_eternal() -> None:
    world, key = one()
    world.how[key] = "gone"
    world.run(60.0)
    world.wall_s -= 30 * 86_400.0
    world.restart()
    world.how[key] = "warning"
    world.run(world.rules.cooldown_s + 60.0)
    assert world.notices(key) == ["firing", "resolved", "firing"]


def test_after_the_cooldown_what_comes_back_is_told_at_once_and_the_ladder_begins_anew() -> None:
    world, key = one()
    world.run(8 * HOUR_S, every_s=60.0)
    world.how[key] = "gone"
    world.run(world.rules.cooldown_s)
    world.told.clear()
    world.how[key] = "warning"
    world.run(3 * HOUR_S)
    assert world.notices(key) == ["firing", "repeat"]
    assert world.at_s(key)[1] - world.at_s(key)[0] == pytest.approx(HOUR_S, abs=20.0)


def test_who_was_told_that_it_is_over_hears_at_once_that_it_is_critical() -> None:
    world, key = one()
    begun_s = world.at_s(key)[0]
    world.how[key] = "gone"
    world.run(60.0)
    world.restart()
    world.how[key] = "urgent"
    world.run(150.0)
    assert world.notices(key) == ["firing", "resolved", "firing"]
    assert world.at_s(key)[-1] - begun_s < world.rules.cooldown_s


def test_the_third_opening_within_an_hour_is_told_as_flapping_and_then_it_is_quiet() -> None:
    world = World(Rules(cooldown_s=60.0), subjects=1)
    (key,) = world.keys
    for _ in range(8):
        world.how[key] = "urgent"
        world.run(150.0)
        world.how[key] = "gone"
        world.run(100.0)
    assert world.notices(key) == ["firing", "resolved", "firing", "resolved", "firing"]
    last = [a for a in world.store.alerts() if a.key == key][-1]
    assert last.told_flapping
    assert last.flaps >= 2
    world.restart()
    world.run(HOUR_S - 200.0)
    assert world.notices(key)[-1] == "firing"
    # It has been calm for an hour.
    world.run(300.0)
    assert world.notices(key)[-1] == "resolved"
    world.how[key] = "urgent"
    world.run(300.0)
    assert world.notices(key)[-1] == "firing"


def test_what_comes_and_goes_and_then_stays_is_not_forgotten() -> None:
    world = World(Rules(cooldown_s=60.0), subjects=1)
    (key,) = world.keys
    for _ in range(4):
        world.how[key] = "urgent"
        world.run(150.0)
        world.how[key] = "gone"
        world.run(100.0)
    world.told.clear()
    world.how[key] = "warning"
    world.run(2 * HOUR_S)
    assert world.notices(key) == ["repeat"]


def test_an_escalation_passes_the_cooldown_and_what_is_milder_is_only_shown() -> None:
    world, key = one()
    world.how[key] = "critical"
    world.run(30.0)
    assert world.notices(key) == ["firing", "escalated"]
    world.how[key] = "warning"
    world.run(500.0)
    shown = world.bearers[key].alert
    assert shown is not None
    assert shown.severity == "critical"
    world.run(200.0)
    shown = world.bearers[key].alert
    assert shown is not None
    assert shown.severity == "warning"
    # To and fro: people know it as bad as that already.
    for _ in range(5):
        world.how[key] = "critical"
        world.run(30.0)
        world.how[key] = "warning"
        world.run(700.0)
    assert world.notices(key).count("escalated") == 1


def test_a_time_around_the_bound_turns_nothing_to_and_fro() -> None:
    world, key = one(how="critical")
    grades = set()
    for minutes in [50, 70, 55, 90, 50, 110] * 20:
        eta = {"low_s": 30.0 * minutes, "mid_s": 60.0 * minutes, "high_s": None}
        alert = world.bearers[key].alert
        assert alert is not None
        ETAS["now"] = msgspec.convert(eta, type=EtaRange)
        world.how[key] = "now"
        world.run(60.0)
        alert = world.bearers[key].alert
        assert alert is not None
        grades.add(alert.severity)
    assert grades == {"critical"}
