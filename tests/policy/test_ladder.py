"""What keeps a step of ``[act]`` from being taken, and when it is: the bars themselves."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatchd.alerts.ladder import (
    HOST_S,
    NEW_RULE_S,
    TARGET_S,
    Countdown,
    Moment,
    Target,
    budget_hold,
    leak_hold,
    moment_hold,
    next_step,
    target_hold,
)
from gpuwatchd.core.codes import ActHold
from gpuwatchd.core.model import EtaRange
from tests.making import finding


@pytest.mark.parametrize(
    ("changes", "hold"),
    [
        ({}, None),
        ({"mode": "observe", "opted_in": False}, ActHold.OBSERVE),
        ({"mode": "propose", "opted_in": False}, ActHold.PROPOSE),
        ({"opted_in": False, "rule_age_s": 0.0}, ActHold.NOT_OPTED_IN),
        ({"rule_age_s": NEW_RULE_S - 1.0, "is_machine": True}, ActHold.NEW_RULE),
        ({"is_machine": True, "is_own": False}, ActHold.MACHINE),
        ({"is_own": False, "is_managed": True}, ActHold.NOT_OWN),
        ({"is_managed": True, "is_one": False}, ActHold.MANAGED),
        ({"has_runner": True, "is_machine": True, "is_own": False, "is_managed": True}, None),
        ({"is_one": False, "has_runner": True}, ActHold.RANK),
    ],
)
def test_whom_a_step_may_be_taken_for(changes: dict[str, Any], hold: ActHold | None) -> None:
    may: dict[str, Any] = {
        "mode": "auto",
        "opted_in": True,
        "rule_age_s": NEW_RULE_S,
        "is_own": True,
    }
    assert target_hold(Target(**may | changes)) is hold


@pytest.mark.parametrize(
    ("changes", "hold"),
    [
        ({}, None),
        ({"sample_age_s": 14.9}, None),
        ({"sample_age_s": 15.0, "has_fault": True}, ActHold.STALE),
        ({"sample_age_s": -0.1}, ActHold.STALE),
        ({"is_listed": False, "is_use_known": False}, ActHold.NOT_LISTED),
        ({"is_use_known": False, "sample_age_s": 99.0}, ActHold.USE_UNKNOWN),
        ({"has_fault": True, "is_silenced": True}, ActHold.HARDWARE),
        ({"is_silenced": True, "is_normal": True}, ActHold.SILENCED),
        ({"is_normal": True, "is_held": True}, ActHold.NORMAL),
        ({"is_held": True}, ActHold.HELD),
    ],
)
def test_when_a_step_may_be_taken(changes: dict[str, Any], hold: ActHold | None) -> None:
    assert moment_hold(Moment(**{"sample_age_s": 0.0, "interval_s": 5.0} | changes)) is hold


@pytest.mark.parametrize(
    ("changes", "judgements", "hold"),
    [
        ({}, 3, None),
        ({}, 2, ActHold.FEW_JUDGEMENTS),
        ({"tier": "watch"}, 3, ActHold.FEW_JUDGEMENTS),
        ({"limit_bytes": None}, 3, ActHold.LIMIT_UNKNOWN),
        ({"eta": None}, 3, ActHold.BEYOND_HORIZON),
        ({"eta": EtaRange(low_s=1.0, mid_s=2.0, high_s=None)}, 3, ActHold.BEYOND_HORIZON),
        ({"eta": EtaRange(low_s=1.0, mid_s=2.0, high_s=60.0)}, 3, ActHold.BEYOND_HORIZON),
    ],
)
def test_the_bar_for_a_leak(changes: dict[str, Any], judgements: int, hold: ActHold | None) -> None:
    sure = {"limit_bytes": 9e9, "eta": EtaRange(low_s=1.0, mid_s=2.0, high_s=59.0)}
    assert leak_hold(finding(**sure | changes), judgements, 60.0) is hold


def test_budgets_and_steps_run_out() -> None:
    day = [1.0, 2.0, 3.0]
    assert budget_hold([1.0], [1.0], 1.0 + TARGET_S) is None
    assert budget_hold([1.0], [], 0.9 + TARGET_S) is ActHold.BUDGET_TARGET
    assert budget_hold([99.0], [], 1.0) is ActHold.BUDGET_TARGET  # the clock was set back
    assert budget_hold([], day, 0.9 + HOST_S) is ActHold.BUDGET_HOST
    assert budget_hold([], day, 1.0 + HOST_S) is None
    assert [next_step(["checkpoint", "end"], n) for n in range(3)] == [
        "checkpoint", "end", None,
    ]  # fmt: skip


def test_a_countdown_from_the_first_notice_to_the_step() -> None:
    one = Countdown(step="end", wanted=2, gap_s=100.0, notices=[])
    assert (one.move(0.0), one.left, one.due_mono_s) == ("notify", 2, None)
    one.asked_mono_s = 0.0
    assert (one.move(99.0), one.move(100.0)) == ("wait", "give-up")
    one.named("a", 10.0)
    assert (one.move(59.0), one.move(60.0)) == ("wait", "give-up")
    one.named("early", 20.0)  # the one before it has not arrived
    one.notices[0].sent_mono_s = 20.0
    one.named("early", 119.0)
    assert (len(one.notices), one.left, one.move(119.0), one.move(120.0)) == (
        1,
        1,
        "wait",
        "notify",
    )
    one.asked_mono_s = 120.0
    assert (one.move(219.0), one.move(220.0)) == ("wait", "give-up")
    one.named("b", 120.0, 30.0)
    assert (one.due_mono_s, one.move(169.0), one.move(170.0)) == (250.0, "wait", "give-up")
    one.notices[1].sent_mono_s = 130.0
    assert (one.left, one.move(249.0), one.move(250.0)) == (0, "wait", "act")
