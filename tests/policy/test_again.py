"""What comes back, comes and goes, or gets worse: when that is told, and when it is no news."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatchd import alerts
from gpuwatchd.alerts import AlertHistory, Rules
from gpuwatchd.core.model import EtaRange
from tests.making import alert, finding
from tests.policy.world import ETAS, HOUR_S, fresh, one


def test_a_clock_that_is_set_back_while_nobody_watches_makes_no_cooldown_eternal() -> None:
    world, key = one()
    world.be(key, "gone", 60.0)
    world.wall_s -= 30 * 86_400.0
    world.restart()
    world.be(key, "warning", world.rules.cooldown_s + 60.0)
    assert world.notices(key) == ["firing", "resolved", "firing"]


def test_after_the_cooldown_what_comes_back_is_told_at_once_and_the_ladder_begins_anew() -> None:
    world, key = one()
    world.run(8 * HOUR_S, every_s=60.0)
    world.be(key, "gone", world.rules.cooldown_s)
    world.told.clear()
    world.be(key, "warning", 3 * HOUR_S)
    assert world.notices(key) == ["firing", "repeat"]
    assert world.at_s(key)[1] - world.at_s(key)[0] == pytest.approx(HOUR_S, abs=20.0)


def test_who_was_told_that_it_is_over_hears_at_once_that_it_is_critical() -> None:
    world, key = one()
    begun_s = world.at_s(key)[0]
    world.be(key, "gone", 60.0)
    world.restart()
    world.be(key, "urgent", 150.0)
    assert world.notices(key) == ["firing", "resolved", "firing"]
    assert world.at_s(key)[-1] - begun_s < world.rules.cooldown_s


def test_the_third_opening_within_an_hour_is_told_as_flapping_and_then_it_is_quiet() -> None:
    world, key = fresh(Rules(cooldown_s=60.0))
    for _ in range(8):
        world.be(key, "urgent", 150.0)
        world.be(key, "gone", 100.0)
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
    world.be(key, "urgent", 300.0)
    assert world.notices(key)[-1] == "firing"


def test_what_comes_and_goes_and_then_stays_is_not_forgotten() -> None:
    world, key = fresh(Rules(cooldown_s=60.0))
    for _ in range(4):
        world.be(key, "urgent", 150.0)
        world.be(key, "gone", 100.0)
    world.told.clear()
    world.be(key, "warning", 2 * HOUR_S)
    assert world.notices(key) == ["repeat"]


def test_an_escalation_passes_the_cooldown_and_what_is_milder_is_only_shown() -> None:
    world, key = one()
    world.be(key, "critical", 30.0)
    assert world.notices(key) == ["firing", "escalated"]
    world.be(key, "warning", 500.0)
    shown = world.alert(key)
    assert shown.severity == "critical"
    world.run(200.0)
    shown = world.alert(key)
    assert shown.severity == "warning"
    # To and fro: people know it as bad as that already.
    for _ in range(5):
        world.be(key, "critical", 30.0)
        world.be(key, "warning", 700.0)
    assert world.notices(key).count("escalated") == 1


def test_a_time_around_the_bound_turns_nothing_to_and_fro() -> None:
    world, key = one(how="critical")
    grades = set()
    for minutes in [50, 70, 55, 90, 50, 110] * 20:
        eta = {"low_s": 30.0 * minutes, "mid_s": 60.0 * minutes, "high_s": None}
        alert = world.alert(key)
        ETAS["now"] = msgspec.convert(eta, type=EtaRange)
        world.be(key, "now", 60.0)
        alert = world.alert(key)
        grades.add(alert.severity)
    assert grades == {"critical"}


def test_who_still_believes_that_it_goes_on_hears_nothing_before_the_reminder() -> None:
    world, key = one(Rules(max_per_hour=1))
    begun_s = world.at_s(key)[0]
    world.be(key, "gone", 60.0)
    assert world.notices(key) == ["firing"]  # That it is over waits for the limit.
    world.be(key, "warning", 2 * HOUR_S)
    assert world.notices(key) == ["firing", "repeat"]
    assert world.at_s(key)[1] - begun_s == pytest.approx(HOUR_S, abs=20.0)


def test_who_is_not_told_of_ends_hears_within_the_cooldown_of_what_is_worse_only() -> None:
    for first, again, passes in (
        ("warning", "warning", False),
        ("urgent", "urgent", False),
        ("warning", "urgent", True),
    ):
        world, key = one(Rules(recovered=False), how=first)
        world.be(key, "gone", 60.0)
        world.be(key, again, 2000.0)
        assert world.notices(key) == ["firing", "firing"]
        begun_s, again_s = world.at_s(key)
        assert (again_s - begun_s < world.rules.cooldown_s) == passes


def test_what_is_critical_again_is_told_when_the_first_reminder_would_be() -> None:
    world, key = one(Rules(repeat_s=(HOUR_S, 86_400.0)))
    world.run(2 * HOUR_S)
    world.be(key, "critical", 60.0)
    world.be(key, "warning", 700.0)
    world.be(key, "critical", 2 * HOUR_S)
    assert world.notices(key) == ["firing", "repeat", "escalated", "repeat"]
    *_, worse_s, again_s = world.at_s(key)
    assert again_s - worse_s == pytest.approx(HOUR_S, abs=20.0)


def test_what_was_an_alert_for_people_stays_one_until_it_is_over() -> None:
    state = alert(severity="warning", notices=1, told_severity="warning")
    slight = finding(tier="watch", severity="info")
    for now_s in range(10_000, 12_000, 60):
        found = alerts.evaluate(slight, state, Rules(), now_s=float(now_s), title="t").alert
        assert found is not None
        state = found
    assert (state.state, state.severity) == ("firing", "warning")


def test_who_goes_on_with_an_alert_owes_only_what_is_worse_than_people_know() -> None:
    before = alert(
        notices=2, severity="warning", told_severity="warning", first_message="m1",
        last_notice_at_s=9_000.0, next_notice_at_s=16_000.0,
    )  # fmt: skip
    heir = alert(key="leak:heir", notices=0, next_notice_at_s=10_030.0)
    same = alerts.inherited(heir, before)
    assert (same.first_message, alerts.notice_due(same, 10_100.0)) == ("m1", None)
    worse = alerts.inherited(msgspec.structs.replace(heir, severity="critical"), before)
    assert alerts.notice_due(worse, 10_000.0) == "escalated"


def test_what_nobody_was_told_of_before_is_news_that_counts_how_often_it_came() -> None:
    last = alert(state="resolved", next_notice_at_s=None)
    past = AlertHistory(last=last, ends_s=(10_000.0 - HOUR_S, 10_000.0 - HOUR_S + 1.0, 9_990.0))
    again = alert(next_notice_at_s=10_000.0)
    known = alerts.reopened(again, past, Rules(), 10_000.0)
    assert known == msgspec.structs.replace(again, flaps=2)
    assert alerts.reopened(again, None, Rules(), 10_000.0) is again
