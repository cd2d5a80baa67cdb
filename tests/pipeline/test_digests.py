"""The digest: at its local time, once, also after a night off or a change of the clocks."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd import alerts
from gpuwatchd.core.config import Config, OverrideSection, PolicySection, Seconds
from gpuwatchd.core.config.validation import parse
from gpuwatchd.core.model import Cost, Decision, Delivery, Holding, ProcessInfo, ProcessKey
from gpuwatchd.core.units import Local
from gpuwatchd.pipeline import digests
from gpuwatchd.pipeline.digests import Digests, following
from gpuwatchd.pipeline.state import Settings, State, rules_of
from tests.making import alert
from tests.store.world import Time, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.model import Alert

GIB = 2**30
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _berlin(live_in: Callable[[str], None]) -> None:
    """Live in a place where clocks change."""
    live_in("Europe/Berlin")


def at(text: str) -> float:
    """Return a local time as epoch seconds."""
    return datetime.fromisoformat(text).timestamp()


class Box:
    """A post that keeps what it is given."""

    def __init__(self, **policy: Any) -> None:
        self.policy = PolicySection(**policy)
        self.message_dispatcher: object | None = object()
        self.sent: list[Delivery] = []
        self.made_mono_s: list[float] = []

    def send(self, deliveries: list[Delivery]) -> None:
        self.sent += deliveries


class Price:
    """What each alert costs: by default what is on record."""

    def __init__(self, of: Callable[[Alert, float], Cost | None] | None = None) -> None:
        self.of = of or (lambda alert, _: alert.cost)


def made_of(box: Box, history: Any, price: Any = None) -> Digests:
    """Return the digests of a box."""
    state = State(Config(policy=box.policy))
    return Digests(state, box, history, Price(price), lambda: 0.0)  # type: ignore[arg-type]


def run(made: Digests, time: Time, for_s: float, step_s: float = 600.0) -> None:
    for _ in range(round(for_s / step_s)):
        time.pass_s(step_s)
        made.step(time.now_s)


def begun(
    tmp_path: Path, when: str, *, fired: bool = False, **policy: Any
) -> tuple[Digests, Box, Time, Any]:
    time = Time(at(when))
    history = opened(tmp_path, time)
    box = Box(**policy)
    made = made_of(box, history)
    made.step(time.now_s)
    if fired:
        history.apply([alert(firing_at_s=time.now_s, opened_at_s=time.now_s)], [])
    return made, box, time, history


def test_daily_at_its_hour_only_when_there_is_something(tmp_path: Path) -> None:
    made, box, time, history = begun(tmp_path, "2026-11-16T20:00", digest="daily")
    run(made, time, 24 * HOUR_S)
    assert box.sent == []
    history.apply([alert(firing_at_s=time.now_s, opened_at_s=time.now_s)], [])
    run(made, time, 12 * HOUR_S)
    (one,) = box.sent
    assert (one.channel, one.message.notice, one.state) == ("email", "digest", "pending")
    assert at("2026-11-18T08:00") <= one.created_at_s <= at("2026-11-18T08:10")
    run(made, time, 24 * HOUR_S)
    assert len(box.sent) == len(box.made_mono_s) == 2
    history.close()


def test_weekly_on_monday_even_with_nothing_to_say(tmp_path: Path) -> None:
    made, box, time, history = begun(
        tmp_path, "2026-11-18T12:00", digest="weekly", digest_at="07:30",
        digest_channels=("email", "desktop"),
    )  # fmt: skip
    run(made, time, 14 * 24 * HOUR_S)
    assert [one.channel for one in box.sent] == ["email", "desktop"] * 2
    assert {datetime.fromtimestamp(one.created_at_s).weekday() for one in box.sent} == {0}
    assert box.sent[0].message.subject.lower().startswith("no alerts since")
    history.close()


def test_what_was_missed_is_one_digest(tmp_path: Path) -> None:
    _, box, time, history = begun(tmp_path, "2026-11-16T20:00", fired=True, digest="daily")
    history.close()
    time.pass_s(5 * 24 * HOUR_S)
    history = opened(tmp_path, time)
    again = made_of(box, history)
    again.step(time.now_s)
    assert len(box.sent) == 1
    assert "since Mon 20:00" in box.sent[0].message.subject
    run(again, time, 6 * HOUR_S)
    assert len(box.sent) == 1
    history.close()


def test_a_crash_before_the_mark_sends_the_same_message_again(tmp_path: Path) -> None:
    made, box, time, history = begun(tmp_path, "2026-11-16T20:00", fired=True, digest="daily")
    kept = history.shelf.write_now
    history.shelf.write_now = lambda *_: None  # the power fails
    run(made, time, 13 * HOUR_S)
    history.shelf.write_now = kept
    again = made_of(box, history)
    again.step(time.now_s)
    assert len(box.sent) == 2
    assert len({one.message.id for one in box.sent}) == 1
    history.close()


def test_off_says_nothing_and_turned_on_begins_now(tmp_path: Path) -> None:
    made, box, time, history = begun(tmp_path, "2026-11-16T20:00", fired=True)
    run(made, time, 48 * HOUR_S)
    assert box.sent == []
    made._state.settings = Settings(Config(policy=PolicySection(digest="daily")))
    made.step(time.now_s)
    assert box.sent == []
    run(made, time, 24 * HOUR_S)
    assert len(box.sent) == 1
    assert made._last_s is not None
    history.close()


def test_a_clock_that_was_set_back_keeps_nothing_away(tmp_path: Path) -> None:
    made, box, time, history = begun(tmp_path, "2027-11-16T20:00", fired=True, digest="daily")
    run(made, time, HOUR_S)
    time.now_s = at("2026-11-16T20:00")
    run(made, time, 13 * HOUR_S)
    assert len(box.sent) == 1
    history.close()


def test_a_clock_that_was_set_back_by_a_minute_sends_no_second_one(tmp_path: Path) -> None:
    made, box, time, history = begun(tmp_path, "2026-11-16T20:00", fired=True, digest="daily")
    run(made, time, 12 * HOUR_S, step_s=60.0)
    assert len(box.sent) == 1
    time.now_s -= 90.0
    run(made, time, 600.0, step_s=10.0)
    again = made_of(box, history)
    time.now_s -= 900.0
    run(again, time, 1800.0, step_s=10.0)
    assert len(box.sent) == 1
    run(again, time, 24 * HOUR_S)
    assert len(box.sent) == 2
    history.close()


def priced(*_: object) -> Cost:
    return Cost(spent_usd=9.0, at_risk_usd=1.0)


def broken(*_: object) -> Cost:
    raise ZeroDivisionError


@pytest.mark.parametrize(("price", "told"), [(priced, "$9.00"), (broken, "$2.00")])
def test_an_alert_counts_with_what_it_costs_now_or_else_did_and_its_process_once(
    tmp_path: Path, price: Callable[..., Cost], told: str
) -> None:
    time = Time(at("2026-11-16T20:00"))
    history = opened(tmp_path, time)
    box = Box(digest="daily")
    made = made_of(box, history, price)
    made.step(time.now_s)
    open_ = alert(firing_at_s=time.now_s, opened_at_s=time.now_s, cost=Cost(spent_usd=2.0))
    history.apply([open_, msgspec.structs.replace(open_, key="leak:x/host")], [])
    run(made, time, 13 * HOUR_S)
    assert [one.message.facts["Cost"].split()[0] for one in box.sent] == [told]
    history.close()


def test_without_a_courier_or_a_history_nothing_happens(tmp_path: Path) -> None:
    made, box, time, history = begun(tmp_path, "2026-11-16T20:00", digest="weekly")
    box.message_dispatcher = None
    run(made, time, 10 * 24 * HOUR_S)
    assert box.sent == []
    alone = made_of(box, None)
    run(alone, time, 10 * 24 * HOUR_S)
    assert box.sent == []
    history.close()


@pytest.mark.parametrize(
    ("last", "section", "due"),
    [
        ("2026-11-16T07:59", {"digest": "daily"}, "2026-11-16T08:00"),
        ("2026-11-16T08:00", {"digest": "daily"}, "2026-11-17T08:00"),
        ("2026-10-24T12:00", {"digest": "daily"}, "2026-10-25T08:00"),
        ("2026-11-17T08:00", {"digest": "weekly"}, "2026-11-23T08:00"),
        ("2026-11-16T08:00", {"digest": "weekly"}, "2026-11-23T08:00"),
        # Clocks skip this hour in the night of 29 March, and show it twice on 25 October.
        ("2026-03-28T12:00", {"digest": "daily", "digest_at": "02:30"}, "2026-03-29T03:30"),
        ("2026-10-24T12:00", {"digest": "daily", "digest_at": "02:30"}, "2026-10-25T02:30"),
    ],
)
def test_when_the_next_one_is_due(last: str, section: dict[str, Any], due: str) -> None:
    found = following(at(last), PolicySection(**section))
    assert abs(found - at(due)) in {0.0, HOUR_S}
    assert (abs(found - at(due)) == 0.0) or section.get("digest_at") == "02:30"


@given(
    begin=st.floats(at("2026-01-01T00:00"), at("2026-12-31T00:00")),
    minute=st.integers(0, 1439),
    weekly=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_one_a_day_or_a_week_whatever_the_clocks_do(
    begin: float, minute: int, *, weekly: bool
) -> None:
    section = PolicySection(
        digest="weekly" if weekly else "daily", digest_at=f"{minute // 60:02d}:{minute % 60:02d}"
    )
    first = following(begin, section)
    second = following(first, section)
    days = 7 if weekly else 1
    assert 0 < first - begin <= days * 86_400 + HOUR_S
    assert abs(second - first - days * 86_400) <= HOUR_S


def test_it_tells_what_is_open_was_held_back_and_costs() -> None:
    now_s = at("2026-11-17T08:00")
    from_s = now_s - 86_400
    info = ProcessInfo(key=ProcessKey(pid=7, started_at_s=1.0), name="x\x1b[2J", user="bob")
    open_one = alert(
        firing_at_s=from_s + 10, opened_at_s=from_s + 5,
        cost=Cost(at_risk_usd=12.4, spent_usd=3.0),
    )  # fmt: skip
    over = alert(
        key="leak:y", state="resolved", firing_at_s=from_s - 900, resolved_at_s=from_s + 60,
        opened_at_s=from_s - 1000,
    )  # fmt: skip
    long_over = alert(key="leak:z", state="resolved", resolved_at_s=from_s - 60)
    watch = alert(key="leak:w", state="watch", firing_at_s=None)
    holds = [
        Decision(
            finding_id="", alert_key="leak:x", kind="hold", target=channel, notice="repeat",
            reason="quiet hours until 07:00", at_s=from_s + 5,
        )
        for channel in ("email", "desktop")
    ]  # fmt: skip
    idle = alert(
        key="held:x", kind="held", firing_at_s=from_s + 20, opened_at_s=from_s,
        cost=Cost(spent_usd=1.5),
    )  # fmt: skip
    told = digests.news(
        [open_one, over, long_over, watch, idle],
        holds,
        [Holding(kind="idle", device_uid="GPU-1", process=info, held_bytes=12 * GIB)],
        from_s=from_s,
    )
    assert told.alerts == (open_one, over, idle)
    assert len(told.held_back) == 1
    message = digests.compose(told, number="n", why="of the day", from_s=from_s, now_s=now_s)
    assert re.findall(r"\$[0-9.]+", message.facts["Cost"]) == ["$3.00", "$12.40", "$1.50"]
    assert {"Growing", "Idle memory", "Not sent"} < message.facts.keys()
    assert "\x1b" not in "".join(message.facts.values())


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
    here = Local.at(at(now))
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
    # What waits keeps the pause in its record: no type of the configuration may get there.
    for value in (rules.cooldown_s, rules.flap_hold_s, rules.group_interval_s):
        assert type(value) is float
    first, second = rules.overrides
    assert (first.matcher.user, first.matcher.kind, first.severity) == ("alice", "leak", "warning")
    assert (first.repeat_s, first.channels, first.mute) == ((5.0,), None, False)
    assert (second.name, second.mute, second.why) == ("override 2", True, "x")
    assert alerts.rules_for(alert(), rules).mute == "override 2: x"
