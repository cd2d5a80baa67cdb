"""The stand-in for the NVIDIA library, from Python.

The library is found once per process, so whatever uses it runs in a subprocess with
``FakeNvml.env()``; the configuration may change while it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.fakenvml.build import cached, compiler

ROOT = Path(__file__).resolve().parent.parent.parent


class FakeNvml:
    """One configuration file, one statistics file and the environment that makes them count."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.conf = folder / "fakenvml.conf"
        self.stats_file = folder / "fakenvml.stats"
        self.library_folder = cached(*flags)

    @staticmethod
    def available() -> bool:
        """Say whether it can be built here."""
        return sys.platform.startswith("linux") and compiler() is not None

    def write(self, *lines: str) -> None:
        """Replace the configuration in one step."""
        fresh = self.folder / "fakenvml.conf.new"
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
        fresh.replace(self.conf)

    def env(self) -> dict[str, str]:
        """Return the environment for a subprocess that is to see these GPUs."""
        paths = [str(self.library_folder), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(path for path in paths if path),
            "FAKE_NVML_CONF": str(self.conf),
            "FAKE_NVML_STATS": str(self.stats_file),
            "PYTHONPATH": str(ROOT),
        }

    def stats(self) -> dict[str, int]:
        """Return the calls per entry point of the last subprocess that ended."""
        pairs = (line.split() for line in self.stats_file.read_text(encoding="utf-8").splitlines())
        return {name: int(calls) for name, calls in pairs}

    def run(self, script: str, *arguments: str, timeout_s: float = 30) -> Any:
        """Run a Python script against these GPUs; return its last line as JSON."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])
