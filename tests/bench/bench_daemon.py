"""CPU per tick and memory of the whole daemon: ``python -m tests.bench.bench_daemon``.

The daemon's own parts (source, host, windows, judgement, policy, history, live state, scheduler,
dispatcher) on the stand-in library: 8 GPUs x 8 live processes, one of them leaking, five seconds of
its clock per tick; then the same with a GPU that hangs, and 16 GPUs x 32 processes. Beside it, in
the same run, bare nvidia-ml-py, nvitop's snapshot and gpustat's query. Driver time is not in any
of them. ``--split`` says which part of the tick takes how long.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import bench_tick
from tests.bench.measuring import sleepers
from tests.conftest import ran
from tests.fakenvml import FakeNvml

SETUP = """
import json, resource, sys, tempfile, time
from pathlib import Path
import msgspec
from gpuwatchd.core import config
from gpuwatchd.daemon.main import Chores
from gpuwatchd.collect.host import Host
from gpuwatchd.service import own_process as allocator
from gpuwatchd.notify.outbox import dispatcher as outbox
from tests.pipelines import make_pipeline
from gpuwatchd.collect.nvml.source import NvmlSource
from gpuwatchd.store.writer import History

allocator.one_arena()

class Paced:
    name = "nvml"
    def __init__(self):
        self.inner, self.at = NvmlSource(), 0.0
        self.start = time.time()
    def probe(self): return self.inner.probe()
    def devices(self): return self.inner.devices()
    def read(self):
        self.at += 5.0
        sample = self.inner.read()
        now = self.start + self.at
        return msgspec.structs.replace(sample, taken_mono_s=self.at, taken_at_s=now)
    def close(self): self.inner.close()

folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))
settings = config.Config()
source = Paced()
clock = lambda: source.start + source.at
history = History.open(folder / "state", settings.store, clock=clock, monotonic=lambda: source.at)
settings = config.Config(
    policy=config.PolicySection(channels=("desktop", "command")),
    notify=config.NotifySection(command=config.CommandSection(argv=("true",))),
)
channels = outbox.build(settings.notify, settings.policy.channels)
channels["desktop"].probe()  # loads its libraries, as a daemon on a desktop has them loaded
sender = outbox.MessageDispatcher({"desktop": channels["command"], "command": channels["command"]})
pipeline = make_pipeline(config=settings, sources=[source], host=Host(), history=history,
                    runtime_dir=folder, message_dispatcher=sender, wall=clock,
                    mono=lambda: source.at)
chores = Chores()
chores.start()
# At first one memory map is read per tick, until every process is known.
warm, ticks, rss, fds = int(sys.argv[4]), int(sys.argv[1]), {}, {}
def now_rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
import os
spent = {}
def around(inner, part):
    def call(*arguments, **named):
        began = time.perf_counter()
        try:
            return inner(*arguments, **named)
        finally:
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - began
    return call
def timed(owner, name, part):
    # A part that has moved is to be found again, not left out.
    setattr(owner, name, around(getattr(owner, name), part))
if sys.argv[3] == "split":
    timed(source, "read", "source: read")
    timed(pipeline.sources, "_sample", "source, with its thread")
    timed(pipeline.intake, "take", "intake")
    timed(pipeline, "_judge", "judge")
    timed(pipeline.alert_notifier, "notify", "policy and messages")
    timed(pipeline.conditions, "step", "alarms")
    timed(pipeline.link, "record", "history: record")
    for when, rows in pipeline.guard._chores.items():
        pipeline.guard._chores[when] = [
            row._replace(run=around(row.run, f"chore: {row.name}")) for row in rows
        ]
    timed(pipeline.live, "snapshot", "live state: make")
    timed(pipeline.live, "write", "live state: write")
    timed(pipeline, "tick", "whole tick")
for _ in range(warm):
    pipeline.tick()
spent.clear()
each = []
cpu = time.process_time()
for tick in range(warm, ticks):
    began = time.process_time()
    pipeline.tick()
    each.append(1000 * (time.process_time() - began))
    if tick % 12 == 0:
        history.chores(clock())
        allocator.trim()
    if tick in {1000, 2000, 5000, ticks - 1}:
        rss[tick + 1] = round(now_rss(), 1)
        fds[tick + 1] = len(os.listdir("/proc/self/fd"))
cpu = (time.process_time() - cpu) / (ticks - warm) * 1000
state = pipeline.tick().state
each.sort()
print(json.dumps({"cpu_ms": each[len(each) // 2], "mean_ms": cpu,
                  "p95_ms": each[int(0.95 * len(each))], "rss_mib": rss, "descriptors": fds,
                  "split_us": {part: round(1e6 * s / (ticks - warm)) for part, s in spent.items()},
                  "alerts": [a.title for a in state.alerts if a.state == "firing"],
                  "problems": state.problems}), flush=True)
os._exit(0)
"""


def _memory() -> str | None:
    # The live state lies in the runtime directory, which is memory wherever systemd runs.
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def look(gpus: int, processes: int, ticks: int, *more: str, split: bool = False) -> dict[str, Any]:
    """Return the figures of one fresh daemon; ``split``, which slows it, those of its parts too."""
    warm, mode = max(200, gpus * processes + 100), "split" if split else "whole"
    with sleepers(gpus * processes) as pids, tempfile.TemporaryDirectory(dir=_memory()) as folder:
        fake = FakeNvml(Path(folder))
        lines = [f"gpu {g} total=80G reserved=600M base=500M util=90" for g in range(gpus)]
        lines += [
            f"proc {i // processes} pid={pid} mem=2G sm={90 // processes}"
            + (" rate=8G max=60G" if i == processes + 1 else "")
            for i, pid in enumerate(pids)
        ]
        fake.write(*lines, *more)
        words = [sys.executable, "-c", SETUP, ticks + warm, folder, mode, warm]
        done = ran(words, env=fake.env(), timeout=900)
    if done.returncode or not done.stdout:
        raise SystemExit(done.stderr[-4000:] or f"exit {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3, help="fresh processes per peer")
    parser.add_argument("--split", action="store_true", help="only say what each part takes")
    chosen = parser.parse_args()
    if not FakeNvml.available():
        print("bench_daemon: needs Linux and a C compiler", file=sys.stderr)
        return 1
    if chosen.split:
        for part, spent_us in look(8, 8, chosen.ticks, split=True)["split_us"].items():
            print(f"{part:26} {spent_us:7,} us of wall time per tick")
        return 0
    ours = look(8, 8, chosen.ticks)
    print(f"daemon, {chosen.ticks:,} ticks, 8 GPUs x 8 processes, no driver time")
    print(
        f"CPU per tick, everything on: median {ours['cpu_ms']:.2f} ms, "
        f"95 % {ours['p95_ms']:.2f} ms, "
        f"mean {ours['mean_ms']:.2f} ms with its chores; alerts: {ours['alerts']}"
    )
    print(f"RSS MiB after ticks: {ours['rss_mib']}; descriptors: {ours['descriptors']}")
    if ours["problems"]:
        print(f"problems: {ours['problems']}")
    fewer = max(600, chosen.ticks // 5)
    for title, figures in (
        ("one of the GPUs hangs", look(8, 8, fewer, bench_tick.HANGS)),
        ("16 GPUs x 32 processes", look(16, 32, fewer)),
    ):
        ratio = figures["cpu_ms"] / ours["cpu_ms"]
        print(
            f"{title:40} {figures['cpu_ms']:8.2f} ms CPU  {ratio:6.2f} x the daemon"
            f"  (mean {figures['mean_ms']:.2f} ms)"
        )
    for name, values in bench_tick.run(chosen.runs, 1.0).items():
        if values is None:
            print(f"{name:40} not installed")
        else:
            print(
                f"{name:40} {values[0]:8.2f} ms CPU  {values[0] / ours['cpu_ms']:6.2f} x the daemon"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
