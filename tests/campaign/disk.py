"""A disk that is full at each write: the history, its log, the live state, messages that wait.

``python -m tests.campaign.disk FOLDER COUNT SEED`` runs with a small file system of its own at
FOLDER, of which :func:`filled` leaves so many pages free and no more: SQLite, the live state and
the messages meet the true error at whichever write is the first that does not fit. Then room is
made, and everything that was kept in memory has to be in the file.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.campaign import Figures, require
from tests.campaign.store import Faults, Life, Plan, stored
from tests.conftest import ROOT, ran
from tests.pipeline.restarts import INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 4096
DISK_PAGES = 2048
MOST_PAGES = 200
"""A life takes no more: its file, the log beside it, the live state twice."""
FULL_S, ROOM_S = 60.0, 360.0
"""Ages at which the disk is filled, and at which there is room again."""
WRONGS = ("silent", "wrong")
NO_MOUNTS = 77


def _fill(ballast: Path, free_pages: int) -> None:
    """Take all room but so many pages."""
    status = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        for _ in range(max(0, status.f_bavail * status.f_frsize // PAGE - free_pages)):
            file.write(bytes(PAGE))


def lives(folder: Path, free_pages: Iterator[int]) -> Counter[str]:
    """Live a life for each number of pages that are left."""
    figures: Counter[str] = Counter()
    for pages in free_pages:
        life = Life(folder / "life")
        none = Faults(Plan("sqlite", 0), folder, lambda: 0.0)
        life.pass_to(FULL_S, none)
        _fill(folder / "ballast", pages)
        said: set[str] = set()
        while life.age_s < ROOM_S:
            life.pass_to(life.age_s + 12 * INTERVAL_S, none)
            said |= {text for text, _ in life.pipeline.problems()}
        (folder / "ballast").unlink()
        figures["lives"] += 1
        figures["met"] += bool(said)
        life.live_on(none)
        life.pass_to(life.age_s + 150.0, none)
        left = life.pipeline.problems()
        life.pipeline.close()
        wrong = [*life.ended, *(text for text, _ in left), *stored(life, folder / "life")]
        # With so few pages left the writes of five minutes cannot all have fitted.
        silent = pages < 4 and not said
        figures["silent"] += silent
        figures["wrong"] += bool(wrong)
        if wrong or silent:
            print(f"  {pages} pages: {'; '.join(wrong) or 'silent'}", file=sys.stderr, flush=True)
        shutil.rmtree(folder / "life")
    return figures


def filled(count: int, seed: int) -> Figures:
    """Fill the disk to so many pages, drawn at random; 0: to each number of them in turn."""
    script = (
        f'mount -t tmpfs -o size={DISK_PAGES * PAGE} none "$1" || exit {NO_MOUNTS}\n'
        f'exec {sys.executable} -m tests.campaign.disk "$1" {count} {seed}'
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        words = ["sh", "-c", script, "sh", folder]
        done = ran(["unshare", "-m", *words], cwd=ROOT, env=env)
        if not done.stdout.strip():  # not root
            done = ran(["unshare", "-r", "-m", *words], cwd=ROOT, env=env)
    if not done.stdout.strip():
        # Nothing else is as a full disk is; the part "store" has the errors at each call.
        return {"not_for_this_machine": 1}
    print(done.stderr, end="", file=sys.stderr)
    figures = Counter(json.loads(done.stdout.splitlines()[-1]))
    if not figures["met"]:
        raise AssertionError(f"{figures}: no write met the end of the disk")
    return require({name: figures[name] for name in ("lives", "met", *WRONGS)}, silent=0, wrong=0)


def main() -> None:
    """Fill the file system at a folder, and print the figures."""
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    logging.disable()
    drawn = random.Random(seed).sample(range(MOST_PAGES), count) if count else range(MOST_PAGES)
    print(json.dumps(lives(folder, iter(drawn))))


if __name__ == "__main__":
    main()
