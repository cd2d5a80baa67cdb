"""A desktop for tests: a session bus, a screen without a monitor, a notification server.

Each part is started and ended on its own, so that a test can take one away. The bus starts
nothing by itself: no service files, or an absent server would come up unasked.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.conftest import ROOT, ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest

S = TypeVar("S", bound="Stage")
TOOLS = ("dbus-daemon", "Xvfb", "dunst", "dunstctl", "import", "xdotool")

_BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={path}</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""

_DUNST = """[global]
width = 560
offset = 20x20
origin = top-right
font = DejaVu Sans Mono 11
markup = full
format = "<b>%s</b>\\n%b"
icon_position = off
notification_limit = 0
word_wrap = yes
mouse_left_click = do_action, close_current
[urgency_low]
background = "#203040"
foreground = "#ffffff"
timeout = 50
[urgency_normal]
background = "#705010"
foreground = "#ffffff"
timeout = 60
[urgency_critical]
background = "#a01010"
foreground = "#ffffff"
timeout = 0
"""


def missing() -> list[str]:
    """Return the tools that are not here."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def until(condition: Callable[[], object], within_s: float = 60.0) -> bool:
    """Wait for a condition; say whether it came true."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def ctl(environ: Mapping[str, str], *words: str) -> Any:
    """Return what gpuwatchctl answers in JSON."""
    done = ran(
        [
            sys.executable,
            "-c",
            "import sys; from gpuwatchd.cli import main; sys.exit(main())",
            "--json",
            *words,
        ],
        env=environ,
        timeout=60,
        cwd=ROOT,
    )
    return json.loads(done.stdout)


class Stage:
    """The parts, each ended by its own pid."""

    size = "1024x400x24"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = folder / "bus"
        self._bus: subprocess.Popen[bytes] | None = None
        self._screen: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self.display = ""
        (folder / "dunstrc").write_text(_DUNST)
        (folder / "bus.conf").write_text(_BUS.format(path=self._socket))

    @property
    def environ(self) -> dict[str, str]:
        keep = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        return {
            **keep,
            "DISPLAY": self.display,
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self._socket}",
            "XDG_RUNTIME_DIR": str(self.folder),
        }

    def _start(self, *argv: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{Path(argv[0]).name}.log").open("ab") as log:
            return subprocess.Popen(
                argv,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def start_bus(self) -> None:
        self._bus = self._start(
            "dbus-daemon", f"--config-file={self.folder / 'bus.conf'}", "--nofork"
        )
        assert until(self._socket.exists), "the bus did not come up"

    def start_screen(self) -> None:
        read, write = os.pipe()
        self._screen = subprocess.Popen(
            ["Xvfb", "-displayfd", str(write), "-screen", "0", self.size, "-nolisten", "tcp"],
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(write)
        with os.fdopen(read) as answer:
            self.display = f":{answer.readline().strip()}"

    def start_server(self) -> None:
        self._server = self._start("dunst", "-config", str(self.folder / "dunstrc"))
        assert until(lambda: self._dunstctl("count") is not None), "dunst did not come up"

    def stop_server(self) -> None:
        _end(self._server)
        self._server = None

    def stop_bus(self) -> None:
        _end(self._bus)
        self._bus = None
        with contextlib.suppress(FileNotFoundError):
            self._socket.unlink()

    def close(self) -> None:
        self.stop_server()
        self.stop_bus()
        _end(self._screen)
        self._screen = None

    def _dunstctl(self, *words: str) -> str | None:
        done = ran(["dunstctl", *words], env=self.environ)
        return done.stdout if done.returncode == 0 else None

    def count(self) -> int:
        """Return how many notifications are on the screen."""
        return int((self._dunstctl("count", "displayed") or "0").strip())

    def windows(self) -> int:
        """Return how many visible windows the server has on the screen."""
        done = ran(["xdotool", "search", "--onlyvisible", "--class", "Dunst"], env=self.environ)
        return len(done.stdout.split())

    def take(self) -> list[dict[str, str]]:
        """Close everything on the screen and return what it was, oldest first."""
        self._dunstctl("close-all")
        history = json.loads(self._dunstctl("history") or "{}")
        self._dunstctl("history-clear")
        entries = history["data"][0] if history.get("data") else []
        found = [{key: str(value["data"]) for key, value in one.items()} for one in entries]
        for one in found:
            # The history does not name the urgency; the configuration gives each its time.
            times = {"0": "critical", "60000000": "normal", "50000000": "low"}
            one["urgency"] = times[one["timeout"]]
        return found[::-1]

    def picture(self, file: Path) -> None:
        """Save what is on the screen."""
        subprocess.run(["import", "-window", "root", str(file)], env=self.environ, check=True)


@contextlib.contextmanager
def shown(stage: S, monkeypatch: pytest.MonkeyPatch) -> Iterator[S]:
    """Start the screen of a stage, and let this process find it until the end of the test."""
    try:
        stage.start_screen()
        for key, value in stage.environ.items():
            if key not in {"PATH", "HOME", "LANG"}:
                monkeypatch.setenv(key, value)
        yield stage
    finally:
        stage.close()


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
