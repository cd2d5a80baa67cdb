"""Each call of the store to SQLite and to the system fails in turn, and each allocation.

One short life of a daemon (real pipeline, history and live state, injected clock) is lived again
and again: a leak is warned of, the daemon is stopped and started, the leak ends. At call k, or from
call k on for some minutes, something fails; then all is well again, and the file is read.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import sqlite3
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from unittest import mock

from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.store import live, schema
from gpuwatchd.store.reader import Reader
from tests.campaign import Figures, require
from tests.conftest import ROOT
from tests.making import GIB
from tests.pipeline.restarts import INTERVAL_S, Machine, leak
from tests.store.world import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SQLITE = {
    "FULL": sqlite3.SQLITE_FULL, "IOERR": sqlite3.SQLITE_IOERR, "NOMEM": sqlite3.SQLITE_NOMEM,
    "BUSY": sqlite3.SQLITE_BUSY, "CANTOPEN": sqlite3.SQLITE_CANTOPEN,
}  # fmt: skip
SYSTEM = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EACCES", "EMFILE", "EROFS")}
CALLS = (
    "open", "fsync", "replace", "rename", "statvfs", "writev", "write", "fchmod", "chmod", "unlink",
    "mkdir", "scandir", "stat", "lstat", "access",
)  # fmt: skip
STORE = str(ROOT / "gpuwatchd/store")
Layer = Literal["sqlite", "system", "memory"]
LAYERS: tuple[Layer, ...] = ("sqlite", "system", "memory")
LASTS_S = 240.0
"""How long a lasting failure lasts, from the first call that fails on."""
LOST_ROWS = 14
"""Looks between two writes of samples: what a daemon that cannot write takes with it."""
FIRES_S, ENDS_S, OVER_S = 300.0, 420.0, 540.0


class Plan(NamedTuple):
    """What fails, and when."""

    layer: Layer
    at: int
    """Which call, counted from 1; 0: none."""
    error: str = ""
    lasting: bool = False


class Faults:
    """Counts the calls of one layer, and lets those of a plan fail."""

    def __init__(self, plan: Plan, directory: Path, mono: Callable[[], float]) -> None:
        self.plan, self._mono = plan, mono
        self._directory = str(directory)
        self.calls = self.raised = 0
        self.since_s: float | None = None
        """When the first call failed."""
        self.off = False
        self._passed: set[tuple[str, int]] = set()

    @property
    def active(self) -> bool:
        """Whether calls fail now."""
        lasting = self.plan.lasting and self.since_s is not None
        return lasting and not self.off and self._mono() - (self.since_s or 0.0) < LASTS_S

    def due(self) -> bool:
        """Count a call; return whether it is to fail."""
        if self.off:
            return False
        self.calls += 1
        if self.calls == self.plan.at:
            self.since_s = self._mono()
        elif not self.active:
            return False
        self.raised += 1
        return True

    @contextlib.contextmanager
    def injected(self) -> Iterator[None]:
        """Let calls fail inside the block."""
        with contextlib.ExitStack() as stack:
            if self.plan.layer == "sqlite":
                for name in ("execute", "executemany"):
                    wrapped = self._sqlite(getattr(schema.Connection, name))
                    stack.enter_context(mock.patch.object(schema.Connection, name, wrapped))
            elif self.plan.layer == "system":
                for name in CALLS:
                    stack.enter_context(mock.patch.object(os, name, self._system(name, os)))
                stack.enter_context(mock.patch.object(io, "open", self._system("open", io)))
            else:
                sys.settrace(self._trace)
                stack.callback(sys.settrace, None)
            yield

    def _sqlite(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(connection: sqlite3.Connection, *words: Any) -> Any:
            if self.due():
                # SQLite rolls a transaction back by itself after some of these.
                if connection.in_transaction and self.plan.at % 2 and self.plan.error != "BUSY":
                    sqlite3.Connection.execute(connection, "ROLLBACK")
                if self.plan.error == "NOMEM":  # as Python tells it
                    raise MemoryError
                error = sqlite3.OperationalError(f"injected {self.plan.error}")
                error.sqlite_errorcode = SQLITE[self.plan.error]
                raise error
            return call(connection, *words)

        return run

    def _system(self, name: str, module: Any) -> Callable[..., Any]:
        call = getattr(module, name)

        def run(*words: Any, **more: Any) -> Any:
            target = words[0] if words else None
            ours = isinstance(target, int) or str(target).startswith(self._directory)
            if ours and self.due():
                number = SYSTEM[self.plan.error]
                raise OSError(number, os.strerror(number), str(target))
            return call(*words, **more)

        return run

    def _trace(self, frame: Any, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(STORE):
            return None
        if event == "line":
            place = (frame.f_code.co_filename, frame.f_lineno)
            new = place not in self._passed
            self._passed.add(place)
            if (new or self.active) and self.due():
                raise MemoryError
        return self._trace


class Life(Machine):
    """The machine of one life."""

    config = Config(detection=DetectionSection(confidence_threshold=0.65))

    def __init__(self, directory: Path) -> None:
        self.growing: set[int] = set()
        """Milliseconds of the looks at which the process held more than before."""
        self.ended: list[str] = []
        """What a tick, a start or an end raised."""
        self.problems: set[str] = set()
        """What was said to be wrong while something failed."""
        self.cut = False
        """Whether the file failed while one daemon stopped and the next one started."""
        self.notices: Counter[tuple[str, str]] = Counter()
        super().__init__(directory, leak(10, 24))

    def pass_to(self, age_s: float, faults: Faults) -> None:
        """Let time go by, and note what must not happen."""
        while self.age_s < age_s:
            taken = len(self.post.taken)
            try:
                said = self.pipeline.tick().state.problems
                if self.time.mono_s >= self.chores_s:
                    self.chores_s += 60.0
                    if faults.plan.layer == "memory":  # as the daemon does them
                        self.pipeline.guard("chores", self._chores)
                    else:
                        self._chores()
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the daemon
                self.ended.append(f"tick: {error!r} {_where(error)}")
                said = ()
            if self.age_s < ENDS_S:
                self.growing.add(self.sampled_ms[-1])
            if faults.active:
                self.problems |= set(said)
            self.notices.update(
                (one.message.notice, one.alert_key) for one in self.post.taken[taken:]
            )
            self.time.pass_s(INTERVAL_S)

    def _chores(self) -> None:
        self.history.chores(self.time.now_s)

    def again(self, faults: Faults) -> None:
        """Stop the daemon in order, and start it."""
        before = faults.raised
        try:
            self.restart(clean=True)
        except MemoryError:  # one that cannot even start is started again, by systemd
            self.kill()
            self.start()
        except Exception as error:  # noqa: BLE001 - as above
            self.ended.append(f"restart: {error!r} {_where(error)}")
            self.kill()
            self.start()
        self.cut = faults.active or faults.raised > before

    def live_on(self, faults: Faults) -> None:
        """Live this life, until after the end of what fails."""
        self.pass_to(FIRES_S, faults)
        self.again(faults)
        self.pass_to(ENDS_S, faults)
        self.curve = lambda _: 4.0 * GIB
        self.begin(4712)
        self.began_s -= ENDS_S
        self.began_mono_s -= ENDS_S
        self.pass_to(OVER_S + (LASTS_S if faults.plan.lasting else 0.0), faults)


def lived(plan: Plan) -> tuple[Life, Faults, list[str]]:
    """Live one life; return it, what failed, and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "life")
        life = Life(directory)
        faults = Faults(plan, directory, lambda: life.time.mono_s)
        with faults.injected():
            life.live_on(faults)
        faults.off = True
        # What was set off by the failure and is tried again once a minute.
        life.pass_to(life.age_s + 150.0, faults)
        said = life.pipeline.problems()
        life.pipeline.close()
        wrong = [f"ended {one}" for one in life.ended]
        wrong += [f"not recovered: {text}" for text, _ in said]
        if faults.raised > 20 and not life.problems and plan.layer != "memory":
            wrong.append("silent: nothing was said")
        return life, faults, wrong + stored(life, directory)


def _where(error: BaseException) -> str:
    """Return the way through the program that an error took."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "gpuwatchd/" in one.filename]
    return " > ".join(f"{Path(one.filename).name}:{one.lineno}" for one in ours)


def stored(life: Life, directory: Path) -> list[str]:
    """Return what the file lacks, and what arrived too seldom or too often."""
    state, last = directory / "state", live.read(directory / "run")
    wrong = [f"set aside: {file.name}" for file in state.glob("*.corrupt-*")]
    if last is None or not last.stopped:
        wrong.append("no last live state")
    if rows(state, "PRAGMA integrity_check") != [("ok",)]:
        wrong.append("damaged")
    stored = {ms for (ms,) in rows(state, "SELECT ts_ms FROM gpu_raw")}
    if len(life.growing - stored) > LOST_ROWS and not life.cut:
        wrong.append(f"lost rows: {len(life.growing - stored)}")
    fired = [count for (notice, _), count in life.notices.items() if notice == "firing"]
    if not fired or not all(1 <= count <= 2 for count in fired) or len(fired) > 1:
        wrong.append(f"notices: {dict(life.notices)}")
    if life.cut:  # what one daemon only remembers, the next does not know
        return wrong
    with Reader.open(state) as reader:
        alerts = reader.alerts()
        kinds = [(one.state, one.kind) for one in alerts if one.firing_at_s]
        if not kinds or any(kind[0] != "resolved" for kind in kinds):
            wrong.append(f"alerts: {kinds}")
        sent = [one for alert in alerts for one in reader.deliveries(alert.key)]
        if not any(one.state == "sent" for one in sent):
            wrong.append(f"deliveries: {[one.state for one in sent]}")
    return wrong


def failing_calls(count: int, seed: int) -> Figures:
    """Let so many calls of each layer fail, each in a life of its own; 0 is every call."""
    chance = random.Random(seed)
    figures: Figures = dict.fromkeys(("lives", "failed_calls", "wrong"), 0)
    for layer in LAYERS:
        calls = lived(Plan(layer, 0))[1].calls
        figures[f"{layer}_calls"] = calls
        for at in sorted(chance.sample(range(1, calls + 1), min(count or calls, calls))):
            errors = {"sqlite": [*SQLITE], "system": [*SYSTEM], "memory": ["NOMEM"]}[layer]
            plan = Plan(layer, at, chance.choice(errors), lasting=chance.random() < 0.5)
            _, faults, wrong = lived(plan)
            figures["lives"] += 1
            figures["failed_calls"] += faults.raised
            figures["wrong"] += bool(wrong)
            if wrong:
                print(f"  {plan}: {'; '.join(wrong)[:400]}", file=sys.stderr, flush=True)
    return require(figures, wrong=0)
