"""A program of the user's as a channel: real programs, no mocks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core import config
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Message
from gpuwatchd.notify.channels import command
from gpuwatchd.notify.channels.command import CommandNotifier
from tests.children import shell_script
from tests.notify.conftest import HOSTILE


def _gone(pid: int, within_s: float = 60.0) -> bool:
    """Say whether a process has ended (a zombie nobody reaps yet has)."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_the_essentials_are_in_variables(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/nowhere")
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    monkeypatch.setenv("GPUWATCHD_ALERT_LEFTOVER", "old")
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", "/state")
    out = tmp_path / "env"
    CommandNotifier([shell_script(tmp_path / "hook", 'env > "$1"'), str(out)]).send(message)
    seen = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert seen["GPUWATCHD_ALERT_SUBJECT"] == message.subject
    assert seen["GPUWATCHD_STATE_DIR"] == "/state"
    for absent in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "GPUWATCHD_ALERT_LEFTOVER"):
        assert absent not in seen
    # Unknown is absent, not empty.
    assert "GPUWATCHD_ALERT_FRAMEWORK" not in seen
    assert "GPUWATCHD_ALERT_THREAD" not in seen


def test_on_standard_input_is_one_object_without_what_only_people_read(message: Message) -> None:
    given = json.loads(command.payload(msgspec.structs.replace(message, lead="CRITICAL: ")))
    assert (given["schema_version"], given["message"]["id"]) == (1, message.id)
    assert given["finding"]["subject"]["device_uid"] == "GPU-1"
    assert not {"lead", "finding"} & given["message"].keys()


def test_nothing_is_ever_run_by_a_shell(tmp_path: Path, message: Message) -> None:
    out = tmp_path / "args"
    planted = tmp_path / "planted"
    hook = shell_script(tmp_path / "hook", f'printf "%s" "$1" > {out}')
    evil = f"$(touch {planted}); touch {planted} #"
    CommandNotifier([hook, evil]).send(
        msgspec.structs.replace(message, subject=evil, body=f"`touch {planted}`")
    )
    assert out.read_text() == evil
    assert not planted.exists()


@pytest.mark.parametrize(
    ("code", "permanent"),
    [(1, False), (75, False), (69, False), (64, True), (77, True), (78, True)],
)
def test_exit_codes(tmp_path: Path, message: Message, code: int, permanent: bool) -> None:
    hook = shell_script(
        tmp_path / "hook", f"echo first >&2; echo 'why\x1b[2J it failed' >&2; exit {code}"
    )
    with pytest.raises(NotifyError) as caught:
        CommandNotifier([hook]).send(message)
    assert caught.value.permanent is permanent
    assert caught.value.message == f"hook exited with {code}: why it failed"


def test_a_signal_is_transient(tmp_path: Path, message: Message) -> None:
    with pytest.raises(NotifyError, match="ended by signal 9") as caught:
        CommandNotifier([shell_script(tmp_path / "hook", "kill -9 $$")]).send(message)
    assert not caught.value.permanent


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path, message: Message) -> None:
    pids = tmp_path / "pids"
    hook = shell_script(
        tmp_path / "hook",
        f"trap '' TERM; sleep 60 & echo $$ $! > {pids}; echo waiting >&2\n"
        "while :; do sleep 60; done",
    )
    began = time.monotonic()
    with pytest.raises(NotifyError, match=r"did not end within 0\.5 s .*: waiting") as caught:
        CommandNotifier([hook], timeout=0.5).send(message)
    assert time.monotonic() - began < 8
    assert not caught.value.permanent
    for pid in pids.read_text().split():
        assert _gone(int(pid))


def test_a_child_left_behind_does_not_keep_us_waiting(tmp_path: Path, message: Message) -> None:
    pid = tmp_path / "pid"
    hook = shell_script(tmp_path / "hook", f"sleep 30 & echo $! > {pid}; exit 0")
    began = time.monotonic()
    assert CommandNotifier([hook], timeout=20).send(message)
    assert time.monotonic() - began < 5
    os.kill(int(pid.read_text()), 9)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("head -c 3000000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo end >&2; exit 1", "1: end"),
        ("exec 2>&- <&-; sleep 0.2; exit 3", "3"),
    ],
    ids=["a flood", "everything closed"],
)
def test_its_end_is_told(tmp_path: Path, message: Message, body: str, said: str) -> None:
    with pytest.raises(NotifyError, match=f"exited with {said}"):
        CommandNotifier([shell_script(tmp_path / "hook", body)]).send(message)


def test_what_cannot_be_started_is_permanent(tmp_path: Path, message: Message) -> None:
    bare = tmp_path / "bare"
    bare.write_text("echo hello\n")
    bare.chmod(0o755)
    whys = ("no program", "no such program", "no such program", "Exec format error")
    for why, argv in zip(
        whys, ([], [str(tmp_path / "missing")], [str(tmp_path)], [str(bare)]), strict=True
    ):
        with pytest.raises(NotifyError, match=why) as caught:
            CommandNotifier(argv).send(message)
        assert caught.value.permanent
        assert caught.value.hint


def test_probe(tmp_path: Path) -> None:
    assert not CommandNotifier().probe().ok
    missing = CommandNotifier(["no-such-program-anywhere"]).probe()
    assert (missing.ok, "no such program" in missing.reason) == (False, True)
    assert CommandNotifier([shell_script(tmp_path / "hook", "exit 1")]).probe().ok


def test_a_hostile_body_reaches_the_program_as_text(tmp_path: Path, message: Message) -> None:
    out, given = tmp_path / "out", tmp_path / "given"
    hook = shell_script(
        tmp_path / "hook", f'printf "%s" "$GPUWATCHD_ALERT_SUBJECT" > {out}; cat > {given}'
    )
    CommandNotifier([hook]).send(msgspec.structs.replace(message, subject=HOSTILE, body=HOSTILE))
    assert json.loads(given.read_text())["message"]["body"] == HOSTILE.replace("\ud800", "?")
    assert out.read_text().startswith("python<b>bold</b>")
    assert "\x1b" not in out.read_text()
    about_others = msgspec.structs.replace(message, also=("leak:1", HOSTILE))
    keys = command.environment(about_others, {})["GPUWATCHD_ALERT_ALSO"]
    assert keys.startswith("leak:1\n")
    assert "\x1b" not in keys


@given(st.text(), st.text())
def test_any_text_fits_into_an_environment(subject: str, body: str) -> None:
    odd = Message(id="1", notice="firing", severity="info", subject=subject, body=body)
    for value in command.environment(odd, {}).values():
        assert "\0" not in value
        value.encode()


def test_gpuwatchctl_in_a_hook_does_not_wonder_about_the_variables(message: Message) -> None:
    given = command.environment(message, {"HOME": "/nowhere", "GPUWATCHD_DAEMON_INTERVAL": "9"})
    loaded = config.load(environ=given)
    assert loaded.warnings == []
    assert float(loaded.config.daemon.interval) == 9.0
