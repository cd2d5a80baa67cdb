"""Planted leaks, asked of gpuwatchd and of Stormlog: what does each name?

``python -m tests.probe.compare_stormlog --python PATH`` (with torch and Stormlog) prints a table;
seconds are from the start of a job to the answer. Stormlog runs as its pages say for a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.probe import leaks

LEAKING = ("list of losses", "cache by shape", "class attribute", "lru_cache", "exceptions")
EVERY_S, COUNTS = 3.0, 4
STEPS_PER_S, LENGTH = 50, 32_768  # so large that growth is seen from outside as well


def steps() -> Any:
    """Count the steps of a job by the clock: evenly, however busy the machine is."""
    began_s, number = time.monotonic(), 0
    while not leaks.DONE.wait(max(0.0, began_s + number / STEPS_PER_S - time.monotonic())):
        yield number
        number += 1


class Large(leaks.Torch):
    def tensor(self, length: int = 8) -> Any:
        return self.torch.ones(LENGTH + length)

    def loss(self) -> Any:
        return (self.torch.ones(LENGTH, requires_grad=True) * 2).square().sum()


def job(name: str, *, stormlog: bool) -> None:
    leaks.steps = steps  # type: ignore[assignment]
    program = leaks.CLEAN[name] if name in leaks.CLEAN else leaks.LEAKS[name][0]
    leaks.KITS.append(kit := Large())
    if not stormlog:
        program(kit)
        return
    import stormlog as tool  # type: ignore[import-not-found,unused-ignore]

    profiler, tracker = tool.CPUMemoryProfiler(), tool.CPUMemoryTracker(sampling_interval=0.5)
    tracker.start_tracking()
    threading.Timer(EVERY_S * (COUNTS - 1), leaks.DONE.set).start()
    profile = profiler.profile_function(program, kit)
    tracker.stop_tracking()
    tracker.export_events("track.json", format="json")
    grew = tracker.get_statistics()["peak_memory"] - tracker.get_events()[0].memory_allocated
    print(json.dumps({"function": profile.name, "grew_mib": round(grew / 2**20)}))


def ask_gpuwatchd(command: list[str], folder: str, environ: dict[str, str]) -> str:
    ours = str(Path(sys.executable).with_name("gpuwatchctl"))
    with subprocess.Popen([ours, "run", "--", *command], env=environ, cwd=folder) as running:
        try:
            while not (Path(folder) / "probe" / f"{running.pid}.json").exists():
                assert running.poll() is None, command
                time.sleep(0.1)
            asked = [ours, "inspect", str(running.pid), "--every", f"{EVERY_S}s", "--json"]
            done = subprocess.run(asked, env=environ, capture_output=True, check=True)
        finally:
            running.kill()
    data = json.loads(done.stdout)["data"]
    holders = [group["holder"] for group in data["growing"] if group["holder"]]
    named = {f"`{one['name']}` {Path(one['file']).name}:{one['line'] or '-'}" for one in holders}
    return ", ".join(sorted(named)) or data["error"] or "nothing"


def ask_stormlog(command: list[str], folder: str, environ: dict[str, str]) -> str:
    told = [*command, "--stormlog"]
    done = subprocess.run(told, env=environ, cwd=folder, capture_output=True, text=True, check=True)
    program = str(Path(command[0]).with_name("gpumemprof"))
    words = [program, "analyze", "track.json", "--format", "txt", "--output", "analysis.txt"]
    subprocess.run(words, cwd=folder, capture_output=True, check=True)
    findings = re.findall(r"\w+ findings: \d+", (Path(folder) / "analysis.txt").read_text())
    seen = json.loads(done.stdout)
    return f"`{seen['function']}`: {seen['grew_mib']:+} MiB; {'; '.join(findings)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.probe.compare_stormlog")
    parser.add_argument("--python", default=sys.executable, help="with torch and Stormlog")
    parser.add_argument("--job", help="be the job of this name")
    parser.add_argument("--stormlog", action="store_true", help="with Stormlog around the job")
    chosen = parser.parse_args()
    if chosen.job:
        job(chosen.job, stormlog=chosen.stormlog)
        return
    asked = [chosen.python, "-c", "import stormlog, torch; print(stormlog.__version__)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"skipped: {done.stderr.strip().splitlines()[-1]}")
        return
    print(f"| program | gpuwatchd names | s | Stormlog {done.stdout.strip()} prints | s |")
    print("|---|---|---|---|---|")
    for name in (*LEAKING, "ring"):
        cells = [name]
        for ask in (ask_gpuwatchd, ask_stormlog):
            with tempfile.TemporaryDirectory() as folder:
                ours = dict.fromkeys(("GPUWATCHD_RUNTIME_DIR", "GPUWATCHD_STATE_DIR"), folder)
                command = [chosen.python, "-m", "tests.probe.compare_stormlog", "--job", name]
                began_s = time.monotonic()
                answer = ask(command, folder, {**os.environ, **ours, "PYTHONPATH": str(Path.cwd())})
                cells += [answer, f"{time.monotonic() - began_s:.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
