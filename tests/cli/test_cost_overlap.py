"""``cost``: an hour of a GPU is counted once, whatever is known of it; and none is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.model import Cost, Holding, ProcessInfo, Subject
from gpuwatchd.pipeline.end_reasons import CRASHED
from tests import making
from tests.cli import world
from tests.cli.test_cost import HOUR_S, Past, asked, live, past
from tests.making import GIB

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from tests.cli.calls import Ctl

__all__ = ["past"]


def idle(past: Past, info: ProcessInfo, hours: float) -> Holding:
    """Return memory that a process holds without work now."""
    return Holding(
        kind="idle", device_uid="GPU-1", held_bytes=20 * GIB, process=info,
        since_s=past.now_s - hours * HOUR_S,
    )  # fmt: skip


def held_alert(past: Past, info: ProcessInfo, *, from_h: float, to_h: float) -> Alert:
    """Have had an alert on memory without work, between so many hours ago."""
    return past.alert(
        info, key=f"held:GPU-1/{info.key.pid}", kind="held", state="resolved",
        opened_at_s=past.now_s - from_h * HOUR_S, resolved_at_s=past.now_s - to_h * HOUR_S,
        ended="[policy] tell-held was emptied",
    )  # fmt: skip


def test_what_is_at_risk_is_not_held_as_well(past: Past, ctl: Ctl) -> None:
    info = past.job(4711, 6.0)
    live(past, alerts=(past.alert(info),), holdings=(idle(past, info, 4.0),))
    sums = asked(ctl)["sums"]
    assert sums["at_risk"]["gpu_hours"] == pytest.approx(6.0, abs=0.05)
    assert (sums["held"]["incidents"], sums["held"]["gpu_hours"]) == (0, 0.0)


def test_what_was_lost_was_not_held_as_well(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 4.0, ended_s=HOUR_S)
    past.alert(info, state="resolved", ended=CRASHED, resolved_at_s=past.now_s - HOUR_S)
    held_alert(past, info, from_h=3.0, to_h=1.0)
    live(past)
    sums = asked(ctl)["sums"]
    assert sums["lost"]["gpu_hours"] == pytest.approx(4.0, abs=0.05)
    assert sums["held"]["gpu_hours"] == 0.0


def test_what_is_held_counts_on_from_an_alert_that_is_over(past: Past, ctl: Ctl) -> None:
    info = past.job(9, 6.0)
    held_alert(past, info, from_h=4.0, to_h=2.0)
    live(past, holdings=(idle(past, info, 4.0),))
    held = asked(ctl)["sums"]["held"]
    assert held["gpu_hours"] == pytest.approx(4.0 * 20 / 80, abs=0.02)


def test_every_loss_that_nobody_owns_counts(past: Past, ctl: Ctl) -> None:
    past.job(4711, 40.0)
    device = Subject(device_uid="GPU-1")
    for ago_h in (30.0, 20.0):
        begun_s, end_s = past.now_s - ago_h * HOUR_S, past.now_s - (ago_h - 2.0) * HOUR_S
        past.alert(
            past.job(4711, 0.0), key="leak:GPU-1", subject=device, state="resolved",
            finding=making.finding(subject=device, onset_at_s=begun_s, judged_at_s=end_s),
            opened_at_s=begun_s, resolved_at_s=end_s, ended=CRASHED,
        )  # fmt: skip
    recent = past.job(12, 1.0)
    live(past, alerts=(past.alert(recent),))
    lost = asked(ctl)["sums"]["lost"]
    assert lost["gpu_hours"] == pytest.approx(4.0, abs=0.1)


def test_ranks_on_other_devices_are_not_shown_for_one_device(past: Past, ctl: Ctl) -> None:
    info = past.job(4711, 6.0)
    members = (
        Subject(device_uid="GPU-1", process=info.key),
        Subject(device_uid=world.SECOND.uid, process=info.key),
    )
    alert = past.alert(info)
    for minute in range(60):
        at_s = past.now_s - HOUR_S + 60.0 * minute
        one = making.sample(at_s, [(info, 20 * GIB)], device=world.SECOND)
        past.history.record(one, (world.SECOND,), {info.key: info})
    alert = msgspec.structs.replace(alert, cost=Cost(members=members))
    live(past, alerts=(alert,))
    assert {one["device_uid"] for one in asked(ctl)["data"]} == {"GPU-1", "GPU-2"}
    for index, uid in (("0", "GPU-1"), ("1", "GPU-2")):
        found = asked(ctl, "--gpu", index)
        assert {one["device_uid"] for one in found["data"]} == {uid}
        assert {one["device_uid"] for one in found["prices"]} == {uid}


def test_what_was_held_on_two_devices_counts_on_both(past: Past, ctl: Ctl) -> None:
    info = past.job(9, 4.0)
    for minute in range(240):
        at_s = past.now_s - 4 * HOUR_S + 60.0 * minute
        one = making.sample(at_s, [(info, 40 * GIB)], device=world.SECOND)
        past.history.record(one, (world.SECOND,), {info.key: info})
    alert = held_alert(past, info, from_h=3.0, to_h=1.0)
    members = tuple(Subject(device_uid=uid, process=info.key) for uid in ("GPU-1", "GPU-2"))
    past.history.apply([msgspec.structs.replace(alert, cost=Cost(members=members))], [])
    live(past)
    held = asked(ctl)["sums"]["held"]
    assert held["gpu_hours"] == pytest.approx(2.0 * 20 / 80 + 2.0 * 40 / 80, abs=0.03)
