"""``policy``: rules tried on findings; nothing is ever sent."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core import config
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from tests.cli import world
from tests.store.world import opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

RULES = """
[policy]
channels = ["desktop", "email", "chat"]
fallback = ["command"]
severity = { chat = "critical" }
quiet-hours = { email = ["22:00-07:00"] }
[[override]]
user = "bob*"
mute = true
why = "he asked"
[[override]]
framework = "vllm"
channels = ["command"]
[[override]]
process = "cache*"
grows-to = "100GiB"
"""
NOON, NIGHT = "2026-11-21T12:00:00", "2026-11-21T23:30:00"


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.toml"
    file.write_text(RULES, encoding="utf-8")
    return str(file)


def kinds(data: dict[str, Any]) -> dict[str, str]:
    return {one["channel"]: one["kind"] for one in data["routes"]}


def test_each_channel_says_what_it_would_do_and_why(rules: str, ctl: Ctl) -> None:
    world.write()
    data = ctl.data("policy test", "--at", NIGHT, "--config", rules)
    assert kinds(data) == {"desktop": "send", "email": "wait", "chat": "hold"}
    waits = data["routes"][1]
    assert waits["reason"] == "quiet hours until 07:00"
    until = datetime.fromisoformat(waits["until_at"]).timestamp()
    assert until - datetime.fromisoformat(NIGHT).timestamp() == 7.5 * 3600
    assert data["fallback"] == ["command"]
    assert kinds(ctl.data("policy test", "--at", NOON, "--config", rules))["email"] == "send"


def test_critical_passes_quiet_hours_and_limits(rules: str, ctl: Ctl) -> None:
    world.write()
    arguments = ("--at", NIGHT, "--set", "severity=critical", "--config", rules)
    assert set(kinds(ctl.data("policy test", *arguments)).values()) == {"send"}


@pytest.mark.parametrize(
    ("change", "channels", "reason", "by"),
    [
        ("user=Bobby", {"desktop": "hold", "email": "hold", "chat": "hold"}, "he asked", "1"),
        ("framework=vLLM", {"command": "send"}, "firing", "2"),
        ("process=cached", {"desktop": "hold", "email": "hold", "chat": "hold"}, "100.0 GiB", "3"),
    ],
)
def test_overrides_are_applied_and_named(
    rules: str,
    change: str,
    channels: dict[str, str],
    reason: str,
    by: str,
    ctl: Ctl,
) -> None:
    world.write(alerts=(world.firing(finding=world.leak(limit_bytes=80.0 * 2**30)),))
    arguments = ("--at", NOON, "--set", change, "--config", rules)
    data = ctl.data("policy test", *arguments)
    assert kinds(data) == channels
    assert reason in data["routes"][0]["reason"]
    assert {one["by"] for one in data["overrides"]} == {f"override {by}"}


def test_an_alert_of_the_live_state_at_its_own_time(ctl: Ctl) -> None:
    state = world.write()
    data = ctl.data("policy test")
    assert data["alert"] == state.alerts[0].key
    fired = state.alerts[0].firing_at_s
    assert fired is not None
    assert abs(datetime.fromisoformat(data["at"]).timestamp() - fired) < 1
    assert ctl.data("policy test", "4711", "--notice", "resolved")["notice"] == "resolved"


def test_the_text_is_of_the_judgement_that_is_kept(ctl: Ctl) -> None:
    now_s = time.time()
    old = world.firing(firing_at_s=now_s - 7200, finding=world.leak(judged_at_s=now_s - 600))
    world.write(alerts=(old,))
    data = ctl.data("policy test")
    assert abs(datetime.fromisoformat(data["at"]).timestamp() - (now_s - 7200)) < 1
    assert abs(datetime.fromisoformat(data["text_at"]).timestamp() - (now_s - 600)) < 1
    full = time.strftime("%H:%M", time.localtime(now_s - 600 + 2820))
    assert f"{full} (" in " ".join(data["message"]["body"])
    assert "from its last evaluation" in " ".join(ctl("policy test").split())


def test_an_end_is_tried_when_it_came(ctl: Ctl) -> None:
    now_s = time.time()
    over = world.firing(state="resolved", firing_at_s=now_s - 7200, resolved_at_s=now_s - 1800)
    world.write(alerts=(over,))
    at = ctl.data("policy test", "--notice", "resolved")["at"]
    assert abs(datetime.fromisoformat(at).timestamp() - (now_s - 1800)) < 1


def test_one_key_of_the_file_is_named_once(rules: str, ctl: Ctl) -> None:
    world.write()
    change = ("--set", "process=cached", "--set", "severity=critical")
    shown = ctl("policy test", *change, "--config", rules)
    assert shown.count("override 3 sets grows") == 1


def test_what_is_only_watched_is_never_due(ctl: Ctl) -> None:
    world.write(alerts=(world.firing(state="watch", firing_at_s=None),))
    assert "only watched" in ctl.data("policy test")["never"]
    assert "never sent: it was only watched" in ctl("policy test")


def test_reminders_and_endings_that_are_switched_off(tmp_path: Path, ctl: Ctl) -> None:
    world.write()
    file = tmp_path / "quiet.toml"
    file.write_text("[policy]\nrepeat = []\nrecovered = false\nchannels = []\n", encoding="utf-8")
    arguments = ("--config", str(file), "--notice")
    assert "no reminders" in ctl.data("policy test", *arguments, "repeat")["never"]
    assert "recovered is off" in ctl.data("policy test", *arguments, "resolved")["never"]
    data = ctl.data("policy test", *arguments, "firing")
    assert (data["never"], data["routes"]) == (None, [])
    assert "by no channel" in ctl("policy test", *arguments, "firing")


def test_a_silence_of_that_time_counts_also_when_it_was_taken_back_later(
    ctl: Ctl,
) -> None:
    alert = world.firing()
    world.write(alerts=(alert,))
    config.state_dir().mkdir(parents=True, exist_ok=True)
    opened(config.state_dir()).close()
    fired = alert.firing_at_s or 0.0
    silence = world.silence(from_at_s=fired - 60, until_at_s=fired + 60, who="carol")
    kept = transaction(config.state_dir(), tables.write_silence, silence)
    assert kept.row is not None
    transaction(config.state_dir(), tables.end_silences, (kept.row,), fired + 30)
    first = ctl.data("policy test")["routes"][0]
    assert (first["kind"], "silenced by carol" in first["reason"]) == ("hold", True)
    late = ctl.data(
        "policy test", "--at", datetime.fromtimestamp(fired + 45).astimezone().isoformat()
    )
    assert late["routes"][0]["kind"] == "send"
    early = ctl.data(
        "policy test", "--at", datetime.fromtimestamp(fired - 61).astimezone().isoformat()
    )
    assert early["routes"][0]["kind"] == "send"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("policy test", 1, "policy show"),
        ("policy test --set severity=dire", 2, "severity is one of"),
        ("policy test --config /nonexistent.toml", 5, "no such file"),
    ],
)
def test_mistakes_are_one_line(line: str, code: int, said: str, ctl: Ctl) -> None:
    shown = ctl.err(line, code=code)
    assert said in shown
    assert "Traceback" not in shown


def test_nothing_is_sent_or_written(tmp_path: Path) -> None:
    world.write()
    mark = tmp_path / "sent"
    file = tmp_path / "rules.toml"
    argv = json.dumps(["/bin/sh", "-c", f"touch {mark}"])
    file.write_text(f'[policy]\nchannels = ["command"]\n[notify.command]\nargv = {argv}\n')
    done = world.run("policy", "test", "--config", str(file))
    assert "command  sent" in " ".join(done.stdout.split(" ")).replace("   ", "  ")
    assert not mark.exists()
    assert not (config.state_dir() / "history.db").exists()


def test_show_says_what_validate_says(rules: str, ctl: Ctl) -> None:
    shown = ctl("policy show", "--config", rules)
    assert "Override 1 (user bob*): no message is sent (he asked)." in shown
    assert "cannot work: [notify.email] host" in shown
    assert ctl.data("policy show", "--config", rules)["problems"]


def test_a_channel_with_an_odd_name_does_nothing_to_the_terminal(tmp_path: Path, ctl: Ctl) -> None:
    world.write()
    file = tmp_path / "odd.toml"
    file.write_text('[policy]\nchannels = ["\\u001b[31mx"]\nfallback = ["\\u001b]0;t\\u0007y"]\n')
    said = ctl("--config", str(file), "policy", "test")
    assert "\x1b" not in said
    assert "  x        sent" in said
    assert "if none of them delivers: y" in said
