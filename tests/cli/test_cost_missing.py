"""``cost`` where something is missing or made to harm: it says so, and unknown is not nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.model import Holding
from tests.cli import world
from tests.cli.test_cost import HOUR_S, Past, asked, live, past, shown
from tests.making import GIB

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


__all__ = ["past"]


def test_without_a_daemon_the_history_tells(past: Past, ctl: Ctl) -> None:
    past.alert(past.job(4711, 6.0))
    past.history.flush(past.now_s)
    found = asked(ctl)
    assert [one["code"] for one in found["warnings"]] == ["daemon-absent"]
    assert found["data"][0]["gpu_hours"] == pytest.approx(6.0, abs=0.05)


def test_without_a_history_the_daemon_tells_what_it_knows(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_USD_PER_GPU_HOUR", "4.1")
    now_s = time.time()
    held = Holding(kind="idle", device_uid="GPU-1", held_bytes=80 * GIB, since_s=now_s - HOUR_S)
    world.write(alerts=(), holdings=(held,))
    found = asked(ctl)
    assert "no-history" in [one["code"] for one in found["warnings"]]
    assert found["data"][0]["cost_usd"] == pytest.approx(4.1, abs=0.01)


def test_an_open_alert_of_which_nothing_is_written_is_unknown_not_nothing(ctl: Ctl) -> None:
    world.write()
    (entry,) = asked(ctl)["data"]
    assert (entry["what"], entry["gpu_hours"], entry["cost_usd"]) == ("at-risk", None, None)
    (line,) = [one for one in shown(ctl).splitlines() if one.startswith("at risk now")]
    assert line.split() == ["at", "risk", "now", "1", "?", "?"]


def test_without_both_it_says_what_is_missing(ctl: Ctl) -> None:
    said = ctl.err("cost")
    assert "no history and no live state" in said
    assert "hint: " in said


def test_money_can_be_switched_off(past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_MODE", "off")
    live(past, alerts=(past.alert(past.job(4711, 6.0)),))
    found = asked(ctl)
    assert found["data"][0]["cost_usd"] is None
    assert "off" in [one["code"] for one in found["warnings"]]
