"""``notify`` and ``service``: what works here and what mends the rest."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.core.model import Availability, ServiceState
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.cli.calls import Ctl


CALLS: list[str] = []


class FakeManager:
    """A service manager that writes down what it was asked."""

    name = "systemd"
    state = ServiceState(state="running", text="running, pid 7")
    present = True

    def __init__(self, *, system: bool = False) -> None:
        self.system = system

    def probe(self) -> Availability:
        return Availability(ok=self.present, reason="nobody home", hint="log in")

    def render(self, packaged: str = "") -> str:
        return f"[Unit]\n# {packaged}\n"

    def install(
        self,
        *,
        dry_run: bool,
        linger: bool = False,
        anyway: bool = False,
        credentials: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        more = " anyway" * anyway + "".join(f" {name}={file}" for name, file in credentials)
        CALLS.append(f"install {dry_run} {linger}{more}{' system' * self.system}")
        return ["would write" if dry_run else "wrote"]

    def uninstall(self, *, dry_run: bool, purge: bool = False) -> list[str]:
        CALLS.append(f"uninstall {dry_run}{' purge' * purge}{' system' * self.system}")
        return ["removed"]

    def start(self) -> None:
        CALLS.append("start")

    def stop(self) -> None:
        CALLS.append("stop")

    def restart(self) -> None:
        CALLS.append("restart")

    def status(self) -> ServiceState:
        return self.state

    def logs(
        self, *, lines: int, follow: bool, since_at_s: float | None = None, level: str = "debug"
    ) -> int:
        since = "" if since_at_s is None else f" since {time.time() - since_at_s:.0f}"
        CALLS.append(f"logs {lines} {follow}{since} {level}")
        return 0


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> type[FakeManager]:
    """Let every service manager be the fake one."""
    CALLS.clear()
    table = dict.fromkeys(("systemd", "launchd"), f"{__name__}:FakeManager")
    monkeypatch.setattr("gpuwatchd.cli.verbs.service.MANAGERS", table)
    monkeypatch.setattr("gpuwatchd.service.MANAGERS", table)
    monkeypatch.setattr(FakeManager, "state", FakeManager.state)
    monkeypatch.setattr(FakeManager, "present", True)
    return FakeManager


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("install", "install False False"),
        ("install --linger", "install False True"),
        ("install --dry-run", "install True False"),
        ("uninstall", "uninstall False"),
        ("start", "start"),
        ("stop", "stop"),
        ("restart", "restart"),
        ("logs -n 7 -f", "logs 7 True debug"),
        ("logs --since 2h --level warning", "logs 50 False since 7200 warning"),
        ("install --system", "install False False system"),
        ("install --anyway", "install False False anyway"),
        ("install --credential smtp-password=/s", "install False False smtp-password=/s"),
        ("uninstall --purge", "uninstall True purge"),
        ("uninstall --purge --yes", "uninstall False purge"),
        ("uninstall --purge --yes --dry-run --system", "uninstall True purge system"),
    ],
)
def test_service_verbs_reach_the_manager(words: str, call: str, manager: type[FakeManager]) -> None:
    assert main(["service", *words.split()]) == 0
    assert [call] == CALLS


@pytest.mark.parametrize(
    "words",
    [
        "install --credential smtp-password",
        "install --credential smtp-password=/a --credential smtp-password=/b",
        "install --system --linger",
        "logs --level loud",
        "logs --json",
    ],
)
def test_service_flags_that_make_no_sense(words: str, manager: type[FakeManager]) -> None:
    assert main(["service", *words.split()]) == 2
    assert CALLS == []


def test_a_purge_asks_first(manager: type[FakeManager], ctl: Ctl) -> None:
    assert ctl("service uninstall --purge").splitlines()[-1] == "dry run: --yes does it"
    assert ctl.data("service uninstall --purge")["dry_run"] is True


RUNNING = ServiceState(
    state="running",
    text="running, pid 4711",
    enabled=True,
    since_at_s=1_760_000_000.0,
    pid=4711,
    restarts=0,
    memory_bytes=88 * 2**20,
    memory_max_bytes=256 * 2**20,
    watchdog_s=60.0,
    file="/home/mleng/.config/systemd/user/gpuwatchd.service",
    beside=("/home/mleng/.config/systemd/user/gpuwatchd.service.d/override.conf",),
)
FAILED = ServiceState(
    state="failed",
    text="failed, last result: exit-code 78",
    exit_code=78,
    result="exit-code",
    log=("ERROR no such key",),
    hints=("gpuwatchctl config validate",),
)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (RUNNING, 0),
        (FAILED, 3),
        (ServiceState(state="stopped", text="stopped"), 3),
        (ServiceState(state="starting", text="starting"), 3),
        (ServiceState(state="not-installed", text="not installed"), 4),
    ],
)
def test_service_status_has_systemctl_s_codes(
    state: ServiceState,
    code: int,
    manager: type[FakeManager],
    monkeypatch: pytest.MonkeyPatch,
    ctl: Ctl,
) -> None:
    monkeypatch.setattr(manager, "state", state)
    assert ctl("service status", code=code).splitlines()[0] == state.text
    told = ctl.data("service status", code=code)
    assert (told["running"], told["state"]) == (code == 0, state.state)


def test_no_service_manager_is_said_with_its_hint(
    manager: type[FakeManager], monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setattr(manager, "present", False)
    shown = ctl.err("service start")
    assert "nobody home" in shown
    assert CALLS == []
    assert main(["service", "print"]) == 0
    assert main(["service", "install", "--dry-run"]) == 0


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes the command channel run a shell script."""

    def make(body: str) -> Path:
        file = tmp_path / "hook"
        file.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        file.chmod(0o755)
        monkeypatch.setenv("GPUWATCHD_NOTIFY_COMMAND_ARGV", str(file))
        return file

    return make


def test_notify_sends_through_the_real_channel(
    program: Callable[[str], Path], tmp_path: Path, ctl: Ctl
) -> None:
    program(f"cat > {tmp_path}/got")
    assert "arrived" in ctl("notify test command")
    got = json.loads((tmp_path / "got").read_text(encoding="utf-8"))
    assert got["message"]["notice"] == "test"


def test_notify_reports_a_failure_as_one(program: Callable[[str], Path], ctl: Ctl) -> None:
    program("echo no way >&2; exit 77")
    (row,) = ctl.data("notify test command", code=1)
    assert row["result"] == "failed"
    assert "no way" in row["detail"]
    assert "again" not in row["detail"]
    program("exit 75")
    assert "would try again" in ctl("notify test command", code=1).replace("\n" + " " * 9, " ")


def test_notify_dry_run_sends_nothing(
    program: Callable[[str], Path], tmp_path: Path, ctl: Ctl
) -> None:
    program(f"touch {tmp_path}/sent")
    assert "usable" in ctl("notify test command --dry-run")
    assert not (tmp_path / "sent").exists()


def test_status_looks_directly_at_a_source_with_its_main_setting(tmp_path: Path, ctl: Ctl) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[sources]\nenabled = ['simulate:mixed-8x8']\n")
    answer = ctl.json("status --config", str(file))
    assert answer["source"] == "direct"
    assert len(answer["data"]) == 8


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Leave a history with one alert that fired an hour ago and one of last week."""
    now_s = time.time()
    old = world.firing(
        key="leak:old", state="resolved", opened_at_s=now_s - 5 * 86_400, firing_at_s=now_s - 4e5,
        resolved_at_s=now_s - 3.9e5, title="an old one",
    )  # fmt: skip
    world.remember(world.firing(firing_at_s=now_s - 3600), old)


def hooked(tmp_path: Path, channels: str = '["command"]', code: int = 0) -> Path:
    file = tmp_path / "c.toml"
    script = f"cat > '{tmp_path / 'heard'}'; exit {code}"
    file.write_text(
        f"[policy]\ndigest-channels = {channels}\n"
        f"[notify.command]\nargv = {json.dumps(['sh', '-c', script])}\n"
    )
    return file


def test_shown_it_sends_nothing(tmp_path: Path, ctl: Ctl) -> None:
    file = hooked(tmp_path)
    out = ctl("--config", str(file), "notify", "digest", "--dry-run")
    assert out.startswith("1 alert since")
    assert "an old one" not in out
    out = ctl("--config", str(file), "notify", "digest", "--dry-run", "--since", "7d")
    assert out.startswith("2 alerts since")
    assert not (tmp_path / "heard").exists()


def test_sent_it_goes_by_the_channels_of_the_digest(tmp_path: Path, ctl: Ctl) -> None:
    (row,) = ctl.data("--config", str(hooked(tmp_path)), "notify", "digest")
    assert (row["channel"], row["result"]) == ("command", "arrived")
    heard = json.loads((tmp_path / "heard").read_text())["message"]
    assert heard["notice"] == "digest"
    assert heard["subject"].startswith("1 alert since")


def test_what_is_held_now_is_in_it_while_the_daemon_runs(ctl: Ctl) -> None:
    world.write(holdings=world.odd().holdings)
    assert "Idle memory" in ctl.data("notify digest --dry-run")["facts"]


def test_what_fails_is_said(tmp_path: Path, ctl: Ctl) -> None:
    assert "failed" in ctl("--config", str(hooked(tmp_path, code=3)), "notify", "digest", code=1)
    nobody = hooked(tmp_path, channels="[]")
    assert "no channel is in use" in ctl.err("--config", str(nobody), "notify", "digest")
    (config.state_dir() / "history.db").unlink()
    assert "no history" in ctl.err("notify digest --dry-run")
