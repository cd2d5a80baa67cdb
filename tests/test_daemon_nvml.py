"""The daemon as a process on the NVML stand-in: GPUs that hang, come late, are let go, upgraded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect import control_groups
from gpuwatchd.core.codes import LimitKind
from gpuwatchd.integrations import training
from gpuwatchd.service import own_process
from gpuwatchd.store import live
from tests import test_daemon
from tests.children import Child
from tests.conftest import need
from tests.fakenvml import FakeNvml
from tests.fakenvml.build import LIBRARY
from tests.making import GIB, present
from tests.test_daemon import SIMULATED, environ, said, state_of, wait_for

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gpuwatchd.core.model import MemoryLimit

pytestmark = pytest.mark.slow

NVML = ("--source", "nvml", "--interval", "0.2")
TWO = ("gpu 0 total=24G", "gpu 1 total=24G")
PROGRAM = "import sys; from gpuwatchd.cli import main; sys.exit(main())"


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    need(sys.platform == "linux", "the stand-in library is for Linux")
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    folder = tmp_path / "nvml"
    folder.mkdir()
    found = FakeNvml(folder)
    shutil.copy(found.library_folder / LIBRARY, folder / LIBRARY)
    found.library_folder = folder
    return found


def surroundings(fake: FakeNvml) -> dict[str, str]:
    return {name: fake.env()[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONF", "PYTHONPATH")}


def daemon(
    fake: FakeNvml, tmp_path: Path, *args: str, **extra: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    return test_daemon.daemon(tmp_path, *(args or NVML), **surroundings(fake), **extra)


def ctl(fake: FakeNvml, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=environ(tmp_path, **surroundings(fake)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def states(tmp_path: Path) -> list[str | None]:
    return [d.reading.state if d.reading else None for d in state_of(tmp_path).devices]


def end(process: subprocess.Popen[str]) -> float:
    """Ask a daemon to stop and return how long it takes."""
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    return time.monotonic() - asked


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetMemoryInfo* 1 60000000",
        "nvmlDeviceGet*RunningProcesses* 1 60000000",
        "nvmlShutdown * 60000000",
    ],
)
def test_a_hung_gpu_holds_up_neither_the_others_nor_the_end(
    fake: FakeNvml, tmp_path: Path, call: str
) -> None:
    fake.write(*TWO)
    with daemon(fake, tmp_path) as process:
        wait_for(lambda: states(tmp_path) == ["ok", "ok"])
        fake.write(*TWO, f"delay {call}")
        if "Shutdown" not in call:
            wait_for(lambda: states(tmp_path) == ["ok", "hung"])
        ticks, began = state_of(tmp_path).ticks, time.monotonic()
        wait_for(lambda: state_of(tmp_path).ticks >= ticks + 10)
        assert time.monotonic() - began < 6.0
        assert states(tmp_path)[0] == "ok"
        assert end(process) < 5.0
    assert "Traceback" not in said(tmp_path)


def test_a_driver_that_hangs_at_the_start_leaves_the_daemon_alive(
    fake: FakeNvml, tmp_path: Path
) -> None:
    fake.write(*TWO, "delay nvmlInitWithFlags * 60000000")
    with daemon(fake, tmp_path) as process:
        wait_for(lambda: state_of(tmp_path).ticks >= 5)
        assert any("no answer" in problem for problem in state_of(tmp_path).problems)
        assert end(process) < 5.0


def test_what_happened_to_a_gpu_is_written_down_once(fake: FakeNvml, tmp_path: Path) -> None:
    fake.write(*TWO)
    with daemon(fake, tmp_path) as process:
        wait_for(lambda: states(tmp_path) == ["ok", "ok"])
        fake.write(*TWO, "fail nvmlDevice* 1 15")
        wait_for(lambda: states(tmp_path) == ["ok", "lost"])
        ticks = state_of(tmp_path).ticks
        wait_for(lambda: state_of(tmp_path).ticks > ticks + 5)
        kinds = [[event.kind for event in d.events] for d in state_of(tmp_path).devices]
        assert kinds == [[], ["gpu-lost"]]
        assert end(process) < 5.0


def test_a_driver_that_comes_later_is_found_and_missed_in_one_line(
    fake: FakeNvml, tmp_path: Path
) -> None:
    fake.write("init_error 9")
    with daemon(fake, tmp_path):
        wait_for(lambda: state_of(tmp_path).ticks >= 5)
        assert state_of(tmp_path).devices == ()
        fake.write(*TWO)
        wait_for(lambda: state_of(tmp_path).devices, 40)
        wait_for(lambda: states(tmp_path) == ["ok", "ok"])
        assert state_of(tmp_path).problems == ()
    assert said(tmp_path).count("WARNING") == 1


def test_release_lets_go_and_the_end_takes_back(fake: FakeNvml, tmp_path: Path) -> None:
    fake.write(*TWO)
    # A long interval: the verb wakes the daemon, and does not wait for its next tick.
    with daemon(fake, tmp_path, "--source", "nvml", "--interval", "60s") as process:
        done = ctl(fake, tmp_path, "release", "--for", "1m")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"(pid {process.pid}) has released the GPUs until " in done.stdout
        assert states(tmp_path) == ["released", "released"]
        # The cards' state says it; what was asked for is no problem.
        assert not any("let go on request" in one for one in state_of(tmp_path).problems)
        assert ctl(fake, tmp_path, "release", "--end").returncode == 0
        wait_for(lambda: states(tmp_path) == ["ok", "ok"])
        assert not (tmp_path / "run" / live.RELEASE_FILE).exists()
        assert end(process) < 5.0
    assert "Traceback" not in said(tmp_path)


def test_a_release_ends_by_itself_and_outlives_the_daemon(fake: FakeNvml, tmp_path: Path) -> None:
    fake.write(*TWO)
    with daemon(fake, tmp_path) as process:
        wait_for(lambda: states(tmp_path) == ["ok", "ok"])
        live.ask_release(tmp_path / "run", 10.0, time.time())
        assert own_process.ring(tmp_path / "run")
        wait_for(lambda: states(tmp_path) == ["released", "released"])
        end(process)
    with daemon(fake, tmp_path):
        # It has not seen the cards; where sysfs does not show them either there are none to show.
        assert "released" in states(tmp_path) or state_of(tmp_path).devices == ()
        assert any("released on request" in problem for problem in state_of(tmp_path).problems)
        wait_for(lambda: state_of(tmp_path).devices and states(tmp_path) == ["ok", "ok"], 20)


def test_a_request_that_is_none_is_ignored_with_one_warning(fake: FakeNvml, tmp_path: Path) -> None:
    fake.write(*TWO)
    with daemon(fake, tmp_path):
        wait_for(lambda: states(tmp_path) == ["ok", "ok"])
        (tmp_path / "run" / live.RELEASE_FILE).write_text("\x1b[2J not a request")
        ticks = state_of(tmp_path).ticks
        wait_for(lambda: state_of(tmp_path).ticks > ticks + 5)
        assert states(tmp_path) == ["ok", "ok"]
    assert said(tmp_path).count("release request ignored") == 1


def test_a_driver_that_hangs_is_not_said_to_be_let_go(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.cli.verbs import release as verb
    from gpuwatchd.core.errors import GpuwatchdError

    fake.write(*TWO)
    monkeypatch.setattr(verb, "WAIT_S", 1.5)
    with daemon(fake, tmp_path):
        wait_for(lambda: states(tmp_path) == ["ok", "ok"])
        fake.write(*TWO, "delay nvmlDeviceGetMemoryInfo* 1 60000000")
        wait_for(lambda: states(tmp_path) == ["ok", "hung"])
        before = state_of(tmp_path)
        live.ask_release(tmp_path / "run", 60.0, time.time())
        with pytest.raises(GpuwatchdError, match="GPU 1 is hung"):
            verb._wait(Globals(), tmp_path / "run", before)
        assert states(tmp_path) == ["ok", "hung"]


def replace_library(fake: FakeNvml) -> None:
    fresh = fake.library_folder / "fresh"
    shutil.copy(fake.library_folder / LIBRARY, fresh)
    fresh.replace(fake.library_folder / LIBRARY)


def listen(ear: socket.socket, heard: list[bytes]) -> None:
    while b"STOPPING=1" not in heard:
        heard.append(ear.recv(4096))


def test_after_a_driver_upgrade_it_starts_anew_once(fake: FakeNvml, tmp_path: Path) -> None:
    broken = (*TWO, "init_error 18", "fail nvmlDevice* * 18")
    path, heard = str(tmp_path / "notify"), list[bytes]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(path)
        # Read all the time: who sends to a full socket waits.
        listener = threading.Thread(target=listen, args=(ear, heard), daemon=True)
        listener.start()
        fake.write(*TWO)
        with daemon(fake, tmp_path, NOTIFY_SOCKET=path) as process:
            wait_for(lambda: states(tmp_path) == ["ok", "ok"])
            fake.write(*broken)
            wait_for(lambda: states(tmp_path) == ["lost", "lost"])
            assert any("library 550.54.15" in problem for problem in state_of(tmp_path).problems)
            assert "starting anew" not in said(tmp_path), "the library is still the old one"
            replace_library(fake)
            wait_for(lambda: said(tmp_path).count("start version=") == 2)
            wait_for(lambda: not state_of(tmp_path).stopped)
            fake.write(*TWO)
            wait_for(lambda: state_of(tmp_path).devices and states(tmp_path) == ["ok", "ok"], 40)
            assert process.poll() is None, "the same process, so that its manager keeps it"
            assert (tmp_path / "run/gpuwatchd.lock").read_text() == f"{process.pid}\n"
            # The next upgrade comes too soon: it runs degraded and does not loop.
            fake.write(*broken)
            replace_library(fake)
            ticks = state_of(tmp_path).ticks
            wait_for(lambda: state_of(tmp_path).ticks > ticks + 10)
            assert said(tmp_path).count("starting anew") == 1
            end(process)
        listener.join(10)
    assert heard.count(b"READY=1") == 2
    assert heard.count(b"STOPPING=1") == 1


# The real program, told apart by a file of the test and trusted sooner to be complete.
UPGRADED = """
import sys
from pathlib import Path
from gpuwatchd.service import own_process as installed
installed.SETTLED_S = 0.5
real, told_by = installed.Installed, Path(sys.argv.pop(1))
installed.Installed = lambda: real([told_by])
from gpuwatchd.daemon.main import main
main()
"""


def test_after_an_upgrade_it_starts_anew_once(tmp_path: Path) -> None:
    version, log = tmp_path / "version", tmp_path / "log"
    version.write_text("1.0.0\n")
    argv = [sys.executable, "-c", UPGRADED, str(version), *SIMULATED]
    with log.open("w") as stream:
        process = subprocess.Popen(argv, env=environ(tmp_path), stderr=stream)
    try:
        wait_for(lambda: (state := live.read(tmp_path / "run")) and state.ticks > 2)
        assert "starting anew" not in log.read_text()
        version.write_text("2.0.0\n")
        wait_for(lambda: log.read_text().count("start version=") == 2)
        wait_for(lambda: (state := live.read(tmp_path / "run")) and state.ticks > 2)
        assert log.read_text().count("another version of gpuwatchd has been installed") == 1
        assert process.poll() is None, "the same process, so that its manager keeps it"
        assert (tmp_path / "run/gpuwatchd.lock").read_text() == f"{process.pid}\n"
        # Another one so soon would be a loop.
        version.write_text("3.0.0\n")
        state = live.read(tmp_path / "run")
        assert state is not None
        ticks = state.ticks
        wait_for(lambda: (state := live.read(tmp_path / "run")) and state.ticks > ticks + 6)
        assert log.read_text().count("starting anew") == 1
    finally:
        process.kill()
        process.wait(10)


def test_it_goes_on_as_the_program_that_its_path_leads_to_now(tmp_path: Path) -> None:
    fresh = tmp_path / "gpuwatchd"
    fresh.write_text('#!/bin/sh\necho "pid $$ as $0: $* ($WORD)"\n')
    fresh.chmod(0o755)
    start = "own_process.start_anew({'WORD': 'kept'}, sys.argv.pop(1))"
    code = f"import sys; from gpuwatchd.service import own_process; {start}"
    argv = [sys.executable, "-c", code, str(fresh), "--interval", "2"]
    with Child(argv, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=30)
    assert said == f"pid {process.pid} as {fresh}: --interval 2 (kept)\n"


def known_limits(tmp_path: Path) -> list[MemoryLimit | None]:
    devices = state_of(tmp_path).devices
    return [process.limit for device in devices for process in device.processes or ()]


def test_the_limit_of_a_control_group_reaches_what_people_are_shown(
    fake: FakeNvml, tmp_path: Path
) -> None:
    need(control_groups.group_of(os.getpid()) is not None, "control groups of version 2")
    with Child(["sleep", "120"]) as child:
        card = (TWO[0], f"proc 0 pid={child.pid} mem=5G")
        fake.write(*card, "limits 0 soft=4G hard=20G")
        with daemon(fake, tmp_path) as process:
            wait_for(lambda: any(known_limits(tmp_path)))
            limit = present(known_limits(tmp_path)[0])
            assert (limit.kind, limit.hard_bytes) == (LimitKind.DRIVER, 20 * GIB)
            assert (limit.soft_bytes, limit.process_bytes) == (4 * GIB, 20 * GIB)
            assert limit.name == control_groups.group_of(child.pid)
            shown = json.loads(ctl(fake, tmp_path, "status", "--json").stdout)
            assert shown["data"][0]["processes"][0]["limit"]["hard_bytes"] == 20 * GIB
            assert state_of(tmp_path).alerts == ()
            assert end(process) < 5.0
    assert "Traceback" not in said(tmp_path)


@pytest.mark.usefixtures("own_pids")
def test_a_training_reports_a_checkpoint_and_explain_says_it(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "READ_EVERY_S", 0.0)
    fake.write(*TWO, f"proc 0 pid={os.getpid()} mem=5G")
    watch = training.Training(print)
    with daemon(fake, tmp_path):
        wait_for(lambda: "gpuwatchd/gpu0_used_bytes" in watch.figures())
        watch.saved("step 12 of my-run")
        watch.end()
        assert "step 12 of my-run" in ctl(fake, tmp_path, "explain", str(os.getpid())).stdout
