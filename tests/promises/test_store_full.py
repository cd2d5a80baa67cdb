"""Promise 8: a full disk stops nothing but the writing, and the writing goes on when it can.

The campaign's part "disk" fills a real one, at each write.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from gpuwatchd.store import database
from tests.conftest import ROOT, not_here, ran
from tests.making import alert
from tests.store.world import CARDS, KNOWN, T0, Time, delivery, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _private_mounts() -> list[str]:
    """Return what runs a command with mounts of its own; skip where nothing does."""
    for command in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        with suppress(OSError):
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                return command
    return not_here("this machine does not allow private mounts")


def test_a_full_file_keeps_everything_in_memory_and_recovers(tmp_path: Path) -> None:
    """The size limit gives the same error as a full disk."""
    time = Time()
    history = opened(tmp_path, time)
    assert history._file.connection is not None
    (pages,) = history._file.connection.execute("PRAGMA page_count").fetchone()
    history._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    for tick in range(500):
        history.record(sample(T0 + 5 * tick, tick, uses=(tick,)), CARDS, KNOWN)
    assert not history.flush(T0)
    assert any("full" in problem for problem in history.problems)
    assert not history._file.connection.in_transaction
    many = [alert(key=f"leak:{i}") for i in range(40)]
    sent = history.apply(many, [delivery(one.key) for one in many])
    assert len({one.row for one in sent}) == 40
    assert history.open_alerts() == many
    assert history.pending_deliveries() == sent
    assert not history.flush(T0)
    assert rows(tmp_path, "SELECT (SELECT count(*) FROM gpu_raw), count(*) FROM alert") == [(0, 0)]

    history._file.connection.execute("PRAGMA max_page_count = 65536")
    assert history.flush(T0)
    assert history.problems == ()
    assert rows(tmp_path, "SELECT count(*), max(used_bytes) FROM gpu_raw") == [(500, 499)]
    assert rows(tmp_path, "SELECT count(*) FROM alert") == [(40,)]
    assert history.pending_deliveries() == sent
    assert history.check() is None
    history.close()


_ON_A_READ_ONLY_DISK = """
import sys
from pathlib import Path
from gpuwatchd.store.reader import Reader
from tests.store.world import *
from tests.making import alert
state = Path(sys.argv[1])
time = Time()
history = opened(state, time)
assert not history.writing
assert any("kept in memory" in p for p in history.problems), history.problems
assert history.open_alerts() == [alert()]
history.record(sample(T0), CARDS, KNOWN)
history.apply([alert(key="leak:y")], [delivery("leak:y")])
assert not history.flush(T0)
assert len(history.open_alerts()) == 2
with Reader.open(state) as reader:
    assert reader.alerts() == [alert()]
    assert len(reader.devices()) == 2
history.close()
print("survived")
"""


def test_a_read_only_file_system(tmp_path: Path) -> None:
    private = _private_mounts()
    history = opened(tmp_path / "state")
    history.record(sample(T0, cards=CARDS), CARDS, KNOWN)
    history.apply([alert()], [])
    history.close()
    script = (
        f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
        f' && exec {sys.executable} -B -c "$CODE" {tmp_path}/state'
    )
    environ = {**os.environ, "CODE": _ON_A_READ_ONLY_DISK, "PYTHONPATH": str(ROOT)}
    done = ran([*private, "sh", "-c", script], cwd=ROOT, env=environ, timeout=120)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


def test_a_reader_that_stays_is_told_when_the_log_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_WAL_GUARD_BYTES", 200_000)
    history = opened(tmp_path)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM alert").fetchall()
        for tick in range(3000):
            taken = sample(T0 + 5 * tick, tick, uses=(tick,) * 3, cards=CARDS)
            history.record(taken, CARDS, KNOWN)
            if tick % 500 == 499:
                assert history.flush(T0)
        (said,) = history.problems
        assert "keeps a read transaction open" in said
        file = tmp_path / "history.db"
        assert said.endswith(f"find it with: sudo fuser -v {file} {file}-shm")
        reader.execute("COMMIT")
    history.record(sample(T0 - 5), CARDS, {})
    assert history.flush(T0)
    assert history.problems == ()
    assert (tmp_path / "history.db-wal").stat().st_size < 200_000
    history.close()
