"""Promises 6 and 25 of the whole daemon: killed, stopped and reloaded while it tells of a leak.

The simulated world goes on while the daemon is dead, as a real one would.
"""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.store.reader import Reader
from tests.conftest import ROOT
from tests.test_daemon import daemon, said, state_of, wait_for

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager
    from pathlib import Path

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


class World:
    """One machine: its clock, its configuration, its user's ears."""

    scenario = "one-leak"
    pace = "240 5 20"
    """How fast its time passes, for how long, and from then on: so a leak outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.born_s = time.time()
        self.policy = "channels = ['command']"
        self.extra: dict[str, str] = {}
        self.configure(self.hook("heard"))

    def hook(self, name: str) -> list[str]:
        """Return a command that adds what it is told to a file."""
        file = self.folder / name
        return ["sh", "-c", f"cat >> '{file}'; echo >> '{file}'"]

    def configure(self, hook: list[str]) -> None:
        (self.folder / "c.toml").write_text(
            f"[daemon]\ninterval = '0.1s'\n[sources]\nenabled = ['simulate:{self.scenario}']\n"
            f"[notify.command]\nargv = {json.dumps(hook)}\n"
            f"[policy]\nflap-hold = '0s'\n{self.policy}\n"
        )

    def daemon(self) -> AbstractContextManager[subprocess.Popen[str]]:
        words = ["--config", str(self.folder / "c.toml")]
        world = {"BORN": repr(self.born_s), "PACE": self.pace, "PYTHONPATH": str(ROOT)}
        return daemon(self.folder, *words, program=_PROGRAM, **world, **self.extra)

    def heard(self) -> list[dict[str, Any]]:
        """Return what the hook was told."""
        file = self.folder / "heard"
        if not file.exists():
            return []
        return [json.loads(line)["message"] for line in file.read_text().splitlines() if line]

    def stop(self, process: subprocess.Popen[str]) -> float:
        """Ask it to stop; return how long that takes."""
        asked_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        return time.monotonic() - asked_s

    def ticks(self, more: int) -> None:
        """Wait for some more ticks."""
        before = state_of(self.folder).ticks
        wait_for(lambda: state_of(self.folder).ticks >= before + more)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def hung(name: str) -> list[str]:
    return ["sh", "-c", f"cat > /dev/null; exec sleep 600  # {name}"]


@pytest.mark.timeout(120)
def test_killed_during_an_incident_it_goes_on_with_the_same_one(world: World) -> None:
    with world.daemon() as process:
        wait_for(world.heard, 40)
        process.kill()
        process.wait(10)
    with world.daemon() as process:
        world.ticks(40)
        (alert,) = state_of(world.folder).alerts
        assert state_of(world.folder).untold == ()
        assert world.stop(process) < 5.0
    openings = [one for one in world.heard() if one["notice"] == "firing"]
    # Twice at most if it died before it knew that the first had arrived; the id then says so.
    assert len({one["id"] for one in openings}) == 1
    assert len(openings) <= 2
    with Reader.open(world.folder / "state") as reader:
        # A watch that ended by itself, as a slow machine may see one, is another row.
        fired = [one.key for one in reader.alerts() if one.firing_at_s is not None]
        assert fired == [alert.key]
    assert said(world.folder).count("alert firing") == 1
    assert "Traceback" not in said(world.folder)


@pytest.mark.timeout(120)
def test_a_channel_that_hangs_holds_up_neither_ticks_nor_the_end_nor_the_message(
    world: World,
) -> None:
    world.configure(hung("channel"))
    with world.daemon() as process:
        wait_for(lambda: any(one.waiting for one in state_of(world.folder).channels), 40)
        began_s = time.monotonic()
        world.ticks(30)
        assert time.monotonic() - began_s < 10.0
        assert world.stop(process) < 5.0
    assert world.heard() == []
    world.configure(world.hook("heard"))
    with world.daemon() as process:
        wait_for(world.heard)
        world.stop(process)
    (told,) = world.heard()
    assert told["notice"] == "firing"
    assert "Traceback" not in said(world.folder)


@pytest.mark.timeout(120)
def test_reload_with_other_channels_tells_what_the_old_ones_could_not(world: World) -> None:
    world.configure(["sh", "-c", "cat > /dev/null; exit 1"])
    with world.daemon() as process:
        wait_for(lambda: state_of(world.folder).untold, 40)
        (health,) = state_of(world.folder).channels
        assert (health.name, health.ok) == ("command", False)
        assert any("command does not deliver" in one for one in state_of(world.folder).problems)
        world.configure(world.hook("heard"))
        process.send_signal(signal.SIGHUP)
        wait_for(world.heard)
        wait_for(lambda: not state_of(world.folder).untold)
        (health,) = state_of(world.folder).channels
        assert health.ok
        assert health.delivered_at_s is not None
        assert world.stop(process) < 5.0
    assert len(world.heard()) == 1
