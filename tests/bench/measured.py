"""One measured program: ``python -m tests.bench.measured PROGRAM HOT COLD PAUSE_S [CONFIG]``.

It does ``HOT`` ticks without a pause, prints ``ready``, waits for a line with the seconds to wait
yet, does ``COLD`` ticks with ``PAUSE_S`` of sleep between them, and prints its figures as JSON.
The clock of its world goes on by five seconds a tick, however long the pause really is. What it
spends while it sleeps (threads that wake) is counted as of five seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY = "libnvidia-ml.so.1"
INTERVAL_S = 5.0
WRITE_BACK_S = 30.0
"""Linux writes changed pages to disk after so long; a page that changes again is written again."""
SKIPPED_SHARE = 0.2
"""Of the hot ticks: a young daemon flushes more often."""


class Spent(NamedTuple):
    """What the process has spent so far, its threads and ended children included."""

    cpu_s: float
    own_s: float
    """Of it, the thread that asks."""
    wakeups: float
    written_bytes: float
    passed_bytes: float
    """Given to write(), wherever it goes."""

    @classmethod
    def now(cls, *, files: bool = True) -> Spent:
        """Return it; ``files``: with what was written, which takes longer."""
        own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        cpu_s = time.process_time() + children.ru_utime + children.ru_stime
        io = dict.fromkeys(("write_bytes", "wchar"), 0)
        if files and Path("/proc/self/io").exists():
            lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
            io = {name: int(value) for name, value in (line.split(": ") for line in lines)}
        return cls(cpu_s, time.thread_time(), own.ru_nvcsw, io["write_bytes"], io["wchar"])


class Pace:
    """The clock of a measured program, and its pauses; stands in for the module ``time``."""

    def __init__(self, hot: int, cold: int, pause_s: float) -> None:
        self._hot, self._cold, self.slowness = hot, cold, pause_s / INTERVAL_S
        self._turns = 0
        self._ahead_s = 0.0
        self._start = time.time(), time.monotonic()
        self._library = ctypes.CDLL(LIBRARY)
        self._library.fakenvml_set_time.argtypes = (ctypes.c_double,)
        self._each: list[float] = []
        self._hot_each: list[float] = []
        self._wakeups = self._cold_from_s = 0.0
        self._before = self._awake = Spent.now()
        self._hot_from: tuple[float, Spent] = 0.0, self._before
        self.folder = ""
        """Where it keeps files that are to be written to disk."""
        self._go_on(0.0)

    def wait(self, seconds: float, sleep: Callable[[float], object] = time.sleep) -> None:
        """End a tick: wait for so many seconds of the world."""
        self._turns += 1
        now = Spent.now(files=False)
        if self._turns < self._hot:
            self._hot_each.append(now.cpu_s - self._awake.cpu_s)
            if self._turns == int(self._hot * SKIPPED_SHARE):
                self._hot_from = self._ahead_s, Spent.now()
                self._hot_each.clear()
        elif self._turns == self._hot:
            self._begin()
        else:
            slept = Spent(*(b - a for a, b in zip(self._before, self._awake, strict=True)))
            # Other threads go on waking for as long as the pause of the world lasts.
            others, missed = slept.cpu_s - slept.own_s, 1 / self.slowness - 1
            self._each.append(now.cpu_s - self._before.cpu_s + others * missed)
            self._wakeups += now.wakeups - self._before.wakeups + (slept.wakeups - 1) * missed
        if len(self._each) == self._cold:
            self._end()
        self._go_on(seconds)
        self._before = Spent.now(files=False)
        if self._turns >= self._hot:
            sleep(seconds * self.slowness)
        self._awake = Spent.now(files=False)

    def time(self) -> float:
        """Return the time of the world, epoch seconds."""
        return self._start[0] + self._ahead_s

    def monotonic(self) -> float:
        """Return the monotonic time of the world."""
        return self._start[1] + self._ahead_s

    def _go_on(self, seconds: float) -> None:
        before_s, self._ahead_s = self._ahead_s, self._ahead_s + seconds
        self._library.fakenvml_set_time(self.time())
        if self.folder and before_s // WRITE_BACK_S != self._ahead_s // WRITE_BACK_S:
            for file in Path(self.folder).glob("*.db*"):
                handle = os.open(file, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)

    def _begin(self) -> None:
        from_s, before = self._hot_from
        now, took_s = Spent.now(), self._ahead_s - from_s
        usual_s = statistics.median(self._hot_each)
        self._hot_figures = {
            "hot_tick_ms": 1000 * usual_s,
            "chores_ms_per_minute": 60_000 * sum(s - usual_s for s in self._hot_each) / took_s,
            "written_mb_per_day": (now.written_bytes - before.written_bytes) * 0.0864 / took_s,
            "passed_mb_per_day": (now.passed_bytes - before.passed_bytes) * 0.0864 / took_s,
        }
        print("ready", flush=True)
        time.sleep(float(sys.stdin.readline() or 0))
        self._cold_from_s = self._ahead_s

    def _end(self) -> NoReturn:
        lasted_s = self._ahead_s - self._cold_from_s
        figures = {
            "tick_ms": 1000 * statistics.median(self._each),
            "mean_ms": 1000 * statistics.fmean(self._each),
            "core_percent": 100 * sum(self._each) / lasted_s,
            "cpu_s_per_hour": 3600 * sum(self._each) / lasted_s,
            "wakeups_per_hour": self._wakeups * 3600 / lasted_s,
            **self._hot_figures,
            **_memory(),
        }
        print(json.dumps(figures), flush=True)
        os._exit(0)


def _memory() -> dict[str, float]:
    """Return the memory of this process, MiB: resident, and its proportional share."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    sizes = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
    return {"resident_mib": sizes["Rss"] / 1024, "proportional_mib": sizes["Pss"] / 1024}


def daemon(pace: Pace, file: str) -> None:
    """Run the daemon as it is, with the clock of the world."""
    from gpuwatchd.collect import selection
    from gpuwatchd.collect.nvml.source import NvmlSource
    from gpuwatchd.daemon import main
    from gpuwatchd.service.own_process import Wakeup
    from gpuwatchd.store.writer import History

    class Source(NvmlSource):
        now_s = property(lambda _: pace.time())

        def __init__(self) -> None:
            super().__init__(clock=pace.time, monotonic=pace.monotonic)

    wait = Wakeup.wait
    for owner, name, value in (
        (selection, "make", lambda *_: Source()),
        (main, "time", pace),
        (History, "check", lambda _: None),  # weekly: it has no part in an hour
        (Wakeup, "wait", lambda it, s: pace.wait(s, lambda s: wait(it, s))),
    ):
        setattr(owner, name, value)
    pace.folder = os.environ["GPUWATCHD_STATE_DIR"]
    main.main(["--config", file, "--source", "nvml", "--log-level", "error"])


def bare() -> Callable[[], object]:
    """Return a look by nvidia-ml-py alone."""
    import pynvml as nv

    nv.nvmlInit()
    cards = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]

    def tick() -> None:
        for card in cards:
            nv.nvmlDeviceGetMemoryInfo(card, nv.nvmlMemory_v2)
            nv.nvmlDeviceGetComputeRunningProcesses(card)
            nv.nvmlDeviceGetGraphicsRunningProcesses(card)
            nv.nvmlDeviceGetUtilizationRates(card)
            nv.nvmlDeviceGetTemperature(card, nv.NVML_TEMPERATURE_GPU)
            nv.nvmlDeviceGetPowerUsage(card)

    return tick


def floor() -> Callable[[], object]:
    """Return the same calls by ctypes, into buffers that are there."""
    library = ctypes.CDLL(LIBRARY)
    library.nvmlInit_v2()
    count, room, memory = ctypes.c_uint(), ctypes.c_uint(), (ctypes.c_ulonglong * 5)()
    memory[0] = 5 * 8 | 2 << 24  # size and version of nvmlMemory_v2_t
    entries, rates, number = (ctypes.c_char * 24 * 2048)(), (ctypes.c_uint * 2)(), ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    cards = [ctypes.c_void_p() for _ in range(count.value)]
    for index, card in enumerate(cards):
        library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card))
    listed = ctypes.byref(room), entries
    calls = (
        (library.nvmlDeviceGetMemoryInfo_v2, (memory,)),
        (library.nvmlDeviceGetComputeRunningProcesses_v3, listed),
        (library.nvmlDeviceGetGraphicsRunningProcesses_v3, listed),
        (library.nvmlDeviceGetUtilizationRates, (rates,)),
        (library.nvmlDeviceGetTemperature, (0, ctypes.byref(number))),
        (library.nvmlDeviceGetPowerUsage, (ctypes.byref(number),)),
    )

    def tick() -> None:
        for card in cards:
            for call, more in calls:
                room.value = len(entries)
                if call(card, *more):
                    raise RuntimeError(call.__name__)

    return tick


def nvitop() -> Callable[[], object]:
    """Return nvitop's snapshot of all cards and processes."""
    import nvitop as it

    devices = it.Device.all()
    return lambda: it.take_snapshots(devices)


def gpustat() -> Callable[[], object]:
    """Return gpustat's query."""
    import gpustat as it

    query: Callable[[], object] = it.new_query
    return query


def exporter() -> Callable[[], object]:
    """Return one update of nvitop-exporter's page, as it makes one a second by itself."""
    import nvitop as it
    from nvitop_exporter.exporter import PrometheusExporter

    made = PrometheusExporter(it.Device.all(), hostname="bench", interval=INTERVAL_S)

    def tick() -> None:
        made.update_host()
        for device in made.devices:
            made.update_device(device)

    return tick


PROGRAMS: dict[str, Callable[[], Callable[[], object]]] = {
    "floor": floor, "bare": bare, "nvitop": nvitop, "gpustat": gpustat,
    "exporter": exporter,
}  # fmt: skip


def main() -> None:
    """Measure the program that is named."""
    name, hot, cold, pause_s = sys.argv[1:5]
    pace = Pace(int(hot), int(cold), float(pause_s))
    if name == "daemon":
        daemon(pace, sys.argv[5])
    tick = PROGRAMS[name]()
    while True:
        tick()
        pace.wait(INTERVAL_S)


if __name__ == "__main__":
    main()
