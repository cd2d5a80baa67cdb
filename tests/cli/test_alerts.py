"""``alerts``: what was raised, what was held back and why, what arrived where."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.cli import completion_answers
from gpuwatchd.core import units
from gpuwatchd.core.codes import Ending, Failure
from gpuwatchd.core.model import (
    AlertSubject,
    ChannelHealth,
    Cost,
    Decision,
    Matcher,
    ProcessKey,
    Subject,
)
from gpuwatchd.store.live import UndeliveredAlert
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.query import Query
from gpuwatchd.web.pages import parts
from tests import making
from tests.cli import world
from tests.cli.world import delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Alert, DecisionKind
    from tests.cli.calls import Ctl


def decision(
    alert: Alert, at_s: float, reason: str, target: str = "", kind: DecisionKind = "hold"
) -> Decision:
    """Return what policy decided."""
    return Decision(
        finding_id="f", alert_key=alert.key, kind=kind, target=target, notice="firing",
        reason=reason, at_s=at_s,
    )  # fmt: skip


@pytest.fixture
def shown(ctl: Ctl) -> Callable[..., str]:
    """Return what a command line prints, its lines joined."""

    def run(*arguments: str, code: int = 0) -> str:
        out = ctl(*arguments, code=code)
        assert "\x1b" not in out
        return " ".join(out.split())

    return run


def test_the_whole_story_is_told_in_order(shown: Callable[..., str]) -> None:
    now_s = time.time()
    alert = world.firing(
        opened_at_s=now_s - 3000,
        flaps=2,
        cost=Cost(spent_usd=25.28, at_risk_usd=3.21, basis="yours"),
        about=AlertSubject(user="alice"),
    )
    world.remember(
        alert,
        deliveries=[
            delivery(alert.key, "email", now_s - 2400, state="failed", attempts=4, sent_at_s=None,
                     error="550 no such\x1b[2J user"),
            delivery(alert.key, "desktop", now_s - 2300, fallback_of="email",
                     known="shown by the server", message=world.message(also=("leak:other",))),
            delivery(alert.key, "chat", now_s - 2200, state="pending", attempts=0, sent_at_s=None,
                     held="quiet hours until 07:00", next_try_at_s=now_s + 3600),
            delivery(alert.key, "chat", now_s - 2150, state="failed", attempts=1, sent_at_s=None,
                     message=world.message("repeat"), code=Failure.OVERTAKEN,
                     error="not sent: overtaken by a later message"),
            delivery(alert.key, "command", now_s - 2100, state="pending", attempts=2,
                     sent_at_s=None, error="exited with 75", next_try_at_s=now_s + 600),
        ],
        decisions=[
            decision(alert, now_s - 2600, "20 messages went out within the hour"),
            decision(alert, now_s - 2400, "firing", "email", "notify"),
            decision(alert, now_s - 2400, "firing", "desktop", "notify"),
            decision(alert, now_s - 2400, "quiet hours until 07:00", "chat", "notify"),
        ],
    )  # fmt: skip
    text = shown("alerts", "show", alert.code)
    assert "firing with 1 other: desktop in place of email" in text
    order = [text.index(words) for words in ("held: 20", "will be sent (email", "waits: quiet")]
    assert order == sorted(order)
    data = json.loads(shown("alerts", "show", alert.code, "--json"))["data"]
    assert (data["flaps"], data["cost"]["spent_usd"]) == (2, 25.28)
    assert [(sent["channel"], sent["state"], sent["held"]) for sent in data["deliveries"]] == [
        ("email", "failed", None),
        ("desktop", "sent", None),
        ("chat", "pending", "quiet hours until 07:00"),
        ("chat", "failed", None),
        ("command", "pending", None),
    ]
    assert [made["kind"] for made in data["decisions"]] == ["hold", "notify", "notify", "notify"]
    (listed,) = json.loads(shown("alerts", "--json"))["data"]
    assert listed["decisions"] is listed["deliveries"] is None


def test_what_belongs_to_an_earlier_opening_is_not_told(shown: Callable[..., str]) -> None:
    now_s = time.time()
    first = world.firing(
        opened_at_s=now_s - 9000, state="resolved", resolved_at_s=now_s - 8000, ended="it is over"
    )
    again = world.firing(opened_at_s=now_s - 3000)
    sent = delivery(first.key, "email", now_s - 8500), delivery(again.key, "desktop", now_s - 2500)
    world.remember(first, again, deliveries=sent)
    text = shown("alerts", "show", again.code)
    assert "desktop: delivered" in text
    assert "email" not in text


def test_an_alert_is_found_by_all_its_names(shown: Callable[..., str]) -> None:
    alert = world.firing()
    world.remember(alert)
    world.write(alerts=(alert,))
    for name in (alert.code, alert.key, "GPU-1/4711", "4711", "latest"):
        assert json.loads(shown("alerts", "show", name, "--json"))["data"]["id"] == alert.code
    listed = shown("alerts")
    assert listed.startswith(alert.code)
    assert f"gpuwatchctl alerts show {alert.code}" in listed
    assert alert.key not in listed
    assert alert.key in shown("-v", "alerts")


def test_an_alert_says_why_nobody_hears_of_it(shown: Callable[..., str]) -> None:
    now_s = time.time()
    lost = world.firing(key="gpu:GPU-1", kind="gpu", title="GPU 0 (A100)")
    alert = world.firing(inhibited_by=lost.key)
    silence = world.silence(why="I know")
    over = msgspec.structs.replace(silence, matcher=Matcher(user="bob"), until_at_s=now_s - 1)
    world.write(alerts=(alert, lost), silences=(silence, over), untold=(alert.key,))
    text = shown("alerts")
    assert f"inhibited by {lost.code} (GPU 0 (A100))" in text
    assert "silent until" in text
    assert "bob" not in text
    data = json.loads(shown("alerts", "show", alert.code, "--json"))["data"]
    assert data["reached_nobody"] is True
    assert data["inhibited_by"] == lost.key
    assert data["silence"]["why"] == "I know"


def test_tab_offers_ids_first_and_keys_to_those_who_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alert = world.firing(title=world.HOSTILE)
    world.write(alerts=(alert,))
    assert [one.value for one in completion_answers.alert_keys("")] == [alert.code]
    assert [one.value for one in completion_answers.alert_keys("leak:")] == [alert.key]
    assert capsys.readouterr().out == ""


SMTP = "connection refused by smtp.example.org:587"


def _down(**changes: Any) -> ChannelHealth:
    since_s = time.time() - 600
    values = {"name": "email", "ok": False, "why": SMTP, "failing_since_s": since_s, "waiting": 2}
    return ChannelHealth(**{**values, **changes})


@pytest.mark.parametrize("line", ["status", "watch -n 1"])
def test_an_alert_that_reached_nobody_is_the_last_line(line: str, ctl: Ctl) -> None:
    alert = world.firing()
    world.write(
        alerts=(alert,),
        untold=(alert.key,),
        channels=(_down(), ChannelHealth(name="desktop", ok=True)),
        problems=(f"channel email does not deliver: {SMTP}", "the disk is full"),
    )
    text = " ".join(ctl(line).split())
    assert text.index(f"! 1 alert not delivered ({alert.code})") > text.index("the disk is full")
    assert text.endswith("gpuwatchctl notify test")
    # With the day where midnight lies between.
    assert re.search(r"email fails since (\w+ )?\d\d:\d\d", text)
    assert "desktop" not in text
    assert text.count(SMTP) == 1


def test_what_was_over_before_anybody_could_be_told_is_said(ctl: Ctl) -> None:
    lost = UndeliveredAlert(
        key="leak:GPU-1/99@1.0", code="b12345", title="GPU 0 (A100): \x1b[2Jpython[99] of alice",
        severity="critical", ended="it ended near the limit: probably out of memory",
        ended_at_s=time.time() - 3600.0,
    )  # fmt: skip
    problem = f"channel email does not deliver: {SMTP}"
    world.write(lost=(lost,) * 5, channels=(_down(),), problems=(problem,))
    text = ctl("status")
    assert "\x1b" not in text
    assert (text.count("b12345"), text.count(SMTP)) == (3, 1)
    answer = ctl.json("status")
    assert [one["id"] for one in answer["lost"]] == [lost.code] * 5
    assert answer["untold"] == []


def died(ago_s: float, **changes: Any) -> Alert:
    """Return the alert on pid 5, which ran for an hour and was out of memory so long ago."""
    end_s = time.time() - ago_s
    key = ProcessKey(pid=5, started_at_s=end_s - 3600.0)
    values: dict[str, Any] = {
        "subject": Subject(device_uid="GPU-1", process=key), "opened_at_s": end_s - 900.0,
        "resolved_at_s": end_s, "cost": Cost(spent_usd=1.16, basis="yours"),
        **wording.ending(Ending.ENDED_NEAR_LIMIT),
    }  # fmt: skip
    return world.over(**{**values, **changes})


def test_the_morning_after_every_view_names_who_ran_out_of_memory(ctl: Ctl) -> None:
    death = died(7200.0)
    world.write(alerts=(), deaths=(death, died(9000.0, key="leak:GPU-1/6@1.0")))
    line = f"✖ {units.clock(death.resolved_at_s or 0.0, now_s=time.time())} python ran out of"
    line += f" memory after 1 h, $1.16 lost; explain {death.code}"
    for verb in ("status", ""):
        assert line in " ".join(ctl(verb).split()), verb
    assert line.replace("✖", "X") in " ".join(ctl("status --ascii").split())
    assert line in [one.text for one in parts.frame(current_state.load_view(Query())).warnings]
    answer = ctl.json("status")["deaths"]
    assert [one["id"] for one in answer][:1] == [death.code]
    assert (answer[0]["ran_s"], answer[0]["lost_usd"]) == (3600.0, 1.16)
    assert ctl.json("")["verb"] == "status"
    assert ctl("status --pid 4711").count("✖") == 0


@pytest.mark.parametrize(
    "opened", [(), (world.firing(severity="critical"),), (world.firing(state="watch"),)]
)
def test_explain_alone_takes_the_worst_alert_then_the_newest_death(
    opened: tuple[Alert, ...], ctl: Ctl
) -> None:
    death = died(60.0)
    world.remember(death, *opened)
    calm = msgspec.structs.replace(world.state().devices[0], finding=None, processes=())
    world.write(alerts=opened, deaths=(death,), devices=(calm,))
    meant = next((alert for alert in opened if alert.state == "firing"), death)
    data = ctl.json("explain")["data"]
    assert data["alert"]["key"] == meant.key
    off = f"gpuwatchctl feedback {death.code} leak"
    assert (off in [step["command"] for step in data["next_steps"]]) is (meant is death)


def test_without_a_daemon_the_history_has_the_deaths(ctl: Ctl) -> None:
    deaths = [died(60.0), died(90_000.0, key="leak:GPU-1/6@1.0")]
    with world.history() as history:
        history.record(making.sample(time.time(), []), (making.CARD,), {})
        history.apply(deaths, [])
    assert [one["id"] for one in ctl.json("status")["deaths"]] == [deaths[0].code]
    ctl("feedback", deaths[0].code, "leak")
    world.write(stopped=True, taken_at_s=time.time() - 3600.0, deaths=(deaths[0],))
    assert ctl.json("status")["deaths"] == []


def test_a_silence_of_before_the_clock_was_set_back_is_shown(ctl: Ctl) -> None:
    alert = world.firing()
    mine = world.silence(from_at_s=time.time() + 300)
    world.write(alerts=(alert,), silences=(mine,))
    assert "silent until" in " ".join(ctl("status").split())
