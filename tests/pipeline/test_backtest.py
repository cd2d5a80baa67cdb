"""The user's own history, played again: what would be raised, and what really came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.config import Config, PolicySection
from gpuwatchd.core.model import Device, EtaRange, Subject
from gpuwatchd.pipeline import backtest, history_log, replay
from gpuwatchd.pipeline.backtest import LaterOutcome
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from tests.making import present
from tests.pipeline import recorded
from tests.pipeline.play import EAGER
from tests.pipeline.recorded import GIB, TOTAL, Run, ramp
from tests.store import runs

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.pipeline.backtest import BacktestCase, DeviceReport, Trial

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
BEGIN_S = 1_700_000_040.0
END_S = BEGIN_S + 6 * HOUR_S
DIES = Run(pid=1, begin_s=BEGIN_S + 600, used=ramp(75, 19.3))
STOPS = Run(pid=2, begin_s=BEGIN_S + 1.5 * HOUR_S, used=ramp(40, 6, then_minutes=75))
RETURNS = Run(
    pid=3,
    begin_s=BEGIN_S + 3.6 * HOUR_S,
    used=np.concatenate((ramp(40, 5), ramp(25, 0.0))),
)
GROWS = Run(pid=4, begin_s=END_S - HOUR_S, used=ramp(60, 3, base_gib=2))
DEVICE = Device(
    uid="GPU-0", vendor="nvidia", index=0, name="NVIDIA RTX 4090", memory_total_bytes=TOTAL
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("samples")
    recorded.write(where, [DIES, STOPS, RETURNS, GROWS], BEGIN_S, END_S)
    return where


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("minutes")
    recorded.write(where, [DIES, STOPS, RETURNS, GROWS], BEGIN_S, END_S, rolled=True)
    return where


def played(where: Path, tried: list[Trial] | None = None) -> DeviceReport:
    with Reader.open(where) as history:
        (device,) = history.devices()
        return backtest.play(
            history, device, (BEGIN_S - 60, END_S), tried or backtest.trials(EAGER)[:1]
        )


def by_pid(report: DeviceReport) -> dict[int, BacktestCase]:
    return {
        case.subject.process.pid: case
        for case in report.played[0].cases
        if case.subject.process is not None and case.alert_at_s is not None
    }


def test_each_alert_is_told_with_what_came_of_it(directory: Path) -> None:
    report = played(directory)
    assert report.subjects == 5
    cases = by_pid(report)
    assert {pid: case.fate.came for pid, case in cases.items()} == {
        1: "filled", 2: "plateaued", 3: "given-back",
    }  # fmt: skip
    assert {pid: case.true for pid, case in cases.items()} == {1: True, 2: False, 3: False}
    dead = cases[1]
    assert dead.fate.ended
    assert dead.fate.share == pytest.approx(0.99, abs=0.01)
    assert 0.5 * 1.25 * HOUR_S < present(dead.lead_s) < 1.25 * HOUR_S
    assert dead.alert_at_s is not None
    assert dead.fate.at_s == pytest.approx(DIES.begin_s + 1.25 * HOUR_S, abs=300)
    assert cases[2].lead_s is None


def test_minutes_tell_the_same_story_as_samples(directory: Path, rolled: Path) -> None:
    fine, coarse = by_pid(played(directory)), by_pid(played(rolled))
    assert coarse.keys() >= {1, 2, 3}
    for pid in (1, 2, 3):
        assert coarse[pid].fate.came == fine[pid].fate.came
        assert coarse[pid].alert_at_s == pytest.approx(fine[pid].alert_at_s, abs=900)


def test_what_the_user_said_decides(tmp_path: Path) -> None:
    recorded.write(tmp_path, [STOPS], BEGIN_S, END_S)
    before = by_pid(played(tmp_path))[2]
    subject = before.subject
    said = runs.word(
        runs.run(), "leak", subject=subject, opened_at_s=present(before.alert_at_s) - 100.0
    )
    transaction(tmp_path, tables.write_label, said)
    after = by_pid(played(tmp_path))[2]
    assert (before.true, after.true, after.word) == (False, True, "leak")


@pytest.mark.requirement("G38")
def test_thresholds_around_the_present_one_are_tried(directory: Path) -> None:
    tried = backtest.trials(Config())
    assert [trial.name for trial in tried] == [
        "as it is",
        "detection.confidence-threshold=0.48",
        "detection.confidence-threshold=0.58",
        "detection.confidence-threshold=0.78",
        "detection.confidence-threshold=0.88",
        "policy.confirm=6",
        "policy.confirm=15",
    ]
    figures = {one.trial: one for one in backtest.tally([played(directory, tried)], tried)}
    alerts = [figures[trial.name].alerts for trial in tried[:5]]
    present, levels = alerts[0], alerts[1:]
    assert levels == sorted(levels, reverse=True)
    assert levels[1] >= present >= levels[2]
    assert all(one.true + one.false + one.unknown == one.alerts for one in figures.values())
    assert all(one.deaths == 1 for one in figures.values())
    leads = [figures[name].lead_s for name in ("as it is", "detection.confidence-threshold=0.88")]
    assert leads[0] is not None
    assert leads[1] is None or leads[1] <= leads[0]


def test_a_death_without_an_alert_is_missed(directory: Path) -> None:
    deaf = msgspec.structs.replace(Config(), policy=PolicySection(confirm=100_000))
    trial = backtest.Trial(name="deaf", config=deaf)
    (figures,) = backtest.tally([played(directory, [trial])], [trial])
    assert (figures.alerts, figures.deaths, figures.missed) == (0, 1, 1)
    assert (figures.lead_s, figures.true, figures.foretold) == (None, 0, 0)
    assert (figures.filled, figures.share_left(0.0)) == (1, 0.0)


def test_the_share_with_time_left_counts_a_missed_death_as_none() -> None:
    (nothing,) = backtest.tally([], [backtest.Trial(name="now", config=Config())])
    assert (nothing.filled, nothing.share_left(10.0), nothing.lead_s) == (0, None, None)
    some = msgspec.structs.replace(nothing, leads_s=(500.0, 1800.0, 9000.0), missed=1)
    assert [some.share_left(least) for least in (10.0, 30.0, 60.0)] == [0.5, 0.5, 0.25]
    assert (some.filled, some.lead_s) == (4, 1800.0)


@pytest.mark.parametrize("threshold", [0.4, 0.9])
def test_judging_once_for_all_trials_changes_nothing(directory: Path, threshold: float) -> None:
    now = Config()
    detection = msgspec.structs.replace(now.detection, confidence_threshold=threshold)
    settings = msgspec.structs.replace(now, detection=detection)
    both = [backtest.Trial(name="now", config=now), backtest.Trial(name="then", config=settings)]
    one = played(directory, both).played[1].cases
    with Reader.open(directory) as history:
        log = history_log.load(history, DEVICE, BEGIN_S - 60, END_S)
    plain = {
        (result.subject.id, event.at_s)
        for result in replay.analyze(log, settings)
        for event in result.alerts
        if event.state == "firing"
    }
    assert {(c.subject.id, c.alert_at_s) for c in one if c.alert_at_s is not None} == plain


def test_an_empty_span_has_nothing_to_say(directory: Path) -> None:
    with Reader.open(directory) as history:
        report = backtest.play(
            history, DEVICE, (BEGIN_S - 9e6, BEGIN_S - 8e6), backtest.trials(Config())
        )
    assert (report.samples, report.played, report.begun_at_s) == (0, (), None)
    (figures, *_) = backtest.tally([report], backtest.trials(Config()))
    assert (figures.alerts, figures.deaths) == (0, 0)


def test_a_span_of_a_thousand_years_takes_no_longer(directory: Path) -> None:
    steps: list[float] = []
    with Reader.open(directory) as history:
        near = history_log.load(history, DEVICE, BEGIN_S - 60, END_S)
        far = history_log.load(history, DEVICE, -4e10, END_S, passed=steps.append)
    assert len(steps) < 20
    assert steps[-1] == 1.0
    assert far.series[0].t_s.tolist() == near.series[0].t_s.tolist()
    assert len(far.series) == len(near.series)


def test_a_boot_tears_the_series(tmp_path: Path) -> None:
    recorded.write(tmp_path, [STOPS], BEGIN_S, END_S)
    recorded.boot(tmp_path, BEGIN_S, "one")
    recorded.boot(tmp_path, BEGIN_S + 2 * HOUR_S, "two")
    with Reader.open(tmp_path) as history:
        whole = history_log.load(history, DEVICE, BEGIN_S, END_S).series[0]
    (at,) = whole.breaks
    assert whole.t_s[at] == pytest.approx(BEGIN_S + 2 * HOUR_S, abs=20)


def log_of(used: FloatArray, *, process: bool = True, more_s: float = 3600.0) -> LogFile:
    """Return a process and its device, which goes on after it."""
    t = np.arange(0.0, used.size * 10.0, 10.0)
    late = np.arange(used.size * 10.0, used.size * 10.0 + more_s, 10.0)
    subject = Subject(device_uid="GPU-0", process=recorded.key(7) if process else None)
    info = recorded.info(7) if process else None
    device = LogSeries(
        subject=Subject(device_uid="GPU-0"), device=DEVICE, process=None,
        t_s=np.concatenate((t, late)),
        used_bytes=np.concatenate((used + GIB, np.full(late.size, float(GIB)))), limit_bytes=None,
    )  # fmt: skip
    own = LogSeries(
        subject=subject, device=DEVICE, process=info, t_s=t, used_bytes=used, limit_bytes=None
    )
    return LogFile(path="x", series=[device, own] if process else [device])


@pytest.mark.parametrize(
    ("used", "died"),
    [
        (ramp(120, 18.8), True),
        (ramp(120, 12), False),
        # Takes the whole card when it starts: no growth, no death of it.
        (ramp(120, 0.0, base_gib=22.8), False),
    ],
)
def test_deaths_are_those_of_ones_own_growth(used: FloatArray, died: bool) -> None:
    assert bool(backtest.deaths(log_of(used))) == died


def test_a_device_without_processes_dies_when_it_is_emptied() -> None:
    assert backtest.deaths(log_of(ramp(120, 18.8), process=False)) != {}
    assert backtest.deaths(log_of(ramp(120, 18.8), process=False, more_s=0.0)) == {}


@pytest.mark.parametrize(
    ("came", "after_s", "lived_s", "held"),
    [
        ("filled", 500.0, 500.0, True),
        ("filled", 50.0, 50.0, False),
        ("filled", 5000.0, 5000.0, False),
        ("plateaued", 300.0, 5000.0, False),
        ("plateaued", 300.0, 600.0, None),
        ("ended", 500.0, 500.0, None),
        ("open", 500.0, 500.0, None),
    ],
)
def test_a_band_holds_or_not_or_nobody_knows(
    came: backtest.Came, after_s: float, lived_s: float, held: bool | None
) -> None:
    eta = EtaRange(low_s=100.0, mid_s=500.0, high_s=1000.0)
    fate = LaterOutcome(came=came, at_s=1000.0 + after_s, share=0.5, ended=True)
    assert backtest.band_held(eta, fate, from_s=1000.0, end_s=1000.0 + lived_s) is held
    assert backtest.band_held(None, fate, from_s=1000.0, end_s=1000.0 + lived_s) is None


def test_an_open_band_is_not_broken_by_standing_still() -> None:
    eta = EtaRange(low_s=100.0, mid_s=500.0, high_s=None)
    fate = LaterOutcome(came="plateaued", at_s=1300.0, share=0.5, ended=False)
    assert backtest.band_held(eta, fate, from_s=1000.0, end_s=1e9) is None
