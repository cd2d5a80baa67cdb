"""``status`` says on top that an alert has reached nobody, and nothing of it when all is well."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

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


def _shown(ctl: Ctl, *arguments: str) -> str:
    out = ctl(*arguments)
    assert "\x1b" not in out
    return out


def test_an_alert_that_reached_nobody_is_the_first_thing(ctl: Ctl) -> None:
    alert = world.firing()
    world.write(
        alerts=(alert,),
        untold=(alert.key,),
        channels=(_down(), ChannelHealth(name="desktop", ok=True)),
        problems=(f"channel email does not deliver: {SMTP}", "the disk is full"),
    )
    for arguments in (("status",), ("watch", "-n", "1")):
        text = _shown(ctl, *arguments)
        at = text.index(f"! 1 alert has reached nobody ({alert.code})")
        assert at < text.index("GPU 0")
        # With the day where midnight lies between.
        assert re.search(r"email fails since (\w+ )?\d\d:\d\d", text)
        assert f": {SMTP}; 2 waiting" in " ".join(text.split())
        assert "gpuwatchctl notify test" in text
        assert "desktop" not in text
        assert text.count(SMTP) == 1
        assert "problem: the disk is full" in text
        assert "reached nobody" in text[at + 40 :]


def test_what_was_over_before_anybody_could_be_told_is_said(ctl: Ctl) -> None:
    lost = UndeliveredAlert(
        key="leak:GPU-1/99@1.0", code="b12345", title="GPU 0 (A100): \x1b[2Jpython[99] of alice",
        severity="critical", ended="it ended near the limit: probably out of memory",
        ended_at_s=time.time() - 3600.0,
    )  # fmt: skip
    problem = f"channel email does not deliver: {SMTP}"
    world.write(lost=(lost,), channels=(_down(),), problems=(problem,))
    text = " ".join(_shown(ctl, "status").split())
    at = text.index("! 1 alert was over before anybody could be told")
    assert at < text.index("python[99] of alice (b12345): it ended near the limit")
    assert "gpuwatchctl alerts show b12345" in text
    assert text.count(SMTP) == 1
    answer = json.loads(_shown(ctl, "status", "--json"))
    (said,) = answer["lost"]
    assert (said["id"], said["key"], said["ended"]) == (lost.code, lost.key, lost.ended)
    assert answer["untold"] == []
    world.write(lost=(lost,) * 5)
    assert "and 2 more: gpuwatchctl alerts --all" in " ".join(_shown(ctl, "status").split())


def test_there_is_no_banner_when_all_is_well(ctl: Ctl) -> None:
    world.write(channels=(ChannelHealth(name="desktop", ok=True), _down()))
    text = _shown(ctl, "status")
    assert "nobody" not in text
    assert "silent" not in text
    assert SMTP not in text


def test_a_silence_of_before_the_clock_was_set_back_is_shown(ctl: Ctl) -> None:
    alert = world.firing()
    mine = _silence(matcher=Matcher(key=alert.key), from_at_s=time.time() + 600)
    world.write(alerts=(alert,), silences=(mine,))
    assert "silent until" in " ".join(_shown(ctl, "status").split())


def test_silences_are_one_line(ctl: Ctl) -> None:
    alert = world.firing()
    mine = _silence(matcher=Matcher(key=alert.key))
    world.write(alerts=(alert,), silences=(mine, _silence(), _silence(until_at_s=time.time() - 1)))
    text = " ".join(_shown(ctl, "status").split())
    assert "silent: GPU 0 (A100): python[4711] of alice until" in text
    assert ", by alice (known); and 1 more: gpuwatchctl snooze list" in text
    assert "silent until" in text


def test_what_is_no_news_is_marked(ctl: Ctl) -> None:
    lost = world.firing(key="gpu:GPU-1", kind="gpu", title="GPU 0 (A100)")
    world.write(alerts=(world.firing(inhibited_by=lost.key), lost))
    assert "no news beside GPU 0 (A100)" in " ".join(_shown(ctl, "status").split())


def test_json_says_it_too(ctl: Ctl) -> None:
    alert = world.firing()
    world.write(alerts=(alert,), untold=(alert.key,), channels=(_down(),), silences=(_silence(),))
    answer = json.loads(_shown(ctl, "status", "--json"))
    assert answer["untold"] == [alert.key]
    (channel,) = answer["channels"]
    assert (channel["ok"], channel["why"], channel["waiting"]) == (False, SMTP, 2)
    (silence,) = answer["silences"]
    assert (silence["about"], silence["who"]) == ("user bob", "alice")


def test_the_quick_way_loads_nothing_more_when_all_is_well() -> None:
    world.write()
    script = (
        "import sys; from gpuwatchd.cli import status_options as quick;"
        "quick.run(quick.read(['status'])); "
        "print([m for m in sys.modules"
        " if 'undelivered' in m or 'gpuwatchd.alerts' in m or m == 'click'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_silence_until_the_end_names_no_day_in_a_month(ctl: Ctl) -> None:
    alert = world.firing()
    now_s = time.time()
    mine = _silence(
        matcher=Matcher(key=alert.key), until_resolved=True, until_at_s=now_s + 30 * 86_400
    )
    world.write(alerts=(alert,), silences=(mine,))
    text = " ".join(_shown(ctl, "status").split())
    assert text.count("silent until it is over") == 1
    assert "until it is over" in _shown(ctl, "alerts")


def test_a_silence_of_an_alert_that_is_over_says_so(ctl: Ctl) -> None:
    world.write(alerts=(), silences=(_silence(matcher=Matcher(key="leak:GPU-1/7@1.0")),))
    text = " ".join(_shown(ctl, "status").split())
    assert "silent: leak:GPU-1/7 (over) until" in text
