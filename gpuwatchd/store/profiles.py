"""What earlier runs of a program did: a small table that the daemon writes with the samples.

Runs wait in memory until the next flush. What the user said of them is in :mod:`labels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from gpuwatchd.core import typed
from gpuwatchd.core.model import ProcessKey, Profile, Value
from gpuwatchd.store import checkpoints, client_connection, integrity, records, silences
from gpuwatchd.store import occupancy as occupied
from gpuwatchd.store.labels import load_words

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from gpuwatchd.analysis.cost import MemoryBucket
    from gpuwatchd.core.model import Silence
    from gpuwatchd.store.checkpoints import Checkpoint
    from gpuwatchd.store.labels import UserLabel

# What is normal for a device: how much of it nobody owns while it is idle.


class IdleLevel(NamedTuple):
    """What nobody owns on an idle device, and in which boot that was learned."""

    least_bytes: int
    boot_id: str


def load(connection: sqlite3.Connection) -> dict[str, IdleLevel]:
    """Return what was learned, by the device's UUID."""
    cursor = connection.execute("SELECT gpu_uuid, least_bytes, boot_id FROM baseline")
    return {uid: IdleLevel(least_bytes, boot_id) for uid, least_bytes, boot_id in cursor}


def save(connection: sqlite3.Connection, norms: dict[str, IdleLevel], now_ms: int) -> int:
    """Write norms, inside the caller's transaction; return how many were refused."""
    refused = 0
    for uid, norm in norms.items():
        try:
            connection.execute(
                "INSERT OR REPLACE INTO baseline(gpu_uuid, least_bytes, boot_id, learned_ts_ms)"
                " VALUES(?, ?, ?, ?)",
                (uid, *norm, now_ms),
            )
        except records.REFUSED:
            refused += 1
    return refused


_T = TypeVar("_T")
KEPT_LAUNCHES = 5
"""Launches of a program that are kept without a word of the user's."""
KEPT_SPOKEN = 10
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

_JSON = msgspec.json.Encoder()
_PROFILE = typed.decoder(Profile)


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
    """Row of the word that it was made for: what the run had done when the user spoke."""


class ProfileStore:
    """The two tables as the daemon sees them.

    Parameters
    ----------
    connection
        Returns the open history, None where nothing can be read at present.
    failed
        Told what could not be done: one of :data:`integrity.SUSPECT`.
    """

    def __init__(
        self,
        connection: Callable[[], sqlite3.Connection | None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._connection = connection
        self._failed = failed
        self._waiting: dict[tuple[Any, ...], Run] = {}
        self._norms: dict[str, IdleLevel] = {}
        self._saved: list[Checkpoint] = []
        self._learned_ms = 0
        self._seen: tuple[int, int] | None = None
        self.outside = 0
        """How often another program has been seen to write: silences and checkpoints, too."""

    @property
    def waiting(self) -> bool:
        """Whether anything is not yet written."""
        return bool(self._waiting or self._norms or self._saved)

    def idle_levels(self) -> dict[str, IdleLevel]:
        """Return what is normal for each device; empty where that fails."""
        return {**(self.read(load) or {}), **self._norms}

    def learn(self, uid: str, norm: IdleLevel, at_s: float) -> None:
        """Note what is normal for a device; it is written with the next flush."""
        self._norms[uid] = norm
        self._learned_ms = records.to_ms(at_s) or 0

    def keep(self, run: Run) -> None:
        """Note a run; it is written with the next flush, over what was known of the same run."""
        self._waiting[run.key, run.device_uid, run.process, run.word] = run
        if len(self._waiting) > _WAITING_LIMIT:
            del self._waiting[next(iter(self._waiting))]

    def runs(self, key: str) -> list[Run]:
        """Return what is known of a program's runs, oldest first; empty where that fails."""
        found = self.read(lambda it: load_runs(it, "r.key = ?", (key,))) or []
        known = {(run.key, run.device_uid, run.process, run.word): run for run in found}
        known |= {at: run for at, run in self._waiting.items() if at[0] == key}
        return sorted(known.values(), key=lambda run: run.profile.ended_at_s)

    def changed_elsewhere(self) -> bool:
        """Say whether another program has written since the last tick. Some microseconds.

        Asked once per tick; :attr:`outside` then counts how often others have written.
        """
        connection = self._connection()
        if connection is None:
            return False
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        except integrity.SUSPECT as error:
            self._failed(error)
            return False
        pair = (id(connection), version)
        if pair == self._seen:
            return False
        self._seen = pair
        self.outside += 1
        return True

    def user_labels(self) -> list[UserLabel] | None:
        """Return what the user said and did not take back, oldest first; None where that fails."""
        return self.read(lambda it: load_words(it, "undone_ts_ms IS NULL"))

    def silences(self, now_s: float) -> list[Silence] | None:
        """Return the silences whose time is not over, oldest first; None where that fails."""
        return self.read(lambda it: silences.in_force(it, now_s))

    def read(self, question: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Ask anything else of the history; None where that fails."""
        connection = self._connection()
        if connection is None:
            return None
        try:
            return question(connection)
        except integrity.SUSPECT as error:
            self._failed(error)
            return None

    def write_now(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Do some writing at once, power-cut-safe; None where that fails."""
        return self.read(lambda it: client_connection.written(it, work))

    def minutes(
        self, uid: str, process: ProcessKey | None, since_s: float, until_s: float
    ) -> list[tuple[float, int]]:
        """Return a subject's memory at the end of each minute, as far as it is rolled up."""
        span = (int(since_s), int(until_s) - 60)
        if process is None:
            query = (
                "SELECT ts_s + 60, used_last_bytes FROM gpu_1m WHERE ts_s BETWEEN ? AND ?"
                " AND gpu = (SELECT id FROM gpu WHERE uuid = ?) ORDER BY ts_s"
            )
            values: tuple[Any, ...] = (*span, uid)
        else:
            query = (
                "SELECT ts_s + 60, used_last_bytes FROM process_1m WHERE ts_s BETWEEN ? AND ?"
                " AND gpu = (SELECT id FROM gpu WHERE uuid = ?) AND process = (SELECT id FROM"
                " process WHERE pid = ? AND started_at_s IS ? ORDER BY last_ts_ms DESC LIMIT 1)"
                " ORDER BY ts_s"
            )
            values = (*span, uid, process.pid, process.started_at_s)
        return self.read(lambda it: _known(it.execute(query, values))) or []

    def occupancy(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket] | None:
        """Return who held what on a device, minute by minute; None where that fails.

        Of more than a day not every minute: this is the thread that samples.
        """
        return self.read(lambda it: occupied.load(it, uid, since_s, until_s, most_minutes=1440))

    def checkpoints(self) -> list[Checkpoint] | None:
        """Return when jobs saved their work lately, oldest first; None where that fails."""
        found = self.read(checkpoints.lately)
        return None if found is None else [*found, *self._saved]

    def keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Note that a job has saved its work; it is written with the next flush."""
        self._saved.append(checkpoint)
        del self._saved[:-_WAITING_LIMIT]

    def load_pct(self, uid: str, since_s: float, until_s: float) -> list[tuple[float, int]]:
        """Return a device's utilisation (minute's end, mean per cent), as far as rolled up."""
        query = (
            "SELECT ts_s + 60, util_mean_percent FROM gpu_1m WHERE ts_s BETWEEN ? AND ?"
            " AND gpu = (SELECT id FROM gpu WHERE uuid = ?) ORDER BY ts_s"
        )
        values = (int(since_s) - 60, int(until_s), uid)
        return self.read(lambda it: _known(it.execute(query, values))) or []

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
        refused = 0
        for run in self._waiting.values():
            try:
                save_run(connection, run)
            except records.REFUSED:
                refused += 1
        for key in {run.key for run in self._waiting.values()}:
            trim(connection, key)
        for checkpoint in self._saved:
            try:
                checkpoints.insert(connection, checkpoint)
            except records.REFUSED:
                refused += 1
        return refused + save(connection, self._norms, self._learned_ms)

    def written(self) -> None:
        """Forget what waited, after the commit."""
        self._waiting.clear()
        self._norms.clear()
        self._saved.clear()


def _known(pairs: Iterable[tuple[int, int | None]]) -> list[tuple[float, int]]:
    return [(float(at_s), int(value)) for at_s, value in pairs if value is not None]


def save_run(connection: sqlite3.Connection, run: Run) -> None:
    """Insert a run, or replace what was known of the same one; of a device that is known."""
    process, profile = run.process, run.profile
    connection.execute(
        "INSERT OR REPLACE INTO profile(key, gpu, pid, started_at_s, feedback, label, begun_ts_ms,"
        " ended_ts_ms, base_bytes, proven_bytes, top_bytes, profile)"
        " SELECT ?, id, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM gpu WHERE uuid = ?",
        (
            run.key,
            None if process is None else process.pid,
            None if process is None else process.started_at_s,
            run.word,
            run.label,
            records.to_ms(run.begun_at_s),
            records.to_ms(profile.ended_at_s),
            round(profile.base_bytes),
            round(profile.proven_bytes),
            round(profile.top_bytes),
            _JSON.encode(profile).decode(),
            run.device_uid,
        ),
    )


def load_runs(
    connection: sqlite3.Connection, where: str = "TRUE", values: tuple[Any, ...] = ()
) -> list[Run]:
    """Return runs, oldest first; what cannot be understood (or was unsaid) is left out."""
    runs: list[Run] = []
    for row in connection.execute(
        "SELECT r.key, g.uuid, r.pid, r.started_at_s, r.label, r.begun_ts_ms, r.profile,"  # noqa: S608
        " r.feedback FROM profile r JOIN gpu g ON g.id = r.gpu LEFT JOIN feedback f"
        " ON f.id = r.feedback WHERE (r.feedback IS NULL OR (f.id IS NOT NULL"
        f" AND f.undone_ts_ms IS NULL)) AND {where} ORDER BY r.ended_ts_ms, r.id",
        values,
    ):
        try:
            profile = _PROFILE.decode(row[6])
        except msgspec.MsgspecError:
            continue
        if not _sane(profile):
            continue
        process = None if row[2] is None else ProcessKey(pid=row[2], started_at_s=row[3])
        runs.append(
            Run(
                key=row[0],
                device_uid=row[1],
                process=process,
                label=row[4],
                begun_at_s=row[5] / 1000,
                profile=profile,
                word=row[7],
            )
        )
    return runs


def _sane(profile: Profile) -> bool:
    """Say whether a profile's numbers are bytes and seconds, not what damage made of them."""
    numbers = (
        *(profile.ended_at_s, profile.run_s, profile.hold_s),
        *(profile.base_bytes, profile.proven_bytes, profile.top_bytes),
        *(*profile.grown_bytes, *profile.rose_bytes, *profile.late_bytes),
    )
    return all(0.0 <= number < _ABSURD for number in numbers)


def trim(connection: sqlite3.Connection, key: str) -> None:
    """Forget the oldest runs of a program, inside the caller's transaction."""
    active = {
        (word.subject.device_uid, word.subject.process)
        for word in load_words(connection, "undone_ts_ms IS NULL")
    }
    begun_s: list[float] = []
    ranks = spoken = 0
    for row, run in _newest_first(connection, key):
        if run.word is not None or (run.device_uid, run.process) in active:
            spoken += 1
            over = spoken > KEPT_SPOKEN
        else:
            if not begun_s or begun_s[-1] - run.begun_at_s > LAUNCH_S:
                begun_s.append(run.begun_at_s)
                ranks = 0
            ranks += 1
            over = len(begun_s) > KEPT_LAUNCHES or ranks > KEPT_RANKS
        if over:
            connection.execute("DELETE FROM profile WHERE id = ?", (row,))


def _newest_first(connection: sqlite3.Connection, key: str) -> list[tuple[int, Run]]:
    ids = [
        row
        for (row,) in connection.execute(
            "SELECT id FROM profile WHERE key = ? ORDER BY begun_ts_ms DESC, id DESC", (key,)
        )
    ]
    pairs = [(row, load_runs(connection, "r.id = ?", (row,))) for row in ids]
    for row, runs in pairs:
        if not runs:
            # What nobody can read, or was said and taken back.
            connection.execute("DELETE FROM profile WHERE id = ?", (row,))
    return [(row, runs[0]) for row, runs in pairs if runs]


def expire(connection: sqlite3.Connection, before_ms: int) -> None:
    """Forget programs and words that are too old or too many, in the caller's transaction."""
    connection.execute(
        "DELETE FROM profile WHERE ended_ts_ms < ? OR feedback IN"
        " (SELECT id FROM feedback WHERE undone_ts_ms IS NOT NULL)",
        (before_ms,),
    )
    connection.execute(
        "DELETE FROM profile WHERE key NOT IN (SELECT key FROM profile GROUP BY key"
        " ORDER BY max(ended_ts_ms) DESC LIMIT ?)",
        (KEPT_PROGRAMS,),
    )
    connection.execute(
        "DELETE FROM feedback WHERE given_ts_ms < ? AND id NOT IN"
        " (SELECT feedback FROM profile WHERE feedback IS NOT NULL)",
        (before_ms,),
    )
