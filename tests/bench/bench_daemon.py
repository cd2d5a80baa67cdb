"""CPU per tick and memory of the whole daemon: ``python -m tests.bench.bench_daemon``.

The daemon's own parts (source, host, windows, judgement, policy, history, live state, scheduler,
courier) on the stand-in library: 8 GPUs x 8 live processes, one of them leaking, five seconds of
its clock per tick. Beside it, in the same run, bare nvidia-ml-py, nvitop's snapshot and gpustat's
query. Driver time is not in any of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench import bench_tick
from tests.fakenvml import FakeNvml

SETUP = """
import json, resource, sys, tempfile, time
from pathlib import Path
import msgspec
from gpuwatchd import config
from gpuwatchd.daemon import Chores
from gpuwatchd.host import Host, allocator
from gpuwatchd.notify import outbox
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.sources.nvml import NvmlSource
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
courier = outbox.Courier({"desktop": channels["command"], "command": channels["command"]})
pipeline = Pipeline(config=settings, sources=[source], host=Host(), history=history,
                    runtime_dir=folder, courier=courier, wall=clock, mono=lambda: source.at)
chores = Chores()
chores.start()
ticks, rss, fds = int(sys.argv[1]), {}, {}
def now_rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
import os
for _ in range(200):
    pipeline.tick()
cpu = time.process_time()
for tick in range(200, ticks):
    pipeline.tick()
    if tick % 12 == 0:
        history.chores(clock())
        allocator.trim()
    if tick in (1000, 2000, 5000, ticks - 1):
        rss[tick + 1] = round(now_rss(), 1)
        fds[tick + 1] = len(os.listdir("/proc/self/fd"))
cpu = (time.process_time() - cpu) / (ticks - 200) * 1000
state = pipeline.tick().state
print(json.dumps({"cpu_ms": cpu, "rss_mib": rss, "descriptors": fds,
                  "alerts": [a.title for a in state.alerts if a.state == "firing"],
                  "problems": state.problems}))
os._exit(0)
"""


def _memory() -> str | None:
    # The live state lies in the runtime directory, which is memory wherever systemd runs.
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3, help="fresh processes per peer")
    chosen = parser.parse_args()
    if not FakeNvml.available():
        print("bench_daemon: needs Linux and a C compiler", file=sys.stderr)
        return 1
    children = [subprocess.Popen(["sleep", "3600"]) for _ in range(64)]
    try:
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            fake = FakeNvml(Path(folder))
            lines = [f"gpu {g} total=80G reserved=600M base=500M util=90" for g in range(8)]
            lines += [
                f"proc {i // 8} pid={child.pid} mem=2G" + (" rate=200M max=60G" if i == 9 else "")
                for i, child in enumerate(children)
            ]
            fake.write(*lines)
            done = subprocess.run(
                [sys.executable, "-c", SETUP, str(chosen.ticks), folder],
                env=fake.env(), capture_output=True, text=True, check=False, timeout=900,
            )  # fmt: skip
    finally:
        for child in children:
            child.kill()
            child.wait()
    if done.returncode or not done.stdout:
        print(done.stderr, file=sys.stderr)
        return 1
    ours = json.loads(done.stdout.splitlines()[-1])
    print(f"daemon, {chosen.ticks:,} ticks, 8 GPUs x 8 processes, no driver time")
    print(f"CPU per tick, everything on: {ours['cpu_ms']:.2f} ms; alerts: {ours['alerts']}")
    print(f"RSS MiB after ticks: {ours['rss_mib']}; descriptors: {ours['descriptors']}")
    if ours["problems"]:
        print(f"problems: {ours['problems']}")
    peers = bench_tick.run(chosen.runs, 1.0)
    for name, values in peers.items():
        if values is None:
            print(f"{name:40} not installed")
        else:
            print(
                f"{name:40} {values[0]:8.2f} ms CPU  {values[0] / ours['cpu_ms']:6.2f} x the daemon"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
