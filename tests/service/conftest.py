"""A service manager's tools that only write down what they are asked, first in PATH."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_FAKE = """#!/bin/sh
# Answers are files named after the beginning of the arguments; the longest match wins.
folder={folder}
line="$(basename "$0") $*"
printf '%s\\n' "$line" >> "$folder/calls"
key="$line"
while [ -n "$key" ]; do
  name="$(printf '%s' "$key" | tr ' /' '__')"
  if [ -f "$folder/answer.$name" ]; then
    file="$folder/answer.$name"
    code="$(head -n1 "$file")"
    case "$code" in
      once:*) code="${{code#once:}}"; tail -n +2 "$file"; rm "$file"; exit "$code" ;;
    esac
    tail -n +2 "$file"
    exit "$code"
  fi
  case "$key" in *" "*) key="${{key% *}}" ;; *) key="" ;; esac
done
exit 0
"""


class Tools:
    """The stand-ins: what they answer, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.bin.mkdir()
        for name in ("systemctl", "loginctl", "journalctl", "launchctl"):
            script = self.bin / name
            script.write_text(_FAKE.format(folder=shlex.quote(str(folder))))
            script.chmod(0o755)

    def answer(self, command: str, output: str = "", *, code: int = 0, once: bool = False) -> None:
        """Say what a command (or all that begin with it) prints and how it exits."""
        name = command.replace(" ", "_").replace("/", "_")
        mark = "once:" if once else ""
        (self.folder / f"answer.{name}").write_text(f"{mark}{code}\n{output}")

    @property
    def calls(self) -> list[str]:
        """What was asked, in order."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def forget(self) -> None:
        """Start a new list of calls."""
        (self.folder / "calls").unlink(missing_ok=True)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "XDG_STATE_HOME": str(self.folder / "state home"),
        }


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path / "tools")
