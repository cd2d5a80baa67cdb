"""What history is worth, on a few programs of the tuning half; ``history`` prints all figures."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.conftest import present
from tests.scenarios import history_families
from tests.scenarios.history import Row, earlier, outcome
from tests.scenarios.history_families import KINDS, REPORT, TUNING, Program


@functools.cache
def leaking(kind: str, seed: int, past: int) -> Row:
    program = Program(kind=kind, seed=seed)
    return outcome("ii", program, program.run(3, leak=program.leak), earlier(program, past))


def test_tuning_and_report_programs_are_strangers() -> None:
    assert not set(TUNING) & set(REPORT)
    assert min(len(TUNING), len(REPORT)) >= 6


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_runs_are_deterministic_and_differ_by_their_jitter_only(kind: str) -> None:
    program = Program(kind=kind, seed=7)
    one, same, other = program.run(1), program.run(1), program.run(2)
    assert np.array_equal(one.series.used_bytes, same.series.used_bytes)
    assert not np.array_equal(one.series.used_bytes, other.series.used_bytes)
    assert one.onset_s is None
    assert one.series.used_bytes.max() < program.total
    leak = program.run(1, leak=program.leak)
    before = int(program.leak.onset_s / history_families.INTERVAL_S)
    assert np.array_equal(one.series.used_bytes[:before], leak.series.used_bytes[:before])
    assert present(leak.oom_s) > program.leak.onset_s


@pytest.mark.parametrize(("kind", "seed"), [("exp_warmup", 1), ("wander", 3)])
def test_a_leak_in_a_known_program_is_watched_and_alerted_earlier(kind: str, seed: int) -> None:
    alone, with_history = leaking(kind, seed, 0), leaking(kind, seed, 2)
    assert present(with_history.alert_s) < present(alone.alert_s) - 300.0
    if not with_history.watched:  # else it was watched before the leak began
        assert present(with_history.watch_s) <= present(with_history.alert_s)
    assert with_history.left > alone.left
