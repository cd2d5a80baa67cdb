"""A tenth of what the program answers is as it was recorded; the whole: see the package."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT, not_here, ran
from tests.recordings import frozen, index


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tenth_of_the_answers_is_as_recorded() -> None:
    """What is meant to differ is written anew: ``python -m tests.recordings write``."""
    known, here = index.read().tools, frozen.tools()
    if any(known[name] != here[name] for name in ("python", "system")):
        # They break lines elsewhere, or count the last digit otherwise.
        not_here(f"recorded with {known['python']} on {known['system']}")
    other = {
        name: f"{known.get(name)} -> {here[name]}" for name in here if known.get(name) != here[name]
    }
    done = ran(
        [sys.executable, "-m", "tests.recordings", "compare", "--tenth"], cwd=ROOT, timeout=600
    )
    assert done.returncode == 0, f"other versions: {other}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_to_compare_nothing_is_an_error() -> None:
    done = ran(
        [sys.executable, "-m", "tests.recordings", "compare", "--only", "nosuchthing"],
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 2, done.stdout + done.stderr


def test_a_tenth_is_a_tenth_and_each_kind_is_in_it() -> None:
    names = list(index.read().items)
    tenth = [name for name in names if index.in_tenth(name)]
    assert 0.08 < len(tenth) / len(names) < 0.12
    assert {name.partition("/")[0] for name in tenth} == {name.partition("/")[0] for name in names}


def test_the_recordings_are_small() -> None:
    assert sum(file.stat().st_size for file in index.EXPECTED.iterdir()) < 1_500_000
