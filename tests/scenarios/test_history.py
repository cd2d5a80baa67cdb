"""What history is worth, on a few programs of the tuning half; ``history`` prints all figures."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.conftest import present
from tests.scenarios import history, history_families
from tests.scenarios.history import Row, earlier, known, outcome, poisoned, siblings, yesterday
from tests.scenarios.history_families import KINDS, REPORT, TUNING, Program, Ran


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


@pytest.mark.parametrize(("kind", "seed"), [("straight_fill", 0), ("exp_warmup", 1)])
def test_the_same_benign_ramp_for_the_third_time_is_not_even_watched(kind: str, seed: int) -> None:
    program = Program(kind=kind, seed=seed)
    again = program.run(1)
    assert outcome("i", program, again, ()).watched
    row = outcome("i", program, again, earlier(program, 2))
    assert not row.watched
    assert not row.alarmed


@pytest.mark.parametrize(("kind", "seed"), [("exp_warmup", 1), ("wander", 3)])
def test_a_leak_in_a_known_program_is_watched_and_alerted_earlier(kind: str, seed: int) -> None:
    alone, with_history = leaking(kind, seed, 0), leaking(kind, seed, 2)
    assert present(with_history.alert_s) < present(alone.alert_s) - 300.0
    if not with_history.watched:  # else it was watched before the leak began
        assert present(with_history.watch_s) <= present(with_history.alert_s)
    assert with_history.left > alone.left


@pytest.mark.parametrize("how", ["limit", "early", "idle"])
def test_earlier_runs_that_leaked_too_do_not_make_the_leak_normal(how: str) -> None:
    program = Program(kind="exp_warmup", seed=1)
    past = poisoned(program, 3, how)
    row = outcome(how, program, program.run(3, leak=program.leak), past)
    alone = leaking("exp_warmup", 1, 0)
    assert present(row.alert_s) < present(alone.alert_s)


def test_a_leak_that_idled_is_proof_only_when_nobody_knows_that_it_idled() -> None:
    program = Program(kind="exp_warmup", seed=1)
    seen, unseen = (poisoned(program, 1, "idle", busy=busy)[0] for busy in (True, False))
    assert unseen.proven_bytes > seen.proven_bytes + 0.1 * program.total * program.leak.full_s / 1e6
    assert unseen.proven_bytes == pytest.approx(unseen.top_bytes, rel=0.05)


def test_the_users_word_on_one_run_is_enough() -> None:
    program = Program(kind="straight_fill", seed=0)
    again = program.run(1)
    normal = known(program.run(100), word="normal")
    assert not outcome("normal i", program, again, [normal]).watched
    row = outcome("normal ii", program, program.run(3, leak=program.leak), [normal])
    assert row.alert_s is not None
    leak = known(program.run(200, leak=program.leak), word="leak")
    said = outcome("leak ii", program, program.run(3, leak=program.leak), [leak])
    assert said.alert_s is not None or said.alarmed


def ranks(program: Program, leaking: int) -> list[Ran]:
    return [
        program.run(300 + k, leak=program.leak if k < leaking else None, jitter=0.03)
        for k in range(history.SIBLINGS)
    ]


@pytest.mark.parametrize("seed", [0, 2])
def test_a_rank_that_leaves_its_siblings_is_alerted_earlier(seed: int) -> None:
    program = Program(kind="evaluations", seed=seed)
    job = ranks(program, 1)
    alone = outcome("one leaves", program, job[0], ())
    row = outcome("one leaves", program, job[0], (), history=siblings(job[1:]))
    assert present(row.alert_s) < present(alone.alert_s)


def test_ranks_that_all_leak_are_alerted_as_without_siblings() -> None:
    program = Program(kind="exp_warmup", seed=1)
    job = ranks(program, history.SIBLINGS)
    alone = outcome("all leak", program, job[0], ())
    row = outcome("all leak", program, job[0], (), history=siblings(job[1:]))
    assert present(row.alert_s) <= present(alone.alert_s) + 600.0


def test_the_same_hour_of_yesterday_makes_a_daily_rise_normal() -> None:
    rows = {row.test: row for row in history.of_server(1)}
    assert rows["diurnal, alone"].alarmed
    assert not rows["diurnal"].alarmed
    assert not rows["diurnal"].watched
    assert rows["diurnal leak"].alert_s is not None
    assert rows["diurnal leak"].left > 0.5
    ran = history_families.server(1, leak=False)
    assert yesterday(ran)(float(ran.series.t_s[0]) + 3600.0) == ()
