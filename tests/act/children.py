"""Real processes to act on."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_TRAINS = """
import os, signal, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
def save(*_):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, sys.argv[1] + ".new")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
if len(sys.argv) > 1:
    signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
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


def ready(process: subprocess.Popen[bytes]) -> None:
    """Wait for a job to have its handler."""
    if process.stdout is None or process.stdout.readline() != b"ready\n":
        raise RuntimeError("the job did not start")


@contextlib.contextmanager
def job(
    saves_to: Path | None = None, *, torch: str = "", waits: bool = True, **environ: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job; with a file it has a handler for SIGUSR1, which writes a line there.

    With an interpreter that has PyTorch it trains on the CPU, and its handler saves by torch.save.
    Unless ``waits``, it may not be :func:`ready` yet.
    """
    program = _TRAINS if torch else _DEAF if saves_to is None else _HEEDS
    argv = [torch or sys.executable, "-c", program, *([] if saves_to is None else [str(saves_to)])]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **environ})
    try:
        if waits:
            ready(process)
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
