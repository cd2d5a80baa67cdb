"""What ``gpuwatchd fleet`` costs over a real server: ``python -m tests.bench.bench_fleet``.

A Prometheus or VictoriaMetrics of its own, on loopback and in a folder of its own, is filled with
made-up memory of ``--series`` GPUs (:mod:`tests.bench.fleet_mix`); then a worker, in a process of
its own, reads the window and does ``--rounds`` rounds. Times are of that process: processor time
where not called otherwise. "json.loads" is what Python's own parser takes for the same answers.

``--equal N`` compares the verdicts of N of these with those of the daemon's judgement on the same
values; ``--predict-linear`` compares what Prometheus' predict_linear returns on the same data;
``--json`` prints the figures as JSON. 100,000 series take minutes and some GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import psutil

from gpuwatchd.analysis import verdict
from gpuwatchd.core.model import Series, Subject
from gpuwatchd.fleet import config, judging
from gpuwatchd.fleet.client import Client
from gpuwatchd.fleet.judging import Judge
from gpuwatchd.fleet.state import round_state
from gpuwatchd.fleet.worker import LAG_S, Worker
from tests.bench import fleet_data, fleet_mix, fleet_rules
from tests.fleet import servers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Finding

MIB = 2.0**20
PARSED_SERIES = 10_000
"""Up to so many, Python's own parser reads the same answers, in another process."""


class CountingClient(Client):
    """A client that counts what it was sent, and what Python's parser takes for it."""

    def __init__(self, fleet: config.Fleet, *, parse: bool) -> None:
        super().__init__(fleet)
        self.parse, self.lengths, self.parsed_s = parse, [0], [0.0]

    def _ask(self, path: str, form: Mapping[str, str] | None = None) -> bytes:
        content = super()._ask(path, form)
        self.lengths.append(len(content))
        if self.parse:
            begun_s = time.thread_time()
            json.loads(content)
            self.parsed_s.append(time.thread_time() - begun_s)
        return content

    def taken(self) -> tuple[int, float]:
        """Return bytes and seconds since the last time."""
        out = sum(self.lengths), sum(self.parsed_s)
        self.lengths, self.parsed_s = [0], [0.0]
        return out


def work(file: Path, first_s: float, rounds: int, server: int, *, parse: bool) -> dict[str, Any]:
    """Do a first round and some more; return what each took."""
    fleet = config.load(file)
    client = CountingClient(fleet, parse=parse)
    worker, judge = Worker(fleet, client), Judge(fleet.detection, fleet.policy)
    screened_s = [0.0]
    screens = judging.candidates

    def timed(*given: Any) -> list[int]:
        begun_s = time.process_time()
        found = screens(*given)
        screened_s.append(time.process_time() - begun_s)
        return found

    judging.candidates = timed  # type: ignore[assignment]
    out: list[dict[str, float]] = []
    for k in range(rounds + 1):
        wall_s, cpu_s, server_s = time.perf_counter(), time.process_time(), _cpu_s(server)
        worker.round(first_s + 60.0 * k + LAG_S)
        asked_wall_s, asked_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        if not parse:
            judge.round(worker.rings)
            msgspec.json.encode(round_state(worker, judge))
        length, parsed_s = client.taken()
        out.append(
            {
                "ask_wall_s": asked_wall_s,
                "ask_s": asked_s,
                "server_s": _cpu_s(server) - server_s,
                "screens_s": screened_s[-1],
                "judge_s": time.process_time() - cpu_s - asked_s - screened_s[-1],
                "wall_s": time.perf_counter() - wall_s,
                "bytes": length,
                "json_s": parsed_s,
                "judged": judge.judged,
            }
        )
    return {
        "gpus": len(worker.rings.gpus), "backend": client.backend, "failures": worker.failures,
        "dropped": worker.rings.dropped, "found": len(judge.findings),
        "peak_mib": _peak_mib(), "rounds": out,
    }  # fmt: skip


def _cpu_s(pid: int) -> float:
    """Return what another process has spent."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _peak_mib() -> float:
    """Return the largest resident memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss begins with that of whoever started the process
        line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB


def worker_process(
    file: Path, first_s: float, rounds: int, server: int, *, parse: bool
) -> dict[str, Any]:
    """Let a worker run in a process of its own."""
    words = [
        sys.executable, "-m", "tests.bench.bench_fleet", "--worker", str(file),
        str(first_s), str(rounds), str(server), str(int(parse)),
    ]  # fmt: skip
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


class Watched:
    """The memory of another process while a block runs."""

    def __init__(self, server: servers.Server) -> None:
        self._process, self._stop = psutil.Process(server.pid), threading.Event()
        self._heap = f"{server.url}/debug/pprof/heap?gc=1"
        self.before_mib = self._kept_mib()
        self.peak_mib = self.after_mib = self.kept_mib = self.before_mib
        self._thread = threading.Thread(target=self._look)

    def now_mib(self) -> float:
        """Return what is resident."""
        return float(self._process.memory_info().rss / MIB)

    def _kept_mib(self) -> float:
        """Return what is resident once the server has collected its garbage."""
        with urllib.request.urlopen(self._heap, timeout=60) as answer:
            answer.read()
        time.sleep(2)
        return self.now_mib()

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            self.peak_mib = max(self.peak_mib, self.now_mib())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.after_mib = self.now_mib()
        self.kept_mib = self._kept_mib()


def measure(backend: str, count: int, rounds: int) -> dict[str, Any]:
    """Fill a server, let a worker run, and return the figures."""
    mix = fleet_mix.make(count, fleet_data.WINDOW + rounds)
    end_s = float(int(time.time()) // 60 * 60 - 120)
    first_s = end_s - 60.0 * rounds
    with tempfile.TemporaryDirectory() as name, servers.running(backend, Path(name)) as server:
        begun_s = time.perf_counter()
        fleet_data.fill(server, mix, end_s, fleet_data.WINDOW - 3)
        filled_s = time.perf_counter() - begun_s
        del mix
        file = fleet_data.fleet_toml(server, Path(name))
        with Watched(server) as watched:
            figures = worker_process(file, first_s, rounds, server.pid, parse=False)
        parsed = figures  # whose seconds of that are 0
        if count <= PARSED_SERIES:
            parsed = worker_process(file, first_s, rounds, server.pid, parse=True)
    return figures | {
        "series": count, "filled_s": filled_s, "parsed": parsed["rounds"],
        "server_before_mib": watched.before_mib, "server_peak_mib": watched.peak_mib,
        "server_after_mib": watched.after_mib, "server_kept_mib": watched.kept_mib,
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """Return the figures of one server and size for people."""
    cold, *ticks = found["rounds"]
    cold_parsed, *ticks_parsed = found["parsed"]
    tick = {key: statistics.median(row[key] for row in ticks) for key in cold}
    beside = ["", ""]
    if json_s := cold_parsed["json_s"]:
        tick_json_s = statistics.median(row["json_s"] for row in ticks_parsed)
        wall = f"wall {cold['ask_wall_s'] / json_s:.2f} x"
        beside = [
            f"; json.loads {json_s:.2f} s: {cold['ask_s'] / json_s:.2f} x, {wall}",
            f"; json.loads {tick_json_s:.3f} s: {tick['ask_s'] / tick_json_s:.2f} x",
        ]
    cpu_s = tick["ask_s"] + tick["screens_s"] + tick["judge_s"]
    count, before_mib = found["series"], found["server_before_mib"]
    return f"""\
{found["backend"]}, {count:,} series, filled in {found["filled_s"]:.0f} s;\
 {found["gpus"]:,} GPUs, dropped {found["dropped"]}, failures {found["failures"]}
  first   {cold["ask_wall_s"]:.2f} s wall, {cold["ask_s"]:.2f} s CPU, {cold["bytes"] / 1e6:.1f} MB\
{beside[0]}
          screens {cold["screens_s"]:.2f} s, judge {cold["judge_s"]:.2f} s of {cold["judged"]:.0f}
  round   {cpu_s:.2f} s CPU: ask {tick["ask_s"]:.3f}, screens {tick["screens_s"]:.3f},\
 judge {tick["judge_s"]:.3f} of {tick["judged"]:.0f}; {tick["wall_s"]:.2f} s wall;\
 median of {len(ticks)}
          {tick["bytes"] / 1e6:.2f} MB in {tick["ask_wall_s"]:.2f} s wall{beside[1]}
  series  {cold["ask_s"] / count * 1e6:.0f} us at first, {cpu_s / count * 1e6:.0f} us and\
 {tick["bytes"] / count:.0f} bytes a round
  memory  worker {found["peak_mib"]:.0f} MiB at most; server {before_mib:.0f} MiB before,\
 {found["server_peak_mib"]:.0f} at most, {found["server_after_mib"]:.0f} after,\
 {found["server_kept_mib"]:.0f} without garbage ({found["server_kept_mib"] / before_mib - 1:+.1%})
  server  {cold["server_s"]:.2f} s CPU at first, {tick["server_s"]:.2f} s a round"""


def equal(backend: str, count: int) -> bool:
    """Compare verdicts over a server with those on the very values; print what differs."""
    mix = fleet_mix.make(count, fleet_data.WINDOW)
    end_s = float(int(time.time()) // 60 * 60 - 120)
    with tempfile.TemporaryDirectory() as name, servers.running(backend, Path(name)) as server:
        fleet_data.fill(server, mix, end_s, fleet_data.WINDOW - 3)
        fleet = config.load(fleet_data.fleet_toml(server, Path(name)))
        worker, judge = Worker(fleet, Client(fleet)), Judge(fleet.detection, fleet.policy)
        worker.round(end_s + LAG_S)
        judge.round(worker.rings)
    rings, different, tiers = worker.rings, [], dict.fromkeys(("none", "watch", "alert"), 0)
    t_s = np.arange(1.0 - fleet_data.WINDOW, 1.0) * 60.0 + end_s
    for row, gpu in enumerate(rings.gpus):
        k = fleet_data.row_of(gpu.uuid)
        # Where a job begins is the fleet's to say: the daemon sees processes.
        begins = max(int(rings.since[row] - rings.end) + fleet_data.WINDOW - 1, 0)
        daemon = verdict.judge(
            Series(
                subject=Subject(device_uid=gpu.id),
                t_s=t_s[begins:],
                used_bytes=mix.used[k, begins:].astype(np.float64) * MIB,
                limit_bytes=fleet_mix.LIMIT_MIB * MIB,
                total_bytes=fleet_mix.TOTAL_MIB * MIB,
            ),
            fleet.detection,
        )
        tiers[daemon.tier] += 1
        kept = judge.findings.get(row)
        fleets = kept or verdict.judge(judging.series_of(rings, row), fleet.detection)
        # What the screens settle is judged here all the same: they may lose nothing.
        if not same(fleets, daemon) or (kept is None and daemon.tier != "none"):
            different.append(f"  {fleet_mix.KINDS[mix.kind[k]]} {gpu.id}")
    print(
        f"{backend}: {len(rings.gpus) - len(different)} of {count} verdicts are equal"
        f" ({', '.join(f'{number} {tier}' for tier, number in tiers.items())})"
    )
    print("\n".join(different), end="\n" if different else "")
    return not different and len(rings.gpus) == count


def same(one: Finding, other: Finding) -> bool:
    """Say whether two verdicts agree: words exactly, numbers within a millionth."""
    return _same(msgspec.to_builtins(one), msgspec.to_builtins(other))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-6, atol=0.0, equal_nan=True))
    return bool(one == other)


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, nargs="+", default=[1000])
    parser.add_argument("--server", nargs="+", choices=servers.BINARIES)
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first")
    parser.add_argument("--equal", type=int, metavar="N", help="compare N verdicts")
    parser.add_argument("--predict-linear", action="store_true", help="ask Prometheus for that too")
    parser.add_argument("--hours", type=int, default=6, help="of the evening of --predict-linear")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        file, first_s, *numbers, parse = options.worker
        rounds, server = map(int, numbers)
        print(json.dumps(work(Path(file), float(first_s), rounds, server, parse=parse == "1")))
        return 0
    wanted = options.server or list(servers.BINARIES)
    backends = [name for name in wanted if shutil.which(servers.BINARIES[name])]
    for name in wanted:
        if name not in backends:
            print(f"bench_fleet: {servers.BINARIES[name]} is not installed", file=sys.stderr)
    if options.equal:
        return max(not equal(name, options.equal) for name in backends)
    if options.predict_linear:
        for count in options.series:
            print(fleet_rules.compare(count, options.hours), flush=True)
        return 0
    for count in options.series:
        for name in backends:
            found = measure(name, count, options.rounds)
            print(json.dumps(found) if options.json else table(found), flush=True)
    return 0 if backends else 1


if __name__ == "__main__":
    sys.exit(main())
