"""A log says what the daemon would have said, and when; never with a look ahead."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline import replay
from gpuwatchd.pipeline.device_rings import CLOCK_TICKS, Feeder
from gpuwatchd.pipeline.replay import Recorded, SubjectResult
from gpuwatchd.store import ring as ring_module
from gpuwatchd.store.ring import Ring
from tests.making import CARD, GIB, KEY, LEAKER, MIB, sample
from tests.pipeline.play import EAGER, Script, run
from tests.pipelines import make_pipeline

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


@pytest.mark.slow
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
    pipeline = make_pipeline(config=EAGER, sources=[script])
    ticks = run(pipeline, 250)
    live_s = {change.state: tick.state.taken_at_s for tick in ticks for change in tick.changes}
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
    recorded.count = 40
    assert recorded.window()[0].size == 40
    recorded.count = 41
    assert recorded.window()[0].size == 1
    recorded.count = 100
    assert recorded.window()[0][0] == times(100)[40]


def test_a_detector_that_fails_leaves_no_subject_out_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuwatchd.analysis.verdict.judge", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        judged(series(times(250), ramp(250, from_n=60)))


def test_an_empty_log_has_no_subjects() -> None:
    assert judged() == judged(series(np.empty(0), np.empty(0))) == []


def test_a_leak_of_a_device_fires_where_the_clock_of_its_log_jumped_back() -> None:
    runs = [series(times(400) + late_s, ramp(400)) for late_s in (0.0, 1000.0)]
    assert "firing" in [event.state for found in judged(*runs) for event in found.alerts]


def same(one: Ring, other: Ring) -> bool:
    return (
        np.array_equal(one.window(), other.window())
        and (one.count, one.moves, one.last) == (other.count, other.moves, other.last)
        and one.recent(32, 20.0) == other.recent(32, 20.0)
    )


@pytest.mark.parametrize("seed", range(12))
def test_windows_are_what_a_point_at_every_look_would_make_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "_TRIM_AT", 256)
    chance = random.Random(seed)
    step_s = chance.choice([0.5, 1.7, 5.0, 5.0, 12.0])
    fed = [Ring(1500.0 * step_s) for _ in range(6)]
    plain = [Ring(1500.0 * step_s) for _ in range(6)]
    held = [chance.randrange(4096) * 2 * MIB for _ in fed]
    feeder, now_s, again = Feeder(), 1.7e9, False
    here: list[int] = []
    for look in range(2500):
        now_s += step_s * chance.uniform(0.9, 1.1)
        if chance.random() < 0.01:
            now_s += chance.uniform(20.0, 3600.0)
        if chance.random() < 0.004:
            by_s = chance.uniform(-4000.0, 4000.0)
            now_s += by_s
            for ring in (*fed, *plain):
                ring.shift(by_s)
        if chance.random() < 0.1:
            again = False
            held[chance.randrange(6)] = chance.randrange(4096) * 2 * MIB
        if again and look % 100:
            feeder.feed(now_s)
        else:
            # Some come and go, and one may be missing for a moment.
            here = [n for n in range(6) if (look // 100 + n) % 5 and chance.random() > 0.02]
            feeder.feed(now_s, [(fed[n], held[n]) for n in here])
        again = chance.random() < 0.8
        for n in here:
            plain[n].add(now_s, held[n])
        if chance.random() < 0.02:
            looked_at = chance.randrange(6)
            assert same(fed[looked_at], plain[looked_at]), look
    assert all(same(one, other) for one, other in zip(fed, plain, strict=True))
    assert sum(ring.count for ring in fed) > 5000


@pytest.mark.parametrize("gap_s", [0.004, 0.02, 0.3])
def test_looks_that_follow_each_other_closely(gap_s: float) -> None:
    fed, plain, feeder = Ring(1e6), Ring(1e6), Feeder()
    for look in range(500):
        now_s = 1.7e9 + 10.0 * (look // 2) + gap_s * (look % 2 - 0.5)
        feeder.feed(now_s, [(fed, 7.0 + look // 50)])
        plain.add(now_s, 7.0 + look // 50)
    assert same(fed, plain)
    assert np.all(np.diff(fed.window()[0]) > 0)


def test_what_stands_still_is_brought_up_to_date_now_and_then() -> None:
    ring, feeder = Ring(1e6), Feeder()
    feeder.feed(0.0, [(ring, 7.0)])
    for look in range(1, 3 * CLOCK_TICKS):
        feeder.feed(10.0 * look)
        assert ring.last == (10.0 * look, 7.0)
    assert ring.count == 3 * CLOCK_TICKS
    feeder.feed(1e5, [])
    feeder.feed(1e5 + 10)
    assert ring.last == (10.0 * (3 * CLOCK_TICKS - 1), 7.0)


def test_of_one_that_is_named_twice_the_first_counts() -> None:
    ring, feeder = Ring(1e6), Feeder()
    feeder.feed(0.0, [(ring, 7.0), (ring, 9.0)])
    feeder.feed(5.0)
    assert ring.window()[1].tolist() == [7.0, 7.0]
