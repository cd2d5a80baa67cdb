"""A desktop whose notification server can be chosen, and real jobs whose memory seems to grow.

Beside dunst (:mod:`stage`): xfce4-notifyd, which draws real buttons, and a server of our own that
has no actions and writes down what it is told.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatchd.store import live, tables
from gpuwatchd.store.reader import Reader
from tests.children import Child
from tests.conftest import ROOT, ran
from tests.fakenvml import FakeNvml
from tests.real import stage
from tests.real.stage import Stage, _end, ctl, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    Box = tuple[int, int, int, int]
    """Place and size: x, y, width, height."""

GIB, MIB = 1024**3, 1024**2
_LIBRARIES = sorted(Path("/usr/lib").glob("*/xfce4"))
XFCE = next((f for f in (d / "notifyd/xfce4-notifyd" for d in _LIBRARIES) if f.exists()), None)
XFCONF = next((f for f in (d / "xfconf/xfconfd" for d in _LIBRARIES) if f.exists()), None)
_BUTTON_PX = {2: 98, 3: 134}
"""From one of so many buttons to the next: all have the width of the one with the longest label."""
_BUTTON_UP_PX = 31
"""How far above the lower edge of a pop-up of xfce4-notifyd the middle of its buttons is."""
PLAIN = Path(__file__).with_name("plain_server.py")

JOB = """
import signal, sys, time
def save(*_):
    open(sys.argv[1], "a").write("saved\\n")
signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
QUICK = """
[detection]
minimum-duration = "8s"
minimum-samples = 10
[policy]
channels = ["desktop"]
flap-hold = "1s"
group-interval = "1s"
[act]
checkpoint = "signal"
"""


def missing() -> list[str]:
    """Return what this needs and is not here."""
    return stage.missing() + ([] if XFCE and XFCONF else ["xfce4-notifyd"])


class Desk(Stage):
    """A bus, a screen and a notification server of one's choice."""

    size = "1280x720x24"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._settings: subprocess.Popen[bytes] | None = None
        self.plain_log = folder / "plain.jsonl"

    @property
    def environ(self) -> dict[str, str]:
        return {
            **super().environ,
            "NO_AT_BRIDGE": "1",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    def start_xfce(self) -> None:
        """Start xfce4-notifyd, and what keeps its settings."""
        if XFCE is None or XFCONF is None:
            raise RuntimeError("xfce4-notifyd is not here")
        _end(self._settings)
        self._settings = self._start(str(XFCONF))
        assert until(lambda: self.owned("org.xfce.Xfconf")), "xfconfd did not come up"
        self._server = self._start(str(XFCE))
        assert until(lambda: self.owned("org.freedesktop.Notifications")), "no server came up"

    def start_plain(self) -> None:
        """Start a server without actions, which replaces like the others."""
        self._server = self._start(sys.executable, str(PLAIN), str(self.plain_log))
        assert until(lambda: self.owned("org.freedesktop.Notifications")), "no server came up"

    def plain(self) -> list[dict[str, Any]]:
        """Return what the server without actions was told."""
        if not self.plain_log.exists():
            return []
        return [json.loads(line) for line in self.plain_log.read_text().splitlines()]

    def owned(self, name: str) -> bool:
        """Say whether somebody has this name on the bus."""
        done = self._run(
            "dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.DBus", "/",
            "org.freedesktop.DBus.NameHasOwner", f"string:{name}",
        )  # fmt: skip
        return "true" in done

    def _run(self, *argv: str) -> str:
        return ran(argv, env=self.environ, timeout=20).stdout

    def popups(self) -> list[Box]:
        """Return place and size (x, y, width, height) of each pop-up, uppermost first."""
        found = []
        for window in self._run("xdotool", "search", "--onlyvisible", "--class", ".").split():
            told = self._run("xdotool", "getwindowgeometry", "--shell", window)
            values = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
            box = [int(values.get(name, 0)) for name in ("X", "Y", "WIDTH", "HEIGHT")]
            if 200 <= box[2] <= 700 and box[3] >= 50:
                found.append((box[0], box[1], box[2], box[3]))
        return sorted(set(found), key=lambda box: box[1])

    def click(self, x: int, y: int) -> None:
        """Press the left button of the mouse somewhere."""
        self._run("xdotool", "mousemove", str(x), str(y), "click", "1")

    def alerts(self) -> list[Box]:
        """Return those with buttons: answers are shorter."""
        return [box for box in self.popups() if box[3] > 150]

    def press(self, popup: Box, button: int, of: int) -> None:
        """Press a button, counted from the left, of a pop-up of xfce4-notifyd.

        Buttons stand at the right.
        """
        x, y, width, height = popup
        pitch = _BUTTON_PX[of]
        place = x + width - 14 - (pitch - 7) // 2 - pitch * (of - 1 - button)
        self._run("xdotool", "mousemove", str(place), str(y + height - _BUTTON_UP_PX))
        time.sleep(0.3)
        self._run("xdotool", "click", "1")

    def press_only(self, button: int, of: int) -> None:
        """Press a button of the only pop-up, once that is there."""
        assert until(lambda: len(self.popups()) == 1)
        time.sleep(0.5)
        self.press(self.popups()[0], button, of)

    def close(self) -> None:
        super().close()
        _end(self._settings)


class Jobs:
    """Jobs with a handler for SIGUSR1, each alone on a card of the stand-in, and the daemon."""

    def __init__(self, folder: Path, desk: Desk, count: int = 1, more: str = "") -> None:
        self.folder = folder
        self.desk = desk
        self.fake = FakeNvml(folder)
        self.config = folder / "config.toml"
        self.config.write_text(QUICK + more)
        self.bin = folder / "bin"
        self.bin.mkdir(exist_ok=True)
        self.shown = folder / "terminal-was-told"
        self._terminal()
        self.began_s = 0.0
        # Programs of their own: alerts of one program of one user would be one pop-up.
        programs = [folder / f"train_{n}.py" for n in range(count)]
        for program in programs:
            program.write_text(JOB)
        self.jobs = [
            subprocess.Popen(
                [sys.executable, str(program), str(folder / f"saved-{n}")],
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            for n, program in enumerate(programs)
        ]
        for job in self.jobs:
            if job.stdout is None or job.stdout.readline() != b"ready\n":
                raise RuntimeError("a job did not start")

    def _terminal(self) -> None:
        """Put a terminal into PATH that writes down what it was to run, and runs it."""
        program = self.bin / "x-terminal-emulator"
        told = shlex.quote(str(self.shown))
        program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}.new\nshift\n'
            f'"$@" </dev/null >> {told}.output 2>&1\nmv {told}.new {told}\n'
        )
        program.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        desk = self.desk.environ
        return {
            **self.fake.env(),
            **desk,
            "PATH": f"{self.bin}:{desk['PATH']}",
            "GPUWATCHD_STATE_DIR": str(self.folder / "state"),
            "GPUWATCHD_RUNTIME_DIR": str(self.folder / "run"),
        }

    def world(self, *, leak: bool, rate_mib: int = 150) -> None:
        """Write the cards: each job holds 20 GiB of 80, and more with every second if it leaks."""
        card = "total=80G reserved=600M base=0 util=90 temp=60 power=300 name=NVIDIA_A100-SXM4-80GB"
        lines = [f"gpu {n} {card}" for n in range(len(self.jobs))]
        grows = f" rate={rate_mib * MIB} since={self.began_s:.3f}" if leak else ""
        lines += [
            f"proc {n} pid={job.pid} mem={20 * GIB}{grows} alive=1"
            for n, job in enumerate(self.jobs)
        ]
        self.fake.write(*lines)

    @contextlib.contextmanager
    def daemon(self, **without: None) -> Iterator[subprocess.Popen[bytes]]:
        """Run the daemon; ``without`` names variables that it does not get."""
        environ = {k: v for k, v in self.environ.items() if k not in without}
        with (self.folder / "daemon.log").open("ab") as log:
            process = Child[bytes](
                [sys.executable, "-m", "gpuwatchd", "--config", str(self.config),
                 "--interval", "0.3"],
                env=environ, stdout=log, stderr=log, cwd=ROOT,
            )  # fmt: skip
        with process:
            yield process

    def leak(self) -> None:
        """Let them grow from now on."""
        self.began_s = time.time()
        self.world(leak=True)

    def alerts(self) -> list[Any]:
        """Return the alerts of the live state."""
        state = live.read(self.folder / "run")
        return list(state.alerts) if state is not None else []

    def problems(self) -> list[str]:
        """Return what the live state says is missing or broken."""
        state = live.read(self.folder / "run")
        return list(state.problems) if state is not None else []

    def actions(self) -> list[tables.Action]:
        """Return what the history has of things that were done to processes."""
        with Reader.open(self.folder / "state") as reader:
            return reader.ask(tables.load_actions)

    def ctl(self, *words: str) -> Any:
        """Ask the command line, as JSON."""
        return ctl(self.environ, *words)

    def log(self) -> str:
        """Return what the daemon has logged."""
        file = self.folder / "daemon.log"
        return file.read_text() if file.exists() else ""

    def close(self) -> None:
        """End the jobs."""
        for job in self.jobs:
            job.kill()
            job.wait()
            if job.stdout is not None:
                job.stdout.close()
