"""Runs tasks on all cores, shows how far it is, and goes on where an interrupted run stopped."""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TextIO, TypeVar

import msgspec

import gpuwatchd
from gpuwatchd.core import units
from tests.scenarios.bench.measure import run
from tests.scenarios.bench.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.scenarios.bench.measure import Task

ROOT = Path(gpuwatchd.__file__).resolve().parent.parent
WATCHED = ("gpuwatchd", "tests/scenarios")
"""What an outcome depends on."""


T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


class Kept(Generic[T]):
    """Results by mark in a file, one JSON object a line; a torn last line is left out."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self.found: dict[str, T] = {}
        data = path.read_bytes() if path.is_file() else b""
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            mark, _, text = line.partition(b" ")
            try:
                self.found[mark.decode()] = msgspec.json.decode(text, type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue

    def add(self, mark: str, result: T) -> None:
        """Keep one more."""
        self.found[mark] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as sink:
            sink.write(b"\n" if self._torn else b"")
            self._torn = False
            sink.write(mark.encode() + b" " + msgspec.json.encode(result) + b"\n")


class Bar:
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, what: str, stream: TextIO = sys.stderr) -> None:
        self.total, self.what, self.stream = total, what, stream
        self.done = 0
        self._began = time.monotonic()
        self._shown = float("-inf")

    def step(self) -> None:
        """One more is done."""
        self.done += 1
        now = time.monotonic()
        pause = 0.2 if self.stream.isatty() else 30.0
        if now - self._shown >= pause or self.done == self.total:
            self._shown = now
            self._show(now - self._began)

    def _show(self, spent_s: float) -> None:
        left_s = spent_s / self.done * (self.total - self.done)
        filled = round(30 * self.done / max(1, self.total))
        text = (
            f"{self.what} [{'#' * filled}{'.' * (30 - filled)}] {self.done}/{self.total}, "
            f"{units.duration(left_s)} left"
        )
        end = "\n" if not self.stream.isatty() or self.done == self.total else ""
        self.stream.write(f"\r{text:76}{end}" if self.stream.isatty() else f"{text}{end}")
        self.stream.flush()


def fingerprint(root: Path = ROOT, folders: Iterable[str] = WATCHED) -> str:
    """Return a hash of all that an outcome depends on: the package and the scenarios."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def mark(task: object, code: str) -> str:
    """Return what an outcome must carry to be that of this task under this code."""
    return hashlib.sha256(code.encode() + msgspec.json.encode(task)).hexdigest()[:20]


def evaluate(tasks: Sequence[Task], path: Path, *, workers: int, code: str) -> list[Outcome]:
    """Return the outcomes of the tasks, in their order; what the file holds is not run again."""
    kept = Kept(path, Outcome)
    known = sum(mark(task, code) in kept.found for task in tasks)
    if known:
        print(f"{known} of {len(tasks)} are known already", file=sys.stderr)
    return results(tasks, kept, run, workers, code, "detection")


def results(
    tasks: Sequence[A], kept: Kept[T], work: Callable[[A], T], workers: int, code: str, what: str
) -> list[T]:
    """Return what comes of the tasks, in their order; what is kept already is not run again."""
    marks = [mark(task, code) for task in tasks]
    missing = [(m, task) for m, task in zip(marks, tasks, strict=True) if m not in kept.found]
    for one, result in spread(missing, work, workers, what):
        kept.add(one, result)
    return [kept.found[m] for m in marks]


def deaf() -> None:
    """Leave Ctrl-C to the parent, which stops its workers and keeps what is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def spread(
    missing: Sequence[tuple[str, A]], work: Callable[[A], R], workers: int, what: str
) -> Iterator[tuple[str, R]]:
    """Yield mark and result of each task as it is done, on so many cores; show how far it is."""
    if not missing:
        return
    bar = Bar(len(missing), what)
    if workers <= 1:
        for one, task in missing:
            yield one, work(task)
            bar.step()
        return
    with ProcessPoolExecutor(workers, initializer=deaf) as pool:
        waiting = {pool.submit(work, task): one for one, task in missing}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
                bar.step()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
