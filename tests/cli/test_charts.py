"""Pictures as every view gets them: the curve, what is known of it, and their JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.analysis import verdict
from gpuwatchd.charts import matplotlib_renderer, svg, terminal
from gpuwatchd.charts.chart_model import Curve, Mark, Order, Picture
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.core import config
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.design import FLAGS
from gpuwatchd.store import curves
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import PictureShape
from gpuwatchd.view.queries import charts, current_state, history_query
from gpuwatchd.view.queries import recorded_chart as parts
from gpuwatchd.view.text import badges
from tests import histories
from tests.making import alert, calm, finding

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Finding, Series

pytestmark = pytest.mark.slow

DAY = 86_400.0


@pytest.fixture
def state() -> Path:
    """Make the directories of a history and of a live state; return the former."""
    for place in (config.state_dir(), config.runtime_dir()):
        place.mkdir()
    return config.state_dir()


def test_a_month_of_eight_gpus(state: Path) -> None:
    histories.thirty_days(state)
    now_s = time.time()
    found, _ = charts.all_devices(Globals(), charts.Asked(now_s - 30 * DAY, now_s))
    assert len(found) == 8
    first = found[0]
    assert first.notes == ("one point is 2 hours", "3 gaps, 2 h 10 min missing")
    assert {gap.why for gap in first.gaps} == {"the daemon was not running"}
    assert first.forecast is not None
    assert {mark.kind for mark in first.marks} >= {"alert", "restart", "saved"}
    assert all(len(one.curve.at_s) <= 400 for one in found)
    for one in found:
        columns = (one.curve.used_bytes, one.curve.low_bytes, one.curve.high_bytes)
        for used, low, high in zip(*columns, strict=True):
            assert used is None or (low or 0) <= used <= (high or 0)
        msgspec.json.decode(msgspec.json.encode(fill(PictureShape, one)), type=PictureShape)


def test_an_alert_is_a_mark_for_each_step_and_a_death_has_its_reason(state: Path) -> None:
    died = alert(
        state="resolved", opened_at_s=0.0, watch_at_s=10.0, firing_at_s=20.0, critical_at_s=30.0,
        resolved_at_s=40.0, **wording.ending(Ending.ENDED_NEAR_LIMIT),
    )  # fmt: skip
    marks = charts._steps(died)
    steps = [(10.0, "watch"), (20.0, "alert"), (30.0, "critical"), (40.0, "died")]
    assert [(mark.at_s, mark.kind) for mark in marks] == steps
    assert marks[-1].text.endswith(died.ended)
    assert marks[-1].text.count(FLAGS["died"].word) == 1
    begin = Picture(
        key="k", title="t", kind="leak", verdict="v", begin_s=0.0, end_s=50.0, now_s=50.0,
        curve=Curve(), marks=(*marks, Mark(at_s=45.0, kind="restart", text="again")),
    )  # fmt: skip
    shapes = {FLAGS[mark.kind].mark for mark in begin.marks}
    shown = (svg.draw(begin), str(terminal.draw(begin, 90, 14)))
    assert len(shapes) == 5
    assert all(shape in text for shape in shapes for text in shown)
    rows = matplotlib_renderer._rows(begin, Order(pictures=(begin,), form="png", width_px=700,
                                                  height_px=500))  # fmt: skip
    assert died.ended.split()[-1] in rows[4][2]
    assert (rows[3][0][:1], rows[3][1]) == ("✖", "critical")


def test_processes_of_a_month_now_and_then(state: Path) -> None:
    histories.thirty_days(state)
    now_s = time.time()
    view = current_state.load_view(Globals(), want_trend=True)
    asked = charts.Asked(now_s - 30 * DAY, now_s)
    with history_query.reader() as history:
        item = view.devices[0]
        for process in item.processes or ():
            picture = charts.of_process(history, view, item, process, asked)
            assert picture.key.startswith(item.device.uid)
            assert not picture.empty
            assert picture.limit_bytes == pytest.approx(
                (process.used_bytes or 0) + (item.reading.free_bytes or 0)  # type: ignore[union-attr]
            )
        ended = next(one for one in history.processes() if one.key.pid == 10_002)
        gone = charts.past_process(history, item.device, ended, asked)
    assert gone.curve.at_s[-1] < now_s - 20 * DAY
    assert [m.kind for m in gone.marks if m.kind in {"began", "ended"}] == ["began", "ended"]
    assert gone.forecast is None


@pytest.mark.parametrize("make", [histories.one_sample, histories.hostile])
def test_little_and_rude(state: Path, make: object) -> None:
    make(state)  # type: ignore[operator]
    now_s = time.time()
    (found,), _ = charts.all_devices(Globals(), charts.Asked(now_s - DAY, now_s))
    shown = msgspec.json.encode(fill(PictureShape, found)).decode()
    assert "\\u001b" not in shown
    assert "\u202e" not in shown
    assert found.floor is None


def curve(values: list[float | None]) -> Curve:
    every = tuple(values)
    return Curve(at_s=tuple(float(60 * n) for n in range(len(values))), used_bytes=every,
                 low_bytes=every, high_bytes=every)  # fmt: skip


def test_the_floor_is_where_memory_came_back_to_and_never_crosses_a_gap() -> None:
    gib = 2.0**30
    saw = [(4 + n % 8 + n / 80) * gib for n in range(80)]
    found = parts.floor(curve([*saw, None, *saw]))
    assert found is not None
    assert found.used_bytes[80] is None
    assert found.used_bytes[0] == saw[0]
    assert all(a is None or a <= b for a, b in zip(found.used_bytes, saw, strict=False))
    assert parts.floor(curve([4 * gib] * 80)) is None
    assert parts.floor(curve([n * gib for n in range(80)])) is None


def test_only_what_leaks_now_has_a_forecast_and_an_open_end_stays_open() -> None:
    grown = curve([1e9 + 206_667.0 * 60 * n for n in range(200)])
    leak = finding(judged_at_s=199 * 60.0, onset_at_s=0.0)
    found = parts.forecast(leak, grown, 8e9)
    assert found is not None
    assert found.level_bytes == pytest.approx(1e9 + 206_667.0 * 60 * 199, rel=1e-6)
    assert leak.eta is not None
    open_end = msgspec.structs.replace(leak.eta, high_s=None)
    again = parts.forecast(msgspec.structs.replace(leak, eta=open_end), grown, 8e9)
    assert again is not None
    assert again.high_s is None
    assert parts.forecast(calm(), grown, 8e9) is None
    assert parts.forecast(msgspec.structs.replace(leak, tier="none"), grown, 8e9) is None


@pytest.mark.parametrize(
    ("changes", "now", "was"),
    [
        ({}, ("leak", "LEAK"), ("leak", "LEAK")),
        ({"severity": "critical"}, ("critical", "CRITICAL"), ("critical", "CRITICAL")),
        (
            {"severity": "critical", "state": "watch", "firing_at_s": None},
            ("watch", "watch"),
            ("watch", "watch"),
        ),
        ({"state": "resolved"}, ("unknown", "resolved"), ("leak", "LEAK")),
        ({"kind": "held", "state": "resolved"}, ("unknown", "resolved"), ("held", "held idle")),
        ({"kind": "gpu", "severity": "critical"}, ("trouble", "CRITICAL"), ("trouble", "CRITICAL")),
        ({"kind": "gpu"}, ("trouble", "trouble"), ("trouble", "trouble")),
    ],
)
def test_an_alert_has_one_badge_everywhere(
    changes: dict[str, Any], now: tuple[str, str], was: tuple[str, str]
) -> None:
    one = alert(**{"firing_at_s": 1.0, **changes})
    assert badges.alert(one)[:2] == now
    assert badges.raised(one)[:2] == was


def written(*minutes: int) -> curves.RecordedCurve:
    """Return what a history has of these minutes, one sample each."""
    points = [curves.Point(60.0 * n, 60.0 * n, 1, 1, n, float(n), n) for n in minutes]
    return curves.RecordedCurve("raw", 0.0, points, [], 60.0)


def test_what_is_not_written_yet_is_a_gap_and_no_line() -> None:
    few = written(0, 1, 2)
    late = parts.joined(few, Curve(), 1800.0, 75.0)
    assert late.holes == [(120.0, 1800.0)]
    drawn = parts.curve(late, (1800.0, 9))
    assert drawn.used_bytes == (0.0, 1.0, 2.0, None, 9.0)
    # The newest minute waits in memory: that is no gap.
    assert parts.joined(few, Curve(), 190.0, 75.0) is few


def test_what_the_live_state_remembers_joins_what_is_written_with_now() -> None:
    recent = parts.sparse((1, 2, 5, 6, 7), 420.0, 1800.0)
    found = parts.joined(written(0, 1, 2), recent, 1800.0, 75.0)
    assert found.holes == []
    assert parts.curve(found, (1800.0, 7)).used_bytes == (0.0, 1.0, 2.0, 2.0, 5.0, 6.0, 7.0)
    begun_late = parts.sparse((None, None, 5, 6, 7), 420.0, 1800.0)
    found = parts.joined(written(0, 1, 2), begun_late, 1800.0, 75.0)
    assert found.holes == [(120.0, 960.0)]
    paused = parts.sparse((1, 2, None, 6, 7), 420.0, 1800.0)
    found = parts.joined(written(0, 1, 2), paused, 1800.0, 75.0)
    assert found.holes == [(540.0, 1380.0)]


def test_a_store_that_cannot_be_written_leaves_a_gap_that_says_so(state: Path) -> None:
    histories.one_sample(state)
    view = current_state.load_view(Globals(), want_trend=True)
    item = view.devices[0]
    with history_query.reader() as history:
        view.taken_at_s = time.time() + 1800.0
        asked = charts.Asked(view.taken_at_s - DAY, view.taken_at_s)
        found = charts.of_device(
            history, view, msgspec.structs.replace(item, recent_bytes=()), asked
        )
    (gap,) = found.gaps
    assert gap.end_s == pytest.approx(view.taken_at_s)
    assert gap.why == "not in the history yet"
    assert None in found.curve.used_bytes


@pytest.fixture
def judged(state: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leave a month of eight GPUs and no live state; return the devices that are judged."""
    histories.thirty_days(state)
    found: list[str] = []
    really = verdict.judge

    def judge(series: Series, settings: DetectionSection) -> Finding:
        found.append(series.subject.device_uid)
        return really(series, settings)

    monkeypatch.setattr(verdict, "judge", judge)
    return found


def test_one_gpu_is_judged_where_one_is_asked_for(judged: list[str]) -> None:
    flags = Globals()
    flags.gpu.append("0")
    view = current_state.load_view(flags, want_trend=True)
    assert [item.device.uid for item in view.devices] == [histories.uid(0)]
    assert set(judged) == {histories.uid(0)}
    alone = view.devices[0]
    every = current_state.load_view(Globals(), want_trend=True)
    both = (alone, every.devices[0])
    assert len({badges.device(one) for one in both}) == 1
    assert badges.device(alone).kind == "critical"
    # What is free on the host is looked at anew.
    own, other = ([one.finding for one in item.processes or ()] for item in both)
    assert own == other


def test_what_has_ended_is_not_judged(judged: list[str]) -> None:
    """Each GPU, and of each process its memory there and on the host."""
    view = current_state.load_view(Globals(), want_trend=True)
    here = sum(len(item.processes or ()) for item in view.devices)
    assert len(judged) == len(view.devices) + 2 * here


def test_values_hold_to_the_next_row_but_not_over_a_gap() -> None:
    ticks = [float(at_s) for at_s in range(0, 200, 10)]
    found = history_query.filled([(20.0, 1), (60.0, 2), (180.0, 3)], ticks)
    assert found.at_s.tolist() == [*range(20, 140, 10), 180, 190]
    assert found.used_bytes.tolist() == [1] * 4 + [2] * 8 + [3] * 2
