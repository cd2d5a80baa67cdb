"""``snooze``: set, listed, taken back; what cannot be done is one line, a hint and a code."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core import config, units
from gpuwatchd.core.model import AlertSubject, Matcher, Silence
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from tests.cli import world

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


KEY = "leak:GPU-1/4711@1000.0"
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Leave a history with an open alert of pid 4711 and one of pid 5 that is over."""
    about = AlertSubject(gpu="0", user="alice", process="python", framework="PyTorch")
    world.remember(world.firing(about=about), world.over())


def stored() -> list[Silence]:
    with Reader.open(config.state_dir()) as reader:
        return reader.silences(all_of_them=True)


def test_one_alert_for_an_hour(ctl: Ctl) -> None:
    before_s = time.time()
    out = " ".join(ctl("snooze 4711 1h --why", "known \x1b[31m").split())
    (kept,) = stored()
    assert kept.matcher == Matcher(key=KEY)
    assert kept.until_at_s - kept.from_at_s == HOUR_S
    assert before_s - 1 <= kept.from_at_s <= time.time()
    assert kept.why == "known"
    assert kept.who
    assert units.moment(kept.until_at_s, now_s=kept.from_at_s, zone=True) in out
    assert f"gpuwatchctl snooze clear {kept.row}" in out


def test_with_a_daemon_it_holds_at_once(ctl: Ctl) -> None:
    world.write()
    assert "no daemon runs" not in ctl("snooze latest 8h")
    (entry,) = ctl.data("snooze", "latest", "8h")
    assert entry["daemon_running"] is True
    assert entry["fits"] == [KEY]


def test_until_resolved_has_an_end_all_the_same(ctl: Ctl) -> None:
    (entry,) = ctl.data("snooze", KEY, "until-resolved")
    (kept,) = stored()
    assert entry["until_resolved"] is True
    assert kept.until_resolved
    assert kept.until_at_s - kept.from_at_s == 30 * 86_400.0


def test_until_resolved_that_is_taken_back_is_not_over(ctl: Ctl) -> None:
    ctl.data("snooze", "4711", "until-resolved")
    ctl.data("snooze", "clear", "4711")
    assert [entry["state"] for entry in ctl.data("snooze", "list", "--all")] == ["cleared"]


def test_until_resolved_is_over_with_its_alert(ctl: Ctl) -> None:
    ctl.data("snooze", "4711", "until-resolved")
    now_s = time.time()
    world.remember(world.firing(state="resolved", resolved_at_s=now_s))
    (kept,) = stored()
    assert kept.row is not None
    assert transaction(config.state_dir(), tables.end_silences, (kept.row,), now_s + 0.2) == 1
    (entry,) = ctl.data("snooze", "list", "--all")
    assert entry["state"] == "over"


def test_a_rule_fits_many(ctl: Ctl) -> None:
    rule = ("--user", "al*", "--gpu", "GPU 0", "--framework", "pytorch", "--kind", "leak")
    (entry,) = ctl.data("snooze", *rule, "2d", "--even-critical")
    assert entry["matcher"] == {
        "gpu": "0", "user": "al*", "framework": "pytorch", "kind": "leak",
    }  # fmt: skip
    assert entry["even_critical"] is True
    assert entry["fits"] == [KEY]
    assert ctl.data("snooze", "--user", "bob", "1h")[0]["fits"] == []
    assert ctl.data("--gpu 0 snooze 1h")[0]["fits"] == [KEY]
    assert [one.matcher.user for one in stored()] == ["al*", "bob", ""]


def test_clear_says_that_nothing_is_there(ctl: Ctl) -> None:
    assert "nothing is snoozed" in ctl("snooze clear --all")
    for which in ("7", "4711", "nonsense"):
        assert "snooze list" in ctl.err("snooze clear", which)
    ctl.data("snooze", "4711", "1h")
    assert "snooze list" in ctl.err("snooze clear", "9" * 5000)


def test_an_alert_that_is_over(ctl: Ctl) -> None:
    assert "resolved already" in ctl.err("snooze 5 until-resolved")
    assert "if it fires again" in ctl("snooze 5 1h")


def test_the_short_id_that_messages_name_is_taken(ctl: Ctl) -> None:
    (entry,) = ctl.data("snooze", world.firing().code, "1h")
    assert entry["matcher"] == {"key": KEY}
    (gone,) = ctl.data("snooze", "clear", world.firing().code)
    assert gone["id"] == entry["id"]


def test_tab_offers_alerts_then_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    from gpuwatchd.cli import command_line

    world.write(alerts=(world.firing(),))
    verb = command_line.load("snooze")
    complete = ShellComplete(verb, {}, "gpuwatchctl snooze", "X")
    first = [item.value for item in complete.get_completions([], "")]
    assert {world.firing().code, "list", "clear"} <= set(first)
    assert KEY in [item.value for item in complete.get_completions([], "leak")]
    assert [item.value for item in complete.get_completions([KEY], "1")] == ["1h"]
    assert KEY in [item.value for item in complete.get_completions(["set"], "leak")]
    assert [item.value for item in complete.get_completions(["set", KEY], "")] == [
        "1h", "8h", "2d", "until-resolved",
    ]  # fmt: skip
    assert [item.value for item in complete.get_completions(["set", "--user", "b"], "8")] == ["8h"]
