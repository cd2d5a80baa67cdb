"""Without a live state the history is judged again: only what is asked for, and from few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.cli import badges, current_state, history_query
from gpuwatchd.cli.flags import Globals
from tests import histories

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Finding, Series

pytestmark = pytest.mark.slow


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leave a month of eight GPUs and no live state; return the devices that are judged."""
    for name, folder in (("STATE", "state"), ("RUNTIME", "run")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(f"GPUWATCHD_{name}_DIR", str(tmp_path / folder))
    histories.thirty_days(tmp_path / "state")
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
    view = current_state.see(flags, want_trend=True)
    assert [item.device.uid for item in view.devices] == [histories.uid(0)]
    assert set(judged) == {histories.uid(0)}
    alone = view.devices[0]
    every = current_state.see(Globals(), want_trend=True)
    both = (alone, every.devices[0])
    assert len({badges.device(one) for one in both}) == 1
    assert badges.device(alone).kind == "critical"
    # What is free on the host is looked at anew.
    own, other = ([one.finding for one in item.processes or ()] for item in both)
    assert own == other


def test_what_has_ended_is_not_judged(judged: list[str]) -> None:
    """Each GPU, and of each process its memory there and on the host."""
    view = current_state.see(Globals(), want_trend=True)
    here = sum(len(item.processes or ()) for item in view.devices)
    assert len(judged) == len(view.devices) + 2 * here


def test_values_hold_to_the_next_row_but_not_over_a_gap() -> None:
    ticks = [float(at_s) for at_s in range(0, 200, 10)]
    found = history_query.filled([(20.0, 1), (60.0, 2), (180.0, 3)], ticks)
    assert found.at_s.tolist() == [*range(20, 140, 10), 180, 190]
    assert found.used_bytes.tolist() == [1] * 4 + [2] * 8 + [3] * 2
