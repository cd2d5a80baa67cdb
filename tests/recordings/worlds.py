"""The machines that are asked: each is a folder with a history, a live state and settings.

They are made once and only read; what writes gets a copy.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests import histories, making
from tests.cli import recorded, reported, world
from tests.making import GIB
from tests.recordings import places
from tests.recordings.frozen import FOREIGN, NOW_S, PID
from tests.store import released
from tests.tui import leaky
from tests.tui import world as machines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuwatchd.collect.scenarios.worlds import World

_TICK_S: Final = 10.0
CONFIG: Final = """
[policy]
channels = ["email", "command"]
fallback = ["desktop"]
digest = "daily"
quiet-hours = { chat = ["22:00-07:00"] }
tell-held = ["gone", "ghost", "idle"]

[notify.email]
host = "mail.example.org"
sender = "gpu@example.org"
to = ["ops@example.org"]

[notify.command]
argv = ["/usr/bin/logger", "-t", "gpu"]

[cost]
usd-per-gpu-hour = 2.5

[[override]]
user = "bob*"
severity = "warning"
why = "night runs"

[[override]]
process = "jupyter"
mute = true
"""


def _none() -> None:
    """A machine on which nothing ever ran."""


def _healthy() -> None:
    recorded.record("stable")
    calm = making.calm(rate_bytes_per_s=0.0, reason="no growth in 6 h", judged_at_s=NOW_S - 5)
    first, second = world.state().devices
    first = msgspec.structs.replace(
        first,
        finding=calm,
        processes=(world.process(), world.process(99, "jupyter", 1)),
        recent_bytes=(52 * GIB,) * 32,
    )
    world.write(devices=(first, second), alerts=())


def _watch() -> None:
    recorded.record("gradual")
    found = world.leak(tier="watch", confidence=0.6, severity="info")
    alert = world.firing(
        state="watch", firing_at_s=None, finding=found, notices=0, watch_at_s=NOW_S - 600
    )
    first, second = world.state().devices
    first = msgspec.structs.replace(first, finding=found, processes=(world.process(finding=found),))
    world.write(devices=(first, second), alerts=(alert,))


def _forty() -> None:
    truth = reported.Truth()
    truth.snooze()
    truth.live()
    truth.close()


def _forty_dead() -> None:
    truth = reported.Truth()
    truth.live(stopped=True, taken_at_s=NOW_S - 1800)
    truth.close()


def _hostile() -> None:
    alerts = (world.firing(title=world.HOSTILE),)
    world.write(msgspec.structs.replace(world.odd(world.HOSTILE), alerts=alerts))
    histories.hostile(_state_dir())


def _damaged() -> None:
    (_state_dir() / places.HISTORY_FILE).write_bytes(b"this is no database" * 500)
    world.write()


def _newer() -> None:
    histories.one_sample(_state_dir())
    with closing(sqlite3.connect(_state_dir() / places.HISTORY_FILE)) as it:
        it.execute("PRAGMA user_version = 99")
    world.write_raw(b'{"format": 99, "pid": 1, "taken_at_s": 1.0}')


def _broken() -> None:
    histories.one_sample(_state_dir())
    world.write_raw(b"{")


def _shape(name: str) -> Callable[[], None]:
    def make() -> None:
        recorded.record(name, host=lambda t: 2 * GIB + t * making.MIB)

    return make


def _version(number: int) -> Callable[[], object]:
    return lambda: released.load(number, _state_dir())


WORLDS: dict[str, Callable[[], object]] = {
    "none": _none,
    "healthy": _healthy,
    FOREIGN: leaky.leave,
    "watch": _watch,
    "leak": leaky.leave,
    "forty": _forty,
    "forty-dead": _forty_dead,
    "stale": lambda: world.write(taken_at_s=NOW_S - 400),
    "odd": lambda: world.write(world.odd()),
    "hostile": _hostile,
    "strange": lambda: world.write(machines.strange(at_s=NOW_S, pid=PID)),
    "eight": lambda: world.write(machines.state(at_s=NOW_S, pid=PID)),
    "crowd": lambda: histories.crowd(_state_dir(), processes=150),
    "thirty": lambda: histories.thirty_days(_state_dir()),
    # A history alone, an hour old at its end: nobody looks.
    "unseen": lambda: recorded.record("cyclic"),
    "empty": lambda: histories.empty(_state_dir()),
    "damaged": _damaged,
    "newer": _newer,
    "broken": _broken,
    **{f"shape-{name}": _shape(name) for name in recorded.SHAPES},
    **{f"schema-{number}": _version(number) for number in range(1, 6)},
}
INCIDENTS: Final = {"demo": 75, "mixed-8x8": 20, "lost-gpu": 60}
"""Scenario -> minutes of it that go through the real pipeline."""


def _state_dir() -> Path:
    return places.config.state_dir()


class Postbox:
    """Takes every message; every fourth fails, and of those the second for good."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self._done: list[Any] = []

    def submit(self, delivery: Any) -> bool:
        self.taken.append(delivery)
        number = len(self.taken)
        failed = "failed" if number % 8 == 0 else "pending"
        state, error = (failed, "no answer") if number % 4 == 0 else ("sent", None)
        self._done.append(
            msgspec.structs.replace(
                delivery,
                state=state,
                attempts=delivery.attempts + 1,
                error=error,
                known=None if error else "accepted",
                sent_at_s=None if error else delivery.created_at_s + 1.0,
            )
        )
        return True

    def results(self) -> list[Any]:
        done, self._done = self._done, []
        return done

    def close(self, timeout_s: float = 2.0) -> list[Any]:
        return []


class Incident:
    """What became of a scenario that went through the pipeline."""

    def __init__(self) -> None:
        self.post = Postbox()
        self.log: list[str] = []
        self.ticks: list[str] = []


class _Ear(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.levelname} {record.getMessage()}")


def drive(
    scenario: str,
    minutes: float,
    world: World | None = None,
    meanwhile: Callable[[Incident, float], None] = lambda incident, elapsed_s: None,
    **settings: dict[str, Any],
) -> Incident:
    """Let a scenario happen before the real pipeline, ending now, in the folder in force.

    ``meanwhile`` is called after each tick, with the seconds since the first.
    """
    found = Incident()
    config = places.config.load(
        environ={},
        overrides={
            "daemon": {"source-deadline": "60s"},
            "policy": {"channels": ["email", "command"], "max-per-hour": 6, "digest": "daily"},
            "cost": {"usd-per-gpu-hour": 2.5},
            "store": {"min-free-mib": 0},
            **settings,
        },
    ).config
    source = places.SimulateSource(scenario, 7, 1.0, world=world, epoch_s=NOW_S - minutes * 60.0)
    source.advance(0.0)
    ear, logger = _Ear(found.log), logging.getLogger("gpuwatchd")
    level = logger.level
    logger.addHandler(ear)
    logger.setLevel(logging.DEBUG)
    runtime = places.config.runtime_dir()
    history = places.History.open(
        _state_dir(),
        config.store,
        clock=lambda: source.now_s,
        monotonic=lambda: source.elapsed_s,
        boot_id="boot",
    )
    pipeline = places.make_pipeline(
        config=config,
        sources=[source],
        history=history,
        runtime_dir=runtime,
        message_dispatcher=found.post,
        wall=lambda: source.now_s,
        mono=lambda: source.elapsed_s,
    )
    try:
        pipeline.resume()
        while source.elapsed_s < minutes * 60.0:
            tick = pipeline.tick()
            _note(found, source.elapsed_s, tick)
            meanwhile(found, source.elapsed_s)
            source.advance(_TICK_S)
            if source.elapsed_s % 60.0 < _TICK_S:
                history.flush(source.now_s)
                history.chores(source.now_s)
        pipeline.tick()
        state = (runtime / places.live.FILE_NAME).read_bytes()
        pipeline.close()
        history.close()
        # As if the daemon went on: the end marks its state as stopped.
        (runtime / places.live.FILE_NAME).write_bytes(state)
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
    return found


def _note(found: Incident, elapsed_s: float, tick: Any) -> None:
    for change in tick.changes:
        found.ticks.append(f"{elapsed_s:.0f} s change {msgspec.json.encode(change).decode()}")
    for decision in tick.decisions:
        found.ticks.append(f"{elapsed_s:.0f} s decision {msgspec.json.encode(decision).decode()}")


class Stage:
    """Where the machines stand; each is made when it is first wanted."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Path] = {}
        self.incidents: dict[str, Incident] = {}
        (root / "worlds").mkdir()
        # Others have their own clock, by which they clear away what is old there.
        changed: Any = histories
        changed._BUILD = root / "cache"
        # A quarter of it says as much, in a tenth of the time.
        changed.GPUS, changed.LIVES = 2, (1, 5)

    def folder(self, name: str) -> Path:
        """Return the folder of a machine, making it where there is none."""
        if name not in self._made:
            place = self._root / "worlds" / name
            for part in ("state", "run", "config/gpuwatchd", "cwd"):
                (place / part).mkdir(parents=True, mode=0o700)
            (place / "config/gpuwatchd/config.toml").write_text(CONFIG)
            (place / "config/gpuwatchd/config.toml").chmod(0o600)
            try:
                with entered(place):
                    if name in INCIDENTS:
                        self.incidents[name] = drive(name, INCIDENTS[name])
                    else:
                        WORLDS[name]()
            except BaseException:
                shutil.rmtree(place)
                raise
            self._made[name] = place
        return self._made[name]

    def incident(self, name: str) -> Incident:
        """Return what became of a scenario."""
        self.folder(name)
        return self.incidents[name]

    @contextmanager
    def before(self, name: str, *, copied: bool = False) -> Iterator[Path]:
        """Stand before a machine, or before a copy of it that is thrown away."""
        place = self.folder(name)
        if not copied:
            with entered(place):
                yield place
            return
        other = self._root / "worlds" / f"{name}-copy"
        shutil.copytree(place, other)
        try:
            with entered(other):
                yield other
        finally:
            shutil.rmtree(other)


@contextmanager
def entered(place: Path) -> Iterator[None]:
    """Let the environment and the current folder be those of a machine."""
    changed = {
        "GPUWATCHD_STATE_DIR": str(place / "state"),
        "GPUWATCHD_RUNTIME_DIR": str(place / "run"),
        "XDG_CONFIG_HOME": str(place / "config"),
        "COLUMNS": "80",
    }
    before = dict(os.environ)
    os.environ.update(changed)
    os.chdir(place / "cwd")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.chdir("/")
