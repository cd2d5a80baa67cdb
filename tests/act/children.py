"""Real processes to act on."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.core.model import ProcessKey

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEEDS = """
import os, signal, sys, time
def save(*_):
    with open(sys.argv[1] + ".new", "w") as file:
        file.write("saved\\n")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
_DEAF = "import time; print('ready', flush=True); time.sleep(60)"


def key_of(pid: int) -> ProcessKey:
    """Return who a process is, reckoned like the daemon does."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    ticks = int(stat[stat.rfind(b")") + 1 :].split()[19])
    return ProcessKey(pid=pid, started_at_s=booted_at_s() + ticks / os.sysconf("SC_CLK_TCK"))


@functools.cache
def booted_at_s() -> float:
    """Return when the kernel says that the system was booted; always the same, like the daemon."""
    lines = Path("/proc/stat").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("btime ")).split()[1])


@contextlib.contextmanager
def job(saves_to: Path | None = None, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job; with a file it has a handler for SIGUSR1, which writes a line there."""
    argv = [sys.executable, "-c", _DEAF]
    if saves_to is not None:
        argv = [sys.executable, "-c", _HEEDS, str(saves_to)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **environ})
    try:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise RuntimeError("the job did not start")
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
