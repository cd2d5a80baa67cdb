"""What a worker makes up for later, what it forgets, and a day on which exporters die."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.fleet.judging import Judge, series_of
from gpuwatchd.fleet.state import round_state
from gpuwatchd.fleet.worker import Worker, pause_s
from tests.fleet.fake import fleet
from tests.fleet.test_rounds import SLOTS, START, Played, at, begun, flat, leak

if TYPE_CHECKING:
    from gpuwatchd.fleet.client import Client

DAY = 1440


def worker_of(played: Played, **budget: Any) -> tuple[Worker, Judge]:
    worker = Worker(fleet(**budget), cast("Client", played), sleep=lambda _: None)
    return worker, Judge(fleet().detection, fleet().policy)


def fails_at(played: Played, *batches: int) -> None:
    """Have some questions about the past fail, counted from now."""
    ask, count = played.query_range, iter(range(1000))

    def asked(*words: Any) -> Any:
        if next(count) in batches:
            raise MetricsServerError("bad", status=400)
        return ask(*words)

    played.query_range = asked  # type: ignore[method-assign, assignment]


def test_a_past_that_could_not_be_had_is_asked_for_until_it_is() -> None:
    curves = {(f"GPU-{k}", "n1", "p"): leak() for k in range(8)}
    played = Played(curves, START)
    worker, judge = worker_of(played, series=2, in_flight=1)
    # The second of four batches, then the first two tries for it.
    fails_at(played, 1, 4, 5)
    missing = []
    for minute in range(400, 408):
        worker.round(at(minute))
        judge.round(worker.rings)
        missing.append(sorted(worker.missing))
        # Nothing of a GPU counts before all of its past does.
        for row in (2, 3):
            size = series_of(worker.rings, row).t_s.size
            assert size == (0 if missing[-1] else SLOTS)
            assert (row in judge.findings) == (not missing[-1])
        assert {0, 1, 4, 5, 6, 7} <= judge.findings.keys()
    # Asked for after 1 round, 2 more, and 3 more.
    assert missing == [["GPU-2", "GPU-3"]] * 6 + [[]] * 2
    np.testing.assert_array_equal(
        series_of(worker.rings, 2).used_bytes, series_of(worker.rings, 0).used_bytes
    )
    assert worker.rings.dropped == {}
    assert worker.failures == {"query_range 400": 3}


def test_one_that_is_refused_for_ever_keeps_no_other_waiting() -> None:
    curves = {(f"GPU-{k}", "n1", "p"): flat() for k in range(4)}
    played = Played(curves, START)
    worker, _ = worker_of(played, series=1, in_flight=1)
    ask = played.query_range

    def asked(query: str, *span: float) -> Any:
        if 'GPU-0"' in query or (worker.rings.end == 0 and 'GPU-3"' not in query):
            raise MetricsServerError("bad", status=400)
        return ask(query, *span)

    played.query_range = asked  # type: ignore[method-assign, assignment]
    for minute in range(400, 440):
        worker.round(at(minute))
    assert list(worker.missing) == ["GPU-0"]
    assert [series_of(worker.rings, row).t_s.size for row in range(4)] == [0, SLOTS, SLOTS, SLOTS]


def test_what_was_missed_while_the_server_was_away_is_made_up_for() -> None:
    worker, played = begun({(f"GPU-{k}", "n1", "p"): leak() for k in range(4)}, series=1)
    fails_at(played, 2)
    worker.round(at(410))
    assert list(worker.missing) == ["GPU-2"]
    for minute in range(411, 414):
        worker.round(at(minute))
    assert worker.missing == {}
    for row in range(4):
        np.testing.assert_array_equal(
            series_of(worker.rings, row).used_bytes, leak()[29:414] * 2**20
        )


def test_a_gpu_without_a_value_for_a_day_is_forgotten_and_its_alert_ends() -> None:
    dead = np.full(DAY * 3, np.nan)
    dead[:412] = leak()[:412]
    alive = np.full(DAY * 3, 9000.0)
    worker, played = begun({("GPU-a", "n1", "p"): dead, ("GPU-b", "n1", "p"): alive})
    judge = Judge(fleet().detection, fleet().policy)
    for minute in (*range(400, 415), 411 + DAY, 413 + DAY):
        worker.round(at(minute))
        judge.round(worker.rings)
        assert round_state(worker, judge).gpus == (2 if minute < 413 + DAY else 1)
    assert [(alert.ended_code, alert.state) for alert in judge.resolved] == [
        (Ending.NOT_SEEN, "resolved")
    ]
    assert (judge.alerts, judge.findings, round_state(worker, judge).no_data) == ({}, {}, 0)
    # Its row is used again, by one that nothing of it clings to.
    played.curves["GPU-c", "n2", "q"] = alive
    worker.round(at(480 + DAY))
    judge.round(worker.rings)
    assert [gpu.id for gpu in worker.rings.gpus] == ["GPU-c", "GPU-b"]
    assert np.all(series_of(worker.rings, 0).used_bytes == 9000.0 * 2**20)


def test_gpus_that_change_their_names_each_day_take_no_more_memory() -> None:
    played, names = Played({}, START), 20
    worker, judge = worker_of(played)
    for day in range(1, 12):
        curve = np.full(DAY * 12, 9000.0)
        played.curves = {(f"GPU-{day}-{k}", "n1", "p"): curve for k in range(names)}
        for minute in (0, 1):
            worker.round(at(day * DAY + minute))
            judge.round(worker.rings)
    assert len(worker.rings.gpus) <= 3 * names
    assert worker.rings.rows.size <= 2 * names
    assert len(worker.rings.index) == worker.rings.rows.size
    assert not (judge.calm_since.keys() | judge.failed) - set(worker.rings.rows.tolist())


def test_who_turns_up_between_two_looks_at_labels_is_asked_for_within_ten_minutes() -> None:
    late = flat()
    late[:405] = np.nan
    worker, played = begun({("GPU-a", "n1", "p"): flat(), ("GPU-b", "n1", "p"): late})
    met, labels = [], []
    for minute in range(401, 440):
        played.asked.clear()
        worker.round(at(minute))
        met.append(len(worker.rings.gpus))
        labels.append(any("pod" in query and "UUID=~" not in query for query in played.asked))
    assert next(401 + k for k, known in enumerate(met) if known == 2) == 410
    assert sum(labels) == 1
    assert series_of(worker.rings, 1).t_s.size == 439 - 405 + 1


def test_who_turns_up_where_there_was_nobody_is_judged_at_once() -> None:
    late = flat()
    late[:405] = np.nan
    worker, _ = begun({("GPU-a", "n1", "p"): late})
    met = []
    for minute in range(401, 408):
        worker.round(at(minute))
        met.append(worker.rings.rows.size)
    assert met == [0, 0, 0, 0, 1, 1, 1]


def test_nothing_is_forgotten_where_the_server_has_nothing() -> None:
    # As with a clock that is set forward by two days.
    gone = np.full(DAY * 4, np.nan)
    gone[:402] = leak()[:402]
    worker, _ = begun({("GPU-a", "n1", "p"): gone})
    judge = Judge(fleet().detection, fleet().policy)
    for minute in (400, 401, DAY * 2, DAY * 2 + 1):
        worker.round(at(minute))
        judge.round(worker.rings)
    assert [alert.state for alert in judge.alerts.values()] == ["firing"]


def test_a_total_that_is_not_there_for_once_stays_as_it_was() -> None:
    worker, played = begun({("GPU-a", "n1", "p"): leak(2.0)})
    before = worker.rings.total_bytes.tolist(), worker.rings.limit_bytes.tolist()
    ask = played.query_texts
    played.query_texts = lambda query, at_s: (  # type: ignore[method-assign]
        ([], np.array([])) if "FB_FREE" in query else ask(query, at_s)
    )
    worker.round(at(461))
    assert (worker.rings.total_bytes.tolist(), worker.rings.limit_bytes.tolist()) == before


def test_who_is_met_in_a_round_that_fails_is_asked_for_in_the_next() -> None:
    worker, played = begun({("GPU-a", "n1", "p"): flat()})
    played.curves["GPU-b", "n1", "p"] = flat()
    ask = played.query_texts

    def fails(query: str, at_s: float) -> Any:
        if "FB_FREE" in query:
            raise MetricsServerError("busy", status=503)
        return ask(query, at_s)

    played.query_texts = fails  # type: ignore[method-assign]
    with pytest.raises(MetricsServerError):
        worker.round(at(461))
    played.query_texts = ask  # type: ignore[method-assign]
    worker.round(at(462))
    assert series_of(worker.rings, 1).t_s.size == SLOTS


def test_who_is_refused_half_way_keeps_what_it_has_and_asks_again() -> None:
    played = Played({(f"GPU-{k}", "n1", "p"): leak() for k in range(3)}, START)
    worker, _ = worker_of(played, series=1, in_flight=1)
    ask, count = played.query_range, iter(range(9))

    def refused(*words: Any) -> Any:
        if next(count) == 1:
            raise MetricsServerError("no", status=403)
        return ask(*words)

    played.query_range = refused  # type: ignore[method-assign, assignment]
    worker.round(at(400))
    assert list(worker.missing) == ["GPU-1", "GPU-2"]
    worker.round(at(401))
    worker.round(at(402))
    assert [series_of(worker.rings, row).t_s.size for row in range(3)] == [SLOTS] * 3


def test_who_is_told_to_stop_asks_no_further() -> None:
    played = Played({(f"GPU-{k}", "n1", "p"): flat() for k in range(9)}, START)
    settings = fleet(series=1, in_flight=1)
    worker = Worker(settings, cast("Client", played), stopped=lambda: len(played.asked) > 4)
    worker.round(at(400))
    assert sum("UUID=~" in query for query in played.asked) < 5
    assert len(worker.missing) > 4


def test_pauses_grow_to_five_minutes_with_jitter() -> None:
    for tries in range(30):
        pauses = {pause_s(tries) for _ in range(20)}
        assert len(pauses) > 1
        assert 0 < min(pauses) <= max(pauses) <= 300
    assert min(pause_s(0, 200.0) for _ in range(20)) >= 100
    assert min(pause_s(30) for _ in range(20)) >= 150


def test_a_value_that_comes_twice_counts_once() -> None:
    class Doubled(Played):
        def query(self, query: str, at_s: float) -> Any:
            found = super().query(query, at_s)
            return [*found, *found]

    played = Doubled({("GPU-a", "n1", "p"): flat()}, START)
    worker, _ = worker_of(played)
    for minute in (400, 401):
        worker.round(at(minute))
    assert worker.rings.dropped == {"duplicate": 2}
    assert series_of(worker.rings, 0).t_s.size == SLOTS


@pytest.mark.parametrize("code", [422, 429, 503, None])
def test_a_tick_that_is_refused_changes_nothing(code: int | None) -> None:
    worker, played = begun({("GPU-a", "n1", "p"): leak()})
    before = series_of(worker.rings, 0).used_bytes
    played.fails = [MetricsServerError("busy", status=code)]
    with pytest.raises(MetricsServerError):
        worker.round(at(401))
    np.testing.assert_array_equal(series_of(worker.rings, 0).used_bytes, before)
    worker.round(at(402))
    assert series_of(worker.rings, 0).t_s[-2:].tolist() == [(START + 401) * 60, (START + 402) * 60]


def test_a_day_on_which_exporters_die_raises_no_alert() -> None:
    rng, gpus, minutes = np.random.default_rng(23), 40, 400 + DAY
    t, curves = np.arange(minutes), {}
    for k in range(gpus):
        base, noise = float(rng.integers(4000, 16000)), rng.integers(-8, 9, minutes)
        kinds = (
            base + noise,
            np.full(minutes, base),
            base + 2000.0 * ((t // 15) % 2) + noise,
            base + 1500.0 * (t > rng.integers(100, minutes)) + noise,
            np.full(minutes, 4.0),
        )
        curve = np.rint(kinds[k % 5])
        # On average one in twenty is dead, for ten minutes to two hours.
        for _ in range(1 + int(rng.integers(0, 2))):
            first = int(rng.integers(0, minutes))
            curve[first : first + int(rng.integers(10, 120))] = np.nan
        curves[f"GPU-{k}", f"n{k // 8}", "p"] = curve
    dead = np.mean([np.isnan(curve) for curve in curves.values()])
    assert 0.04 < dead < 0.08
    worker, judge = worker_of(Played(curves, START))
    seen: Counter[str] = Counter()
    for minute in range(400, minutes):
        worker.round(at(minute))
        judge.round(worker.rings)
        seen.update(alert.state for alert in judge.alerts.values())
        seen["no data"] += round_state(worker, judge).no_data
    assert seen["no data"] > DAY / 2
    assert (seen["watch"], seen["firing"], worker.failures) == (0, 0, {})
