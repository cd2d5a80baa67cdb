"""The one place where a service manager's tools are run, and how their files are written."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND = 127
TIMED_OUT = 124


class Done(NamedTuple):
    """How a command ended."""

    code: int
    """Exit code; 127 when there is no such program, 124 when it took too long."""
    output: str
    """Both streams, stripped."""

    @property
    def last_line(self) -> str:
        """The last line that says something, safe to print."""
        texts = [line for line in self.output.splitlines() if line.strip()]
        return text.clean(texts[-1].strip()) if texts else f"exit code {self.code}"


class Runner(Protocol):
    """Runs a command and returns how it ended; never raises for a failure of the command."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Done:
        """Run and return exit code and output."""


class CommandRunner:
    """Runs commands for real.

    Parameters
    ----------
    environ
        Environment of the commands; messages are asked for in English.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {**environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"}

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Done:
        """Run and return exit code and output."""
        try:
            done = subprocess.run(
                argv,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            return Done(NOT_FOUND, f"{argv[0]}: not found")
        except subprocess.TimeoutExpired:
            return Done(TIMED_OUT, f"no answer within {timeout_s:g} s")
        except OSError as error:
            return Done(NOT_FOUND, f"{argv[0]}: {error.strerror}")
        return Done(done.returncode, done.stdout.decode("utf-8", "replace").strip())


def show(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a viewer on our own terminal and return its exit code (127: not there)."""
    try:
        return subprocess.run(argv, env=dict(environ), check=False).returncode
    except FileNotFoundError:
        return NOT_FOUND


def daemon_argv(executable: str = sys.executable) -> tuple[str, ...]:
    """Return the absolute command of the daemon: the script beside our Python, else the module.

    The path is not resolved: the target of a virtual environment's link is another Python.
    """
    python = Path(os.path.abspath(executable))  # noqa: PTH100 (resolve() would follow the link)
    script = python.with_name("gpuwatchd")
    if script.is_file() and os.access(script, os.X_OK):
        return (str(script),)
    return str(python), "-m", "gpuwatchd"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file of mode 0644 whole or not at all.

    Raises
    ------
    OSError
        When it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
