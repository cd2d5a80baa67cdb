"""The configuration becomes rules, and the clock becomes local time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from gpuwatchd import alerts
from gpuwatchd.core.config import Config, OverrideSection, PolicySection, Seconds
from gpuwatchd.core.config.validation import parse
from gpuwatchd.pipeline.rule_settings import local, rules_of
from tests.making import alert

if TYPE_CHECKING:
    from collections.abc import Callable

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def berlin(live_in: Callable[[str], None]) -> None:
    live_in("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-06-10 23:00", "2026-06-11 07:00"),
        ("2026-03-28 23:00", "2026-03-29 07:00"),  # an hour is skipped
        ("2026-10-24 23:00", "2026-10-25 07:00"),  # an hour comes twice
        ("2026-12-31 23:00", "2027-01-01 07:00"),
    ],
)
def test_quiet_hours_end_by_the_clock_on_the_wall(now: str, end: str) -> None:
    here = local(at(now))
    found = alerts.quiet_until([parse("22:00-07:00")], here)
    assert found is not None
    assert found.at_s == at(end)
    assert (here.minute, here.weekday) == (23 * 60, datetime.fromisoformat(now).weekday())


def test_every_key_of_the_rules_is_taken_over() -> None:
    section = PolicySection(
        channels=("email",), confirm=5, cooldown=Seconds(60), flap_hold=Seconds(7), clear_after=4,
        repeat=(Seconds(600),), recovered=False, max_per_hour=3, group_interval=Seconds(9),
        flaps=4, severity={"email": "critical"}, quiet_hours={"all": ("22:00-07:00",)},
    )  # fmt: skip
    one = OverrideSection(user="alice", kind="leak", severity="warning", repeat=(Seconds(5),))
    rules = rules_of(Config(policy=section, override=(one, OverrideSection(mute=True, why="x"))))
    assert rules == alerts.Rules(
        channels=("email",), confirm=5, cooldown_s=60.0, flap_hold_s=7.0, clear_after=4,
        repeat_s=(600.0,), recovered=False, max_per_hour=3, group_interval_s=9.0, flaps=4,
        severity={"email": "critical"}, quiet={"all": (parse("22:00-07:00"),)},
        overrides=rules.overrides,
    )  # fmt: skip
    first, second = rules.overrides
    assert (first.matcher.user, first.matcher.kind, first.severity) == ("alice", "leak", "warning")
    assert (first.repeat_s, first.channels, first.mute) == ((5.0,), None, False)
    assert (second.name, second.mute, second.why) == ("override 2", True, "x")
    assert alerts.rules_for(alert(), rules).mute == "override 2: x"
