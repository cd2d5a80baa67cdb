"""The live screen in a real terminal: keys are sent, the screen is read."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from gpuwatchd.store import live
from tests.conftest import present
from tests.real.tmux import Pane, terminal
from tests.tui import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Opened = Callable[..., contextlib.AbstractContextManager[Pane]]

pytestmark = pytest.mark.real_terminal
CTL = Path(sys.executable).parent / "gpuwatchctl"
LEFT = re.compile(r"left:(\d+)")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the directory of a live state that a running daemon (ourselves) has just written."""
    folder = tmp_path / "live"
    folder.mkdir(mode=0o700)
    renew(folder)
    return folder


def renew(folder: Path, *, cards: int = 8, shift: int = 0, **changes: object) -> None:
    """Write a live state of now."""
    state = world.state(cards, 4, at_s=time.time(), pid=os.getpid(), shift=shift)
    live.write(folder, msgspec.structs.replace(state, **changes))


@pytest.fixture
def opened(home: Path, tmp_path: Path) -> Opened:
    """Return what opens a terminal in which the live screen runs."""

    @contextlib.contextmanager
    def run(flags: str = "", *, columns: int = 80, rows: int = 24, ready: str = "GROWTH",
            term: str = "tmux-256color", locale: str = "C.UTF-8",
            sent: Path | None = None) -> Iterator[Pane]:  # fmt: skip
        env = {
            "GPUWATCHD_RUNTIME_DIR": str(home), "GPUWATCHD_STATE_DIR": str(home),
            "LC_ALL": locale, "HOME": str(tmp_path), "NO_COLOR": "",
            "COLUMNS": "80", "LINES": "24",  # exported by some; the terminal knows better
            "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0",  # else Python makes UTF-8 of POSIX
        }  # fmt: skip
        with terminal(tmp_path, env, columns=columns, rows=rows, term=term) as pane:
            pane.has("ready>")
            if sent is not None:
                pane.tmux("pipe-pane", f"cat >{sent}")
            pane.keys(f"clear; {CTL} top {flags}; echo left:$?", "Enter")
            pane.has(ready)
            yield pane

    return run


def left(pane: Pane) -> tuple[int, str]:
    """Wait until the screen is closed; return the exit code and what is on the terminal then."""
    shown = pane.until(lambda text: LEFT.search(text) is not None, "left")
    found = present(LEFT.search(shown))
    return int(found[1]), shown


def is_clean(pane: Pane) -> None:
    """Check that the terminal is as it was: no mouse, no other screen, a cursor, echo."""
    flags = pane.asked("#{mouse_any_flag} #{alternate_on} #{cursor_flag} #{wrap_flag}")
    assert flags == "0 0 1 1"
    pane.keys("echo still $((40 + 2))", "Enter")
    shown = pane.has("still 42")
    assert "echo still $((40 + 2))" in shown, "the shell does not echo what is typed"


def test_a_screen_of_80_by_24_has_all_that_matters_of_eight_gpus(opened: Opened) -> None:
    with opened() as pane:
        lines = pane.has("GPU 7").splitlines()
        cards = [line for line in lines if re.match(r" GPU \d ", line)]
        assert len(cards) == 8
        assert re.search(r"47 min \(39 to 62 min\) +\d+ % +\d+°C +\d+W", cards[0])
        assert len(rows_of("\n".join(lines))) >= 6
        pane.keys("q")
        code, shown = left(pane)
        assert (code, "GPU 7" in shown) == (0, False)
        is_clean(pane)


def test_what_the_daemon_writes_is_shown_without_a_key(home: Path, opened: Opened) -> None:
    with opened() as pane:
        renew(home, shift=39)
        pane.has(" 39 %")
        renew(home, cards=3)
        pane.until(lambda text: "GPU 3" not in text and "GPU 2" in text, "shows three GPUs")
        (home / live.FILE_NAME).write_text("{broken")
        pane.has("GPU 2")
        renew(home, cards=4, pid=2**22 + 1)
        pane.has("daemon off", "the daemon is not running")

        def lives(text: str) -> bool:
            renew(home, cards=4)  # again and again, as a daemon does: one sample soon is late
            return "live" in text and "last sample" in text

        pane.until(lives, "is live again")


@pytest.mark.parametrize(
    ("how", "code"),
    [("C-c", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131),
     (signal.SIGUSR1, 138)],
)  # fmt: skip
def test_the_terminal_is_clean_however_it_ends(
    opened: Opened, how: str | signal.Signals, code: int
) -> None:
    with opened() as pane:
        if isinstance(how, str):
            pane.keys(how)
        else:
            os.kill(child_of(pane), how)
        assert left(pane)[0] == code
        is_clean(pane)


def child_of(pane: Pane) -> int:
    """Return the pid of what runs in the shell of a terminal."""
    return psutil.Process(int(pane.asked("#{pane_pid}"))).children()[0].pid


def test_it_is_suspended_and_comes_back(opened: Opened) -> None:
    with opened() as pane:
        pane.keys("C-z")
        pane.until(lambda text: "GROWTH" not in text and "ready>" in text, "is suspended")
        assert pane.asked("#{mouse_any_flag} #{alternate_on}") == "0 0"
        pane.keys("fg", "Enter")
        pane.has("GROWTH", "GPU 7")
        pane.keys("q")
        pane.until(lambda text: text.rstrip().endswith("ready>"), "is left")
        pane.keys("echo code:$?", "Enter")
        pane.has("code:0")
        is_clean(pane)


def test_another_size_is_laid_out_anew(opened: Opened) -> None:
    with opened() as pane:
        pane.size(40, 20)
        shown = pane.until(lambda text: "PID" not in text and "GROWTH" in text, "is narrow")
        assert max(map(len, shown.splitlines())) <= 40
        assert "CRITICAL" in shown
        assert "47 min" in shown
        pane.size(160, 45)
        wide = pane.has("SUSPECT", "HOST MEM", "by VLLM::EngineCore[4001]")
        assert len(wide.splitlines()) >= 40


def rows_of(shown: str) -> list[str]:
    """Return the rows of processes."""
    return [line for line in shown.splitlines() if re.match(r"[ >]?[▲●○] \d ", line.strip("\n"))]


def test_the_mouse_selects_sorts_and_scrolls(opened: Opened) -> None:
    with opened() as pane:
        lines = pane.screen().splitlines()
        heads = next(at for at, line in enumerate(lines) if "GROWTH▼" in line)
        click(pane, lines[heads].index("MEMORY") + 2, heads)
        pane.has("MEMORY▼")
        before = rows_of(pane.screen())
        for _ in range(3):
            mouse(pane, 65, 10, heads + 2)
        pane.until(lambda text: rows_of(text)[0] != before[0], "scrolls")


def mouse(pane: Pane, button: int, x: int, y: int) -> None:
    """Send what a terminal sends for a button (0 left, 65 wheel down), from column and row 0."""
    pane.raw(f"\x1b[<{button};{x + 1};{y + 1}M")


def click(pane: Pane, x: int, y: int) -> None:
    """Press and let go."""
    mouse(pane, 0, x, y)
    pane.raw(f"\x1b[<0;{x + 1};{y + 1}m")


def test_a_mistake_of_ours_is_one_line(opened: Opened, home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\n"
        "from gpuwatchd.cli import main\n"
        "from gpuwatchd.tui.screens.overview import Selection\n"
        "def turn(self):\n"
        "    raise ValueError('a broken row')\n"
        "Selection.turn = turn\n"
        "sys.exit(main(['top']))\n"
    )
    with opened("--help >/dev/null", ready="left:0") as pane:
        pane.keys(f"clear; {sys.executable} {broken}; echo left:$?", "Enter")
        pane.has("GROWTH")
        pane.keys("r")
        code, shown = left(pane)
        assert code == 1
        assert "gpuwatchctl: internal error: ValueError: a broken row" in shown
        assert "Traceback" not in shown
        is_clean(pane)
