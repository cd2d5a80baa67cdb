"""What the live screen costs: ``python -m tests.bench.bench_top``.

User and system time of ``gpuwatchctl top`` in a terminal of 120 x 40 that is renewed once a second,
for 8 GPUs with 64 processes each, beside nvitop in monitor mode on the same number of GPUs and
processes (the stand-in library, so no driver time is in its figure; its processes are sleeping
ones, since it asks the system about each). Both run at the same time, so that a busy machine hits
them alike. ``--seconds`` changes the effort.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec.structs import replace

from gpuwatchd.store import live
from tests.bench.measuring import sleepers
from tests.fakenvml import FakeNvml
from tests.tui import world

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BIN = Path(sys.executable).parent
GPUS, PROCESSES = 8, 64
COLUMNS, ROWS = 120, 40
WARM_S = 4.0
BUDGET = 0.012
"""Share of a core that the screen may take at 1 Hz."""


class OnTerminal:
    """A program in a terminal of its own, whose output is read and thrown away."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        begun_s = time.perf_counter()
        self._child = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=dict(env), start_new_session=True
        )
        os.close(slave)
        self.written = 0
        self.first_s = 0.0
        """Until it has drawn: 2,000 characters."""
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(begun_s,), daemon=True)
        self._reader.start()

    def _read(self, begun_s: float) -> None:
        while not self._over.is_set():
            ready, _, _ = select.select([self._master], [], [], 0.2)
            if not ready:
                continue
            try:
                self.written += len(os.read(self._master, 65536))
            except OSError:
                return
            if not self.first_s and self.written > 2000:
                self.first_s = time.perf_counter() - begun_s

    def cpu_s(self) -> float:
        """Return its user and system time so far."""
        times = psutil.Process(self._child.pid).cpu_times()
        return times.user + times.system

    def resident_bytes(self) -> int:
        """Return its memory."""
        return int(psutil.Process(self._child.pid).memory_info().rss)

    def close(self) -> int:
        """End it with ``q`` and return its exit code."""
        with contextlib.suppress(OSError):
            os.write(self._master, b"q")
        try:
            code = self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        self._over.set()
        self._reader.join()
        os.close(self._master)
        return code


@contextlib.contextmanager
def renewed(directory: Path) -> Iterator[None]:
    """Write the live state once a second, as a daemon does."""
    pieces, over = live.Pieces(), threading.Event()

    def write(shift: int) -> None:
        state = world.state(GPUS, PROCESSES, at_s=time.time(), pid=os.getpid(), shift=shift)
        live.write(directory, replace(state, coded=True), pieces)

    def renew() -> None:
        shift = 1
        while not over.wait(1.0):
            write(shift)
            shift += 1

    write(0)
    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def environment(home: Path) -> dict[str, str]:
    """Return what both run in."""
    return {
        **os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8",
        "GPUWATCHD_RUNTIME_DIR": str(home), "GPUWATCHD_STATE_DIR": str(home), "HOME": str(home),
    }  # fmt: skip


def measure(seconds: float) -> list[dict[str, float | str]]:
    """Return a row for each program that is here."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-top-")))
        home.chmod(0o700)
        stack.enter_context(renewed(home))
        env = environment(home)
        programs = [("gpuwatchctl top", [str(BIN / "gpuwatchctl"), "top"], env)]
        if FakeNvml.available() and shutil.which("nvitop", path=str(BIN)):
            fake = FakeNvml(home)
            pids = stack.enter_context(sleepers(GPUS * PROCESSES))
            fake.write(
                "driver 550.54.15", "nvml 12.550.54.15",
                *(f"gpu {card} name=NVIDIA_H100 total=80G reserved=600M base=500M util=50 temp=60"
                  for card in range(GPUS)),
                *(f"proc {at // PROCESSES} pid={pid} mem=900M" for at, pid in enumerate(pids)),
            )  # fmt: skip
            argv = [str(BIN / "nvitop"), "--monitor", "full", "--interval", "1"]
            programs.append(("nvitop -m full", argv, env | fake.env()))
        running = []
        for name, argv, where in programs:
            one = OnTerminal(argv, where)
            stack.callback(one.close)
            running.append((name, one))
        time.sleep(WARM_S)
        before = [(one.cpu_s(), one.written) for _, one in running]
        begun_s = time.perf_counter()
        time.sleep(seconds)
        took_s = time.perf_counter() - begun_s
        return [
            {
                "name": name,
                "cpu_share": (one.cpu_s() - cpu_s) / took_s,
                "bytes_per_s": (one.written - written) / took_s,
                "first_screen_s": one.first_s,
                "resident_mib": one.resident_bytes() / 2**20,
            }
            for (name, one), (cpu_s, written) in zip(running, before, strict=True)
        ]


def main() -> int:
    """Measure and print; never fails for a slow machine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    wish = parser.parse_args()
    rows = measure(wish.seconds)
    print(f"{GPUS} GPUs x {PROCESSES} processes, {COLUMNS} x {ROWS}, once a second")
    print(f"{'':18} {'CPU of a core':>13} {'bytes/s':>9} {'first screen':>13} {'memory':>9}")
    for row in rows:
        print(
            f"{row['name']:18} {row['cpu_share']:>12.2%} {row['bytes_per_s']:>9.0f}"
            f" {row['first_screen_s']:>11.2f} s {row['resident_mib']:>5.0f} MiB"
        )
    ours = float(rows[0]["cpu_share"])
    verdict = "within" if ours <= BUDGET else "ABOVE"
    print(f"top takes {ours:.2%} of a core: {verdict} the budget of {BUDGET:.1%}")
    if len(rows) > 1 and ours:
        first = float(rows[0]["first_screen_s"]) / float(rows[1]["first_screen_s"])
        print(f"nvitop takes {float(rows[1]['cpu_share']) / ours:.1f} times as much")
        print(f"first screen: {first:.2f} x nvitop's (at most 1.30)")
    else:
        print("nvitop left out: it, or the stand-in library, is not here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
