"""Promise 6: an alert arrives at least once, and one crash makes it arrive twice at most.

A small daemon (:mod:`tests.promises.dying`) is killed by SIGKILL at every line that runs between
the decision to tell and the note that it was told, on whichever thread, and at random moments,
inside writes to the disk too; it is started again, and what has arrived is counted.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)  # whichever comes first waits for all the lives
AT_RANDOM = int(os.environ.get("GPUWATCHD_TEST_KILLS", "30"))


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every life that was cut short: where, how it ended, and how often the alert arrived."""
    folder: Path = tmp_path_factory.mktemp("dying")
    seed = random.randrange(2**31)
    done = subprocess.run(
        [sys.executable, "-m", "tests.promises.dying", str(folder), str(AT_RANDOM), str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for case in dict.fromkeys(one["case"] for one in found):
        of_case = [one for one in found if one["case"] == case]
        kills = sum(one["ends"].count("killed") for one in of_case)
        times = Counter(one["arrived"] for one in of_case)
        print(f"{case}: {kills} kills (seed {seed}); arrived {dict(sorted(times.items()))}")
    return found


@pytest.mark.requirement("W22")
def test_killed_anywhere_an_alert_arrives_once_or_twice(lives: list[dict[str, Any]]) -> None:
    single = [one for one in lives if len(one["deaths"]) == 1]
    assert sum(one["ends"] == ["killed", "ended"] for one in single) >= 200
    assert {one["ends"][-1] for one in lives} == {"ended"}
    assert [one for one in single if one["arrived"] not in {1, 2}] == []
    # Both ends of the crash between sending and noting it are among the places.
    assert {one["arrived"] for one in single} == {1, 2}


def test_each_crash_doubles_a_message_once_at_most(lives: list[dict[str, Any]]) -> None:
    again = [one for one in lives if len(one["deaths"]) == 2]
    assert len(again) >= 5
    for one in again:
        assert 1 <= one["arrived"] <= 1 + one["ends"].count("killed"), one


def test_the_cases_pass_what_they_are_about(lives: list[dict[str, Any]]) -> None:
    passed = {
        one["deaths"][0].rpartition(":")[0] for one in lives if isinstance(one["deaths"][0], str)
    }
    assert {
        "gpuwatchd/notify/outbox/dispatcher.py",
        "gpuwatchd/notify/outbox/channel_health.py",
        "gpuwatchd/notify/outbox/outbox.py",
        "gpuwatchd/notify/outbox/states.py",
        "gpuwatchd/notify/outbox/turn.py",
        "gpuwatchd/store/write_buffers.py",
        "gpuwatchd/store/records.py",
        "tests/promises/dying.py",
    } <= passed
