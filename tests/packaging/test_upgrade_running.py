"""The next version installed over the released one while its daemon runs: nothing is lost.

Packages move between the two, so that the old daemon looks in vain for what it has not loaded yet.
Both wheels are built here, by what the tests run with, and installed beside it: no index is asked.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import sysconfig
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.store import live
from gpuwatchd.store.reader import Reader
from tests.children import Child
from tests.conftest import ROOT
from tests.packaging import built
from tests.test_daemon import environ, state_of, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The installed program in a world that stands still until the test lets it go on: fast until the
# leak can be known, then slowly enough for it to outlive the test. What is installed over it counts
# as complete when the test says so.
PROGRAM = """
import contextlib, os, runpy, sys, time
from pathlib import Path
try:
    from gpuwatchd.service import installed
except ImportError:
    from gpuwatchd.service import own_process as installed
try:
    from gpuwatchd.collect.simulate import SimulateSource
except ModuleNotFoundError:
    from gpuwatchd.sources.simulate import SimulateSource
home, begin = Path.home(), SimulateSource.__init__
born = float(os.environ["BORN"])
def clock():
    try:
        passed = max(0.0, time.time() - (home / "grow").stat().st_mtime)
    except OSError:
        passed = 0.0
    return born + 240 * min(passed, 5.0) + 20 * max(passed - 5.0, 0.0)
def go_on(self, *given, **settings):
    # The clock of the world lags by hours, so that sped up it never shows a time to come.
    begin(self, *given, clock=clock, epoch_s=born - 6 * 3600, **settings)
    self._born_s = born
SimulateSource.__init__ = go_on
replaced, installed.SETTLED_S = installed.Installed.replaced, 0.0
installed.Installed.replaced = (
    lambda self, now_s=None: (home / "complete").exists() and replaced(self, now_s)
)
with contextlib.suppress(ImportError):
    # The machine's clock is what goes on over an upgrade, not the world's own.
    from gpuwatchd.daemon import main
    main._clocks = lambda sources: (time.time, time.monotonic)
sys.argv[0] = str(Path(sys.prefix) / "bin" / "gpuwatchd")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def following(into: Path) -> Path:
    """Build the wheel of the present tree, as it is, whether or not its version is another."""
    for part in built.SHIPPED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, into / part, ignore=ignored)
    for name in built.FILES[:4]:
        shutil.copy(ROOT / name, into / name)
    return built.hatched(into)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel that is replaced and the one that replaces it."""
    released = built.released() / "dist" / "gpuwatchd-0.1.0-py3-none-any.whl"
    return released, following(tmp_path_factory.mktemp("following"))


class Machine:
    """A user's environment with the released program, and what the user is told."""

    def __init__(self, home: Path, wheels: tuple[Path, Path]) -> None:
        self.home = home
        self._following = wheels[1]
        venv = home / "venv"
        assert built.call([sys.executable, "-m", "venv", "--without-pip", venv]).returncode == 0
        self.python = venv / "bin" / "python"
        (packages,) = venv.glob("lib/python*/site-packages")
        # What it needs, and pip, are those of the tests; an editable install is not seen this way.
        (packages / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self._pip("--ignore-installed", wheels[0])
        file, hook = home / "c.toml", home / "hook"
        # A channel that is out of order until the test says otherwise.
        hook.write_text(
            f"""#!/bin/sh
test -e '{home}/deliver' || exit 75
cat >> '{home}/heard'
"""
        )
        hook.chmod(0o700)
        file.write_text(
            "[daemon]\ninterval = '0.1s'\n[sources]\nenabled = ['simulate:one-leak']\n"
            f"[notify.command]\nargv = [{json.dumps(str(hook))}]\n"
            "[policy]\nchannels = ['command']\nflap-hold = '0s'\n"
        )
        self.environ = environ(home, BORN=repr(time.time()))

    def _pip(self, *words: object) -> None:
        pip = [self.python, "-m", "pip", "install", "--no-deps", "--no-index", *words]
        done = built.call(pip, timeout=120)
        assert done.returncode == 0, done.stderr

    def install(self) -> None:
        """Install the following version over the one that runs."""
        self._pip("--force-reinstall", self._following)

    def let(self, name: str) -> None:
        """Let the world grow, the upgrade be complete, or the message be delivered."""
        (self.home / name).touch()

    def daemon(self) -> Child[str]:
        """Start the daemon as its user would."""
        with (self.home / "log").open("w") as log:
            words = [self.python, "-c", PROGRAM, "--config", self.home / "c.toml"]
            return Child(
                list(map(str, words)), env=self.environ, cwd=self.home, stderr=log, text=True
            )

    def undelivered(self) -> tuple[str, ...]:
        """Return the keys of alerts that have reached nobody."""
        state = live.read(self.home / "run")
        return () if state is None else state.untold

    def verdict(self) -> tuple[str, list[str]]:
        """Return what the present tree's ``status`` and ``alerts`` say: tier and keys."""
        answers = []
        for verb in ("status", "alerts"):
            argv = [self.python.parent / "gpuwatchctl", verb, "--json"]
            done = built.call(argv, env=self.environ, cwd=self.home)
            assert (done.returncode, done.stderr) == (0, "")
            answers.append(json.loads(done.stdout)["data"])
        status, alerts = answers
        return status[0]["verdict"]["tier"], [alert["key"] for alert in alerts]

    def ticks(self, more: int) -> None:
        """Wait for some more ticks."""
        before = state_of(self.home).ticks
        wait_for(lambda: state_of(self.home).ticks >= before + more)

    def goes_on_as_the_new_one(self, process: Child[str]) -> None:
        """Let the upgrade be complete, and wait for what comes of it."""
        began_s = state_of(self.home).started_at_s
        assert self.log().count("start version=") == 1
        self.let("complete")
        wait_for(lambda: self.log().count("start version=") == 2)
        wait_for(lambda: state_of(self.home).started_at_s > began_s)
        self.ticks(20)
        assert (process.poll(), state_of(self.home).pid) == (None, process.pid)

    def recorded(self, until_s: float) -> int:
        """Return how many samples of the GPU the history has up to an instant."""
        words = "SELECT count(*) FROM gpu_raw WHERE ts_ms <= ?"
        with Reader.open(self.home / "state") as reader:
            until_ms = math.ceil(until_s * 1000)
            return int(reader.ask(lambda file: file.execute(words, (until_ms,)).fetchone()[0]))

    def log(self) -> str:
        """Return what was logged by both."""
        return (self.home / "log").read_text()

    def heard(self) -> list[dict[str, Any]]:
        """Return the messages that arrived."""
        file = self.home / "heard"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["message"] for line in lines]


@pytest.fixture
def machine(tmp_path: Path, wheels: tuple[Path, Path]) -> Machine:
    return Machine(tmp_path, wheels)


def test_an_incident_that_reached_nobody_goes_on_and_is_told_once(machine: Machine) -> None:
    machine.let("grow")
    with machine.daemon() as process:
        wait_for(machine.undelivered, 90)
        (before,) = state_of(machine.home).alerts
        machine.install()
        machine.ticks(20)
        assert machine.verdict() == ("alert", [before.key])
        old = state_of(machine.home)
        machine.goes_on_as_the_new_one(process)
        machine.let("deliver")
        # Read anew, its settings make it try again at once.
        process.send_signal(signal.SIGHUP)
        wait_for(machine.heard)
        wait_for(lambda: not machine.undelivered())
        machine.ticks(20)
        (after,) = state_of(machine.home).alerts
        assert (after.key, after.state) == (before.key, "firing")
        assert after.opened_at_s == before.opened_at_s
        assert machine.verdict() == ("alert", [before.key])
    assert [one["notice"] for one in machine.heard()] == ["firing"]
    with Reader.open(machine.home / "state") as reader:
        assert [one.key for one in reader.alerts()] == [before.key]
    assert machine.recorded(old.taken_at_s) >= old.ticks
    assert machine.log().count("alert firing") == 1
    assert "Traceback" not in machine.log()


def test_what_the_old_one_can_no_longer_load_is_left_to_the_new_one(machine: Machine) -> None:
    machine.let("deliver")
    with machine.daemon() as process:
        wait_for(lambda: live.read(machine.home / "run"))
        # It has loaded what the first tick needs and nothing that a message needs.
        process.send_signal(signal.SIGSTOP)
        machine.install()
        process.send_signal(signal.SIGCONT)
        machine.let("grow")
        wait_for(lambda: "alert firing" in machine.log(), 90)
        machine.ticks(20)
        machine.goes_on_as_the_new_one(process)
        wait_for(machine.heard)
        machine.ticks(20)
        (alert,) = state_of(machine.home).alerts
    assert alert.state == "firing"
    assert [one["notice"] for one in machine.heard()] == ["firing"]
    with Reader.open(machine.home / "state") as reader:
        assert [one.key for one in reader.alerts()] == [alert.key]
    # What the old one said of it is its own; the new one has nothing to say.
    _, _, log = machine.log().partition("starting anew")
    assert "alert firing" not in log
    assert "Traceback" not in log
    assert "ERROR" not in log
