"""Faults put into the driver, and what each tool shows: ``python -m tests.bench.faults``.

gpuwatchd, nvitop and gpustat run on the same stand-in library with the same fault. What they show
is read from their real output (``faults_views``) and held against the same rules
(``faults_worlds``); a tool that is not installed is left out. ``--only NAME`` runs some of the
faults, ``--verbose`` adds what was shown.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.store import live
from tests.bench import faults_views
from tests.bench.faults_views import Shown, View
from tests.bench.faults_worlds import FAULTS, HOST, Cast, Fault
from tests.conftest import ran
from tests.fakenvml import FakeNvml
from tests.fakenvml.build import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOKS = 3
"""How often a daemon looks before, and again after, a fault that comes while it runs."""
LIMIT_S = 60.0
_CTL = "import sys\nfrom gpuwatchd.cli import main\nsys.exit(main())"
_HOG = f"import time\nheld = bytearray(b'x') * {HOST}\ntime.sleep(600)"


class Result(NamedTuple):
    """What one tool did with one fault."""

    view: View
    broken: tuple[str, ...]
    """The rules that it broke, in words."""


def peers() -> dict[str, tuple[list[str], Callable[[str], dict[str, Shown]]]]:
    """Return the other tools that are installed, with the command and the reader of each."""
    here = Path(sys.executable).parent
    known: dict[str, tuple[list[str], Callable[[str], dict[str, Shown]]]] = {
        "nvitop": (["--once", "--ascii"], faults_views.of_nvitop),
        "gpustat": (["--json"], faults_views.of_gpustat),
    }
    found = {}
    for name, (arguments, reader) in known.items():
        path = which(name, path=str(here)) or which(name)
        if path is not None:
            found[name] = ([path, *arguments], reader)
    return found


def look_ours(fake: FakeNvml, fault: Fault, cast: Cast, kill: Callable[[], None]) -> View:
    """Run the daemon, then ask it; the time is that of the daemon's one look."""
    with tempfile.TemporaryDirectory(dir=fake.folder) as folder:
        env = {**fake.env(), "GPUWATCHD_STATE_DIR": folder, "GPUWATCHD_RUNTIME_DIR": folder}
        daemon = [sys.executable, "-m", "gpuwatchd", "--source", "nvml"]
        began = time.monotonic()
        if fault.before is None:
            fake.write(*fault.lines(cast))
            ran([*daemon, "--once"], env=env, timeout=LIMIT_S)
            wall_s = time.monotonic() - began
        else:
            fake.write(*fault.before(cast))
            with subprocess.Popen(
                [*daemon, "--interval", "500ms"],
                env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ) as running:  # fmt: skip
                try:
                    seen = wait_for_looks(Path(folder), LOOKS)
                    if fault.kills:
                        kill()
                    fake.write(*fault.lines(cast))
                    wait_for_looks(Path(folder), seen + LOOKS)
                finally:
                    running.terminate()
            wall_s = 0.0
        words = [sys.executable, "-c", _CTL, "status", "--json"]
        done = ran(words, env=env, timeout=LIMIT_S)
    text = done.stdout + done.stderr
    try:
        gpus = faults_views.of_gpuwatchctl(done.stdout)
    except (ValueError, KeyError):
        gpus = {}
    return View(gpus, text, wall_s, done.returncode)


def wait_for_looks(folder: Path, count: int) -> int:
    """Wait until a daemon has looked so often; return how often it has."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        state = live.read(folder)
        if state is not None and state.ticks >= count:
            return state.ticks
        time.sleep(0.05)
    raise TimeoutError(f"no {count} looks within {LIMIT_S:g} s")


def look_peer(
    fake: FakeNvml, command: list[str], reader: Callable[[str], dict[str, Shown]]
) -> View:
    """Run another tool once."""
    env = {**fake.env(), "COLUMNS": "110", "LINES": "60", "TERM": "dumb", "NO_COLOR": "1"}
    began = time.monotonic()
    done = ran(command, env=env, timeout=LIMIT_S)
    wall_s = time.monotonic() - began
    gpus: dict[str, Shown] = {}
    if done.returncode == 0:
        gpus = reader(done.stdout)
    return View(gpus, done.stdout + done.stderr, wall_s, done.returncode)


def judge(view: View, fault: Fault, cast: Cast, *, ours: bool) -> Result:
    """Hold what was shown against the rules."""
    rules = (*fault.rules, *(fault.ours if ours else ()))
    return Result(view, tuple(rule.broken for rule in rules if not rule.holds(view, cast)))


@contextlib.contextmanager
def children() -> Iterator[tuple[list[subprocess.Popen[bytes]], Cast]]:
    """Start the processes that the worlds name, and one that holds memory of the host."""
    begun = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    begun.append(subprocess.Popen([sys.executable, "-c", _HOG]))
    try:
        yield begun, Cast(*(child.pid for child in begun[:3]))
    finally:
        for child in begun:
            child.kill()
            child.wait()


def run(names: list[str] | None = None, *, with_peers: bool = True) -> dict[str, dict[str, Result]]:
    """Return fault -> tool -> what it did."""
    tools = peers() if with_peers else {}
    results: dict[str, dict[str, Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for fault in FAULTS:
            if names and fault.name not in names:
                continue
            fake = FakeNvml(Path(folder), *fault.flags)
            if fault.library is not None:
                fake.library_folder = Path(folder) / fault.name
                fake.library_folder.mkdir()
                (fake.library_folder / LIBRARY).write_bytes(fault.library)
            with children() as (begun, cast):
                victim = begun[2]

                def kill(victim: subprocess.Popen[bytes] = victim) -> None:
                    victim.kill()
                    victim.wait()

                row = {"gpuwatchd": judge(
                    look_ours(fake, fault, cast, kill), fault, cast, ours=True
                )}  # fmt: skip
                for name, (command, reader) in tools.items():
                    fake.write(*fault.lines(cast))
                    view = look_peer(fake, command, reader)
                    row[name] = judge(view, fault, cast, ours=False)
            results[fault.name] = row
    return results


def shown(view: View) -> str:
    """Return in a line what a tool showed."""
    parts = []
    for key, gpu in view.gpus.items():
        used = "?" if gpu.used_bytes is None else f"{gpu.used_bytes / 2**30:.2f} GiB"
        who = "processes unknown" if gpu.processes is None else (
            ", ".join(
                f"{h.name}[{h.pid}] "
                + ("?" if h.held_bytes is None else f"{h.held_bytes / 2**30:.2f} GiB")
                for h in gpu.processes
            )
            or "no process"
        )  # fmt: skip
        state = "" if gpu.state == "ok" else f" ({gpu.state})"
        parts.append(f"GPU {key}{state} {used}, {who}")
    if not parts:
        last = [line.strip() for line in view.text.splitlines() if line.strip()]
        parts.append(f"nothing (exit {view.code}): {last[-1] if last else 'no output'}")
    return "; ".join(parts)


def table(results: dict[str, dict[str, Result]], *, verbose: bool) -> str:
    """Return the results for people."""
    tools = list(dict.fromkeys(tool for row in results.values() for tool in row))
    titles = {fault.name: fault.title for fault in FAULTS}
    lines = []
    for name, row in results.items():
        lines.append(f"{titles[name]}")
        for tool, result in row.items():
            verdict = "right" if not result.broken else "WRONG: " + "; ".join(result.broken)
            wall = f" [{result.view.wall_s:.1f} s]" if name == "hang" else ""
            lines.append(f"  {tool:10} {verdict}{wall}")
            if verbose or result.broken:
                lines.append(f"  {'':10} shows {shown(result.view)}")
    lines.append("")
    for tool in tools:
        rows = [row[tool] for row in results.values() if tool in row]
        right = sum(not result.broken for result in rows)
        lines.append(f"{tool:10} right in {right} of {len(rows)}")
    return "\n".join(lines)


def main() -> int:
    """Run and print; 1 when ours broke a rule."""
    parser = argparse.ArgumentParser(description="what each tool shows when the driver is faulty")
    parser.add_argument("--only", action="append", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--verbose", action="store_true", help="say what was shown in every case")
    options = parser.parse_args()
    if not FakeNvml.available():
        print("faults: needs Linux and a C compiler", file=sys.stderr)
        return 1
    results = run(options.only)
    print(table(results, verbose=options.verbose))
    absent = [name for name in ("nvitop", "gpustat") if name not in peers()]
    if absent:
        print(f"not installed: {', '.join(absent)} (make bench installs them)")
    return int(any(row["gpuwatchd"].broken for row in results.values()))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
