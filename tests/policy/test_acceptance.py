"""The life of an alert, by the names of its rules: each test is one promise."""

from __future__ import annotations

import itertools
import time

import msgspec
import pytest

from gpuwatchd import alerts as policy
from gpuwatchd.alerts import Override, Rules
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.config.validation import parse
from gpuwatchd.core.model import Matcher
from tests.making import present
from tests.policy.world import HOUR_S, START_S, World, fresh, one


def test_repeat() -> None:
    world, key = one()
    world.run(5 * 86_400.0, every_s=60.0)
    gaps_h = [round((b - a) / HOUR_S, 1) for a, b in itertools.pairwise(world.at_s(key))]
    assert gaps_h == [1.0, 2.0, 4.0, 8.0, 24.0, 24.0, 24.0, 24.0]
    assert world.notices(key)[:3] == ["firing", "repeat", "repeat"]


def test_batching() -> None:
    world = World(subjects=3)
    first, second, third = world.keys
    world.be(first, "warning", 10.0)
    world.be(second, "warning", 500.0)
    (told,) = world.told
    assert (told.notice, told.key, told.also) == ("firing", first, (second,))
    begun_s = told.at_s
    # A third one fires two minutes later: nobody is told before the group's pause is over.
    world.be(third, "warning", 900.0)
    assert [(t.notice, t.key) for t in world.told[1:]] == [("firing", third)]
    assert world.told[1].at_s - begun_s >= world.rules.group_interval_s
    # And people are reminded of all at once.
    world.run(2 * HOUR_S)
    assert set(world.told[2].keys) == {first, second}


def test_the_pause_of_a_group_counts_from_its_last_notice() -> None:
    world = World(subjects=3)
    first, second, third = world.keys
    world.how[first] = "warning"
    world.be(second, "warning", 600.0)
    world.be(third, "warning", 10.0)  # Fires after 40 s.
    world.be(first, "critical", 600.0)
    assert [t.notice for t in world.told] == ["firing", "escalated", "firing"]
    assert world.told[2].keys == (third,)
    assert world.told[2].at_s - world.told[1].at_s >= world.rules.group_interval_s


def test_of_strangers_on_two_devices_people_are_told_apart() -> None:
    world = World(devices=2, subjects=2)
    world.how = dict.fromkeys(world.keys, "warning")
    world.run(600.0)
    assert sorted(t.keys for t in world.told) == sorted((key,) for key in world.keys)


def test_leaks_of_one_program_of_one_user_are_one_message() -> None:
    world = World(devices=5, subjects=5, process="train")
    for key in world.keys[:4]:
        world.be(key, "warning", 20.0)
    world.restart()
    world.run(500.0)
    (told,) = world.told
    assert sorted(told.keys) == sorted(world.keys[:4])
    # The fifth fires later than the usual pause; it waits until the cool-down is over.
    world.be(world.keys[4], "warning", 1000.0)
    assert (len(world.told), world.alert(world.keys[4]).held_code) == (1, Hold.GROUP_PAUSE)
    # Each has a state of its own: one that gets worse is told of at once, and nobody is lost.
    world.be(world.keys[2], "critical", 100.0)
    assert [t.notice for t in world.told] == ["firing", "escalated"]
    assert set(world.told[1].keys) == {world.keys[2], world.keys[4]}
    (group,) = {world.alert(key).group for key in world.keys}
    assert group.startswith("program:")
    # A stranger on one of these GPUs is in none of it, nor is another tenant.
    known = world.alert(world.keys[1])
    for field, value in (("user", "bob"), ("container", "b"), ("unit", "b.service")):
        about = msgspec.structs.replace(present(known.about), **{field: value})
        other = msgspec.structs.replace(known, about=about, group="", key="other")
        assert policy.group_of(other, [*map(world.alert, world.keys)]) == "gpu:GPU-1"
    assert [world.alert(key).severity for key in world.keys[1:3]] == ["warning", "critical"]


def test_a_new_one_that_cannot_wait_does_not() -> None:
    world = World(subjects=2)
    first, second = world.keys
    world.be(first, "warning", 340.0)
    assert world.notices() == ["firing"]
    world.be(second, "urgent", 110.0)
    assert [(t.notice, t.key) for t in world.told] == [("firing", first), ("firing", second)]
    assert world.told[1].at_s - world.told[0].at_s < world.rules.group_interval_s


def test_resolved() -> None:
    world, key = one()
    world.be(key, "gone", 60.0)
    assert world.notices(key) == ["firing", "resolved"]
    world.run(86_400.0, every_s=600.0)
    assert world.notices(key) == ["firing", "resolved"]


def test_that_it_is_over_waits_until_it_has_been_calm() -> None:
    world, key = one()
    world.be(key, "calm", 280.0)
    assert world.notices(key) == ["firing"]
    world.run(100.0)
    assert world.notices(key) == ["firing", "resolved"]


def test_flap_never_sent() -> None:
    world, key = fresh()
    world.be(key, "urgent", 60.0)
    fired = world.alert(key)
    assert fired.state == "firing"
    world.be(key, "gone", 86_400.0, every_s=600.0)
    assert world.told == []


def test_cold_start() -> None:
    world, key = one()
    for _ in range(5):
        world.restart()
        world.run(120.0)
    assert world.notices(key) == ["firing"]
    untold, key = fresh()
    untold.how[key] = "urgent"
    untold.run(60.0)
    untold.restart()
    assert untold.told == []
    untold.run(60.0)
    assert untold.notices(key) == ["firing"]


def test_what_was_owed_when_it_died_is_told_by_the_next() -> None:
    rules = Rules(max_per_hour=1)
    world, key = one(rules)
    world.how[key] = "gone"
    world.step()
    assert world.notices(key) == ["firing"]
    world.restart()
    world.run(1000.0)
    assert world.notices(key) == ["firing", "resolved"]


def test_the_limit_per_hour_survives_a_restart() -> None:
    rules = Rules(max_per_hour=1)
    world = World(rules, devices=2, subjects=2)
    first, second = world.keys
    world.be(first, "warning", 400.0)
    world.restart()
    world.be(second, "warning", 400.0)
    held = world.alert(second)
    assert world.notices() == ["firing"]
    assert held.held_code == Hold.RATE_LIMIT


def test_beyond_the_limit_what_waits_leaves_together() -> None:
    world = World(Rules(max_per_hour=2), devices=5, subjects=5)
    world.how = dict.fromkeys(world.keys, "warning")
    world.run(3000.0)
    assert [len(t.keys) for t in world.told] == [1, 1, 3]
    assert world.told[2].at_s - world.told[1].at_s >= 900.0


def test_what_is_critical_passes_the_limit_but_not_for_ever() -> None:
    world = World(Rules(max_per_hour=2), devices=6, subjects=6)
    world.how = dict.fromkeys(world.keys, "urgent")
    world.run(150.0)
    assert [len(t.keys) for t in world.told] == [1, 1, 1, 1]
    world.run(1500.0)
    assert sorted(len(t.keys) for t in world.told) == [1, 1, 1, 1, 2]


def test_reload() -> None:
    world, key = one()
    world.reload(Rules(cooldown_s=10.0, repeat_s=(7200.0,), flap_hold_s=1.0))
    world.run(1800.0)
    assert world.notices(key) == ["firing"]
    world.run(2000.0)
    assert world.notices(key) == ["firing", "repeat"]


def test_who_wants_reminders_from_now_on_gets_them_of_what_is_open() -> None:
    world, key = one(Rules(repeat_s=()))
    world.run(2 * HOUR_S)
    world.reload(Rules())
    world.run(HOUR_S)
    assert world.notices(key) == ["firing", "repeat"]


@pytest.mark.parametrize("steps_s", [(), (20_000.0,)])
def test_reminders_of_its_own_stay_so_when_it_gets_milder_or_comes_back(
    steps_s: tuple[float, ...],
) -> None:
    rule = Override(matcher=Matcher(user="alice"), name="override 1", repeat_s=steps_s)
    world, key = one(Rules(overrides=(rule,)), how="critical")
    world.be(key, "warning", 3 * HOUR_S)
    assert world.notices(key) == ["firing"]
    world.silence(600.0, matcher=Matcher(kind="leak"))
    world.be(key, "gone", 60.0)
    world.be(key, "warning", 2 * HOUR_S)
    assert world.notices(key) == ["firing"]


def test_inhibit() -> None:
    world, key = fresh()
    world.be(key, "critical", 30.0)
    world.lost = True
    world.run(1200.0)
    assert world.notices(key) == []
    assert world.notices("gpu:GPU-0") == ["firing"]
    alert = world.alert(key)
    assert (alert.inhibited_by, alert.held_code) == ("gpu:GPU-0", Hold.INHIBITED)
    world.lost = False
    world.run(400.0)
    # Told again when that is over and it is still true.
    assert world.notices(key) == ["firing"]
    alert = world.alert(key)
    assert (alert.inhibited_by, alert.held_code) == ("", None)


def test_silence() -> None:
    world, key = fresh()
    world.silence(HOUR_S, matcher=Matcher(user="alice"), who="bob")
    world.be(key, "warning", HOUR_S - 100.0)
    assert world.told == []
    alert = world.alert(key)
    assert alert.state == "firing"
    assert (alert.held_code, alert.held_facts["who"]) == (Hold.SILENCED, "bob")
    assert [d.reason for d in world.store.decisions] == [alert.held_back]
    world.run(200.0)
    assert world.notices(key) == ["firing"]


def test_that_it_is_over_is_told_when_nobody_is_silent_any_more() -> None:
    world, key = one()
    world.silence(HOUR_S, matcher=Matcher(kind="leak"))
    world.be(key, "gone", HOUR_S - 100.0)
    assert world.notices(key) == ["firing"]
    world.restart()
    world.run(200.0)
    assert world.notices(key) == ["firing", "resolved"]


def test_after_a_day_of_silence_it_is_no_news_any_more() -> None:
    world, key = one()
    world.silence(3 * 86_400.0, matcher=Matcher(kind="leak"))
    world.be(key, "gone", 4 * 86_400.0, every_s=600.0)
    assert world.notices(key) == ["firing"]
    (over,) = [a for a in world.store.alerts() if a.key == key]
    assert over.next_notice_at_s is None
    assert over.held_code is Hold.SILENCED


def test_quiet_hours() -> None:
    # The world begins at 15:06 UTC; whatever the zone, it is quiet for 24 h less a minute.
    at = parse_clock(START_S - 3600.0)
    rules = Rules(quiet={"email": (parse(at),)}, channels=("desktop", "email"))
    world, key = one(rules)
    held = [(t.held, t.channels) for t in world.told]
    assert [channels for _, channels in held] == [("desktop", "email")]
    deliveries = [d for d in world.store.decisions if d.target == "email"]
    assert deliveries[0].kind == "notify"
    assert deliveries[0].reason.startswith("quiet hours until ")
    world.how[key] = "critical"
    world.run(60.0)
    assert world.notices(key) == ["firing", "escalated"]
    assert world.store.decisions[-1].reason == "escalated"


def parse_clock(begin_s: float) -> str:
    here = time.localtime(begin_s)
    begin = 60 * here.tm_hour + here.tm_min
    end = (begin + 23 * 60) % 1440
    return f"{begin // 60:02d}:{begin % 60:02d}-{end // 60:02d}:{end % 60:02d}"


@pytest.mark.parametrize("by_s", [HOUR_S, -600.0, -365 * 86_400.0])
def test_clock_step_during_cooldown(by_s: float) -> None:
    world, key = one()
    begun_s = world.at_s(key)[0]
    world.be(key, "gone", 60.0)
    world.step_clock(by_s)
    world.be(key, "warning", 2 * HOUR_S)
    assert world.notices(key)[:3] == ["firing", "resolved", "firing"]
    again_s = world.at_s(key)[2]
    # Neither skipped nor eternal.
    assert 0.0 <= again_s - begun_s - world.rules.cooldown_s <= 20.0


def test_stale() -> None:
    world, key = one()
    world.how[key] = "silent"
    world.run(700.0)
    alert = world.alert(key)
    assert (alert.state, alert.held_code) == (
        "firing",
        Hold.NO_DATA,
    )
    world.run(5 * HOUR_S, every_s=60.0)
    assert world.notices(key) == ["firing"]
    world.be(key, "warning", 60.0)
    assert world.notices(key) == ["firing", "repeat"]


def test_an_override_has_channels_and_reminders_of_its_own() -> None:
    rule = Override(
        matcher=Matcher(gpu="0"), name="override 1", channels=("email",), repeat_s=(7200.0,)
    )
    world, key = one(Rules(overrides=(rule,)))
    world.run(5 * HOUR_S, every_s=60.0)
    assert {t.channels for t in world.told} == {("email",)}
    assert world.notices(key) == ["firing", "repeat", "repeat"]
