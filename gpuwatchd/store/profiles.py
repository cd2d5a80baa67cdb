"""What earlier runs of a program did: a small table that the daemon writes with the samples.

Runs wait in memory until the next flush. Users' labels of them are in :mod:`.tables`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from gpuwatchd.core import decoding
from gpuwatchd.core.model import ProcessKey, Profile, Value
from gpuwatchd.store import occupancy as occupied
from gpuwatchd.store import records, schema, tables

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from gpuwatchd.analysis.cost import MemoryBucket
    from gpuwatchd.core.model import Silence
    from gpuwatchd.store.tables import Checkpoint, UserLabel


class IdleLevel(NamedTuple):
    """What nobody owns on an idle device, and in which boot that was learned."""

    least_bytes: int
    boot_id: str


_T = TypeVar("_T")
KEPT_LAUNCHES = 5
"""Launches of a program that are kept without a label of the user's."""
KEPT_LABELLED = 10
"""Runs of a program that are kept because the user spoke of them."""
KEPT_RANKS = 16
"""Profiles of one launch: a job of many ranks must not drive out the earlier ones."""
KEPT_PROGRAMS = 2000
"""Programs that are remembered; those not seen for longest go first. Some 10 MiB at most."""
LAUNCH_S = 120.0
"""Runs of a program that begin within so long are ranks of one launch."""
_WAITING_LIMIT = 500
_ABSURD = 1e18
"""Bytes or seconds beyond anything that there is."""
_LEARN = (
    "INSERT OR REPLACE INTO baseline(gpu_uuid, least_bytes, boot_id, learned_ts_ms)"
    " VALUES(?, ?, ?, ?)"
)


class Run(Value, frozen=True, kw_only=True):
    """One run of a program on one device, as far as it was seen."""

    key: str
    """Of the program on this model of card; of a subject that is no program, its id."""
    device_uid: str
    process: ProcessKey | None
    label: str
    begun_at_s: float
    profile: Profile
    word: int | None = None
    """Row of the label that it was made for: what the run had done when the user spoke."""


_RUNS: Final = records.Table(
    "profile",
    Run,
    json=decoding.decoder(Profile),
    skipped=(msgspec.MsgspecError,),
    rows="(SELECT r.*, g.uuid AS gpu_uuid, r.feedback AS word FROM profile r JOIN gpu g"
    " ON g.id = r.gpu WHERE r.feedback IS NULL OR r.feedback IN"
    " (SELECT id FROM feedback WHERE undone_ts_ms IS NULL))",
    order="ended_ts_ms, id",
)


class ProfileStore:
    """The two tables as the daemon sees them.

    ``failed`` is told what could not be done: one of :data:`schema.SUSPECT`.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._connection: sqlite3.Connection | None = None
        self._failed = failed
        self._waiting: dict[tuple[Any, ...], Run] = {}
        self._levels: dict[str, IdleLevel] = {}
        self._saved: list[Checkpoint] = []
        self._learned_ms = 0
        self._seen: tuple[int, int] | None = None
        self.outside = 0
        """How often another program has been seen to write: silences and checkpoints, too."""

    def use(self, connection: sqlite3.Connection | None) -> None:
        """Read from this history from now on; None while nothing can be read."""
        self._connection = connection

    @property
    def waiting(self) -> bool:
        """Whether anything is not yet written."""
        return bool(self._waiting or self._levels or self._saved)

    def idle_levels(self) -> dict[str, IdleLevel]:
        """Return what is normal for each device; empty where that fails."""
        query = "SELECT gpu_uuid, least_bytes, boot_id FROM baseline"
        levels = self.read(lambda it: {row[0]: IdleLevel(*row[1:]) for row in it.execute(query)})
        return {**(levels or {}), **self._levels}

    def learn(self, uid: str, level: IdleLevel, at_s: float) -> None:
        """Note what is normal for a device; it is written with the next flush."""
        self._levels[uid] = level
        self._learned_ms = records.to_ms(at_s) or 0

    def keep(self, run: Run) -> None:
        """Note a run; it is written with the next flush, over what was known of the same run."""
        self._waiting[run.key, run.device_uid, run.process, run.word] = run
        if len(self._waiting) > _WAITING_LIMIT:
            del self._waiting[next(iter(self._waiting))]

    def runs(self, key: str) -> list[Run]:
        """Return what is known of a program's runs, oldest first; empty where that fails."""
        found = self.read(lambda it: load_runs(it, "key = ?", (key,))) or []
        known = {(run.key, run.device_uid, run.process, run.word): run for run in found}
        known |= {at: run for at, run in self._waiting.items() if at[0] == key}
        return sorted(known.values(), key=lambda run: run.profile.ended_at_s)

    def changed_elsewhere(self) -> bool:
        """Say whether another program has written since the last tick. Some microseconds.

        Asked once per tick; :attr:`outside` then counts how often others have written.
        """
        pair = self.read(lambda it: (id(it), it.execute("PRAGMA data_version").fetchone()[0]))
        if pair is None or pair == self._seen:
            return False
        self._seen = pair
        self.outside += 1
        return True

    def user_labels(self) -> list[UserLabel] | None:
        """Return what the user said and did not take back, oldest first; None where that fails."""
        return self.read(lambda it: tables.LABELS.load(it, tables.NOT_UNDONE))

    def silences(self, now_s: float) -> list[Silence] | None:
        """Return the silences whose time is not over, oldest first; None where that fails."""
        return self.read(lambda it: tables.silences_in_force(it, now_s))

    def read(self, question: Callable[..., _T], *args: object) -> _T | None:
        """Return what a question about the open history finds; None where that fails."""
        if self._connection is None:
            return None
        try:
            return question(self._connection, *args)
        except schema.SUSPECT as error:
            self._failed(error)
            return None

    def write_now(self, work: Callable[..., _T], *args: object) -> _T | None:
        """Do some writing at once, power-cut-safe; None where that fails."""

        def written(connection: sqlite3.Connection) -> _T:
            with schema.transaction(connection, durable=True):
                return work(connection, *args)

        return self.read(written)

    def minutes(
        self, uid: str, process: ProcessKey | None, since_s: float, until_s: float
    ) -> list[tuple[float, int]]:
        """Return a subject's memory at the end of each minute that is written down."""
        span = (int(since_s), int(until_s) - 60)
        own = None if process is None else (process.pid, process.started_at_s)
        return self.read(occupied.by_minute, uid, span, own) or []

    def load_pct(self, uid: str, since_s: float, until_s: float) -> list[tuple[float, int]]:
        """Return a device's utilisation (minute's end, mean per cent), as far as written down."""
        span = (int(since_s) - 60, int(until_s))
        return self.read(partial(occupied.by_minute, uid=uid, span=span, is_use=True)) or []

    def occupancy(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket] | None:
        """Return who held what on a device, minute by minute; None where that fails.

        Of more than a day not every minute: this is the thread that samples.
        """
        return self.read(lambda it: occupied.load(it, uid, since_s, until_s, most_minutes=1440))

    def checkpoints(self) -> list[Checkpoint] | None:
        """Return when jobs saved their work lately, oldest first; None where that fails."""
        found = self.read(tables.newest_checkpoints)
        return None if found is None else [*found, *self._saved]

    def keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Note that a job has saved its work; it is written with the next flush."""
        self._saved.append(checkpoint)
        del self._saved[:-_WAITING_LIMIT]

    def program_of(self, process: ProcessKey) -> tuple[str | None, str]:
        """Return what is stored of a process: the key of its program, and its name."""
        query = (
            "SELECT program, name FROM process WHERE pid = ? AND started_at_s IS ?"
            " ORDER BY last_ts_ms DESC LIMIT 1"
        )
        values = (process.pid, process.started_at_s)
        found = self.read(lambda it: it.execute(query, values).fetchone())
        return (None, "") if found is None else (found[0], found[1])

    def write(self, connection: sqlite3.Connection) -> int:
        """Write what waits, inside the caller's transaction; return how many were refused."""
        refused = records.refused(partial(save_run, connection), self._waiting.values())
        for key in {run.key for run in self._waiting.values()}:
            trim(connection, key)
        refused += records.refused(partial(tables.write_checkpoint, connection), self._saved)
        levels = [(uid, *level, self._learned_ms) for uid, level in self._levels.items()]
        return refused + records.insert_rows(connection, _LEARN, levels)

    def written(self) -> None:
        """Forget what waited, after the commit."""
        self._waiting.clear()
        self._levels.clear()
        self._saved.clear()


def save_run(connection: sqlite3.Connection, run: Run) -> None:
    """Insert a run, or replace what was known of the same one; of a device that is known."""
    profile = run.profile
    row = _RUNS.row(run)
    row["feedback"], row["gpu"] = row.pop("word"), records.device_row(connection, run.device_uid)
    del row["gpu_uuid"]
    if row["gpu"] is None:
        return
    row |= {
        "ended_ts_ms": records.to_ms(profile.ended_at_s),
        "base_bytes": round(profile.base_bytes),
        "proven_bytes": round(profile.proven_bytes),
        "top_bytes": round(profile.top_bytes),
    }
    records.insert(connection, "profile", row, or_replace=True)


def load_runs(
    connection: sqlite3.Connection, where: str = "TRUE", values: tuple[Any, ...] = ()
) -> list[Run]:
    """Return runs, oldest first; what cannot be understood (or was unsaid) is left out."""
    return [run for run in _RUNS.load(connection, where, values) if _sane(run.profile)]


def _sane(profile: Profile) -> bool:
    """Say whether a profile's numbers are bytes and seconds, not what damage made of them."""
    numbers = (
        *(profile.ended_at_s, profile.run_s, profile.hold_s),
        *(profile.base_bytes, profile.proven_bytes, profile.top_bytes),
        *(*profile.grown_bytes, *profile.rose_bytes, *profile.late_bytes),
        *(part for one in profile.stages for part in (one.age_s, one.rise_s, one.rise_bytes)),
    )
    return all(0.0 <= number < _ABSURD for number in numbers)


def trim(connection: sqlite3.Connection, key: str) -> None:
    """Forget the oldest runs of a program, inside the caller's transaction."""
    active = {
        (label.subject.device_uid, label.subject.process)
        for label in tables.LABELS.load(connection, tables.NOT_UNDONE)
    }
    begun_s: list[float] = []
    ranks = labelled = 0
    rows = connection.execute(
        "SELECT id FROM profile WHERE key = ? ORDER BY begun_ts_ms DESC, id DESC", (key,)
    ).fetchall()
    for row in rows:
        run = next(iter(load_runs(connection, "id = ?", row)), None)
        if run is None:  # what nobody can read, or was said and taken back
            over = True
        elif run.word is not None or (run.device_uid, run.process) in active:
            labelled += 1
            over = labelled > KEPT_LABELLED
        else:
            if not begun_s or begun_s[-1] - run.begun_at_s > LAUNCH_S:
                begun_s.append(run.begun_at_s)
                ranks = 0
            ranks += 1
            over = len(begun_s) > KEPT_LAUNCHES or ranks > KEPT_RANKS
        if over:
            connection.execute("DELETE FROM profile WHERE id = ?", row)
