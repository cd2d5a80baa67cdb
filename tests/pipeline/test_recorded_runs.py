"""Runs of one program in one record: what had ended counts, and nothing that comes later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey, Subject
from gpuwatchd.pipeline import backtest, replay
from gpuwatchd.pipeline.recorded_runs import LearningEvaluator, key_of
from gpuwatchd.store.reader import Reader
from tests.pipeline import recorded
from tests.pipeline.recorded import TOTAL, Run, ramp

if TYPE_CHECKING:
    from pathlib import Path

BEGIN_S = 1_700_000_040.0
HOUR_S = 3600.0
DEVICE = Device(
    uid="GPU-0", vendor="nvidia", index=0, name="NVIDIA RTX 4090", memory_total_bytes=TOTAL
)
ARGV = ("python", "train.py", "--lr", "0.1")
FILL = ramp(45, 8, then_minutes=70)
"""A cache that fills in a straight line for 45 minutes: the same data as a leak until it stops."""


def series(
    number: int, begin_s: float, argv: tuple[str, ...] = ARGV, used: object = FILL
) -> LogSeries:
    key = ProcessKey(pid=number, started_at_s=begin_s)
    x = np.asarray(used, dtype=np.float64)
    return LogSeries(
        subject=Subject(device_uid=DEVICE.uid, process=key),
        device=DEVICE,
        process=ProcessInfo(key=key, name="python", user="alice", argv=argv),
        t_s=np.arange(x.size, dtype=np.float64) * 10.0 + begin_s,
        used_bytes=x,
        limit_bytes=None,
        total_bytes=float(TOTAL),
    )


def of(*runs: LogSeries) -> LogFile:
    return LogFile(path="x", format="test", devices=[DEVICE], series=list(runs))


def begins(count: int) -> list[float]:
    return [BEGIN_S + 2 * HOUR_S * number for number in range(count)]


def told(log: LogFile, *, learning: bool = True, level: float = 0.68) -> list[int]:
    """Return the watches and alerts of each process."""
    config = Config(detection=DetectionSection(confidence_threshold=level))
    evaluator = LearningEvaluator(config, log) if learning else None
    found = replay.analyze(log, config, evaluator=evaluator)
    return [len(result.watches) + len(result.alerts) for result in found]


def test_the_third_run_of_a_program_in_a_log_is_silent() -> None:
    log = of(*(series(k + 1, at_s) for k, at_s in enumerate(begins(3))))
    plain, learned = told(log, learning=False), told(log)
    assert min(plain) > 0
    assert learned[0] == plain[0]
    assert learned[2] == 0
    assert told(log, level=0.5)[2] == 0


def test_only_what_had_ended_before_counts() -> None:
    first, second, third = begins(3)
    runs = [series(1, first), series(2, second), series(3, second + 60.0), series(4, third)]
    evaluator = LearningEvaluator(Config(), of(*runs))
    known = [len(evaluator.history_of(one.subject.id)) for one in runs]
    # The second and the third are of one launch: one of them counts.
    assert known == [0, 1, 1, 2]
    assert all(
        profile.ended_at_s < runs[k].t_s[0]
        for k in range(4)
        for profile in evaluator.history_of(runs[k].subject.id)
    )


@pytest.mark.parametrize("argv", [(), ("python",), ("bash", "train.sh")])
def test_a_name_alone_is_no_program(argv: tuple[str, ...]) -> None:
    runs = [series(k + 1, at_s, argv) for k, at_s in enumerate(begins(3))]
    evaluator = LearningEvaluator(Config(), of(*runs))
    assert evaluator.history_of(runs[2].subject.id) == ()


def test_other_arguments_are_another_program_and_other_seeds_are_not() -> None:
    at_s = begins(3)
    other = (*ARGV[:3], "0.2")
    runs = [
        series(1, at_s[0]),
        series(2, at_s[1], other),
        series(3, at_s[2], (*ARGV, "--seed", "7")),
    ]
    evaluator = LearningEvaluator(Config(), of(*runs))
    assert len(evaluator.history_of(runs[1].subject.id)) == 0
    assert len(evaluator.history_of(runs[2].subject.id)) == 1
    named = ProcessInfo(key=ProcessKey(pid=9, started_at_s=None), name=" ".join(ARGV), user="alice")
    assert key_of(named, DEVICE) == key_of(runs[0].process, DEVICE)


def test_a_run_of_which_it_is_not_known_when_it_was_counts_for_nobody() -> None:
    """Its times jump back: which of its parts came first is not known."""
    first, second = series(1, begins(2)[0]), series(2, begins(2)[1])
    torn = LogSeries(
        subject=first.subject, device=DEVICE, process=first.process, t_s=first.t_s - HOUR_S,
        used_bytes=first.used_bytes, limit_bytes=None, total_bytes=float(TOTAL), run=1,
    )  # fmt: skip
    evaluator = LearningEvaluator(Config(), of(first, torn, second))
    assert evaluator.history_of(second.subject.id) == ()


def test_a_run_that_alerted_at_its_end_proves_nothing() -> None:
    leak = ramp(100, 12)
    runs = [series(1, begins(2)[0], used=leak), series(2, begins(2)[1], used=leak)]
    log = of(*runs)
    evaluator = LearningEvaluator(Config(), log)
    results = replay.analyze(log, Config(), evaluator=evaluator)
    (known,) = evaluator.history_of(runs[1].subject.id)
    assert known.alerted
    assert all(result.alerts for result in results)


@pytest.mark.slow
def test_backtest_knows_what_the_daemon_knew(tmp_path: Path) -> None:
    at_s = begins(3)
    end_s = at_s[-1] + 2 * HOUR_S
    for name, program in (("known", "p"), ("unknown", None)):
        runs = [Run(pid=k + 1, begin_s=at, used=FILL, program=program) for k, at in enumerate(at_s)]
        recorded.write(tmp_path / name, runs, BEGIN_S, end_s)
    watched = {}
    for name in ("known", "unknown"):
        with Reader.open(tmp_path / name) as history:
            (device,) = history.devices()
            span = (BEGIN_S - 60, end_s)
            report = backtest.play(history, device, span, backtest.trials(Config())[:3:2])
        watched[name] = [
            {case.subject.process.pid for case in played.cases if case.subject.process}
            for played in report.played
        ]
    assert watched["unknown"][0] == {1, 2, 3}
    assert all(1 in pids and 3 not in pids for pids in watched["known"])
