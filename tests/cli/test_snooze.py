"""``snooze``: set, listed, taken back; what cannot be done is one line, a hint and a code."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config, units
from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import About, Matcher, ProcessInfo, ProcessKey, Silence
from gpuwatchd.store import silences
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world

KEY = "leak:GPU-1/4711@1000.0"
OVER = "leak:GPU-1/5@1.0"
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Leave a history with an open alert of pid 4711 and one of pid 5 that is over."""
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    other = making.finding().subject
    over = world.firing(
        key=OVER, state="resolved", opened_at_s=100.0, resolved_at_s=200.0, title="python[5]",
        subject=type(other)(device_uid="GPU-1", process=ProcessKey(pid=5, started_at_s=1.0)),
    )  # fmt: skip
    about = About(gpu="0", user="alice", process="python", framework="PyTorch")
    history.apply([world.firing(about=about), over], [])
    history.close()


def stored() -> list[Silence]:
    with Reader.open(config.state_dir()) as reader:
        return reader.silences(all_of_them=True)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["snooze", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def test_one_alert_for_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    before_s = time.time()
    assert main(["snooze", "4711", "1h", "--why", "known \x1b[31m"]) == 0
    (kept,) = stored()
    assert kept.matcher == Matcher(key=KEY)
    assert kept.until_at_s - kept.from_at_s == HOUR_S
    assert before_s - 1 <= kept.from_at_s <= time.time()
    assert kept.why == "known"
    assert kept.who
    out = " ".join(capsys.readouterr().out.split())
    assert world.firing().title in out
    assert units.moment(kept.until_at_s, now_s=kept.from_at_s, zone=True) in out
    assert "still watched" in out
    assert "what is critical is told all the same" in out
    assert f"gpuwatchctl snooze clear {kept.row}" in out
    assert "no daemon runs" in out


def test_with_a_daemon_it_holds_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    world.write()
    assert main(["snooze", "latest", "8h"]) == 0
    assert "no daemon runs" not in capsys.readouterr().out
    (entry,) = answer(capsys, "latest", "8h")
    assert entry["daemon_running"] is True
    assert entry["fits"] == [KEY]


def test_until_resolved_has_an_end_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = answer(capsys, KEY, "until-resolved")
    (kept,) = stored()
    assert entry["until_resolved"] is True
    assert kept.until_resolved
    assert kept.until_at_s - kept.from_at_s == 30 * 86_400.0


def test_until_resolved_that_is_taken_back_is_not_over(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "4711", "until-resolved")
    assert main(["snooze", "clear", "4711"]) == 0
    said = capsys.readouterr().out
    assert world.firing().title in said
    assert KEY not in said
    (entry,) = answer(capsys, "list", "--all")
    assert entry["state"] == "cleared"
    assert main(["snooze", "list", "--all"]) == 0
    assert "taken back" in capsys.readouterr().out


def test_until_resolved_is_over_with_its_alert(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "4711", "until-resolved")
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    now_s = time.time()
    history.apply([world.firing(state="resolved", resolved_at_s=now_s)], [])
    history.close()
    (kept,) = stored()
    assert kept.row is not None
    assert silences.clear(config.state_dir(), (kept.row,), now_s + 0.2) == 1
    (entry,) = answer(capsys, "list", "--all")
    assert entry["state"] == "over"


def test_a_rule_fits_many(capsys: pytest.CaptureFixture[str]) -> None:
    rule = ("--user", "al*", "--gpu", "GPU 0", "--framework", "pytorch", "--kind", "leak")
    (entry,) = answer(capsys, *rule, "2d", "--even-critical")
    assert entry["matcher"] == {
        "gpu": "0", "user": "al*", "framework": "pytorch", "kind": "leak",
    }  # fmt: skip
    assert entry["even_critical"] is True
    assert entry["fits"] == [KEY]
    assert main(["snooze", "--user", "bob", "1h"]) == 0
    assert "nothing that is open fits it now" in capsys.readouterr().out
    assert main(["--gpu", "0", "snooze", "1h"]) == 0
    assert "1 open alert fits it now" in capsys.readouterr().out
    assert [one.matcher.user for one in stored()] == ["al*", "bob", ""]


def test_critical_already_is_silenced_too(capsys: pytest.CaptureFixture[str]) -> None:
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    history.apply([world.firing(severity="critical")], [])
    history.close()
    assert main(["snooze", "4711", "1h"]) == 0
    assert "as it is now" in capsys.readouterr().out
    assert stored()[0].even_critical


def test_a_new_one_replaces_the_old(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "4711", "8h")
    answer(capsys, "4711", "1h")
    data = answer(capsys, "list")
    assert [entry["id"] for entry in data] == [2]
    assert [entry["state"] for entry in answer(capsys, "list", "--all")] == ["in-force", "cleared"]


def test_list_says_what_until_when_and_who(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snooze", "list"]) == 0
    assert capsys.readouterr().out == "nothing is snoozed\n"
    assert main(["snooze", "4711", "1h", "--why", "it is known"]) == 0
    assert main(["snooze", "--user", "alice", "1h"]) == 0
    capsys.readouterr()
    assert main(["snooze", "list"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("2 --user alice until")
    assert "fits 1 open alert" in out
    assert f"1 {world.firing().title} until" in out
    assert "it is known" in out


@pytest.mark.parametrize(
    ("which", "left"), [("1", [2]), (KEY, [2]), ("4711", [2]), ("2", [1]), ("--all", [])]
)
def test_clear(capsys: pytest.CaptureFixture[str], which: str, left: list[int]) -> None:
    answer(capsys, "4711", "1h")
    answer(capsys, "--user", "bob", "1h")
    gone = answer(capsys, "clear", which)
    assert all(entry["state"] == "cleared" for entry in gone)
    assert [entry["id"] for entry in answer(capsys, "list")] == left


def test_clear_says_that_nothing_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snooze", "clear", "--all"]) == 0
    assert "nothing is snoozed" in capsys.readouterr().out
    for which in ("7", "4711", "nonsense"):
        assert main(["snooze", "clear", which]) == 1
        assert "snooze list" in capsys.readouterr().err
    answer(capsys, "4711", "1h")
    assert main(["snooze", "clear", "9" * 5000]) == 1
    assert "snooze list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "for how long? snooze latest 1h"),
        (["latest"], "for how long? snooze latest 1h"),
        (["8h"], "of which alert? snooze latest 8h"),
        (["latest", "8"], "8 of what? 8m or 8h"),
        (["latest", "soon"], "not a duration"),
        (["latest", "31d"], "at most 30d"),
        (["latest", "0h"], "more than zero"),
        (["latest", "1h", "2h"], "one ALERT and one DURATION"),
        (["latest", "--user", "bob", "1h"], "an ALERT or a rule, not both"),
        (["--user", "bob", "until-resolved"], "needs an ALERT"),
        (["--user", "bob"], "for how long"),
        (["--kind", "disk", "1h"], "--kind"),
        (["clear"], "which one?"),
        (["clear", "1", "--all"], "which one?"),
    ],
)
def test_what_is_missing_is_said(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["snooze", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "hint:" in err
    assert stored() == []


def test_an_alert_that_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snooze", "5", "until-resolved"]) == 1
    assert "over already" in capsys.readouterr().err
    assert main(["snooze", "5", "1h"]) == 0
    assert "should it come back" in capsys.readouterr().out


def test_the_short_id_that_messages_name_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = answer(capsys, world.firing().code, "1h")
    assert entry["matcher"] == {"key": KEY}
    (gone,) = answer(capsys, "clear", world.firing().code)
    assert gone["id"] == entry["id"]


def test_no_such_alert(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snooze", "nonsense", "1h"]) == 1
    assert "no alert 'nonsense'" in capsys.readouterr().err


def test_without_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    (config.state_dir() / "history.db").unlink()
    assert main(["snooze", "latest", "1h"]) == 1
    assert "no history" in capsys.readouterr().err
    world.write(alerts=(world.firing(),))
    assert main(["snooze", "latest", "1h", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert "nothing can be snoozed without the history" in error["message"]
    assert main(["snooze", "list"]) == 1


def test_tab_offers_alerts_then_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    from gpuwatchd.cli import program

    world.write(alerts=(world.firing(),))
    verb = program.load("snooze")
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


def test_names_of_others_cannot_write_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    info = ProcessInfo(key=making.KEY, name="x")
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    history.apply([world.firing(title="\x1b[2Jbad\n")], [])
    history.close()
    assert info.key.pid == 4711
    assert main(["snooze", "4711", "1h"]) == 0
    assert main(["snooze", "list"]) == 0
    assert "\x1b" not in capsys.readouterr().out
