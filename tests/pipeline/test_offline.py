"""A log says what the daemon would have said, and when; never with a look ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuwatchd.collect.logs.log import LogFile, LogSeries
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline import Pipeline, replay
from gpuwatchd.pipeline.replay import Recorded, SubjectResult
from tests.making import CARD, GIB, KEY, LEAKER, MIB, present, sample
from tests.pipeline.play import EAGER, Script

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray


def series(
    t_s: FloatArray, used: FloatArray, *, process: bool = False, breaks: tuple[int, ...] = ()
) -> LogSeries:
    return LogSeries(
        subject=Subject(device_uid=CARD.uid, process=KEY if process else None),
        device=CARD,
        process=LEAKER if process else None,
        t_s=t_s,
        used_bytes=used,
        limit_bytes=80.0 * GIB,
        total_bytes=80.0 * GIB,
        breaks=breaks,
    )


def judged(*parts: LogSeries) -> list[SubjectResult]:
    return replay.analyze(LogFile(path="x", devices=[CARD], series=list(parts)), EAGER)


def ramp(n: int, *, from_n: int = 0, mib_per_step: float = 200.0) -> FloatArray:
    grown = np.maximum(0, np.arange(n) - from_n) * mib_per_step * MIB
    return np.asarray(20.0 * GIB + grown, dtype=np.float64)


def times(n: int, step_s: float = 5.0) -> FloatArray:
    return 1_700_000_000.0 + np.arange(n, dtype=np.float64) * step_s


def test_a_leak_is_told_with_its_instants() -> None:
    (found,) = judged(series(times(250), ramp(250, from_n=60)))
    assert found.finding is not None
    assert (found.finding.tier, found.finding.pattern) == ("alert", "gradual")
    assert [e.state for e in found.watches] == ["opened"]
    assert found.alerts[0].state == "firing"
    onset_s = times(250)[60]
    assert onset_s < found.watches[0].at_s < onset_s + 120
    assert found.watches[0].at_s < found.alerts[0].at_s < onset_s + 500


def test_a_flat_log_finds_nothing() -> None:
    (found,) = judged(series(times(2000), np.full(2000, 20.0 * GIB)))
    assert present(found.finding).pattern == "stable"
    assert (found.watches, found.alerts) == ((), ())


def test_what_comes_later_changes_nothing_said_before() -> None:
    long = judged(series(times(600), ramp(600, from_n=60)))[0]
    for cut in (120, 150, 200, 300):
        short = judged(series(times(cut), ramp(600, from_n=60)[:cut]))[0]
        # The last ten seconds of the short log have not ended their evaluation cell.
        end_s = float(times(cut)[-1]) - 10.0
        for name in ("watches", "alerts"):
            said = [(e.at_s, e.state) for e in getattr(long, name) if e.at_s <= end_s]
            also = [(e.at_s, e.state) for e in getattr(short, name) if e.at_s <= end_s]
            assert said == also


def test_live_and_recorded_agree() -> None:
    used = ramp(250, from_n=60)
    script = Script(lambda i: sample(1_700_000_000.0 + 5.0 * i, [(LEAKER, int(used[i]))]))
    pipeline = Pipeline(config=EAGER, sources=[script])
    live_s = {}
    for tick in (pipeline.tick() for _ in range(250)):
        for change in tick.changes:
            live_s[change.state] = tick.state.taken_at_s
    pipeline.close()
    (found,) = judged(series(times(250), used, process=True))
    assert found.watches[0].at_s == pytest.approx(live_s["watch"], abs=15)
    assert found.alerts[0].at_s == pytest.approx(live_s["firing"], abs=15)


def test_a_process_that_ends_before_its_log_resolves_its_alert() -> None:
    leak = series(times(250), ramp(250, from_n=60), process=True)
    device = series(times(600), np.full(600, 60.0 * GIB))
    found = {r.process is not None: r for r in judged(leak, device)}
    assert [e.state for e in found[True].alerts][-1] == "resolved"
    assert found[True].alerts[-1].alert.ended_code == Ending.PROCESS_ENDED


def test_a_device_whose_processes_are_judged_is_not_judged_again() -> None:
    used = ramp(250, from_n=60)
    found = {r.process is not None: r for r in judged(
        series(times(250), used, process=True), series(times(250), used + 500.0 * MIB)
    )}  # fmt: skip
    assert found[True].alerts
    assert found[False].alerts == ()
    assert found[False].finding == found[True].finding


def test_a_window_never_reaches_over_a_break() -> None:
    recorded = Recorded(times(100), ramp(100), (40,), 1e9)
    recorded.known = 40
    assert recorded.window()[0].size == 40
    recorded.known = 41
    assert recorded.window()[0].size == 1
    recorded.known = 100
    assert recorded.window()[0][0] == times(100)[40]


def test_an_empty_log_has_no_subjects() -> None:
    assert judged() == []
    empty = np.empty(0)
    assert judged(series(empty, empty)) == []
