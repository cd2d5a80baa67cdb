"""The gate of the probe: reading the heap leaves the job unharmed.

``python -m tests.probe.gate --rounds 500 [--python PATH ...]``: jobs in 1, 2 and 8 threads build
``tuple(generator)``, ``tuple(map(...))`` and ``f(*generator)`` while another thread reads the heap
in forked children, round after round. Then children are made to hang. No error may reach the job,
no process, pipe or stopped thread may remain. Run under ``-W error``.

This file is the job too (``--job``), on each interpreter: Python 3.8 must read it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

BOOT = Path(__file__).resolve().parents[2] / "gpuwatchd" / "probe" / "boot"
SUPPORTED = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


class Job:
    """Threads that build tuples of ever new sizes, and count what goes wrong."""

    def __init__(self, threads: int) -> None:
        self.errors: List[str] = []
        self.built = [0] * threads
        self.stop = False
        self.threads = [
            threading.Thread(target=self._build, args=(number,), daemon=True)
            for number in range(threads)
        ]
        for thread in self.threads:
            thread.start()

    def _build(self, number: int) -> None:
        def count(*values: object) -> int:
            return len(values)

        while not self.stop:
            for size in (3, 11, 40, 180, 700):
                try:
                    # lists, not numbers: an untracked content would untrack the tuple
                    assert len(tuple([k] for k in range(size))) == size
                    assert len(tuple(map(list, ([k] for k in range(size))))) == size
                    assert count(*([k] for k in range(size))) == size
                except BaseException as error:
                    self.errors.append("{}: {}".format(type(error).__name__, error))
                self.built[number] += 1

    def end(self) -> bool:
        """Stop, and tell whether each thread did."""
        self.stop = True
        for thread in self.threads:
            thread.join(20)
        return not any(thread.is_alive() for thread in self.threads)


def census() -> Dict[str, Any]:
    """Hold every object and its referrers, as a census and a walk do, and for a while."""
    objects = gc.get_objects()
    tuples = [value for value in objects if type(value) is tuple]
    referrers = gc.get_referrers(*tuples[-20:])
    for _ in range(20000):
        pass
    return {"objects": len(objects), "referrers": len(referrers)}


def hang() -> Dict[str, Any]:
    """Wait for a lock that nobody lets go of."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    return {}


def crash() -> Dict[str, Any]:
    os._exit(3)


def children() -> List[str]:
    found = []
    for folder in Path("/proc/self/task").iterdir():
        try:
            found += (folder / "children").read_text().split()
        except OSError:
            continue
    return found


def play(threads: int, rounds: int, hangs: int, *, control: bool) -> Dict[str, Any]:
    """Run one job and return what was seen; as control, read the heap from a thread of the job."""
    sys.path.insert(0, str(BOOT))
    from _gpuwatchd_probe import heap  # type: ignore[import-not-found,unused-ignore]

    heap.in_child(census)
    gc.collect()
    objects = len(gc.get_objects())
    frame: Any = sys._getframe()
    frame.f_trace = traced = Job.end  # as a debugger's
    job = Job(threads)
    files = sorted(os.listdir("/proc/self/fd"))
    failed: Dict[str, int] = {}
    pauses: List[float] = []
    slow: List[str] = []

    def attempt(work: Callable[[], Dict[str, Any]], limit_s: float) -> str:
        try:
            answer = heap.in_child(work, limit_s)
        except heap.HeapError as error:
            return str(error.code)
        pauses.append(answer["pause_ms"])
        return "done"

    for _ in range(rounds):
        if control:
            census()
            continue
        code = attempt(census, 20.0)
        if code != "done":
            failed[code] = failed.get(code, 0) + 1
    codes: Dict[str, int] = {}
    for number in range(hangs):
        built = sum(job.built)
        code = attempt(crash if number % 10 == 9 else hang, 0.02)
        codes[code] = codes.get(code, 0) + 1
        if number % 10 == 0 and threads:
            end = time.monotonic() + 20
            while sum(job.built) == built and time.monotonic() < end:
                time.sleep(0.001)
            if sum(job.built) == built:
                slow.append("the job stands still")
    ended = job.end()
    gc.collect()
    return {
        "objects": len(gc.get_objects()) - objects,
        "traced": frame.f_trace is traced,
        "threads": threads,
        "errors": job.errors[:5],
        "error_count": len(job.errors),
        "built": sum(job.built),
        "rounds": rounds,
        "failed_rounds": failed,
        "hangs": codes,
        "stopped": slow + ([] if ended else ["a thread did not end"]),
        "processes": len(children()),
        "files": len(set(os.listdir("/proc/self/fd")) - set(files)),
        "pause_ms": {"median": sorted(pauses)[len(pauses) // 2], "max": max(pauses)}
        if pauses
        else None,
    }


def interpreters() -> Dict[str, str]:
    """Return the supported interpreters that can be found, by version."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    root = os.environ.get("PYENV_ROOT")
    if root:
        folders = [path / "bin" for path in sorted(Path(root, "versions").glob("3.*"))] + folders
    found: Dict[str, str] = {}
    for version in SUPPORTED:
        for folder in folders:
            path = folder / ("python" + version)
            if version in found or not shutil.which(str(path)):
                continue
            asked = subprocess.run(
                [str(path), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if asked.stdout.strip() == version:
                found[version] = str(path)
    return found


def harmless(seen: Dict[str, Any]) -> bool:
    """Tell whether the job was left alone."""
    return not (
        seen["error_count"] or seen["stopped"] or seen["processes"] or seen["files"]
        or seen["failed_rounds"] or "done" in seen["hangs"] or not seen["traced"]
    )  # fmt: skip


def run(
    python: str, threads: int, rounds: int, hangs: int, *, control: bool = False
) -> Dict[str, Any]:
    """Run the job on an interpreter, with warnings as errors."""
    command = [python, "-W", "error", str(Path(__file__)), "--job", str(threads)]
    command += ["--rounds", str(rounds), "--hangs", str(hangs)]
    command += ["--control"] if control else []
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if answer.returncode or answer.stderr:
        raise RuntimeError(answer.stderr or "exit code {}".format(answer.returncode))
    seen: Dict[str, Any] = json.loads(answer.stdout)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.probe.gate", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--hangs", type=int, default=None, help="as many as rounds")
    parser.add_argument("--python", nargs="*", default=[])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 8])
    parser.add_argument("--job", type=int, help="be the job, with so many threads")
    parser.add_argument("--control", action="store_true", help="read from a thread: must harm")
    chosen = parser.parse_args()
    hangs = 0 if chosen.control else chosen.rounds if chosen.hangs is None else chosen.hangs
    if chosen.job is not None:
        print(json.dumps(play(chosen.job, chosen.rounds, hangs, control=chosen.control)))
        return 0
    found = interpreters()
    named = {python: python for python in chosen.python} or found
    if not chosen.python:
        for version in SUPPORTED:
            if version not in found:
                print(version, "not run: no such interpreter on PATH or in PYENV_ROOT")
    good = True
    for version, python in named.items():
        for threads in chosen.threads:
            hung = hangs if threads == 2 else 0
            seen = run(python, threads, chosen.rounds, hung, control=chosen.control)
            good = good and harmless(seen)
            print(version, "harmless" if harmless(seen) else "HARM", json.dumps(seen), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
