"""What is held back, for how long, and that the reason that is given is true."""

from __future__ import annotations

import itertools

from gpuwatchd.alerts import Rules
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import Matcher
from tests.policy.world import HOUR_S, World, fresh, one


def test_nobody_is_reminded_within_a_cooldown_for_the_sake_of_company() -> None:
    world = World(Rules(repeat_s=(1800.0,)), subjects=2)
    first, second = world.keys
    world.be(first, "warning", 120.0)
    world.be(second, "warning", 8000.0)
    for key in world.keys:
        gaps_s = [b - a for a, b in itertools.pairwise(world.at_s(key))]
        assert len(gaps_s) >= 3
        assert min(gaps_s) >= 1800.0


def test_what_only_joins_others_is_not_held_with_them() -> None:
    world = World(Rules(max_per_hour=1), devices=2, subjects=3)
    other, first, second = world.keys[1], world.keys[0], world.keys[2]
    world.be(other, "warning", 320.0)
    world.be(first, "warning", 20.0)
    world.be(second, "warning", 800.0)  # Fires 20 s later: while the first is held, it is not due.
    holds = [d.alert_key for d in world.store.decisions if d.kind == "hold"]
    assert sorted(holds) == sorted([first, second])
    world.run(400.0)
    assert [sorted(t.keys) for t in world.told] == [[other], sorted([first, second])]


def test_a_stream_of_news_keeps_nothing_waiting_for_ever() -> None:
    # Ten alerts an hour, and six messages that may leave: never a quarter of an hour without one.
    world = World(Rules(max_per_hour=6, repeat_s=()), devices=40, subjects=40)
    waits: list[float] = []
    for number, key in enumerate(world.keys):
        world.be(key, "warning", 360.0, every_s=30.0)
        for held in world.keys[: number + 1]:
            alert = world.alert(held)
            if alert.notices == 0 and alert.firing_at_s is not None:
                waits.append(world.wall_s - alert.firing_at_s)
    assert max(waits) < 1800.0


def test_what_was_held_back_and_is_not_due_any_more_says_no_reason() -> None:
    world, key = one()
    world.silence(7200.0, matcher=Matcher(kind="leak"), even_critical=True, who="bob")
    world.be(key, "critical", 60.0)
    alert = world.alert(key)
    assert alert.held_back.startswith("silenced by bob")
    world.how[key] = "warning"
    world.run(700.0)
    alert = world.alert(key)
    assert (alert.severity, alert.held_back) == ("warning", "")


def test_when_a_gpu_is_back_nobody_is_reminded_of_what_has_not_been_seen_since() -> None:
    world, key = one()
    world.lost, world.how[key] = True, "silent"
    world.run(2 * HOUR_S, every_s=20.0)
    alert = world.alert(key)
    assert (alert.inhibited_by, alert.held_code) == ("gpu:GPU-0", Hold.NO_DATA)
    world.lost = False
    world.run(HOUR_S, every_s=20.0)
    alert = world.alert(key)
    assert alert.inhibited_by == ""
    assert world.notices(key) == ["firing"]


def test_of_what_nobody_was_told_it_stays_known_why() -> None:
    world, key = fresh()
    world.silence(HOUR_S, matcher=Matcher(user="alice"), who="bob")
    world.be(key, "warning", 600.0)
    world.be(key, "gone", 60.0)
    (over,) = world.store.alerts()
    assert (over.state, over.notices) == ("resolved", 0)
    assert over.held_back.startswith("silenced by bob until ")


def test_what_began_and_what_is_over_leave_apart_also_beyond_the_limit() -> None:
    world = World(Rules(max_per_hour=1), devices=2, subjects=2)
    first, second = world.keys
    world.be(first, "warning", 400.0)
    world.how[first], world.how[second] = "gone", "warning"
    world.run(2000.0)
    assert sorted((t.notice, t.keys) for t in world.told[1:]) == [
        ("firing", (second,)),
        ("resolved", (first,)),
    ]


def test_the_pause_of_a_group_outlives_the_alert_that_was_told() -> None:
    world = World(subjects=2)
    first, second = world.keys
    world.be(first, "warning", 120.0)
    world.be(second, "warning", 230.0)  # Fires 300 s later.
    world.be(first, "gone", 600.0)
    assert world.notices(first) == ["firing", "resolved"]
    assert world.at_s(second)[0] - world.at_s(first)[0] >= world.rules.group_interval_s
