"""Promise 6: killed at any moment, no torn tick, no lost alert, at most the last flush of samples.

The child writes ticks (one flush with a run's profile each, an alert and a mail with every fifth,
a word of the user's with every seventh) and prints the number of each tick after it is committed;
the parent kills it at random moments, reads what was printed and looks into the file.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store.reader import Reader
from tests.children import Child
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

KILLS = int(os.environ.get("GPUWATCHD_TEST_KILLS", "20"))
ROWS_A_TICK = 2 + 6  # two devices, three processes on each

_CHILD = """
import sys
from pathlib import Path
from tests.making import alert
from tests.store.world import *
from tests.store.runs import profile, run, word
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
directory, tick = Path(sys.argv[1]), int(sys.argv[2])
history = opened(directory)
assert history.writing and not history.problems, history.problems
alerts = {one.key for one in history.open_alerts()}
while True:
    tick += 1
    taken = sample(T0 + 5 * tick, tick, uses=(tick,) * 3, cards=CARDS)
    history.record(taken, CARDS, KNOWN)
    history.shelf.keep(run(profile=profile(top_bytes=float(tick))))
    assert history.flush(T0 + 5 * tick)
    print("tick", tick, flush=True)
    if tick % 5 == 0:
        (sent,) = history.apply([alert(key=f"leak:{tick}")], [delivery(f"leak:{tick}")])
        print("alert", tick, sent.row, flush=True)
    if tick % 7 == 0:
        said = transaction(directory, tables.write_label, word(run(), alert_key=f"leak:{tick}"))
        print("word", tick, said.row, flush=True)
    if tick % 10 == 0:
        history.chores(T0 + 5 * tick)
"""


def _run_and_kill(directory: Path, tick: int, pause_s: float) -> list[list[str]]:
    with Child(
        [sys.executable, "-c", _CHILD, str(directory), str(tick)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        said = [child.stdout.readline()]  # it is up
        time.sleep(pause_s)
        child.send_signal(signal.SIGKILL)
        said += child.stdout.readlines()
        assert child.wait() == -signal.SIGKILL
    return [line.split() for line in said if line.endswith("\n")]


@pytest.mark.timeout(60 + 2 * KILLS)
@pytest.mark.requirement("W22")
def test_nothing_acknowledged_is_lost_by_kill(tmp_path: Path) -> None:
    dice = random.Random()
    tick = 0
    acknowledged: set[tuple[str, int]] = set()
    spoken: set[tuple[str, int]] = set()
    for number in range(KILLS):
        said = _run_and_kill(tmp_path, tick, dice.uniform(0.04, 0.2))
        committed = [int(words[1]) for words in said if words[0] == "tick"]
        acknowledged |= {
            (f"leak:{words[1]}", int(words[2])) for words in said if words[0] == "alert"
        }
        spoken |= {(f"leak:{words[1]}", int(words[2])) for words in said if words[0] == "word"}
        with closing(sqlite3.connect(tmp_path / "history.db")) as connection:
            (newest,) = connection.execute("SELECT max(used_bytes) FROM gpu_raw").fetchone()
            assert newest >= committed[-1]
            torn = connection.execute(
                "SELECT ts_ms FROM (SELECT ts_ms FROM gpu_raw UNION ALL SELECT ts_ms FROM"
                " process_raw) GROUP BY ts_ms HAVING count(*) <> ?",
                (ROWS_A_TICK,),
            ).fetchall()
            assert torn == []
            (ticks,) = connection.execute("SELECT count(DISTINCT ts_ms) FROM gpu_raw").fetchone()
            assert ticks == newest
            assert connection.execute("SELECT top_bytes FROM profile").fetchall() == [(newest,)]
            if number % 10 == 9 or number == KILLS - 1:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tick = newest
        with Reader.open(tmp_path) as reader:
            open_keys = {alert.key for alert in reader.alerts(open_only=True)}
            for key, row in acknowledged:
                assert key in open_keys
                assert [sent.row for sent in reader.deliveries(key)] == [row]
            assert spoken <= {(one.alert_key, one.row) for one in reader.user_labels()}
    assert not list(tmp_path.glob("*.corrupt-*"))
    assert len(acknowledged) >= KILLS / 4


def test_killed_while_the_file_is_made_leaves_a_usable_history(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; import sys; from tests.store.world import opened\n"
        "print(flush=True); opened(Path(sys.argv[1])).close()"
    )
    for number in range(max(4, KILLS // 4)):
        directory = tmp_path / str(number)
        with Child(
            [sys.executable, "-c", code, str(directory)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(random.uniform(0.0, 0.25))
            child.send_signal(signal.SIGKILL)
        from tests.store.world import opened

        history = opened(directory)
        assert history.writing
        assert history.problems == ()
        history.close()
        assert [file.name for file in directory.iterdir()] == ["history.db"]
