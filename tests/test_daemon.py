"""The daemon as a process: start, signals, one instance, directories, the service manager."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from gpuwatchd.collect.simulate import SimulateSource
from gpuwatchd.core import config
from gpuwatchd.daemon.main import Daemon, _clocks
from gpuwatchd.store import live
from tests import making
from tests.children import Child
from tests.conftest import ROOT
from tests.making import present
from tests.store import damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

SIMULATED = ["--source", "simulate:one-leak", "--interval", "0.2"]


def environ(tmp_path: Path, **extra: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPUWATCHD_STATE_DIR": str(tmp_path / "state"),
        "GPUWATCHD_RUNTIME_DIR": str(tmp_path / "run"),
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nonexistent",
        **extra,
    }


T = TypeVar("T")


def wait_for(what: Callable[[], T], seconds: float = 60.0) -> T:
    """Return the first answer that is something."""
    until = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return answer


def state_of(tmp_path: Path) -> live.LiveState:
    return present(live.read(tmp_path / "run"))


def once(tmp_path: Path, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuwatchd", *args],
        env=environ(tmp_path, **extra), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@contextmanager
def daemon(
    tmp_path: Path, *args: str, program: str = "", **extra: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a daemon, or a program in its place, from its first live state on."""
    words = ["-c", program] if program else ["-m", "gpuwatchd"]
    with (tmp_path / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *words, *args],
            env=environ(tmp_path, **extra), cwd=ROOT, stderr=log, text=True,
        )  # fmt: skip
    try:
        wait_for(lambda: (s := live.read(tmp_path / "run")) is not None and s.pid == process.pid)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def said(tmp_path: Path) -> str:
    return (tmp_path / "log").read_text()


def test_once_takes_one_sample_and_leaves_the_state(tmp_path: Path) -> None:
    done = once(tmp_path, *SIMULATED, "--once")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    state = present(live.read(tmp_path / "run"))
    assert len(state.devices) == 1
    assert done.stderr.count(" INFO gpu found ") == 1


def test_without_a_gpu_it_runs_and_says_what_is_missing(tmp_path: Path) -> None:
    done = once(tmp_path, "--source", "nvml", "--once")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    state = present(live.read(tmp_path / "run"))
    assert any("nvml" in problem for problem in state.problems)
    assert done.stderr.count("WARNING nvml: ") == 1


BAD = [
    ("[detection]\nmin-r-squard = 1", "did you mean min-r-squared?"),
    ("[daemon]\ninterval = 'x'", "is not a duration"),
    ("[daemon", "not valid TOML"),
]


@pytest.mark.parametrize(("written", "why"), BAD)
def test_a_bad_configuration_is_exit_78_with_file_and_key(
    tmp_path: Path, written: str, why: str
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(written)
    done = once(tmp_path, "--config", str(file), "--once")
    assert done.returncode == 78
    first, *rest = done.stderr.splitlines()
    assert first.startswith(f"gpuwatchd: {file}: ")
    assert why in first
    *hints, page = rest
    assert all(line.startswith("hint: ") for line in hints)
    assert hints or "TOML" not in why
    assert page.startswith("see: gpuwatchctl docs errors#configuration")


def test_an_unknown_source_is_one_line(tmp_path: Path) -> None:
    done = once(tmp_path, "--source", "voodoo", "--once")
    assert done.returncode == 1
    assert done.stderr.startswith("gpuwatchd: 'voodoo' is not known here")


def test_sigterm_writes_everything_and_leaves_in_time(tmp_path: Path) -> None:
    with daemon(tmp_path, *SIMULATED) as process:
        wait_for(lambda: state_of(tmp_path).ticks > 3)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - asked < 5.0
    state = present(live.read(tmp_path / "run"))
    assert state.stopped
    import sqlite3

    with closing(sqlite3.connect(tmp_path / "state" / "history.db")) as base:
        kept = base.execute("SELECT count(*) FROM gpu_raw").fetchone()[0]
    assert kept > 3


def test_a_second_daemon_names_the_first(tmp_path: Path) -> None:
    with daemon(tmp_path, *SIMULATED) as first:
        done = once(tmp_path, *SIMULATED)
        assert done.returncode == 1
        assert f"already running with pid {first.pid}" in done.stderr


def test_sighup_takes_a_good_configuration_and_keeps_the_old_for_a_bad_one(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[daemon]\ninterval = '0.2s'\n[sources]\nenabled = ['simulate:one-leak']\n")
    with daemon(tmp_path, "--config", str(file)) as process:
        file.write_text("[daemon]\nintervall = '9s'\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: any("not reloaded" in p for p in state_of(tmp_path).problems))
        assert state_of(tmp_path).interval_s == 0.2
        file.write_text("[daemon]\ninterval = '0.3s'\n[sources]\nenabled = ['simulate:one-leak']\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: state_of(tmp_path).interval_s == 0.3)
        assert not any("not reloaded" in p for p in state_of(tmp_path).problems)
        assert process.poll() is None


def test_a_channel_that_is_added_is_used_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "gpuwatchd"
    folder.mkdir(parents=True)
    mine = "[policy]\nchannels = []\n[notify.command]\nargv = ['true']\n"
    (folder / "config.toml").write_text(mine)
    with daemon(tmp_path, *SIMULATED):
        assert len(state_of(tmp_path).problems) == 1, "command is set up in vain"
        words = ["notify", "add", "ntfy", "--topic", "gpu7", "--no-test", "--json"]
        argv = [sys.executable, "-c", "from gpuwatchd.cli import main; main()", *words]
        done = subprocess.run(
            argv, env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(done.stdout)["data"]["daemon"] == "reloaded"
        wait_for(lambda: [channel.name for channel in state_of(tmp_path).channels] == ["chat"])


def test_settings_that_take_a_restart_say_so_until_it_comes(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    begun = "[sources]\nenabled = ['simulate:one-leak']\n[daemon]\ninterval = '0.2s'\n"
    file.write_text(begun)
    with daemon(tmp_path, "--config", str(file)) as process:
        file.write_text(f"{begun}log-level = 'debug'\n[store]\nmax-db-mib = 64\n")
        for _ in range(2):
            ticks = state_of(tmp_path).ticks
            process.send_signal(signal.SIGHUP)
            wait_for(lambda before=ticks: state_of(tmp_path).ticks > before + 2)  # type: ignore[misc]
            assert any(p.startswith("[store] has changed") for p in state_of(tmp_path).problems)
        file.write_text(begun)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: not any("restart" in p for p in state_of(tmp_path).problems))
        wait_for(lambda: " INFO problem over " in said(tmp_path))
    about = [line for line in said(tmp_path).splitlines() if "[store] has changed" in line]
    assert [line.split()[2] for line in about] == ["WARNING", "INFO"], "once each, not per tick"


def test_the_service_manager_hears_ready_status_watchdog_and_stopping(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(path)
        ear.settimeout(20)
        heard = ""
        with daemon(tmp_path, *SIMULATED, NOTIFY_SOCKET=path) as process:
            while heard.count("WATCHDOG=1") < 3:
                heard += ear.recv(4096).decode() + "\n"
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in heard:
                heard += ear.recv(4096).decode() + "\n"
            assert process.wait(10) == 0
    assert "READY=1" in heard
    assert "STATUS=1 GPU, 0 alerts" in heard


def test_a_long_interval_does_not_starve_the_watchdog(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(path)
        ear.settimeout(10)
        heard = ""
        words = ["--source", "simulate:one-leak", "--interval", "1h"]
        with daemon(tmp_path, *words, NOTIFY_SOCKET=path, WATCHDOG_USEC="400000"):
            while heard.count("WATCHDOG=1") < 4:
                heard += ear.recv(4096).decode() + "\n"
            assert state_of(tmp_path).ticks == 1


def test_a_shorter_interval_does_not_wait_for_the_longer_one_to_pass(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    begun = "[sources]\nenabled = ['simulate:one-leak']\n[daemon]\n"
    file.write_text(f"{begun}interval = '1h'\n")
    with daemon(tmp_path, "--config", str(file)) as process:
        file.write_text(f"{begun}interval = '0.2s'\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: state_of(tmp_path).ticks > 3)


def test_everything_it_writes_is_private(tmp_path: Path) -> None:
    once(tmp_path, *SIMULATED, "--once")
    for folder in ("state", "run"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
        for file in (tmp_path / folder).iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_planted_runtime_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    done = once(tmp_path, *SIMULATED, "--once")
    assert done.returncode == 1
    assert "is not a directory of its own" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_history_survives_a_kill_and_the_window_is_taken_up_again(tmp_path: Path) -> None:
    with daemon(tmp_path, *SIMULATED, GPUWATCHD_STORE_FLUSH="0.2s") as process:
        wait_for(lambda: state_of(tmp_path).ticks > 8)
        process.kill()
        process.wait(10)
    import sqlite3

    base = sqlite3.connect(tmp_path / "state" / "history.db")
    assert base.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    before = base.execute("SELECT count(*) FROM gpu_raw").fetchone()[0]
    base.close()
    assert before >= 4
    assert once(tmp_path, *SIMULATED, "--once").returncode == 0
    base = sqlite3.connect(tmp_path / "state" / "history.db")
    assert base.execute("SELECT count(*) FROM gpu_raw").fetchone()[0] > before
    base.close()


@pytest.mark.parametrize("inner", [False, True])
def test_a_damaged_history_is_moved_aside_and_told(tmp_path: Path, inner: bool) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    file = tmp_path / "state" / "history.db"
    if inner:  # found by reading the whole file only
        damage.build(file.parent)
        content = bytearray(file.read_bytes())
        content[-4 * 4096 :] = bytes(4 * 4096)
        file.write_bytes(content)
    else:
        file.write_bytes(b"not a database at all" * 500)
    done = once(tmp_path, *SIMULATED, "--once")
    assert done.returncode == 0
    assert list((tmp_path / "state").glob("history.db.corrupt-*"))
    assert done.stderr.count(" WARNING history trouble=damaged ") == 1
    assert done.stderr.count(".corrupt-") == 1, "nothing is said twice"
    state = present(live.read(tmp_path / "run"))
    assert any("aside" in problem for problem in state.problems)


def test_a_storm_of_signals_neither_ends_nor_blocks_it(tmp_path: Path) -> None:
    with daemon(tmp_path, *SIMULATED) as process:
        for _ in range(20_000):
            process.send_signal(signal.SIGHUP)
        before = state_of(tmp_path).ticks
        wait_for(lambda: state_of(tmp_path).ticks > before + 3)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - asked < 5.0
    assert "Traceback" not in said(tmp_path)


def test_a_removed_runtime_directory_comes_back_and_still_admits_one(tmp_path: Path) -> None:
    with daemon(tmp_path, *SIMULATED) as first:
        shutil.rmtree(tmp_path / "run")
        wait_for(lambda: live.read(tmp_path / "run"))
        done = once(tmp_path, *SIMULATED)
        assert done.returncode == 1
        assert f"already running with pid {first.pid}" in done.stderr


def test_a_planted_lock_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "gpuwatchd.lock").symlink_to(tmp_path / "elsewhere")
    done = once(tmp_path, *SIMULATED, "--once")
    assert done.returncode == 1
    assert "cannot be used as a lock" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_with_closed_standard_streams_no_file_of_ours_takes_their_place(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gpuwatchd", *SIMULATED]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words]
    with Child(closed, env=environ(tmp_path)) as process:
        wait_for(lambda: live.read(tmp_path / "run"))
        lock = (tmp_path / "run" / "gpuwatchd.lock").read_text()
        if sys.platform == "linux":
            held = [str(Path(f"/proc/{process.pid}/fd/{fd}").readlink()) for fd in (0, 1, 2)]
            assert held == [os.devnull] * 3
        assert lock == f"{process.pid}\n"
        process.terminate()
        assert process.wait(60) == 0


def test_what_it_opens_is_given_the_same_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[daemon]\ninterval = '1s'\n")
    program = (
        "import sys; from gpuwatchd.daemon import main as daemon\n"
        "daemon.Daemon.run = lambda self, **_: print(self.pipeline.buttons.file)\n"
        "sys.exit(daemon.main(sys.argv[1:]))"
    )

    def opens_with(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, "--source", "simulate", *words],
            env=environ(tmp_path, PYTHONPATH=str(Path(__file__).parents[1])),
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
        ).stdout.strip()  # fmt: skip

    assert opens_with("--config", "mine.toml") == str(tmp_path / "mine.toml")
    assert opens_with() == "None"


def test_what_a_simulated_world_sends_is_sent_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPUWATCHD_RUNTIME_DIR", str(tmp_path / "run"))
    overrides = {"sources": {"enabled": ["simulate:one-leak"]}}
    daemon = Daemon(config.load(None, overrides=overrides), reload=None)
    (worker,) = daemon.pipeline.sources.workers.values()
    worker.source.advance(9000.0)  # type: ignore[attr-defined]
    post = daemon._new_dispatcher(daemon.config.now)
    assert post.submit(making.delivery(dry_run=True, channel="desktop"))
    (sent,) = post.results()
    assert (sent.sent_at_s or 0.0) - time.time() == pytest.approx(9000.0, abs=60.0)
    daemon._leave()


def test_a_simulated_world_sets_the_clock_where_nothing_else_is_watched() -> None:
    source = SimulateSource("one-leak", epoch_s=1e9)
    wall, mono = _clocks([source])
    begun_s = mono()
    source.advance(600.0)
    assert wall() == 1e9 + 600.0
    assert mono() - begun_s == pytest.approx(600.0)
    assert _clocks([source, source]) == (time.time, time.monotonic)
