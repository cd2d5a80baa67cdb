"""The whole daemon kept quiet, and a GPU that is lost: told once each, across kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.codes import Ending
from gpuwatchd.store import live
from gpuwatchd.store.reader import Reader
from tests.cli.world import PROGRAM
from tests.conftest import ROOT
from tests.test_daemon import environ, said, state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.model import Alert


_PROGRAM = """
import os, sys, time
from gpuwatchd.collect.simulate import SimulateSource
born, begin = float(os.environ["BORN"]), SimulateSource.__init__
fast, until, slow = map(float, os.environ["PACE"].split())
def clock():
    passed = time.time() - born
    return born + fast * min(passed, until) + slow * max(passed - until, 0.0)
def go_on(self, *given, **settings):
    # The clock of the world lags by hours, so that sped up it never shows a time to come.
    begin(self, *given, clock=clock, epoch_s=born - 6 * 3600, **settings)
    self._born_s = born
SimulateSource.__init__ = go_on
from gpuwatchd.daemon import main as daemon
sys.exit(daemon.main(sys.argv[1:]))
"""


class Quiet:
    """A machine, what its user hears, and the commands that are typed there."""

    scenario = "one-leak"
    pace = "240 5 20"
    """How fast its time passes, for how long, and from then on: so a leak outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.born_s = time.time()
        file = folder / "heard"
        hook = json.dumps(["sh", "-c", f"cat >> '{file}'; echo >> '{file}'"])
        (folder / "c.toml").write_text(
            f"[daemon]\ninterval = '0.1s'\n[sources]\nenabled = ['simulate:{self.scenario}']\n"
            f"[notify.command]\nargv = {hook}\n"
            "[policy]\nchannels = ['command']\nflap-hold = '0s'\n"
        )

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[str]]:
        words = ["--config", str(self.folder / "c.toml")]
        world = {"BORN": repr(self.born_s), "PACE": self.pace, "PYTHONPATH": str(ROOT)}
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *words],
                env=environ(self.folder, **world),
                cwd=ROOT, stderr=log, text=True,
            )  # fmt: skip
        try:
            wait_for(lambda: self.state_pid() == process.pid)
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)

    def state_pid(self) -> int | None:
        state = live.read(self.folder / "run")
        return None if state is None else state.pid

    def heard(self) -> list[dict[str, Any]]:
        """Return what the hook was told."""
        file = self.folder / "heard"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["message"] for line in lines if line]

    def stop(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0

    def ticks(self, more: int) -> None:
        """Wait for some more ticks."""
        before = state_of(self.folder).ticks
        wait_for(lambda: state_of(self.folder).ticks >= before + more)

    def ctl(self, *words: str) -> Any:
        """Run a verb; return what it answers."""
        done = subprocess.run(
            [PROGRAM, *words, "--json"], env=environ(self.folder), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["data"]

    def open(self, kind: str) -> list[Alert]:
        return [one for one in state_of(self.folder).alerts if one.kind == kind]


class Losing(Quiet):
    scenario = "lost-gpu"
    pace = "100 1e9 100"


@pytest.mark.timeout(180)
def test_a_snooze_holds_within_a_tick_survives_kill_9_and_can_be_taken_back(
    tmp_path: Path,
) -> None:
    world = Quiet(tmp_path)
    with world.daemon() as process:
        (entry,) = world.ctl("snooze", "--kind", "leak", "1h", "--even-critical", "--why", "test")
        set_at_tick = state_of(tmp_path).ticks
        wait_for(lambda: state_of(tmp_path).silences)
        assert state_of(tmp_path).ticks <= set_at_tick + 2
        process.kill()
        process.wait(10)
    with world.daemon() as process:
        wait_for(lambda: state_of(tmp_path).silences)
        wait_for(lambda: any(one.state == "firing" for one in world.open("leak")), 40)
        world.ticks(10)
        (alert,) = (one for one in world.open("leak") if one.state == "firing")
        with Reader.open(tmp_path / "state") as reader:
            held = [one for one in reader.decisions(alert.key) if one.kind == "hold"]
        assert held
        assert "silenced by" in held[0].reason
        assert "test" in held[0].reason
        assert world.heard() == []
        (gone,) = world.ctl("snooze", "clear", "--all")
        assert gone["id"] == entry["id"]
        wait_for(world.heard, 20)
        assert not state_of(tmp_path).silences
        world.stop(process)
    assert world.heard()[0]["alert_key"] == alert.key
    assert "Traceback" not in said(tmp_path)


@pytest.mark.timeout(180)
def test_a_lost_gpu_is_told_once_across_kill_9_and_so_is_its_return(tmp_path: Path) -> None:
    world = Losing(tmp_path)
    with world.daemon() as process:
        wait_for(lambda: world.open("gpu"), 40)
        wait_for(lambda: [one for one in world.heard() if "gpu:" in one["alert_key"]], 20)
        process.kill()
        process.wait(10)
    with world.daemon() as process:
        wait_for(lambda: world.open("gpu") or len(_of_gpu(world)) > 1, 20)
        wait_for(lambda: any(one["notice"] == "resolved" for one in _of_gpu(world)), 40)
        world.stop(process)
    told = _of_gpu(world)
    openings = [one for one in told if one["notice"] == "firing"]
    # Twice at most if it died before it knew that the first had arrived; the id then says so.
    assert len({one["id"] for one in openings}) == 1
    assert [one["notice"] for one in told if one["notice"] != "firing"] == ["resolved"]
    assert "does not answer" in openings[0]["subject"]
    assert openings[0]["severity"] == "critical"
    with Reader.open(tmp_path / "state") as reader:
        (kept,) = (one for one in reader.alerts() if one.kind == "gpu")
    assert (kept.state, kept.ended_code) == ("resolved", Ending.DEVICE_ANSWERS)
    assert kept.subject.device_uid.endswith("lost-gpu-1")
    assert "Traceback" not in said(tmp_path)


def _of_gpu(world: Quiet) -> list[dict[str, Any]]:
    return [one for one in world.heard() if one["alert_key"].startswith("gpu:")]


@pytest.mark.timeout(120)
def test_a_digest_on_request_tells_of_the_open_leak(tmp_path: Path) -> None:
    world = Quiet(tmp_path)
    with world.daemon() as process:
        wait_for(world.heard, 40)
        begun_s = time.monotonic()
        shown = world.ctl("notify", "digest", "--dry-run", "--since", "7d")
        assert time.monotonic() - begun_s < 20
        world.stop(process)
    assert shown["subject"].startswith("1 alert since")
    assert "1 still open" in shown["subject"]
    assert any("lora" in line for line in shown["facts"].values()), shown
