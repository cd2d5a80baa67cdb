"""Planted leaks, asked of gpuwatchd and of Stormlog: what does each name?

``python -m tests.probe.compare_stormlog --python PATH``: PATH is a Python with torch and Stormlog.
The same programs run on the CPU, each time as a job of its own: under ``gpuwatchctl run``, asked by
``gpuwatchctl inspect``; and as Stormlog's pages say for machines without a GPU, with its
CPUMemoryTracker and CPUMemoryProfiler around the program, then ``gpumemprof analyze``. A table is
printed; the seconds are from the start of the job to the answer.
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

PROGRAMS = (
    *("list of losses", "cache by shape", "class attribute", "hooks", "lru_cache", "exceptions"),
    "ring",
)
EVERY_S, COUNTS = 3.0, 4
LENGTH = 8192
"""Numbers in a tensor: large enough that growth is seen from outside as well."""


class Large(leaks.Torch):
    """Makes tensors of 32 KiB and more."""

    def tensor(self, length: int = 8) -> Any:
        return self.torch.ones(LENGTH + length)

    def loss(self) -> Any:
        return (self.torch.ones(LENGTH, requires_grad=True) * 2).square().sum()


def job(name: str, *, stormlog: bool) -> None:
    """Be the job: without anything of a tool, or with Stormlog around it."""
    program = leaks.CLEAN[name] if name in leaks.CLEAN else leaks.LEAKS[name][0]
    kit = Large()
    leaks.KITS.append(kit)
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
    """Return the variables that it names, with their places."""
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
    """Return what it says of a track, and of the function that it was given."""
    told = [*command, "--stormlog"]
    done = subprocess.run(told, env=environ, cwd=folder, capture_output=True, text=True, check=True)
    program = str(Path(command[0]).with_name("gpumemprof"))
    words = ("analyze", "track.json", "--format", "txt", "--output", "analysis.txt")
    subprocess.run([program, *words], cwd=folder, capture_output=True, check=True)
    findings = re.findall(r"\w+ findings: \d+", (Path(folder) / "analysis.txt").read_text())
    seen = json.loads(done.stdout)
    return f"`{seen['function']}`: {seen['grew_mib']:+} MiB; {'; '.join(findings)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.probe.compare_stormlog")
    parser.add_argument("--python", default=sys.executable, help="with torch and Stormlog")
    parser.add_argument("--job", help="be the job of this name")
    parser.add_argument("--stormlog", action="store_true", help="with Stormlog around the job")
    chosen = parser.parse_args()
    if chosen.job:
        job(chosen.job, stormlog=chosen.stormlog)
        return 0
    asked = [chosen.python, "-c", "import stormlog, torch; print(stormlog.__version__)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"skipped: {done.stderr.strip().splitlines()[-1]}")
        return 0
    print(f"| program | gpuwatchd names | s | Stormlog {done.stdout.strip()} prints | s |")
    print("|---|---|---|---|---|")
    for name in PROGRAMS:
        cells = [name]
        for ask in (ask_gpuwatchd, ask_stormlog):
            with tempfile.TemporaryDirectory() as folder:
                ours = {"GPUWATCHD_RUNTIME_DIR": folder, "PYTHONPATH": str(Path.cwd())}
                command = [chosen.python, "-m", "tests.probe.compare_stormlog", "--job", name]
                began_s = time.monotonic()
                answer = ask(command, folder, {**os.environ, **ours})
                cells += [answer, f"{time.monotonic() - began_s:.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
