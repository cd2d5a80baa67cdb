"""When people are told, how often, and why not."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatchd import alerts
from gpuwatchd.alerts import Rules
from gpuwatchd.alerts.grouping import Due, grouped_by_message
from gpuwatchd.alerts.policy_types import Effective
from gpuwatchd.core.model import Alert, EtaRange, Finding
from tests.making import alert, calm, finding, present

RULES = Rules()
SOON = EtaRange(low_s=500, mid_s=600, high_s=700)


def live(
    findings: list[Finding], *, every_s: float = 10.0, rules: Rules = RULES
) -> list[tuple[float, Alert | None, bool]]:
    """Evaluate findings one after the other; return (time, alert, changed) of each."""
    state: Alert | None = None
    out = []
    for position, one in enumerate(findings):
        now_s = 10_000.0 + position * every_s
        outcome = alerts.evaluate(
            msgspec.structs.replace(one, judged_at_s=now_s), state, rules, now_s=now_s, title="t"
        )
        state = outcome.alert
        out.append((now_s, state, outcome.changed))
        if state is not None and state.state == "resolved":
            state = None
    return out


def states(steps: list[tuple[float, Alert | None, bool]]) -> list[str]:
    return [a.state if a is not None else "-" for _, a, _ in steps]


def test_a_watch_needs_evaluations_in_a_row_and_some_time() -> None:
    watchable = finding(tier="watch", eta=SOON)
    assert states(live([watchable] * 4)) == ["pending", "pending", "watch", "watch"]


def test_a_watch_is_as_severe_as_its_newest_finding() -> None:
    calm_one = finding(tier="watch", eta=SOON, severity="info")
    bad_one = finding(tier="watch", eta=SOON, severity="warning")
    steps = live([calm_one] * 4 + [bad_one] + [calm_one])
    assert [a.severity for _, a, _ in steps if a is not None] == ["info"] * 4 + ["warning", "info"]


def test_a_break_in_the_row_starts_anew() -> None:
    watchable = finding(tier="watch", eta=SOON)
    steps = live([watchable, watchable, calm(), watchable, watchable, watchable])
    assert states(steps) == ["pending", "pending", "-", "pending", "pending", "watch"]


def test_a_weak_look_takes_one_confirmation_and_its_time_back() -> None:
    long = EtaRange(low_s=50_000, mid_s=60_000, high_s=70_000)
    sure, weak = finding(eta=long), finding(tier="watch", eta=long)
    found = [present(one) for _, one, _ in live([sure, sure, weak, weak, sure])]
    assert [one.alert_confirmations for one in found] == [1, 2, 1, 0, 1]
    assert [one.alert_since_s for one in found] == [10_000.0, 10_000.0, 10_010.0, None, 10_040.0]


def test_an_alert_waits_in_proportion_to_the_time_that_is_left() -> None:
    long = EtaRange(low_s=50_000, mid_s=60_000, high_s=70_000)

    def fired_s(eta: EtaRange, confidence: float) -> float:
        looks = live([finding(eta=eta, confidence=confidence)] * 300)
        return next(t for t, a, _ in looks if a and a.state == "firing")

    assert fired_s(SOON, 0.75) < 10_300.0
    assert 10_600.0 < fired_s(long, 0.75) < 13_000.0
    # Where it is clear less time is enough.
    assert fired_s(long, 0.9) < 10_250.0


def test_one_weak_look_does_not_undo_the_evidence_and_one_strong_look_does_not_make_it() -> None:
    weak, strong = finding(tier="watch", eta=SOON, confidence=0.6), finding(eta=SOON)
    mixed = live([strong, strong, weak, strong, strong, strong] * 5)
    assert any(a is not None and a.state == "firing" for _, a, _ in mixed)
    assert all(a is None or a.state != "firing" for _, a, _ in live([weak, weak, strong] * 20))


def test_one_look_after_hours_does_not_make_the_mean_and_looks_that_are_hours_apart_do() -> None:
    sure = finding(eta=SOON, confidence=0.75)
    state = live([finding(eta=SOON, confidence=0.45)] * 6)[-1][1]
    looked = msgspec.structs.replace(sure, judged_at_s=20_000.0)
    after = alerts.evaluate(looked, state, RULES, now_s=20_000.0, title="t").alert
    assert alerts.mean_confidence(present(after)) < RULES.alert_confidence
    assert states(live([sure] * 4, every_s=7200.0))[-1] == "firing"


def test_a_staircase_between_two_steps_has_not_recovered() -> None:
    old = alert(finding=finding(onset_at_s=6_400.0, judged_at_s=10_000.0), notices=1)
    state: Alert | None = old
    for now_s in range(10_010, 10_010 + 890, 10):
        state = present(alerts.evaluate(calm(), state, RULES, now_s=float(now_s), title="t").alert)
        assert state.state == "firing"
    late = present(alerts.evaluate(calm(), state, RULES, now_s=10_920.0, title="t").alert)
    assert late.state == "resolved"


def test_unknown_is_not_healthy() -> None:
    state: Alert | None = alert(notices=1)
    for now_s in range(10_000, 30_000, 60):
        state = alerts.evaluate(
            calm(pattern="unknown"), state, RULES, now_s=float(now_s), title="t"
        ).alert
    assert present(state).state == "firing"


def test_an_escalation_passes_the_cooldown_also_of_an_alert_of_an_earlier_version() -> None:
    told = alert(notices=1, last_notice_at_s=9_990.0, next_notice_at_s=13_590.0)
    assert told.told_severity is None
    worse = alerts.evaluate(
        finding(severity="critical"), told, RULES, now_s=10_000.0, title="t"
    ).alert
    assert alerts.notice_due(present(worse), 10_000.0) == "escalated"


@pytest.mark.parametrize("state", ["pending", "watch"])
def test_what_is_only_watched_is_sent_to_nobody(state: str) -> None:
    due = alert(state=state, next_notice_at_s=0.0, severity="critical")
    assert alerts.due_notices([due], RULES, now_s=10_000.0, sent_at_s=[]) == ([], [], [])


@pytest.mark.parametrize("state", ["watch", "firing"])
def test_evaluation_never_changes_what_it_was_given(state: str) -> None:
    before = alert(state=state)
    copy = msgspec.json.encode(before)
    alerts.evaluate(calm(), before, RULES, now_s=10_000.0, title="t")
    alerts.evaluate(finding(), before, RULES, now_s=10_000.0, title="t")
    assert msgspec.json.encode(before) == copy


def eta(mid_s: float) -> EtaRange:
    return EtaRange(low_s=mid_s / 2, mid_s=mid_s, high_s=None)


@pytest.mark.parametrize(
    ("one", "state", "calm_looks", "pause_s"),
    [
        (finding(eta=eta(600)), None, 0, 10.0),
        (finding(eta=eta(50_000)), "pending", 0, 10.0),
        (finding(eta=eta(50_000)), "watch", 0, 60.0),
        (finding(eta=eta(600)), "firing", 0, 10.0),
        (finding(eta=eta(3_600)), "firing", 0, 30.0),
        (finding(eta=eta(500_000)), "firing", 0, 300.0),
        (calm(), None, 0, 60.0),
        (calm(), None, 30, 180.0),
        (calm(), None, 10_000, 300.0),
        (calm(), "firing", 0, 60.0),
    ],
)
def test_the_pause_is_weighed_against_the_time_that_is_left(
    one: Finding, state: str | None, calm_looks: int, pause_s: float
) -> None:
    known = None if state is None else alert(state=state)
    assert alerts.pause_s(one, known, young=False, calm_looks=calm_looks) == pause_s
    if state != "firing":
        assert alerts.pause_s(one, known, young=True, calm_looks=calm_looks) == alerts.FAST_S


def test_what_is_critical_and_new_leaves_first() -> None:
    rules = Effective(channels=(), repeat_s=())
    due = [
        Due(alert(group="old", firing_at_s=1.0), "firing", "warning", rules, ()),
        Due(alert(group="new", firing_at_s=2.0), "firing", "critical", rules, ()),
    ]
    first = [[one.severity for one in batch] for batch in grouped_by_message(due)]
    assert first == [["critical"], ["warning"]]
