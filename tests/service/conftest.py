"""A service manager's tools that only write down what they are asked, first in PATH."""

from __future__ import annotations

import os
import pwd
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.errors import ServiceError
from gpuwatchd.service.systemd import Systemd
from gpuwatchd.service.unit_files import UNIT

if TYPE_CHECKING:
    from collections.abc import Callable
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
      *:*)
        left="$((${{code%%:*}} - 1))"; code="${{code#*:}}"; tail -n +2 "$file"
        if [ "$left" -gt 0 ]; then sed -i "1s/.*/$left:$code/" "$file"; else rm "$file"; fi
        exit "$code" ;;
    esac
    tail -n +2 "$file"
    exit "$code"
  fi
  case "$key" in *" "*) key="${{key% *}}" ;; *) key="" ;; esac
done
exit 0
"""


USER = pwd.getpwuid(os.getuid()).pw_name
NOT_FOUND = "LoadState=not-found\nActiveState=inactive\nSubState=dead\nMainPID=0\nResult=success"
STOPPED = "LoadState=loaded\nActiveState=inactive\nMainPID=0\nResult=success"
RUNNING = (
    "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=4711\nNRestarts=2\n"
    "Result=success\nStatusText=2 GPUs, 1 alert\n"
)


class Tools:
    """The stand-ins: what they answer, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.bin.mkdir()
        for name in (
            "systemctl",
            "loginctl",
            "journalctl",
            "launchctl",
            "systemd-sysusers",
            "userdel",
            "groupdel",
            "useradd",
        ):
            script = self.bin / name
            script.write_text(_FAKE.format(folder=shlex.quote(str(folder))))
            script.chmod(0o755)

    def answer(self, command: str, output: str = "", *, code: int = 0, times: int = 0) -> None:
        """Say what a command (or all that begin with it) prints and how it exits; 0: always."""
        name = command.replace(" ", "_").replace("/", "_")
        mark = f"{times}:" if times else ""
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


@pytest.fixture
def manager(tools: Tools) -> Systemd:
    tools.answer(f"systemctl --user show {UNIT}", NOT_FOUND)
    tools.answer("systemctl --user is-active", "inactive", code=3)
    tools.answer("loginctl show-user", "no")
    return Systemd(environ=tools.environ, executable="/opt/venv/bin/python3")


def changes(tools: Tools) -> list[str]:
    """Return what was asked of the tools beyond looking."""
    return [call for call in tools.calls if "show" not in call and "is-active" not in call]


def unit_file(tools: Tools) -> Path:
    """Return where a user's unit belongs."""
    return tools.home / ".config" / "systemd" / "user" / UNIT


def refused(match: str, call: Callable[..., object], *given: Any, **named: Any) -> ServiceError:
    """Return the error with which a call is refused."""
    with pytest.raises(ServiceError, match=match) as caught:
        call(*given, **named)
    return caught.value
