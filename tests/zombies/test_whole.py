"""The daemon on the stand-in for the NVIDIA library, with real children: who holds, since when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.store import live
from tests.children import Child
from tests.cli.world import PROGRAM
from tests.conftest import need
from tests.fakenvml import FakeNvml
from tests.making import present

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Holding

pytestmark = pytest.mark.slow

CARDS = (
    "gpu 0 uuid=GPU-aaa name=NVIDIA_A100 total=80G base=400M reserved=600M util=0",
    "gpu 1 uuid=GPU-bbb name=NVIDIA_A100 total=80G used=9G util=0",
)
LAUNCHER = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


class Stage:
    """Children that hold memory as the stand-in tells it, and a daemon that looks."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeNvml(folder)
        self.folder = folder
        self.stack = ExitStack()
        self.sleeper = self._child(["sleep", "600"])
        self.dying = self._child(["sleep", "600"])
        self.launcher = self._child([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE)
        self.defunct = int(present(self.launcher.stdout).readline())
        self.lines = (
            *CARDS,
            f"proc 0 pid={self.sleeper.pid} mem=20G type=C",
            f"proc 0 pid={self.defunct} mem=5G type=C",
            f"proc 0 pid={self.dying.pid} mem=9G type=C",
        )
        self.fake.write(*self.lines)
        self.env = {
            **self.fake.env(),
            "GPUWATCHD_ZOMBIES_IDLE_AFTER": "2s",
            "GPUWATCHD_COST_USD_PER_GPU_HOUR": "2.5",
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nonexistent",
        }

    def _child(self, argv: list[str], **more: Any) -> subprocess.Popen[Any]:
        return self.stack.enter_context(Child(argv, **more))

    def end_two(self) -> None:
        """End one whose parent collects it, and one whose parent does not."""
        self.dying.kill()
        self.dying.wait()
        os.kill(self.defunct, signal.SIGKILL)

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[Any]]:
        argv = [sys.executable, "-m", "gpuwatchd", "--source", "nvml", "--interval", "0.1"]
        with (self.folder / "log").open("a") as log:
            process = Child[bytes](argv, env=self.env, stderr=log)
        with process:
            yield process

    def listed(self) -> tuple[Holding, ...]:
        state = live.read(self.folder / "run")
        return state.holdings if state is not None else ()

    def wait(self, kinds: list[str]) -> tuple[Holding, ...]:
        until = time.monotonic() + 30
        while [one.kind for one in self.listed()] != kinds:
            assert time.monotonic() < until, [one.kind for one in self.listed()]
            time.sleep(0.05)
        return self.listed()

    def wait_for(self, pid: int) -> None:
        """Wait for the first state that a daemon has written itself."""
        until = time.monotonic() + 30
        while (state := live.read(self.folder / "run")) is None or state.pid != pid:
            assert time.monotonic() < until
            time.sleep(0.02)

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, "zombies", *arguments],
            env=self.env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    need(FakeNvml.available(), "a C compiler for the stand-in of the NVIDIA library")
    made = Stage(tmp_path)
    with made.stack:
        yield made


EVERYTHING = ["gone", "defunct", "ghost", "idle"]


@pytest.mark.usefixtures("own_pids")
def test_owners_are_named_with_what_they_cost(stage: Stage) -> None:
    with stage.daemon():
        stage.wait(["ghost", "idle", "idle", "idle"])
        stage.end_two()
        gone, defunct, ghost, idle = stage.wait(EVERYTHING)
        done = stage.ask("--exit-code")
    assert gone.process is not None
    assert (gone.process.key.pid, gone.process.name) == (stage.dying.pid, "sleep")
    assert gone.held_bytes == 9 * 2**30
    assert present(defunct.process).key.pid == stage.defunct
    assert f"{Path(sys.executable).name}[{stage.launcher.pid}]" in defunct.evidence
    assert ghost.device_uid == "GPU-bbb"
    assert present(idle.process).key.pid == stage.sleeper.pid
    assert present(idle.cost_usd) == pytest.approx(present(idle.gib_hours) / 80 * 2.5)
    assert (done.returncode, done.stderr) == (3, "")
    assert f"pid {stage.dying.pid} (gone, was sleep of " in done.stdout
    assert f"sleep[{stage.defunct}] of " in done.stdout
    assert "4 in all, 43.0 GiB; 3 processes on 2 GPUs checked, since " in done.stdout


@pytest.mark.usefixtures("own_pids")
def test_a_failed_list_resets_and_a_restart_keeps_since_when(stage: Stage) -> None:
    with stage.daemon():
        stage.wait(["ghost", "idle", "idle", "idle"])
        stage.end_two()
        first = stage.wait(EVERYTHING)
        # A list that may not be read proves nothing, whatever it said before.
        stage.fake.write(*stage.lines, "fail nvmlDeviceGet*RunningProcesses* 0 4")
        stage.wait(["ghost"])
        stage.fake.write(*stage.lines)
        again = stage.wait(EVERYTHING)
    with stage.daemon() as second:
        stage.wait_for(second.pid)
        later = stage.wait(EVERYTHING)
    begun = [one.since_s for one in first]
    assert [one.since_s for one in again] == begun
    assert [one.since_s for one in later] == begun
    assert present(later[0].process).key == present(first[0].process).key


@pytest.mark.usefixtures("own_pids")
def test_one_look_names_the_gone_from_what_a_daemon_left(stage: Stage) -> None:
    with stage.daemon():
        stage.wait(["ghost", "idle", "idle", "idle"])
    stage.end_two()
    done = stage.ask()
    assert done.returncode == 0
    assert f"pid {stage.dying.pid} (gone, was sleep of " in done.stdout
    assert "idleness needs a running daemon" in " ".join(done.stdout.split())
    answer = json.loads(stage.ask("--json").stdout)
    kinds = [one["kind"] for one in answer["data"]["holdings"]]
    assert kinds == ["gone", "defunct", "ghost"]
    assert answer["source"] == "direct"
    assert "one-look" in [one["code"] for one in answer["warnings"]]
