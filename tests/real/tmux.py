"""A real terminal for tests: tmux on a socket of its own, ended by the test."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from typing import TYPE_CHECKING

from tests.conftest import need, ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_PATIENCE_S = 20.0
_STEP_S = 0.05


class Pane:
    """One program in one terminal."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Run tmux and return what it says."""
        argv = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        done = ran(argv, env={**os.environ, **(env or {})}, timeout=20)
        assert done.returncode == 0, f"tmux {words}: {done.stderr}"
        return done.stdout

    def keys(self, *keys: str) -> None:
        """Press keys, as tmux names them."""
        self.tmux("send-keys", *keys)

    def raw(self, sequence: str) -> None:
        """Send bytes as the terminal would: a mouse, for one."""
        self.tmux("send-keys", "-l", sequence)

    def screen(self, *, colours: bool = False) -> str:
        """Return what is on the screen."""
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def until(self, right: Callable[[str], bool], what: str) -> str:
        """Wait until the screen is right and return it."""
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            shown = self.screen()
            if right(shown):
                return shown
            assert time.monotonic() < end_s, f"never {what}:\n{shown}"
            time.sleep(_STEP_S)

    def has(self, *words: str) -> str:
        """Wait until all of these words are on the screen."""
        return self.until(lambda shown: all(word in shown for word in words), f"shows {words}")

    def size(self, columns: int, rows: int) -> None:
        """Make the terminal another size."""
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def asked(self, format_: str) -> str:
        """Return what tmux knows of the pane, such as ``#{pane_pid}``."""
        return self.tmux("display-message", "-p", format_).strip()


@contextlib.contextmanager
def terminal(
    folder: Path,
    env: Mapping[str, str],
    *,
    columns: int = 80,
    rows: int = 24,
    term: str = "tmux-256color",
) -> Iterator[Pane]:
    """Open a shell in a terminal."""
    need(shutil.which("tmux"), "tmux is not installed")
    pane = Pane(folder / "tmux.socket")
    inner = shlex.join(["env", f"TERM={term}", "PS1=ready> ", "/bin/sh"])
    size = ("-x", str(columns), "-y", str(rows))
    pane.tmux("-u", "new-session", "-d", *size, inner, env=env)
    try:
        yield pane
    finally:
        with contextlib.suppress(AssertionError):
            pane.tmux("kill-server")
