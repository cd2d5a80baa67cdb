"""What one look at 8 GPUs with 8 processes each costs: ``python -m tests.bench.bench_tick``.

Against the stand-in library, so the driver's own time is not in the figures. Each row is the
median of several fresh processes; the load is live ``sleep`` processes whose memory grows.
``--gpus`` and ``--processes`` change the machine, ``--runs`` and ``--ticks`` the effort;
``--hang`` lets one GPU hang (the other tools then wait for it and are left out); ``--json`` prints
the same as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.bench.measuring import sleepers
from tests.conftest import ran
from tests.fakenvml import FakeNvml

GPUS, PROCESSES = 8, 8
HANGS = "delay nvmlDeviceGetMemoryInfo* 0 3600000000"
READ = "gpuwatchd: NvmlSource.read"
OURS = "gpuwatchd: NvmlSource.read + Host.processes"
WITH_LIMITS = "gpuwatchd: NvmlSource.read + all limits"

FRAME = """
import json, resource, sys, time
{setup}
ticks = int(sys.argv[1])
for _ in range({warmup}):
    tick()
cpu, wall = time.process_time(), time.perf_counter()
for _ in range(ticks):
    tick()
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([1000 * cpu / ticks, 1000 * wall / ticks, rss / 1024]))
"""

BARE = """
import pynvml as nv
nv.nvmlInit()
handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]
def tick():
    for h in handles:
        nv.nvmlDeviceGetMemoryInfo(h, nv.nvmlMemory_v2)
        nv.nvmlDeviceGetComputeRunningProcesses(h)
        nv.nvmlDeviceGetGraphicsRunningProcesses(h)
        nv.nvmlDeviceGetUtilizationRates(h)
        nv.nvmlDeviceGetTemperature(h, nv.NVML_TEMPERATURE_GPU)
        nv.nvmlDeviceGetPowerUsage(h)
"""
SOURCE = """
from gpuwatchd.collect.nvml.source import NvmlSource
source = NvmlSource()
tick = source.read
"""
WITH_HOST = """
from gpuwatchd.collect.host import Host
from gpuwatchd.collect.nvml.source import NvmlSource
source, host = NvmlSource(), Host()
def tick():
    readings = source.read().readings
    host.processes({use.key.pid for reading in readings for use in reading.uses or ()})
"""
# Limits are read at the first sight of a process and once a minute: here in every tick, of
# processes with a control group each, five deep, with a limit of the kernel on every level.
LIMITS = """
import pathlib, tempfile
from gpuwatchd.collect import control_groups
from gpuwatchd.collect.nvml.source import NvmlSource
shared = pathlib.Path("/dev/shm")  # in memory, as the kernel's own files are
held = tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)
folder = pathlib.Path(held.name)
root, faults, bus = str(folder / "sys/fs/cgroup"), {}, "0000:0a:00.0"
first = NvmlSource().read().readings
pids = [use.key.pid for reading in first for use in reading.uses or ()]
for pid in pids:
    group = pathlib.PurePosixPath("a/b/c/d") / str(pid)
    (folder / f"proc/{pid}").mkdir(parents=True)
    (folder / f"proc/{pid}/cgroup").write_text(f"0::/{group}\\n")
    for above in (group, *list(group.parents)[:-1]):
        (pathlib.Path(root) / above).mkdir(parents=True, exist_ok=True)
        for name in ("dmem.max", "dmem.current"):
            (pathlib.Path(root) / above / name).write_text(f"drm/{bus}/vram0 4294967296\\n")
proc = str(folder / "proc")
source = NvmlSource(proc_root=proc, sys_root=str(folder / "sys"))
source.read()
def tick():
    source._reader._limits._asked.clear()
    source.read()
    known = {}
    for pid in pids:
        group = control_groups.group_of(pid, proc, root)
        control_groups.dmem_limits(group, bus, known, faults, root)
"""
NVITOP = """
from nvitop import Device, take_snapshots
devices = Device.all()
def tick():
    take_snapshots(devices)
"""
GPUSTAT = """
import gpustat
def tick():
    gpustat.new_query()
"""
# name, needed package, set-up, warm-up ticks (ours reads one memory map per tick at first), ticks
ROWS = (
    ("bare nvidia-ml-py", "pynvml", BARE, 5, 200),
    (READ, "pynvml", SOURCE, 5, 200),
    (OURS, "pynvml", WITH_HOST, 70, 200),
    (WITH_LIMITS, "pynvml", LIMITS, 5, 50),
    ("nvitop: take_snapshots", "nvitop", NVITOP, 2, 20),
    ("gpustat: new_query", "gpustat", GPUSTAT, 1, 3),
)


def configuration(pids: list[int], gpus: int = GPUS) -> list[str]:
    """Return the stand-in's world: cards, and as many growing processes on each."""
    lines = [f"gpu {gpu} total=80G reserved=600M base=500M util=90" for gpu in range(gpus)]
    lines += [f"limits {gpu} hard=20G" for gpu in range(gpus)]
    lines += [
        f"proc {index * gpus // len(pids)} pid={pid} mem=2G rate=1M max=8G"
        f" sm={90 * gpus // len(pids)}"
        for index, pid in enumerate(pids)
    ]
    return lines


def measure(fake: FakeNvml, setup: str, warmup: int, ticks: int) -> list[float]:
    """Return [CPU ms per tick, wall ms per tick, peak RSS MB] of one fresh process."""
    script = FRAME.format(setup=setup, warmup=warmup)
    words = [sys.executable, "-c", script, ticks]
    done = ran(words, env=fake.env(), check=True, timeout=300)
    values: list[float] = json.loads(done.stdout.splitlines()[-1])
    return values


def run(
    runs: int,
    factor: float,
    gpus: int = GPUS,
    processes: int = PROCESSES,
    *,
    hang: bool = False,
) -> dict[str, list[float] | None]:
    """Return row -> medians; None where the package is not installed."""
    results: dict[str, list[float] | None] = {}
    with sleepers(gpus * processes) as pids, tempfile.TemporaryDirectory() as folder:
        fake = FakeNvml(Path(folder))
        fake.write(*configuration(pids, gpus), *([HANGS] if hang else ()))
        for name, package, setup, warmup, ticks in ROWS:
            if hang and not name.startswith("gpuwatchd"):
                continue
            if importlib.util.find_spec(package) is None:
                results[name] = None
                continue
            count = max(1, int(ticks * factor))
            if setup is WITH_HOST:
                warmup = max(warmup, gpus * processes + 6)  # noqa: PLW2901
            tries = [measure(fake, setup, warmup, count) for _ in range(runs)]
            results[name] = [statistics.median(column) for column in zip(*tries, strict=True)]
    return results


def table(results: dict[str, list[float] | None], runs: int, machine: str, processes: int) -> str:
    """Return the results for people, with how many times dearer than ours each is."""
    ours = results[OURS]
    lines = [
        f"{machine}, medians of {runs} fresh processes, no driver time",
        f"{'':40} {'CPU ms/tick':>12} {'wall ms':>9} {'RSS MB':>8} {'x ours':>8}",
    ]
    for name, values in results.items():
        if values is None or ours is None:
            lines.append(f"{name:40} not installed")
            continue
        cpu_ms, wall_ms, rss_mb = values
        lines.append(
            f"{name:40} {cpu_ms:12.3f} {wall_ms:9.3f} {rss_mb:8.1f} {cpu_ms / ours[0]:8.2f}"
        )
    read, limits = results[READ], results[WITH_LIMITS]
    if read is not None and limits is not None:
        each_us = 1000.0 * (limits[0] - read[0]) / processes
        lines.append(f"limits: {each_us:.1f} us of CPU a process, at first sight and every 60 s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="cost of one look at 8 GPUs x 8 processes")
    parser.add_argument("--runs", type=int, default=5, help="fresh processes per row")
    parser.add_argument("--ticks", type=float, default=1.0, help="factor on the ticks per process")
    parser.add_argument("--gpus", type=int, default=GPUS)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="on each GPU")
    parser.add_argument("--hang", action="store_true", help="let GPU 0 hang")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not FakeNvml.available():
        print("bench_tick: needs Linux and a C compiler", file=sys.stderr)
        return 1
    gpus, processes = options.gpus, options.processes
    results = run(options.runs, options.ticks, gpus, processes, hang=options.hang)
    machine = f"{gpus} GPUs x {processes} processes" + (", one GPU hangs" if options.hang else "")
    print(
        json.dumps(results)
        if options.json
        else table(results, options.runs, machine, gpus * processes)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
