"""Rings, boundaries of jobs and judgement, with a server that is played."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from gpuwatchd.analysis import verdict
from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.fleet import judging
from gpuwatchd.fleet.client import RangeSeries
from gpuwatchd.fleet.judging import Judge
from gpuwatchd.fleet.main import print_round
from gpuwatchd.fleet.rings import Rings
from gpuwatchd.fleet.state import round_state
from gpuwatchd.fleet.worker import LAG_S, Worker
from gpuwatchd.view.answers.fleet import FleetRound
from gpuwatchd.view.answers.schema import schema
from tests.cli import shaped
from tests.fleet.fake import fleet

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.fleet.client import Client, Labels

TOTAL_MIB, START, SLOTS = 24576.0, 29_000_000, 385


class Played:
    """Curves in MiB by minute, NaN where nothing was measured; a name is UUID, host and pod."""

    def __init__(self, curves: dict[tuple[str, str, str], FloatArray], first: int) -> None:
        self.curves, self.first, self.backend = curves, first, "prometheus"
        self.asked: list[str] = []
        self.fails: list[MetricsServerError] = []

    def identify(self) -> None:
        pass

    def _named(self, query: str, *, by_job: bool) -> list[tuple[Labels, FloatArray]]:
        self.asked.append(query)
        if self.fails:
            raise self.fails.pop(0)
        wanted = re.search(r'UUID=~"([^"]*)"', query)
        chosen = wanted[1].replace("\\\\", "").split("|") if wanted else None
        return [
            (
                {"UUID": uuid, "Hostname": host, **({"pod": pod} if by_job else {})},
                self._of(query, x),
            )
            for (uuid, host, pod), x in self.curves.items()
            if chosen is None or uuid in chosen
        ]

    @staticmethod
    def _of(query: str, x: FloatArray) -> FloatArray:
        if "FB_FREE" in query:
            return np.where(np.isnan(x), np.nan, TOTAL_MIB - 512.0 - x)
        return np.where(np.isnan(x), np.nan, 512.0) if "FB_RESERVED" in query else x

    def query(self, query: str, at_s: float) -> list[tuple[Labels, float]]:
        at = int(at_s // 60) - self.first
        return [
            (names, float(x[at]))
            for names, x in self._named(query, by_job="pod" in query)
            if not np.isnan(x[at])
        ]

    def query_texts(self, query: str, at_s: float) -> tuple[list[bytes], FloatArray]:
        found = self.query(query, at_s)
        return [json.dumps(names).encode() for names, _ in found], np.array([x for _, x in found])

    def query_range(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> list[RangeSeries]:
        span = slice(max(int(start_s // 60) - self.first, 0), int(end_s // 60) - self.first + 1)
        out = []
        for names, x in self._named(query, by_job=True):
            t: FloatArray = np.arange(x.size, dtype=np.float64)[span]
            t = (t + self.first) * step_s
            known = ~np.isnan(x[span])
            if known.any():
                out.append(RangeSeries(names, t[known], x[span][known]))
        return out


def begun(
    curves: dict[tuple[str, str, str], FloatArray], minute: int = 400, **budget: int
) -> tuple[Worker, Played]:
    """Return a worker whose first round ends so many minutes after the first value."""
    played = Played(curves, START)
    waits: list[float] = []
    worker = Worker(fleet(**budget), cast("Client", played), sleep=waits.append)
    worker.round(at(minute))
    return worker, played


def at(minute: int) -> float:
    return (START + minute) * 60.0 + LAG_S


def leak(mib_per_minute: float = 20.0, base: float = 8000.0) -> FloatArray:
    return base + mib_per_minute * np.arange(520.0)


def flat(mib: float = 9000.0) -> FloatArray:
    return np.full(520, mib)


def test_a_leak_is_found_by_the_very_judgement_of_the_daemon() -> None:
    worker, _ = begun({("GPU-a", "n1", "p"): leak(), ("GPU-b", "n1", "p"): flat()})
    judge = Judge(fleet().detection, fleet().policy)
    states = []
    for minute in range(400, 416):
        worker.round(at(minute))
        judge.round(worker.rings)
        states.append(judge.alerts[0].state)
    # What was confirmed before the start fires in the first round.
    assert set(states) == {"firing"}
    series = judging.series_of(worker.rings, 0)
    assert series.t_s.size == SLOTS
    np.testing.assert_array_equal(series.used_bytes, leak()[31:416] * 2**20)
    assert (series.limit_bytes, series.total_bytes) == (
        (TOTAL_MIB - 512) * 2**20,
        TOTAL_MIB * 2**20,
    )
    assert judge.findings == {0: verdict.judge(series, fleet().detection)}
    shown = round_state(worker, judge)
    assert [one.id for one in shown.verdicts] == ["GPU-a"]
    assert (shown.gpus, shown.verdicts[0].state) == (2, "firing")


def test_what_begins_opens_after_some_rounds_with_or_without_a_pause() -> None:
    curve = flat()
    curve[380:] += 200.0 * np.arange(140.0)
    fired = []
    for step in (1, 2, 5):
        worker, _ = begun({("GPU-a", "n1", "p"): curve})
        judge = Judge(fleet().detection, fleet().policy)
        states = {}
        for minute in range(400, 440, step):
            worker.round(at(minute))
            judge.round(worker.rings)
            states[minute] = judge.alerts[0].state if judge.alerts else "none"
        fired.append([minute for minute, state in states.items() if state == "firing"])
    assert 400 < fired[0][0] < 435
    for minutes, step in zip(fired[1:], (2, 5), strict=True):
        assert 0 <= minutes[0] - fired[0][0] < step


def test_the_first_alert_comes_when_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/fleet-sites.md: a leak of 1.5 GB a minute on a card of 80 GiB."""
    monkeypatch.setitem(globals(), "TOTAL_MIB", 81920.0)
    curve = np.rint(flat() + 1.5e9 / 2**20 * np.maximum(np.arange(520.0) - 405, 0))
    worker, _ = begun({("GPU-a", "n1", "p"): curve})
    judge, minute = Judge(fleet().detection, fleet().policy), 405
    while not any(alert.state == "firing" for alert in judge.alerts.values()):
        minute += 1
        worker.round(at(minute))
        judge.round(worker.rings)
    assert 15 <= minute - 405 <= 20


def test_a_restart_changes_no_state_but_for_some_minutes() -> None:
    rng, curves = np.random.default_rng(4), {}
    for number, (rate, noise, start) in enumerate(
        ((60, 40, 380), (25, 60, 360), (40, 200, 380), (100, 100, 395))
    ):
        curve = flat() + rate * np.maximum(np.arange(520.0) - start, 0)
        curves[f"GPU-{number}", "n1", "p"] = np.rint(curve + rng.normal(0, noise, 520))

    def states(judge: Judge) -> list[str]:
        return [alert.state if (alert := judge.alerts.get(row)) else "none" for row in range(4)]

    worker, _ = begun(curves)
    judge, played = Judge(fleet().detection, fleet().policy), {}
    for minute in range(400, 500):
        worker.round(at(minute))
        judge.round(worker.rings)
        played[minute] = states(judge)
    seen, late = set[str](), 0
    for minute in range(405, 500, 10):
        again, _ = begun(curves, minute)
        judge = Judge(fleet().detection, fleet().policy)
        judge.round(again.rings)
        for was, found in zip(played[minute], states(judge), strict=True):
            seen.add(was)
            # What has just fired may need some minutes more, as its window is a little shorter.
            assert was == found or {was, found} == {"watch", "firing"}
            late += was != found
    assert seen >= {"watch", "firing"}
    assert late <= 1


def test_a_round_is_printed_as_its_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    worker, _ = begun({("GPU-a", "n1", "p"): leak(), ("GPU-b", "n1", "p"): flat()})
    judge = Judge(fleet().detection, fleet().policy)
    judge.round(worker.rings)
    print_round(round_state(worker, judge))
    (line,) = capsys.readouterr().out.splitlines()
    jsonschema.Draft202012Validator(schema("fleet-round")).validate(json.loads(line))
    assert shaped.strictly(line.encode(), [FleetRound]) == []


def test_a_minute_is_one_question() -> None:
    worker, played = begun({("GPU-a", "n1", "p"): leak()})
    played.asked.clear()
    worker.round(at(401))
    worker.round(at(401) + 30)
    assert len(played.asked) == 1
    worker.round(at(404))
    assert len(played.asked) == 2
    assert judging.series_of(worker.rings, 0).t_s[-4:].tolist() == [
        (START + minute) * 60.0 for minute in (401, 402, 403, 404)
    ]


def test_what_a_dead_exporter_said_last_is_no_plateau_and_its_alert_stays() -> None:
    dead = leak()
    dead[412:] = np.nan
    worker, _ = begun({("GPU-a", "n1", "p"): dead, ("GPU-b", "n1", "p"): flat()})
    judge = Judge(fleet().detection, fleet().policy)
    for minute in range(400, 480):
        worker.round(at(minute))
        judge.round(worker.rings)
    assert judge.alerts[0].state == "firing"
    assert judge.findings[0].judged_at_s == (START + 411) * 60.0
    assert round_state(worker, judge).no_data == 1
    assert round_state(worker, judge).verdicts[0].data == "none"


def test_another_job_is_another_series() -> None:
    first, second = leak(), leak(base=100.0)
    # What the first one held last is repeated once more.
    first[381:], second[:380] = np.nan, np.nan
    worker, _ = begun({("GPU-a", "n1", "one"): first, ("GPU-a", "n1", "two"): second})
    assert worker.rings.gpus[0].job == "two"
    np.testing.assert_array_equal(
        judging.series_of(worker.rings, 0).used_bytes, second[380:401] * 2**20
    )


def _parted(curve: FloatArray, *parts: slice) -> FloatArray:
    out = np.full(curve.size, np.nan)
    for part in parts:
        out[part] = curve[part]
    return out


def test_labels_without_a_job_for_a_while_end_none() -> None:
    first, then = slice(0, 303), slice(310, None)
    curves = {
        ("GPU-a", "n1", "p"): _parted(leak(), first, then),
        ("GPU-a", "n1", ""): _parted(leak(), slice(301, 312)),
    }
    worker, _ = begun(curves)
    assert (worker.rings.gpus[0].job, worker.rings.since[0]) == ("p", 0)
    np.testing.assert_array_equal(worker.rings.series(0)[1], leak()[16:401] * 2**20)
    # Memory that was released is nobody's.
    idle = leak(base=100.0)
    idle[:320] = 4.0
    curves["GPU-a", "n1", "p"] = _parted(leak(), slice(0, 310))
    curves["GPU-a", "n1", ""] = _parted(idle, slice(310, None))
    worker, _ = begun(curves)
    assert (worker.rings.gpus[0].job, worker.rings.since[0] - START) == ("", 320)


def test_jobs_that_share_a_gpu_do_not_end_each_other() -> None:
    worker, played = begun({("GPU-a", "n1", name): leak() for name in ("p", "q", "r")})
    judge = Judge(fleet().detection, fleet().policy)
    # Two looks at the labels, and a pause.
    for minute in (*range(400, 462), 475, 521 - 2):
        worker.round(at(minute))
        judge.round(worker.rings)
        assert not judge.resolved
    assert worker.rings.since[0] == 0
    # Once it has gone it is another's.
    job = worker.rings.gpus[0].job
    del played.curves["GPU-a", "n1", job]
    worker._discover(START + 519)
    assert worker.rings.gpus[0].job in {"p", "q", "r"} - {job}
    assert worker.rings.since[0] == START + 519


class _Renamed(Played):
    """A Prometheus with honorLabels: false; the pod of a target is the exporter's."""

    def _named(self, query: str, *, by_job: bool) -> list[tuple[Labels, FloatArray]]:
        found = super()._named(query, by_job=by_job)
        for names, _ in found if by_job else ():
            pod = names["pod"]
            names |= {"pod": f"exporter-{names['Hostname']}", "exported_pod": pod}
        return found


def test_the_pod_of_an_exporter_is_no_job_where_its_labels_were_renamed() -> None:
    curves = {
        ("GPU-a", "n1", ""): leak(),
        ("GPU-b", "n1", "p"): leak(),
        ("GPU-c", "n2", ""): leak(),
    }
    played = _Renamed(curves, START)
    worker = Worker(fleet(), cast("Client", played))

    def jobs() -> list[str]:
        return [gpu.job for gpu in worker.rings.gpus]

    worker.round(at(400))
    # Of n2 nothing says whose pod it is.
    assert jobs() == ["", "p", "exporter-n2"]
    # A host stays known for a day.
    del played.curves["GPU-b", "n1", "p"]
    worker._discover(START + 401)
    assert jobs() == ["", "p", "exporter-n2"]
    worker.rings.end = worker.rings.present[0] = START + 401 + 1441
    worker.rings.forget()
    worker._discover(START + 402)
    assert jobs()[0] == "exporter-n1"


def test_two_exporters_of_one_gpu_are_one_series() -> None:
    answer = [
        RangeSeries(
            {"UUID": "GPU-a", "Hostname": "n1", "pod": "p", "instance": name},
            np.array(minutes) * 60.0,
            np.array(values),
        )
        for name, minutes, values in (
            ("x", [1000.0, 1001.0, 1003.0], [500.0, 501.0, 503.0]),
            ("y", [1001.0, 1002.0], [500.0, 502.0]),
        )
    ]
    worker = Worker(fleet(), cast("Client", None))
    worker.rings.row_of(answer[0].labels, add=True)
    worker.rings.advance(1003)
    worker._take(answer)
    assert worker.rings.series(0)[1].tolist() == [2.0**20 * mib for mib in (500, 501, 502, 503)]
    assert worker.rings.dropped == {}


def test_a_drop_to_idle_ends_the_job_and_its_alert() -> None:
    curve = leak()
    curve[420:430], curve[430:] = 4.0, 5000.0
    worker, _ = begun({("GPU-a", "n1", "p"): curve})
    judge = Judge(fleet().detection, fleet().policy)
    ended = []
    for minute in range(400, 435):
        worker.round(at(minute))
        judge.round(worker.rings)
        ended += [(minute, alert.ended_code) for alert in judge.resolved]
    assert [minute for minute, _ in ended] == [420]
    assert not judge.alerts
    assert judging.series_of(worker.rings, 0).used_bytes.tolist() == [5000.0 * 2**20] * 5


def test_what_the_screens_drop_is_judged_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, _ = begun({("GPU-a", "n1", "p"): leak(), ("GPU-b", "n1", "p"): leak()})
    monkeypatch.setattr(judging, "candidates", lambda *_: [])
    judge = Judge(fleet().detection, fleet().policy)
    seen: dict[int, int] = {}
    for minute in range(400, 462):
        worker.round(at(minute))
        judge.round(worker.rings)
        for row in judge.findings:
            seen.setdefault(row, minute)
    assert seen == {0: 460, 1: 401}


def test_two_hosts_with_one_uuid_are_two_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    worker, _ = begun({("GPU-a", "n1", "p"): leak(), ("GPU-a", "n2", "p"): flat()})
    assert [gpu.id for gpu in worker.rings.gpus] == ["GPU-a", "GPU-a@n2"]
    assert worker.rings.dropped["uuid-on-two-hosts"] == 1
    np.testing.assert_array_equal(judging.series_of(worker.rings, 1).used_bytes, 9000.0 * 2**20)
    print_round(round_state(worker, Judge(fleet().detection, fleet().policy)))
    said = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in said["warnings"]] == ["uuid-on-two-hosts"]


class _Mapped(Played):
    """A Prometheus whose metric for all memory is none of it."""

    def __init__(self, curves: dict[tuple[str, str, str], FloatArray], total: str) -> None:
        super().__init__(curves, START)
        self.total = total

    def _named(self, query: str, *, by_job: bool) -> list[tuple[Labels, FloatArray]]:
        found = super()._named(query, by_job=by_job)
        if "total_of_it" not in query:
            return found
        if self.total == "none":
            return []
        whole = np.full(520, TOTAL_MIB if self.total == "whole" else 4096.0)
        return [(names, x if self.total == "used" else whole) for names, x in found]


@pytest.mark.parametrize(
    ("total", "unit", "doubts"),
    [
        ("whole", "MiB", {}),
        ("whole", "B", {"implausible-total": 3}),
        ("used", "MiB", {"implausible-total": 3}),
        # Its free memory: less than is used.
        ("free", "MiB", {"implausible-total": 2}),
        ("none", "MiB", {"no-total": 3}),
    ],
)
def test_a_map_that_does_not_fit_is_said_and_gives_no_time(
    total: str, unit: Any, doubts: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    of_leak, of_flat, of_idle = ("GPU-a", "n1", "p"), ("GPU-b", "n1", "p"), ("GPU-c", "n2", "p")
    curves = {of_leak: leak(), of_flat: flat(), of_idle: flat(600.0)}
    settings = replace(
        fleet(),
        map=replace(fleet().map, total="total_of_it", free="", reserved="", unit=unit),
    )
    worker = Worker(settings, cast("Client", _Mapped(curves, total)))
    judge = Judge(settings.detection, settings.policy)
    for minute in range(400, 404):
        worker.round(at(minute))
        judge.round(worker.rings)
        assert round_state(worker, judge).doubts == doubts
    times = [judge.findings[row].eta for row in judge.findings]
    assert (len([eta for eta in times if eta is not None]) > 0) is not bool(doubts)
    print_round(round_state(worker, judge))
    said = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in said["warnings"]] == list(doubts)


def test_values_that_are_none_are_left_out_and_counted() -> None:
    curve = flat()
    curve[390:395] = [9223372036854775794.0, 2147483632.0, TOTAL_MIB * 2, -1.0, np.inf]
    worker, _ = begun({("GPU-a", "n1", "p"): curve, ('x"} or up{a="', "n1", "p"): flat()})
    assert len(worker.rings.gpus) == 1
    assert worker.rings.dropped.pop("no-uuid") > 0
    assert worker.rings.dropped == {"blank": 2, "above-total": 2, "not-a-number": 1}
    assert judging.series_of(worker.rings, 0).t_s.size == SLOTS - 5


def test_time_that_goes_back_changes_nothing() -> None:
    rings = Rings(fleet().map, 60, SLOTS)
    row = rings.row_of({"UUID": "GPU-a"}, add=1000)
    assert row == 0
    rings.advance(1000)
    rings.put(0, np.array([998, 997, 998, 999]), np.array([1.0, 2.0, 3.0, 4.0]))
    rings.put(0, np.array([999, 1000]), np.array([5.0, 6.0]))
    assert rings.series(0)[1].tolist() == [1.0, 4.0, 6.0]
    assert rings.dropped == {"out-of-order": 3}


def test_instants_that_were_not_asked_for_and_values_beyond_all_bounds_are_left_out() -> None:
    class Odd(Played):
        def query_range(self, *args: Any) -> list[RangeSeries]:
            names = {"UUID": "GPU-a", "Hostname": "n1", "pod": "q"}
            at_s = np.array([-1e300, at(399) - LAG_S, 1e15, 1e300])
            return [*super().query_range(*args), RangeSeries(names, at_s, np.full(4, 1e308))]

    played = Odd({("GPU-a", "n1", "p"): leak()}, START)
    worker = Worker(fleet(), cast("Client", played), sleep=lambda _: None)
    worker.round(at(400))
    assert worker.rings.dropped == {"out-of-order": 3, "not-a-number": 1}
    played.curves["GPU-a", "n1", "p"][401] = 1e308
    worker.round(at(401))
    worker.round(at(402))
    assert worker.rings.dropped == {"out-of-order": 3, "not-a-number": 2}
    # The job that it had then goes on.
    assert judging.series_of(worker.rings, 0).t_s[-1] == at(402) - LAG_S


def test_a_server_with_limits_is_asked_for_half_and_the_rest_goes_on() -> None:
    curves = {(f"GPU-{k}", "n1", "p"): leak() for k in range(8)}
    played = Played(curves, START)
    waits: list[float] = []
    worker = Worker(fleet(series=8, in_flight=1), cast("Client", played), sleep=waits.append)
    discover = worker._discover

    def then_fails(slot: int) -> list[str]:
        found = discover(slot)
        played.fails = [MetricsServerError("busy", status=422)] * 2
        return found

    worker._discover = then_fails  # type: ignore[method-assign]
    worker.round(at(400))
    assert len(waits) == 2
    assert worker.failures == {"query_range 422": 2}
    assert all(judging.series_of(worker.rings, row).t_s.size == SLOTS for row in range(8))


def test_victoriametrics_is_asked_in_texts_that_it_takes() -> None:
    played = Played({(f"GPU-{k:036}", "n1", "p"): flat() for k in range(600)}, START)
    played.backend = "victoriametrics"
    worker = Worker(fleet(), cast("Client", played), sleep=lambda _: None)
    worker.round(at(400))
    assert max(map(len, played.asked)) <= 16384
    assert np.count_nonzero(worker.rings.last == START + 400) == 600


def test_who_is_refused_asks_no_further() -> None:
    played = Played({("GPU-a", "n1", "p"): leak()}, START)
    played.fails = [MetricsServerError("no", status=401)]
    worker = Worker(fleet(), cast("Client", played), sleep=lambda _: None)
    with pytest.raises(MetricsServerError):
        worker.round(at(400))
    assert (len(played.asked), worker.rings.end) == (1, 0)
