"""Conservative floors on a small, fixed part of the scenario families; the report has the rest."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scenarios import report, rivals, worlds

LEAKS = ("linear_fast", "segments", "staircase", "cyclic_floor", "late_onset", "warmup_then_leak")
BENIGN = ("flat", "exp_warmup", "model_load", "high_water", "eval_spikes", "dev_day", "prealloc")


def test_families_are_split_once_and_for_all() -> None:
    assert not worlds.TUNING & worlds.HELD_OUT
    assert set(worlds.FAMILIES) == worlds.TUNING | worlds.HELD_OUT
    assert len(worlds.LEAKS) >= 12
    assert len(worlds.BENIGN) >= 14
    assert set(worlds.TUNING_SEEDS).isdisjoint(worlds.HELD_OUT_SEEDS)


@pytest.mark.parametrize("family", sorted(worlds.FAMILIES))
def test_worlds_are_deterministic_and_sane(family: str) -> None:
    one, two = worlds.build(family, 1), worlds.build(family, 1)
    assert np.array_equal(one.series.used_bytes, two.series.used_bytes)
    assert one.truth == two.truth
    series = one.series
    assert np.all(np.diff(series.t_s) > 0)
    assert series.total_bytes is not None
    assert 0 <= series.used_bytes.min() <= series.used_bytes.max() <= series.total_bytes
    assert one.truth.leak == (family in worlds.LEAKS)
    if one.truth.leak:
        assert one.truth.oom_s is not None
        assert one.truth.onset_s is not None
        assert one.truth.oom_s > one.truth.onset_s


def test_leaks_are_alerted_with_time_left() -> None:
    results = report.run(LEAKS, [1])
    figures = report.summary(results)
    assert figures["recall"] >= 0.8
    assert figures["left_median"] >= 0.6
    assert figures["eta_error"] <= 0.1
    assert not any(one.early for one in results)


def test_harmless_families_stay_quiet() -> None:
    results = report.run(BENIGN, [1])
    assert [one.family for one in results if one.alerted] == []


def test_the_report_prints_every_family() -> None:
    results = report.run(["flat", "linear_fast"], [2])
    text = report.table(results)
    assert "flat" in text
    assert "linear_fast" in text
    assert report.summary(results)["leaks"] == 1


def test_the_rules_of_others_run_on_the_same_items() -> None:
    tasks = [("linear_fast", 3), ("exp_warmup", 4)]
    text = report.rival_table(tasks, 1)
    assert len(text.splitlines()) == 1 + len(rivals.RIVALS)
    found = rivals.first_alerts(worlds.build("linear_fast", 3))
    assert found["predict_linear 4 h"] is not None
