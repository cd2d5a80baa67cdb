"""Daemons that are killed by SIGKILL with alerts and samples under way; what arrived is counted.

Half of the kills are of :mod:`tests.promises.dying`: at every line that runs between the decision
to tell and the note that it was told, and at random moments, inside writes to the disk too. The
others are of a daemon that writes ticks (one flush with a run's profile each, an alert and a mail
with every fifth, a word of the user's with every seventh) and says what is committed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from gpuwatchd.store.reader import Reader
from tests.campaign import Figures, line, require
from tests.children import Child
from tests.conftest import ROOT, ran
from tests.store.world import opened, rows

ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
ROWS_A_TICK = 2 + 6  # two devices, three processes on each
PLACES = {
    *(f"gpuwatchd/notify/outbox/{name}.py" for name in ("dispatcher", "outbox", "states")),
    "gpuwatchd/store/write_buffers.py", "gpuwatchd/store/records.py", "tests/promises/dying.py",
}  # fmt: skip
"""What lies between the decision to tell and the note that it was told."""

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
_MAKES = (
    "from pathlib import Path; import sys; from tests.store.world import opened\n"
    "print(flush=True); opened(Path(sys.argv[1])).close()"
)


def deliveries(more: int, seed: int) -> Figures:
    """Kill a daemon that delivers, at each of its lines and so often at random."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tests.promises.dying", folder, more, seed]
        done = ran(words, cwd=ROOT, env=ENV, timeout=240 + more)
    assert done.returncode == 0, done.stderr
    lives: list[dict[str, Any]] = [json.loads(text) for text in done.stdout.splitlines()]
    kills = [life["ends"].count("killed") for life in lives]
    passed = {str(life["deaths"][0]).rpartition(":")[0] for life in lives}
    times = Counter(life["arrived"] for life in lives)
    figures: Figures = {
        "kills": sum(kills),
        "alerts": len(lives),
        "once": times[1],
        "twice": times[2],
        "lost": times[0],
        # One crash doubles a message once at most.
        "too_often": sum(
            life["arrived"] > 1 + count for life, count in zip(lives, kills, strict=True)
        ),
        "not_ended": sum(life["ends"][-1] != "ended" for life in lives),
    }
    if not (passed >= PLACES and figures["once"] and figures["twice"]):
        raise AssertionError(f"{line(figures)}: not killed at {PLACES - passed}, or no difference")
    return require(figures, lost=0, too_often=0, not_ended=0)


def _killed(code: str, *arguments: object, pause_s: float) -> list[list[str]]:
    """Let a daemon run for a moment, kill it, and return the words of each line that it said."""
    with Child(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENV,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        said = [child.stdout.readline()]  # it is up
        time.sleep(pause_s)
        child.send_signal(signal.SIGKILL)
        said += child.stdout.readlines()
    return [text.split() for text in said if text.endswith("\n")]


class Written:
    """What a daemon that is killed again and again has said to be committed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tick = 0
        self.said: dict[str, set[tuple[str, int]]] = {"alert": set(), "word": set()}

    def kill(self, pause_s: float) -> Counter[str]:
        """Let it run on, kill it, and count what the file lacks."""
        lines = _killed(_CHILD, self.folder, self.tick, pause_s=pause_s)
        for kind, said in self.said.items():
            said |= {(f"leak:{words[1]}", int(words[2])) for words in lines if words[0] == kind}
        last = max(int(words[1]) for words in lines if words[0] == "tick")
        with closing(sqlite3.connect(self.folder / "history.db")) as connection:

            def ask(query: str) -> list[tuple[Any, ...]]:
                return connection.execute(query).fetchall()

            self.tick, ticks = ask("SELECT max(used_bytes), count(DISTINCT ts_ms) FROM gpu_raw")[0]
            torn = ask(
                "SELECT ts_ms FROM (SELECT ts_ms FROM gpu_raw UNION ALL SELECT ts_ms FROM"
                f" process_raw) GROUP BY ts_ms HAVING count(*) <> {ROWS_A_TICK}"
            )
            found = Counter(
                torn=len(torn),
                lost=(self.tick < last or ticks != self.tick)
                + (ask("SELECT top_bytes FROM profile") != [(self.tick,)]),
            )
        with Reader.open(self.folder) as reader:
            open_keys = {alert.key for alert in reader.alerts(open_only=True)}
            for key, row in self.said["alert"]:
                stored = [sent.row for sent in reader.deliveries(key)]
                found["lost"] += key not in open_keys or stored != [row]
            words = {(one.alert_key, one.row) for one in reader.user_labels()}
            found["lost"] += len(self.said["word"] - words)
        return found


def writes(count: int, chance: random.Random) -> Figures:
    """Kill a daemon that writes, so often, and one that makes its file, a quarter as often."""
    figures: Counter[str] = Counter(kills=0, torn=0, lost=0, set_aside=0, unusable=0)
    with tempfile.TemporaryDirectory() as folder:
        written = Written(Path(folder, "writes"))
        for _ in range(count):
            figures["kills"] += 1
            figures.update(written.kill(chance.uniform(0.04, 0.2)))
        figures["set_aside"] += len(list(written.folder.glob("*.corrupt-*")))
        figures["unusable"] += rows(written.folder, "PRAGMA integrity_check") != [("ok",)]
        figures["committed_alerts"] = len(written.said["alert"])
        for number in range(max(4, count // 4)):
            directory = Path(folder, str(number))
            _killed(_MAKES, directory, pause_s=chance.uniform(0.0, 0.25))
            history = opened(directory)
            figures["kills"] += 1
            figures["unusable"] += not history.writing or history.problems != ()
            history.close()
            figures["unusable"] += [file.name for file in directory.iterdir()] != ["history.db"]
    assert figures["committed_alerts"] >= count / 4, figures
    return require(dict(figures), torn=0, lost=0, set_aside=0, unusable=0)


def killed(count: int, seed: int) -> Figures:
    """Kill daemons that deliver and that write; about so many times in all, at least 750."""
    figures = deliveries(max(30, count - 900), seed)
    more = writes(max(20, count // 7), random.Random(seed))
    return figures | {f"writing_{name}": value for name, value in more.items()}
