# ruff: noqa: INP001, T201
"""Run every leaker on this machine's GPU under a daemon of its own, and record what is seen.

One command for whoever has a GPU: a folder with one trace per leaker, where it was taken, and what
gpuwatchd said of it while it ran. Nothing of your own gpuwatchd is read or changed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from _gpu import piped
from _machine import Failure, facts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HERE: Final = Path(__file__).resolve().parent
SNAPSHOT_OF: Final = "leak_gradual"
"""The leaker whose torch snapshot is kept."""
_POLL_S: Final = 10.0
_GRACE_S: Final = 180.0
"""Importing torch and ending may take so long on a cold machine."""
_START_S: Final = 60.0
_ASK: Final = "import sys; from gpuwatchd.cli import main; sys.exit(main(sys.argv[1:]))"


class Part(NamedTuple):
    """One leaker, how it is run, and what should be said of it."""

    name: str
    flags: tuple[str, ...]
    patterns: tuple[str, ...]
    leaks: bool
    host: bool = False
    """Whether it is the verdict on the host's memory that counts."""


def plan(minutes: float) -> tuple[Part, ...]:
    """Return what is run, each for so long; whatever repeats does so often enough to be seen."""
    seconds = 60.0 * minutes

    def span(share: float) -> str:
        return f"{seconds * share:g}"

    leaks, calm = True, False
    return (
        Part("leak_gradual", ("--rate", "800"), ("gradual",), leaks),
        Part("leak_steps", ("--rate", "800", "--every", span(1 / 10)), ("step",), leaks),
        Part("leak_cyclic", ("--rate", "800", "--period", span(1 / 16)), ("cyclic",), leaks),
        Part("leak_host", ("--rate", "400"), ("gradual",), leaks, host=True),
        Part(
            "warmup_then_flat",
            ("--rate", "1500", "--tau", span(1 / 8)),
            ("plateau", "stable"),
            calm,
        ),
        Part(
            "sawtooth", ("--rate", "3000", "--period", span(1 / 12)), ("sawtooth", "stable"), calm
        ),
        Part("spike", ("--rate", "4000", "--after", span(1 / 3)), ("spike", "stable"), calm),
    )


def command_of(part: Part, flags: argparse.Namespace, folder: Path) -> list[str]:
    """Return how a leaker is started."""
    more = ["--snapshot", str(folder / f"{part.name}.pickle")] if part.name == SNAPSHOT_OF else []
    return [
        sys.executable,
        str(HERE / f"{part.name}.py"),
        *("--device", flags.device, "--seconds", f"{60 * flags.minutes:g}"),
        *part.flags,
        *more,
    ]


class Watching:
    """A daemon in directories of its own, and questions to it."""

    def __init__(self, room: Path, interval: str) -> None:
        self._env = os.environ | {
            "GPUWATCHD_STATE_DIR": str(room / "state"),
            "GPUWATCHD_RUNTIME_DIR": str(room / "run"),
        }
        for name in ("state", "run"):
            (room / name).mkdir(mode=0o700)
        config = room / "config.toml"
        config.write_text("[policy]\nchannels = []\n", encoding="utf-8")
        self._log = room / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gpuwatchd", "--source", "nvml"),
                    *("--interval", interval, "--config", str(config)),
                ],
                env=self._env,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def begin(self) -> None:
        """Wait until it sees a GPU.

        Raises
        ------
        Failure
            When it ends, or sees none.
        """
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            if self._process.poll() is not None:
                break
            if self.devices():
                return
            time.sleep(0.2)
        self.end()
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise Failure(f"the daemon sees no GPU: {said[-1] if said else 'it says nothing'}")

    def ask(self, *words: str) -> str:
        """Return what gpuwatchctl answers; empty when it has no answer."""
        done = subprocess.run(
            [sys.executable, "-c", _ASK, *words],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.stdout if done.returncode == 0 else ""

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices as the daemon sees them now."""
        answer = self.ask("status", "--json")
        found = json.loads(answer) if answer else {}
        # Without the daemon's own reading the answer would be a look of gpuwatchctl's.
        if found.get("source") != "state-file":
            return []
        return [one for one in found.get("data") or [] if one.get("state") == "ok"]

    def end(self) -> None:
        """End it; it writes down what it knows."""
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def verdict_of(part: Part, pid: int, devices: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what is said of a leaker; None as long as nothing is."""
    field = "host_verdict" if part.host else "verdict"
    for device in devices:
        for process in device.get("processes") or []:
            if process["pid"] == pid:
                found: dict[str, Any] | None = process[field]
                return found
    return None


def run_part(
    part: Part, flags: argparse.Namespace, folder: Path, watching: Watching
) -> dict[str, Any]:
    """Run one leaker to its end; return what was seen of it."""
    command = command_of(part, flags, folder)
    began = datetime.now(UTC)
    clock_s = time.monotonic()
    seen: dict[str, Any] = {"leaker": part.name, "command": command[1:], "listed": False}
    seen |= {"pattern": None, "tier": None, "watched_after_s": None, "alerted_after_s": None}
    with (folder / f"{part.name}.log").open("wb") as log:
        leaker = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            while leaker.poll() is None:
                age_s = time.monotonic() - clock_s
                if age_s > 60 * flags.minutes + _GRACE_S:
                    raise Failure(f"{part.name} does not end")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    leaker.wait(min(_POLL_S, 6 * flags.minutes))
                _note(seen, part, leaker.pid, watching.devices(), time.monotonic() - clock_s)
        finally:
            if leaker.poll() is None:
                leaker.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    leaker.wait(30)
            if leaker.poll() is None:
                leaker.kill()
                leaker.wait()
    seen |= {"pid": leaker.pid, "exit_code": leaker.returncode}
    return seen | {"began": _stamp(began), "ended": _stamp(datetime.now(UTC))}


def _note(
    seen: dict[str, Any], part: Part, pid: int, devices: list[dict[str, Any]], age_s: float
) -> None:
    pids = {process["pid"] for device in devices for process in device.get("processes") or []}
    seen["listed"] = seen["listed"] or pid in pids
    verdict = verdict_of(part, pid, devices)
    if verdict is None:
        return
    seen["pattern"], seen["tier"] = verdict["pattern"], verdict["tier"]
    for tier, key in (("watch", "watched_after_s"), ("alert", "alerted_after_s")):
        if verdict["tier"] in {tier, "alert"} and seen[key] is None:
            seen[key] = round(age_s)


def export(seen: dict[str, Any], folder: Path, watching: Watching) -> list[str]:
    """Write the traces of one leaker; return the files' names."""
    span = ("--since", seen["began"], "--until", seen["ended"], "--format", "csv")
    written = []
    for name, words in (
        (f"{seen['leaker']}.csv", ("--pid", str(seen["pid"]))),
        (f"{seen['leaker']}.device.csv", ()),
    ):
        rows = watching.ask("history", *span, *words)
        if rows.count("\n") > 1:
            (folder / name).write_text(rows, encoding="utf-8")
            written.append(name)
    snapshot = f"{seen['leaker']}.pickle"
    return [*written, snapshot] if (folder / snapshot).exists() else written


def judged(part: Part, seen: dict[str, Any]) -> str:
    """Return how what was said compares with what should be: right, wrong, or why unknown."""
    if seen["exit_code"] != 0:
        return f"the leaker failed, see {part.name}.log"
    if not seen["listed"]:
        return "the driver did not list it (a container?)"
    if not part.leaks:
        return "right" if seen["alerted_after_s"] is None else "wrong: a false alarm"
    # How soon a watch becomes an alert depends on how much of the card has been lost by then.
    if seen["watched_after_s"] is None:
        return "wrong: not noticed"
    if seen["pattern"] in part.patterns:
        return "right"
    return f"wrong: {seen['pattern']} instead of {' or '.join(part.patterns)}"


def folder_for(flags: argparse.Namespace, facts: dict[str, Any]) -> Path:
    """Make the folder that everything goes to.

    Raises
    ------
    Failure
        When it cannot be made, or holds something already.
    """
    gpu = re.sub(r"[^a-z0-9]+", "-", str(facts.get("gpu", "gpu")).lower()).strip("-")
    folder = Path(flags.output or f"recorded-{gpu}-{datetime.now(UTC):%Y%m%d-%H%M}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Failure(f"{folder}: is not empty; name another one with --output")
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror}") from error
    return folder


def record(parts: Sequence[Part], flags: argparse.Namespace) -> int:
    """Do it; return the exit code: 3 when something was not said as it should be."""
    facts = facts_of(flags.device)
    folder = folder_for(flags, facts)
    print(f"{facts.get('gpu', flags.device)}, driver {facts['driver']}, torch {facts['torch']}")
    began, runs, interrupted = _stamp(datetime.now(UTC)), [], False
    with tempfile.TemporaryDirectory(prefix="gpuwatchd-record-") as room:
        watching = Watching(Path(room), flags.interval)
        try:
            watching.begin()
            for number, part in enumerate(parts):
                print(f"{part.name}: {flags.minutes:g} min", flush=True)
                runs.append((part, run_part(part, flags, folder, watching)))
                time.sleep(flags.pause if number + 1 < len(parts) else 0.0)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            watching.end()
        for part, seen in runs:
            seen["files"] = export(seen, folder, watching)
            seen["result"] = judged(part, seen)
    provenance = facts | {
        "command": ["record.py", *sys.argv[1:]],
        "date": began,
        "interval": flags.interval,
        "runs": [seen for _, seen in runs],
    }
    text = json.dumps(provenance, indent=2) + "\n"
    (folder / "provenance.json").write_text(text, encoding="utf-8")
    show(runs)
    print(f"written: {folder}")
    if interrupted:
        return 130
    return 0 if all(seen["result"] == "right" for _, seen in runs) else 3


def show(runs: Iterable[tuple[Part, dict[str, Any]]]) -> None:
    """Print what was found, one line per leaker."""
    print(f"{'leaker':<18}{'said':<12}{'watch after':<13}{'alert after':<13}result")
    for part, seen in runs:
        watch, alert = (_minutes(seen[key]) for key in ("watched_after_s", "alerted_after_s"))
        said = seen["pattern"] or "nothing"
        print(f"{part.name:<18}{said:<12}{watch:<13}{alert:<13}{seen['result']}")


def _minutes(after_s: float | None) -> str:
    return "never" if after_s is None else f"{after_s / 60:.1f} min"


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    names = [part.name for part in plan(1.0)]
    flags.add_argument("--minutes", type=float, default=12.0, metavar="N", help="each (12)")
    flags.add_argument("--device", default="cuda:0", help="torch device (default %(default)s)")
    flags.add_argument("--only", nargs="+", choices=names, metavar="LEAKER", help="these alone")
    flags.add_argument("--interval", default="2s", help="between two samples (%(default)s)")
    flags.add_argument(
        "--pause", type=float, default=15.0, metavar="S", help="between two leakers (%(default)g)"
    )
    flags.add_argument("-o", "--output", metavar="DIR", help="where to (a new folder here)")
    flags.add_argument("--dry-run", action="store_true", help="print the plan; needs no GPU")
    return flags


def main(argv: list[str] | None = None) -> int:
    """Record; return the exit code."""
    parser = _parser()
    flags = parser.parse_args(argv)
    if not flags.minutes > 0 or flags.pause < 0:
        parser.error("--minutes must be more than 0, --pause not less")
    parts = [part for part in plan(flags.minutes) if not flags.only or part.name in flags.only]
    if flags.dry_run:
        for part in parts:
            said = (
                f"watch or alert: {part.patterns[0]}"
                if part.leaks
                else f"no alert: {part.patterns[0]}"
            )
            print(f"{shlex.join(command_of(part, flags, Path('DIR'))[1:])}\n    {said}")
        total = len(parts) * flags.minutes + (len(parts) - 1) * flags.pause / 60
        print(f"{len(parts)} leakers, about {total:.0f} min in all")
        return 0
    try:
        return record(parts, flags)
    except Failure as error:
        print(f"record: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(piped(main))
