"""Files and names that are made to harm: an answer, one line, and never a wait without end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import exits
from gpuwatchd.core import config
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import AlertSubject, ChannelHealth, Decision, Matcher
from gpuwatchd.store import live
from tests.cli import recorded, shaped, world
from tests.conftest import ON_LINUX

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


@pytest.fixture
def place() -> Path:
    directory = config.runtime_dir()
    directory.mkdir(parents=True, exist_ok=True)
    return directory / live.FILE_NAME


def test_a_fifo_in_place_of_the_live_state_holds_nobody_up(place: Path) -> None:
    os.mkfifo(place)
    done = world.run("predict", "--json", env={"GPUWATCHD_SOURCES_ENABLED": ""})
    assert "error" in json.loads(done.stdout)


def test_a_live_state_that_is_a_link_or_beyond_all_bounds_is_none(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write()
    monkeypatch.setattr(live, "MAX_BYTES", place.stat().st_size)
    assert live.read(place.parent) is not None
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert live.read(place.parent) is None
    place.unlink()
    place.write_bytes((tmp_path / "elsewhere").read_bytes() + b" ")
    assert live.read(place.parent) is None


def test_a_live_state_nested_without_end_is_none(place: Path) -> None:
    place.write_bytes(b"[" * 1_000_000)
    assert live.read(place.parent) is None


@pytest.mark.parametrize("name", ["\x1b[2J\nevil", "x" * 5000])
def test_a_log_that_cannot_have_this_name_is_one_clean_line(name: str) -> None:
    done = world.run("analyze", name)
    assert done.returncode == 5
    assert "\x1b" not in done.stderr
    first, hint, page = done.stderr.splitlines()
    assert page == "see: gpuwatchctl docs errors#log-format"
    assert first.startswith("gpuwatchctl: ")
    assert "internal error" not in first
    assert hint.startswith("hint: ")


def test_what_an_error_quotes_of_a_log_is_clean(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("timestamp, gpu, memory\u202e\n2026-01-01 00:00:00, 0, 1\n", encoding="utf-8")
    done = world.run("analyze", "--json", str(log))
    assert done.returncode == 5
    assert "\u202e" not in json.loads(done.stdout)["data"][0]["error"]


def test_half_a_live_state_never_replaces_a_whole_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.write()
    monkeypatch.setattr(os, "writev", lambda _handle, content: sum(map(len, content)) // 2)
    with pytest.raises(StoreError, match="No space left"):
        live.write(place.parent, world.state(ticks=2))
    monkeypatch.undo()
    assert live.read(place.parent) == before


@ON_LINUX
def test_an_internal_error_that_cannot_be_told_is_still_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: list[str]) -> int:
        raise TypeError("oh")

    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert exits.run_with_exit_code(["status", "--json"], fails) == 1
        monkeypatch.undo()
    assert "internal error: TypeError: oh" in capsys.readouterr().err


@pytest.fixture
def evil() -> None:
    """Let every foreign text of a machine be made to harm: of its state and of its history."""
    words, now_s = f"{world.HOSTILE}{'x' * 300}", time.time()
    recorded.record("sawtooth")
    about = AlertSubject(user=words, process=words, gpu="0")
    alert = world.firing(
        title=words, held_back=words, ended=words, inhibited_by=words, about=about,
        finding=world.leak(reason=words, framework=words, advice=(words,)),
    )  # fmt: skip
    sent = world.delivery(
        alert.key, "email", now_s, state="failed", sent_at_s=None, error=words, known=words,
        fallback_of=words, held=words, attempts=4,
    )  # fmt: skip
    made = Decision(
        finding_id="f", alert_key=alert.key, kind="hold", target=words, notice="firing",
        reason=words, at_s=now_s,
    )  # fmt: skip
    world.remember(alert, deliveries=[sent], decisions=[made])
    with world.history() as history:
        history.event(words, words, None)
    silence = world.silence(matcher=Matcher(user=words), from_at_s=0.0, who=words, why=words)
    down = ChannelHealth(name="email", ok=False, why=words)
    state = msgspec.structs.replace(
        world.odd(words), alerts=(alert,), silences=(silence,), channels=(down,), problems=(words,)
    )
    world.write(state)


@pytest.mark.parametrize("flag", ["", "--ascii", "--json"])
@pytest.mark.parametrize(
    "line",
    ["status", "status --wide", "predict", "predict --wide", "watch -n 1", "explain 0", "explain 1",
     "explain 4711", "explain 77", "explain 5", "alerts", "alerts show latest", "zombies",
     "zombies --wide", "history --events", "history --wide", "plot", "plot --pid 4711",
     "plot --user *", "cost --by gpu", "cost --by user", "cost --by job", "cost --by incident",
     "report --all", "notify digest --dry-run", "policy test", "snooze 4711 1h", "snooze list",
     "feedback latest normal", "doctor host", "config print", "config path", "config validate",
     "notify list"],
)  # fmt: skip
def test_no_foreign_text_reaches_a_terminal(line: str, flag: str, evil: None, ctl: Ctl) -> None:
    said = ctl.both(line, *flag.split(), code=None)
    shown = said.out + said.err
    assert shown
    for row in shown.splitlines():
        assert row.isprintable(), row
        assert line == "report --all" or not row.startswith("next"), "a name begins a line"
    assert flag != "--ascii" or shown.isascii()
    if flag == "--json":
        assert all(text.isprintable() for text in shaped.texts(json.loads(said.out)))


SECRET = "T0kenThatNobodyMaySee1234567890abcd"
URLS = f"""
# ours
slack://{SECRET}/{SECRET}/{SECRET}
ntfy://{SECRET.lower()}
json://me:{SECRET}@127.0.0.1:9/{SECRET}?{SECRET}={SECRET}
discord://{SECRET}/{SECRET}
{SECRET}
"""
NOWHERE = {
    "GPUWATCHD_SOURCES_ENABLED": "",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
}
"""Nothing leaves this machine."""
ASKED = [
    "notify list",
    "notify list --json",
    "notify test chat --json",
    "notify test chat --debug",
    "notify test chat --dry-run",
    "config print --origin",
    "config print --json",
    "config validate",
    "config validate --json",
    "policy show --json",
    "policy test --json",
    "doctor -v",
    "doctor --json",
    "check --json",
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    urls = tmp_path / "urls"
    urls.write_text(URLS)
    urls.chmod(0o600)
    found = tmp_path / "config.toml"
    found.write_text(
        f'[policy]\nchannels = ["chat"]\n[notify.chat]\nurls-file = "{urls}"\ntimeout = "3s"\n'
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_no_answer_has_an_address(asked: str, file: Path) -> None:
    done = world.run(*asked.split(), "--config", str(file), env=NOWHERE)
    said = (done.stdout + done.stderr).lower()
    assert said
    assert SECRET.lower() not in said


@pytest.mark.slow
def test_nor_has_one_with_addresses_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[policy]\nchannels = ["chat"]\n[notify.chat]\ntimeout = "3s"\n')
    env = {"GPUWATCHD_CHAT_URLS": " ".join(URLS.split("\n")[2:]), **NOWHERE}
    for asked in ("notify list --json", "notify test chat", "config print", "config validate"):
        done = world.run(*asked.split(), "--config", str(file), env=env)
        assert SECRET.lower() not in (done.stdout + done.stderr).lower()
        assert "unknown environment variable" not in done.stderr


def test_a_refusal_names_each_address_by_its_service(file: Path) -> None:
    done = world.run("notify", "test", "chat", "--json", "--config", str(file), env=NOWHERE)
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["data"]
    assert row["result"] == "failed"
    for name in ("slack (address 1)", "json at 127.0.0.1", "discord (address 4)", "address 5"):
        assert name in row["detail"], row["detail"]
