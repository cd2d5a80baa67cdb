"""``status`` says on top that an alert has reached nobody, and nothing of it when all is well."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.model import ChannelHealth, Matcher, Silence
from gpuwatchd.store.live import UndeliveredAlert
from tests.cli import world

if TYPE_CHECKING:
    from tests.cli.calls import Ctl

SMTP = "connection refused by smtp.example.org:587"


def _down(**changes: Any) -> ChannelHealth:
    since_s = time.time() - 600
    values = {"name": "email", "ok": False, "why": SMTP, "failing_since_s": since_s, "waiting": 2}
    return ChannelHealth(**{**values, **changes})


def _silence(**changes: Any) -> Silence:
    now_s = time.time()
    values = {
        "matcher": Matcher(user="bob"), "from_at_s": now_s - 60, "until_at_s": now_s + 3600,
        "who": "alice", "why": "known",
    }  # fmt: skip
    return Silence(**{**values, **changes})


@pytest.mark.parametrize("line", ["status", "watch -n 1"])
def test_an_alert_that_reached_nobody_is_the_first_thing(line: str, ctl: Ctl) -> None:
    alert = world.firing()
    world.write(
        alerts=(alert,),
        untold=(alert.key,),
        channels=(_down(), ChannelHealth(name="desktop", ok=True)),
        problems=(f"channel email does not deliver: {SMTP}", "the disk is full"),
    )
    text = ctl(line)
    assert text.index(f"! 1 alert has reached nobody ({alert.code})") < text.index("GPU 0")
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
    assert (text.count("b12345: it ended") + text.count("(b12345)"), text.count(SMTP)) == (3, 1)
    answer = ctl.json("status")
    assert [one["id"] for one in answer["lost"]] == [lost.code] * 5
    assert answer["untold"] == []


def test_a_silence_of_before_the_clock_was_set_back_is_shown(ctl: Ctl) -> None:
    alert = world.firing()
    mine = _silence(matcher=Matcher(key=alert.key), from_at_s=time.time() + 600)
    world.write(alerts=(alert,), silences=(mine,))
    assert "silent until" in " ".join(ctl("status").split())


def test_json_says_it_too(ctl: Ctl) -> None:
    alert = world.firing()
    world.write(alerts=(alert,), untold=(alert.key,), channels=(_down(),), silences=(_silence(),))
    answer = ctl.json("status")
    assert answer["untold"] == [alert.key]
    (channel,) = answer["channels"]
    assert (channel["ok"], channel["why"], channel["waiting"]) == (False, SMTP, 2)
    (silence,) = answer["silences"]
    assert (silence["about"], silence["who"]) == ("user bob", "alice")
