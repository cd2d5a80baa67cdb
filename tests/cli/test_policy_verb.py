"""``policy``: rules tried on findings; nothing is ever sent."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.core.model import About, Matcher, Silence
from gpuwatchd.store import silences
from tests.cli import world
from tests.store.world import opened

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

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


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return what ``policy test --json`` says."""
    assert main(["policy", "test", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    return found


def kinds(data: dict[str, Any]) -> dict[str, str]:
    return {one["channel"]: one["kind"] for one in data["routes"]}


def test_each_channel_says_what_it_would_do_and_why(
    rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    data = answer(capsys, "--at", NIGHT, "--config", rules)
    assert kinds(data) == {"desktop": "send", "email": "wait", "chat": "hold"}
    waits = data["routes"][1]
    assert waits["reason"] == "quiet hours until 07:00"
    until = datetime.fromisoformat(waits["until_at"]).timestamp()
    assert until - datetime.fromisoformat(NIGHT).timestamp() == 7.5 * 3600
    assert data["fallback"] == ["command"]
    assert kinds(answer(capsys, "--at", NOON, "--config", rules))["email"] == "send"


def test_critical_passes_quiet_hours_and_limits(
    rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    arguments = ("--at", NIGHT, "--set", "severity=critical", "--config", rules)
    assert set(kinds(answer(capsys, *arguments)).values()) == {"send"}


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
    capsys: pytest.CaptureFixture[str],
) -> None:
    world.write(alerts=(world.firing(finding=world.leak(limit_bytes=80.0 * 2**30)),))
    arguments = ("--at", NOON, "--set", change, "--config", rules)
    data = answer(capsys, *arguments)
    assert kinds(data) == channels
    assert reason in data["routes"][0]["reason"]
    assert {one["by"] for one in data["overrides"]} == {f"override {by}"}


def test_the_text_is_the_one_that_would_leave(
    rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    assert main(["policy", "test", "--at", NOON, "--config", rules]) == 0
    shown = capsys.readouterr().out
    assert "python[4711] of alice" in shown
    assert "12.4 MB/min" in shown
    assert "gpuwatchctl explain 4711" in shown
    assert "if none of them delivers: command" in shown


def test_an_alert_of_the_live_state_at_its_own_time(capsys: pytest.CaptureFixture[str]) -> None:
    state = world.write()
    data = answer(capsys)
    assert data["alert"] == state.alerts[0].key
    fired = state.alerts[0].firing_at_s
    assert fired is not None
    assert abs(datetime.fromisoformat(data["at"]).timestamp() - fired) < 1
    assert answer(capsys, "4711", "--notice", "resolved")["notice"] == "resolved"


def test_the_text_is_of_the_judgement_that_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = time.time()
    old = world.firing(firing_at_s=now_s - 7200, finding=world.leak(judged_at_s=now_s - 600))
    world.write(alerts=(old,))
    data = answer(capsys)
    assert abs(datetime.fromisoformat(data["at"]).timestamp() - (now_s - 7200)) < 1
    assert abs(datetime.fromisoformat(data["text_at"]).timestamp() - (now_s - 600)) < 1
    full = time.strftime("%H:%M", time.localtime(now_s - 600 + 2820))
    assert f"{full} (" in " ".join(data["message"]["body"])
    assert main(["policy", "test"]) == 0
    assert "those of its last judgement" in " ".join(capsys.readouterr().out.split())


def test_an_end_is_tried_when_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = time.time()
    over = world.firing(state="resolved", firing_at_s=now_s - 7200, resolved_at_s=now_s - 1800)
    world.write(alerts=(over,))
    at = answer(capsys, "--notice", "resolved")["at"]
    assert abs(datetime.fromisoformat(at).timestamp() - (now_s - 1800)) < 1


def test_one_key_of_the_file_is_named_once(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    world.write()
    change = ("--set", "process=cached", "--set", "severity=critical")
    assert main(["policy", "test", *change, "--config", rules]) == 0
    assert capsys.readouterr().out.count("override 3 sets grows") == 1


def test_what_is_only_watched_is_never_due(capsys: pytest.CaptureFixture[str]) -> None:
    world.write(alerts=(world.firing(state="watch", firing_at_s=None),))
    assert "only watched" in answer(capsys)["never"]
    assert main(["policy", "test"]) == 0
    assert "never sent: it was only watched" in capsys.readouterr().out


def test_reminders_and_endings_that_are_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    file = tmp_path / "quiet.toml"
    file.write_text("[policy]\nrepeat = []\nrecovered = false\nchannels = []\n", encoding="utf-8")
    arguments = ("--config", str(file), "--notice")
    assert "no reminders" in answer(capsys, *arguments, "repeat")["never"]
    assert "recovered is off" in answer(capsys, *arguments, "resolved")["never"]
    data = answer(capsys, *arguments, "firing")
    assert (data["never"], data["routes"]) == (None, [])
    assert main(["policy", "test", *arguments, "firing"]) == 0
    assert "by no channel" in capsys.readouterr().out


def test_a_silence_of_that_time_counts_also_when_it_was_taken_back_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alert = world.firing()
    world.write(alerts=(alert,))
    config.state_dir().mkdir(parents=True, exist_ok=True)
    opened(config.state_dir()).close()
    fired = alert.firing_at_s or 0.0
    silence = Silence(
        matcher=Matcher(key=alert.key), from_at_s=fired - 60, until_at_s=fired + 60, who="carol"
    )
    kept = silences.add(config.state_dir(), silence)
    assert kept.row is not None
    silences.clear(config.state_dir(), (kept.row,), fired + 30)
    first = answer(capsys)["routes"][0]
    assert (first["kind"], "silenced by carol" in first["reason"]) == ("hold", True)
    late = answer(capsys, "--at", datetime.fromtimestamp(fired + 45).astimezone().isoformat())
    assert late["routes"][0]["kind"] == "send"
    early = answer(capsys, "--at", datetime.fromtimestamp(fired - 61).astimezone().isoformat())
    assert early["routes"][0]["kind"] == "send"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("policy", "test"), 1, "policy show"),
        (("policy", "test", "nothing"), 1, "no alert"),
        (("policy", "test", "--set", "colour=red"), 2, "KEY=VALUE with one of"),
        (("policy", "test", "--set", "severity=dire"), 2, "severity is one of"),
        (("policy", "test", "--notice", "farewell"), 2, "farewell"),
        (("policy", "test", "--config", "/nonexistent.toml"), 5, "no such file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_hostile_words_are_harmless(rules: str) -> None:
    about = About(user="bob", process=world.HOSTILE, gpu="0")
    world.write(alerts=(world.firing(about=about, title=f"GPU 0: {world.HOSTILE}"),))
    done = world.run("policy", "test", "--config", rules)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


def test_nothing_is_sent_or_written(tmp_path: Path) -> None:
    world.write()
    mark = tmp_path / "sent"
    file = tmp_path / "rules.toml"
    argv = json.dumps(["/bin/sh", "-c", f"touch {mark}"])
    file.write_text(f'[policy]\nchannels = ["command"]\n[notify.command]\nargv = {argv}\n')
    done: subprocess.CompletedProcess[str] = world.run("policy", "test", "--config", str(file))
    assert "command  sent" in " ".join(done.stdout.split(" ")).replace("   ", "  ")
    time.sleep(0.2)
    assert not mark.exists()
    assert not (config.state_dir() / "history.db").exists()


def test_show_says_what_validate_says(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "--config", rules]) == 0
    shown = capsys.readouterr().out
    assert "Override 1 (user bob*): nobody is told (he asked)." in shown
    assert "cannot work: [notify.email] host" in shown
    assert main(["policy", "show", "--json", "--config", rules]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["problems"]


def test_a_channel_with_an_odd_name_does_nothing_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    file = tmp_path / "odd.toml"
    file.write_text('[policy]\nchannels = ["\\u001b[31mx"]\nfallback = ["\\u001b]0;t\\u0007y"]\n')
    assert main(["--config", str(file), "policy", "test"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "  x        sent" in said
    assert "if none of them delivers: y" in said
