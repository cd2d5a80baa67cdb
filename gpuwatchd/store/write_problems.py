"""What is wrong with the history at present, in sentences for people."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuwatchd.core import units
from gpuwatchd.core.state_log import StateLog
from gpuwatchd.store import database, integrity, schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger("gpuwatchd")

_MIB = 2**20
_BUSY_PATIENCE = 3
"""A lock that is met this often in a row is told."""
_WAL_GUARD_BYTES = 64 * _MIB
_RESUME_SHARE = 1.1
_COUNTING = frozenset({"lost", "refused", "space", "wal"})
"""Kinds whose sentence has a figure that changes all the time."""
_LOOK_EVERY_S = 3600.0
"""To read the whole file takes seconds of the sampling thread."""


class WriteProblems:
    """Sentences by kind; each disappears when its cause has."""

    def __init__(
        self,
        directory: Path,
        *,
        min_free_mib: int,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._floor_bytes = min_free_mib * _MIB
        self._sentences: dict[str, str] = {}
        self._busy = 0
        self._sound_until_mono_s = 0.0
        self.disk_low = False
        self.damage: str | None = None
        """Why the file must be set aside, once that is known."""
        self._log = StateLog(mono)

    @property
    def problems(self) -> tuple[str, ...]:
        """The sentences."""
        return tuple(self._sentences.values())

    @property
    def well(self) -> bool:
        """Whether the last write worked and the disk has room."""
        return not self.disk_low and not self._busy and "writing" not in self._sentences

    @property
    def is_locked(self) -> bool:
        """Whether the last write met a lock of another program."""
        return self._busy > 0

    def set(self, kind: str, sentence: str | None, *, cause: str = "") -> None:
        """Set the sentence of a kind, and log it where it is new; None takes it back."""
        if sentence is None:
            self._sentences.pop(kind, None)
        else:
            self._sentences[kind] = sentence
        # Figures that count on are no news.
        state = "" if sentence is None else "counting" if kind in _COUNTING else sentence
        change = self._log.change(kind, state, first="")
        if change is None:
            return
        if sentence is None:
            log.info("history mended=%s%s", kind, change.fields)
        else:
            cause = f" cause={cause}" if cause else ""
            log.warning("history trouble=%s%s why=%r", kind, cause, sentence)

    def failed(self, error: Exception) -> None:
        """Note that the file could not be written or read: one of :data:`integrity.SUSPECT`."""
        if integrity.is_doubtful(error) and (why := self._found_damaged(error)) is not None:
            error = database.DamagedError(why)
        kind = database.trouble(error)
        if kind == "damaged":
            self.damage = str(error)
        if kind == "busy":
            self._busy += 1
            if self._busy < _BUSY_PATIENCE:
                return
        self.set("writing", database.cannot_write(self._directory, error), cause=kind)

    def _found_damaged(self, error: Exception) -> str | None:
        """Return what damage may have led to an error; without any it is a fault of ours."""
        if self.damage is not None:
            return self.damage  # to read the whole file again would hold the daemon up
        if time.monotonic() < self._sound_until_mono_s:
            return None
        why = database.quick_check(self._directory)
        if why is None:
            self._sound_until_mono_s = time.monotonic() + _LOOK_EVERY_S
            log.error("the history is sound and cannot be used", exc_info=error)
        return why

    def succeeded(self, *, refused: int = 0) -> None:
        """Note that writing works, and how many rows were left out because a value did not fit."""
        self._busy = 0
        if self.damage is None:  # else another part of the same file works; it is set aside first
            self.set("writing", None)
        if refused:
            self.set("refused", f"{refused} rows were left out of the history: a value did not fit")

    def lost(self, count: int) -> None:
        """Note how many rows of samples fell out of memory unwritten."""
        self.set(
            "lost",
            f"{count} rows of samples could not be kept: nothing can be written to the history "
            "and the memory for them is full"
            if count
            else None,
        )

    def has_space(self) -> bool:
        """Say whether the disk has room; it must stop writing before it is full.

        On a full disk SQLite can neither delete nor check its log in.
        """
        try:
            statvfs_result = os.statvfs(self._directory)
        except OSError:
            return True
        free = statvfs_result.f_bavail * statvfs_result.f_frsize
        floor = self._floor_bytes
        self.disk_low = free < (floor * _RESUME_SHARE if self.disk_low else floor)
        self.set(
            "space",
            f"the disk of {self._directory} has {units.size(free)} left, less than "
            f"store.min-free-mib ({units.size(floor)}); samples are kept in memory only"
            if self.disk_low
            else None,
        )
        return not self.disk_low

    def guard_wal(self, connection: sqlite3.Connection) -> None:
        """Shrink a write-ahead log that a slow reader let grow; say so where it cannot be."""
        file = self._directory / schema.FILE_NAME
        try:
            size = file.with_name(f"{file.name}-wal").stat().st_size
        except OSError:
            size = 0
        if size > _WAL_GUARD_BYTES:
            with suppress(sqlite3.Error):
                busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                size = size if busy else 0
        self.set(
            "wal",
            f"a program keeps a read transaction open, so its log grew to {units.size(size)}; "
            f"find it with: {database.who_has(file)}"
            if size > _WAL_GUARD_BYTES
            else None,
        )
