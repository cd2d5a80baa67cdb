"""What the daemon costs as users pay it: ``python -m tests.bench.bench_daemon``.

The real daemon (its loop, threads, chores, history on disk, live state) at its own pace: cold
ticks, a pause between them, on the stand-in for the NVIDIA library. First its world goes on for
hours without a pause: that fills windows and rings, and what is written to disk is counted. Then
all programs tick side by side with pauses, each in a process of its own. A pause of a second gives
the figures of the real five (``--pause 5``). In a busy world utilisation, temperature, power, clock
and the share of every process move as on real cards, memory is flat; in an idle one nothing moves.
Driver time is in no figure.

Each program is ``tests.bench.measured``. ``--quick`` takes a minute, ``--only`` takes some states.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.bench.measuring import sleepers
from tests.fakenvml import FakeNvml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONFIG = '[policy]\nchannels = ["command"]\n[notify.command]\nargv = ["true"]\n'
PEERS = {
    "floor": ("ctypes, the calls alone", "ctypes"),
    "bare": ("bare nvidia-ml-py", "pynvml"),
    "nvitop": ("nvitop: take_snapshots", "nvitop"),
    "exporter": ("nvitop-exporter: update", "nvitop_exporter"),
    "gpustat": ("gpustat: new_query", "gpustat"),
}
"""Program of ``tests.bench.measured`` -> its title and the package that it needs."""


class State(NamedTuple):
    """One world, and which daemon or peer looks at it."""

    gpus: int = 8
    processes: int = 8
    busy: bool = True
    growing: int = 0
    more: tuple[str, ...] = ()
    hours: float = 2.0
    """What the daemon has seen before it is measured cold."""

    def lines(self, pids: Sequence[int]) -> Iterator[str]:
        """Yield the lines of the stand-in's world."""
        util, each = (90, 90 // self.processes) if self.busy else (0, 0)
        yield from ("event_look_ms 1000", *(("wobble 1",) if self.busy else ()), *self.more)
        for gpu in range(self.gpus):
            power, heat = (400, 60) if self.busy else (60, 35)
            yield (
                f"gpu {gpu} total=80G reserved=600M base=500M util={util} memutil={util // 2}"
                f" power={power} temp={heat} events=8"
            )
        count = self.gpus * self.processes
        for i, pid in enumerate(pids[:count]):
            rate = f" rate={300 + i}K max=8G" if i < self.growing else ""
            yield f"proc {i // self.processes} pid={pid} mem=200M sm={each or 'na'}{rate}"


IDLE, BUSY, ONE, ALL = "8 x 8 idle", "8 x 8 busy", "8 x 8 one leaks", "8 x 8 all grow"
FEWER, MANY = "8 x 32 busy", "8 x 128 busy"
STATES = {
    IDLE: State(busy=False),
    BUSY: State(),
    ONE: State(growing=1),
    ALL: State(growing=64, hours=1.0),
    "8 x 8 a GPU hangs": State(more=("delay nvmlDeviceGetMemoryInfo* 0 3600000000",), hours=0.5),
    FEWER: State(processes=32, hours=0.5),
    "16 x 32 busy": State(gpus=16, processes=32, hours=0.5),
    MANY: State(processes=128, hours=0.5),
    "8 x 200 busy": State(processes=200, hours=0.5),
}


class Target(NamedTuple):
    """A figure that is to be at most so high."""

    text: str
    row: str
    key: str
    most: float
    beside: str = ""
    """The row that it is divided by."""


TARGETS = (
    Target("tick, beside bare nvidia-ml-py", BUSY, "tick_ms", 5.0, PEERS["bare"][0]),
    Target("tick, beside nvitop", BUSY, "tick_ms", 0.1, PEERS["nvitop"][0]),
    Target("% of a core, busy", BUSY, "core_percent", 0.08),
    Target("% of a core, idle", IDLE, "core_percent", 0.04),
    Target("64 growing: ms a tick", ALL, "tick_ms", 10.0),
    Target("1,024 processes: ms a tick", MANY, "tick_ms", 6.0),
    Target("their chores, beside 256", MANY, "chores_ms_per_minute", 4.5, FEWER),
    Target("MB a day to disk", BUSY, "written_mb_per_day", 120.0),
    Target("resident MiB, idle", IDLE, "resident_mib", 48.0),
    Target("resident MiB, busy", BUSY, "resident_mib", 48.0),
    Target("resident MiB, one leaks", ONE, "resident_mib", 58.0),
    Target("resident MiB, all grow", ALL, "resident_mib", 58.0),
)


class Running:
    """One measured program."""

    def __init__(self, stack: contextlib.ExitStack, words: Sequence[object], env: dict[str, str]):
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.measured", *map(str, words)],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        stack.callback(self._child.kill)

    def line(self) -> str:
        """Return what it says next."""
        assert self._child.stdout is not None
        text = self._child.stdout.readline()
        if not text:
            raise SystemExit("a measured program ended; what it said stands above")
        return text

    def go(self, offset_s: float) -> None:
        """Let it tick, so much later."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{offset_s}\n")
        self._child.stdin.flush()


def measure(
    states: dict[str, State], *, hours: float, ticks: int, pause_s: float, peers: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return title -> figures of each state's daemon and of each peer."""
    running: dict[str, Running] = {}
    warming: list[Running] = []
    with contextlib.ExitStack() as stack:
        most = max(it.gpus * it.processes for it in states.values())
        pids = stack.enter_context(sleepers(most))
        # As on a machine with systemd: the live state in memory, the history on a disk.
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared)))
        (disk / "gpuwatchd.toml").write_text(CONFIG, encoding="utf-8")

        def start(title: str, state: State, program: str, hot: int, *more: object) -> None:
            folder = disk / str(len(running))
            folder.mkdir()
            fake = FakeNvml(folder)
            fake.write(*state.lines(pids))
            env = fake.env() | {
                "GPUWATCHD_STATE_DIR": str(folder / "state"),
                "GPUWATCHD_RUNTIME_DIR": str(memory / str(len(running))),
            }
            running[title] = Running(stack, (program, hot, ticks, pause_s, *more), env)
            warming.append(running[title])
            if len(warming) >= (os.cpu_count() or 1):
                warming.pop(0).line()

        for title, state in states.items():
            # One process a tick gets its memory map read: all of them at least.
            hot = max(int(720 * min(state.hours, hours)), state.gpus * state.processes + 36)
            start(title, state, "daemon", hot, disk / "gpuwatchd.toml")
        for program in peers:
            title, package = PEERS[program]
            if importlib.util.find_spec(package) is not None:
                start(title, STATES[BUSY], program, 40)
        for child in warming:
            child.line()
        for number, child in enumerate(running.values()):
            child.go(number * pause_s / len(running))
        return {title: json.loads(child.line()) for title, child in running.items()}


COLUMNS = (
    ("ms/tick", 9, "tick_ms", ".2f"),
    ("mean", 8, "mean_ms", ".2f"),
    ("hot", 8, "hot_tick_ms", ".2f"),
    ("chores/min", 11, "chores_ms_per_minute", ".1f"),
    ("% core", 8, "core_percent", ".3f"),
    ("s/hour", 8, "cpu_s_per_hour", ".2f"),
    ("wakes/h", 9, "wakeups_per_hour", ",.0f"),
    ("RSS MiB", 9, "resident_mib", ".1f"),
    ("PSS", 7, "proportional_mib", ".1f"),
    ("disk MB/d", 11, "written_mb_per_day", ",.1f"),
    ("write()", 9, "passed_mb_per_day", ",.1f"),
)
"""Title, width, key and format."""


def table(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the results for people."""
    yield " " * 24 + "".join(f"{title:>{width}}" for title, width, *_ in COLUMNS)
    for name, row in results.items():
        cells = (f"{row[key]:{width}{form}}" for _, width, key, form in COLUMNS)
        yield f"{name:24}{''.join(cells)}"
    yield ""
    for target in TARGETS:
        if target.row in results and (not target.beside or target.beside in results):
            value = results[target.row][target.key]
            if target.beside:
                value /= results[target.beside][target.key]
            met = "met" if value <= target.most else "NOT MET"
            yield f"{target.text:32}{value:10.3f}  at most {target.most:7.2f}  {met}"


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=24, help="cold ones")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between cold ticks")
    parser.add_argument("--hours", type=float, default=2.0, help="of the world before, at most")
    parser.add_argument("--quick", action="store_true", help="8 x 8, idle and busy, in a minute")
    parser.add_argument("--only", nargs="+", choices=STATES, default=list(STATES))
    chosen = parser.parse_args()
    if not FakeNvml.available():
        print("bench_daemon: needs Linux and a C compiler", file=sys.stderr)
        return 1
    states = {title: STATES[title] for title in chosen.only}
    peers = list(PEERS)
    if chosen.quick:
        states = {title: STATES[title] for title in (IDLE, BUSY)}
        chosen.ticks, chosen.hours, peers = 20, 1.0, ["bare", "nvitop"]
    results = measure(
        states, hours=chosen.hours, ticks=chosen.ticks, pause_s=chosen.pause, peers=peers
    )
    print(*table(results), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
