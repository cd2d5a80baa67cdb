"""``report``: its numbers are those of a world whose truth is known to the minute."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core import units
from tests import making
from tests.cli import reported
from tests.cli.reported import HOUR_S

if TYPE_CHECKING:
    from tests.cli.calls import Ctl

pytestmark = pytest.mark.usefixtures("truth")

SINCE = "44h"
OPEN_HOURS = 1.0 + 3.0 - 2.5 * math.log(1.6)
"""Half of two hours, then what alice's share of GPU 1 adds up to."""
CAROL_HOURS = 6.0 - OPEN_HOURS


def asked(ctl: Ctl, *arguments: str) -> dict[str, Any]:
    """Return the payload of ``report --json``."""
    found: dict[str, Any] = ctl.data("report --since", SINCE, *arguments)
    return found


@pytest.mark.requirement("M19")
def test_the_summary_counts_what_happened(ctl: Ctl) -> None:
    found = asked(ctl)["summary"]
    counts = ("incidents", "open", "leaks", "gpu_troubles", "idle", "ended_full")
    assert [found[name] for name in counts] == [2, 1, 2, 0, 0, 1]
    assert (found["forecasts_held"], found["forecasts_known"]) == (1, 1)
    assert found["gpu_hours"] == pytest.approx(72.0, abs=0.05)
    assert found["busy_gpu_hours"] == pytest.approx(0.5 * 36 + 1.0 * 36, abs=0.1)
    assert found["watched_share"] == pytest.approx(36 / 44, abs=0.002)


@pytest.mark.requirement("M23")
def test_the_score_is_its_formula(ctl: Ctl) -> None:
    found = asked(ctl)["score"]
    wasted = OPEN_HOURS + 8.0 + 0.5
    assert found["waste_share"] == pytest.approx(wasted / 72.0, abs=0.002)
    assert (found["less_waste"], found["less_ends"], found["less_open"]) == (6, 10, 5)
    assert (found["value"], found["grade"], found["reason"]) == (79, "B", None)
    assert "100 - 6 - 10 - 5 = 79" in ctl("report", "--since", SINCE)


def test_a_finding_tells_what_was_foreseen_and_what_came(truth: reported.Truth, ctl: Ctl) -> None:
    leak, crash = asked(ctl)["findings"]
    assert (leak["alert"]["id"], crash["alert"]["id"]) == (truth.leak.code, truth.crash.code)
    assert (crash["forecast_held"], leak["forecast_held"]) == (True, None)
    assert crash["first"]["eta"]["mid_s"] == 6 * HOUR_S
    assert crash["cost_usd"] == pytest.approx(16.0, abs=0.1)
    assert [one["state"] for one in crash["alert"]["deliveries"]] == ["sent", "failed"]
    assert ctl("report", "--since", SINCE).count("growth since") == 2


@pytest.mark.requirement("B18")
def test_who_had_what_adds_up(ctl: Ctl) -> None:
    users = {one["name"]: one for one in asked(ctl)["users_sum"]}
    held = {name: one["gib_hours"] for name, one in users.items()}
    assert held["bob"] == pytest.approx(400.0, abs=1.0)
    assert held["alice"] == pytest.approx(344.0 + 68.0, abs=1.5)
    assert held["carol"] == pytest.approx(60.0, abs=0.5)
    hours = {name: one["gpu_hours"] for name, one in users.items()}
    assert hours["bob"] == pytest.approx(20.0, abs=0.05)
    assert hours["alice"] == pytest.approx(8.0 + OPEN_HOURS, abs=0.05)
    assert hours["carol"] == pytest.approx(CAROL_HOURS, abs=0.05)
    assert sum(hours.values()) == pytest.approx(34.0, abs=0.1)
    assert users["carol"]["cost_usd"] == pytest.approx(CAROL_HOURS * reported.PRICE, abs=0.1)
    assert list(users) == ["alice", "bob", "carol"]


def test_gpus_have_their_peak_and_its_time(truth: reported.Truth, ctl: Ctl) -> None:
    first, second = asked(ctl)["gpus"]
    assert first["peak_bytes"] / making.GIB == pytest.approx(78.0, abs=0.3)
    assert second["peak_bytes"] / making.GIB == pytest.approx(32.0, abs=0.3)
    assert (first["util_pct"], second["util_pct"]) == (50.0, 100.0)
    assert first["watched_s"] == pytest.approx(36 * HOUR_S, abs=120)
    at_s = units.parse_instant(first["peak_at"], now_s=0.0)
    assert truth.at(36.9) <= at_s <= truth.at(38)


def test_cost_is_what_the_verb_says(ctl: Ctl) -> None:
    sums = asked(ctl)["cost"]["sums"]
    verb = ctl.json("cost --since", SINCE)["sums"]
    for what in ("at_risk", "lost", "held", "saved"):
        assert sums[what]["incidents"] == verb[what]["incidents"]
        assert sums[what]["cost_usd"] == pytest.approx(verb[what]["cost_usd"], abs=0.02)
    assert sums["lost"]["cost_usd"] == pytest.approx(16.0, abs=0.1)
    assert "$2.00/h (yours)" in ctl("report", "--since", SINCE)


def test_what_is_missing_is_said(truth: reported.Truth, ctl: Ctl) -> None:
    found = asked(ctl)["quality"]
    (gap,) = found["gaps"]
    assert gap["why"] == "the daemon was not running"
    begin, end = (units.parse_instant(gap[key], now_s=0.0) for key in ("begin_at", "end_at"))
    assert (begin, end) == (truth.at(20), truth.at(24))
    assert units.parse_instant(found["record_begins_at"], now_s=0.0) == truth.at(0)
    assert [one["text"] for one in found["unreadable"]] == ["it fell off the bus"]


@pytest.mark.requirement("M22")
def test_advice_is_ordered_by_money_then_time(ctl: Ctl) -> None:
    found = asked(ctl)["advice"]
    stakes = [one["stake_usd"] or 0.0 for one in found]
    assert stakes == sorted(stakes, reverse=True)
    assert [one["command"].split()[1] for one in found] == [
        "explain", "explain", "zombies", "notify",
    ]  # fmt: skip
    assert stakes[1] == pytest.approx(16.0, abs=0.1)
    short = ctl("report", "--since", SINCE, "--top", "1")
    assert short.count("gpuwatchctl explain") == 1
    assert "Further incidents" in short


def test_a_process_has_a_report_of_its_own(ctl: Ctl) -> None:
    found = asked(ctl, "--pid", "4711")
    assert [one["pid"] for one in found["processes"]] == [4711]
    assert [one["alert"]["process"]["pid"] for one in found["findings"]] == [4711]
    assert {one["pid"] for one in found["who"]} == {4711}
    assert [one["device"]["index"] for one in found["gpus"]] == [0]
    assert "GPU report on python train.py[4711]" in ctl(
        "report", "--since", SINCE, "--pid", "4711"
    )  # fmt: skip


def test_an_incident_longer_than_the_span_is_in_it(ctl: Ctl) -> None:
    data = ctl.data("report --since 30m")
    assert [one["alert"]["process"]["pid"] for one in data["findings"]] == [5000]
    assert data["summary"]["watched_share"] == pytest.approx(1.0, abs=0.05)


def test_a_period_that_is_over_has_nothing_of_now(ctl: Ctl) -> None:
    found = asked(ctl, "--until", "5h")
    assert [one["alert"]["process"]["pid"] for one in found["findings"]] == [4711]
    assert found["holdings"] == []
    assert all("zombies" not in one["command"] for one in found["advice"])
    calm = asked(ctl, "--until", "30h")
    assert calm["findings"] == []
    assert calm["score"]["value"] == 100


def test_a_judgement_of_long_ago_is_not_told_as_of_now(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "full in 12 h" in " ".join(ctl("report", "--since", SINCE).split())
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 2 * HOUR_S)
    text = " ".join(ctl("report", "--since", "46h").split())
    assert "last forecast full at" in text
    assert ", as of " in text.partition("FINDINGS")[0]
    assert "full in 12 h (at least 9 h), as of" in text
    assert text.count("full in 12 h") == 1


def test_a_simulation_that_runs_ahead_is_told_until_its_newest_sample(
    truth: reported.Truth, ctl: Ctl
) -> None:
    truth.live(taken_at_s=time.time() + 5 * HOUR_S)
    found = asked(ctl)
    assert found["holdings"]
    assert found["summary"]["open"] == 1


def test_the_price_that_is_missing_is_not_zero(
    truth: reported.Truth, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_MODE", "off")
    found = asked(ctl)
    assert found["cost"]["sums"]["lost"]["cost_usd"] is None
    assert found["users_sum"][0]["cost_usd"] is None
    assert found["score"]["value"] == 79
    truth.live()
    assert "$0.00" not in ctl("report", "--since", SINCE)
