"""What a report puts first, and when it rates a period at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.analysis import cost
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import EtaRange, Subject
from gpuwatchd.view.report import advice, incident
from gpuwatchd.view.report.incident import Stake, ranked
from gpuwatchd.view.text.alert_details import AlertRecord
from tests import making

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from tests.cli import reported
    from tests.cli.calls import Ctl


def leak(key: str, left_s: float, **changes: Any) -> Alert:
    """Return an open leak that is full in so many seconds."""
    eta = EtaRange(low_s=left_s / 2, mid_s=left_s, high_s=None)
    subject = Subject(device_uid=key)
    return making.alert(
        key=key, subject=subject, title=key, finding=making.finding(subject=subject, eta=eta),
        **changes,
    )  # fmt: skip


def test_an_unknown_price_is_not_ranked_as_nothing() -> None:
    alerts = [leak("dear", 9060.0), leak("nobody knows", 2340.0), leak("late", 90_000.0)]
    money = {"dear": 1.0, "late": 5.0, "nobody knows": None}
    found = incident.order(alerts, money)
    assert [one.key for one in found] == ["nobody knows", "dear", "late"]
    priced = incident.order(alerts, money | {"nobody knows": 0.5})
    assert [one.key for one in priced] == ["late", "dear", "nobody knows"]


def test_only_what_is_of_one_level_vies() -> None:
    stakes = [
        Stake((1,), 100.0, 60.0, ("dear",)),
        Stake((0,), None, 9000.0, ("critical",)),
        Stake((1,), 200.0, None, ("dearer",)),
    ]
    found = [one.rest[0] for one in ranked(stakes, lambda one: one)]
    assert found == ["critical", "dearer", "dear"]


def test_a_sum_with_a_price_that_is_missing_is_unknown() -> None:
    def entry(key: str, usd: float | None) -> cost.Entry:
        return cost.Entry(
            what="at-risk", key=key, title="", device_uid="", gpu="", until_at_s=0.0,
            gpu_hours=1.0, usd=usd,
        )  # fmt: skip

    found = incident.worth([entry("a", 1.0), entry("a", None), entry("a", 2.0), entry("b", 3.0)])
    assert found == {"a": None, "b": 3.0}


def test_what_is_critical_comes_before_what_is_dear(
    truth: reported.Truth, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_MODE", "off")
    worst = leak(making.CARD.uid, 2340.0, severity="critical", opened_at_s=truth.at(39))
    truth.history.apply([worst], [])
    truth.live(alerts=(truth.leak, worst))
    found = ctl.data("report", "--since", "44h")["advice"]
    assert found[0]["command"] == f"gpuwatchctl explain {worst.code}"
    assert found[0]["stake_usd"] is None
    assert "By severity;" in ctl("report --since 44h")
    assert "severity" in advice.ORDER


@pytest.mark.usefixtures("truth")
@pytest.mark.requirement("M23")
def test_a_period_that_is_hardly_known_has_no_score(ctl: Ctl) -> None:
    # One hour of twenty-one.
    little = ctl.data("report", "--since", "60h", "--until", "39h")
    assert little["quality"]["watched_share"] == pytest.approx(1 / 21, abs=0.01)
    assert (little["score"]["value"], little["score"]["grade"]) == (None, None)
    assert little["score"]["reason"] == "not enough data"
    assert ctl.data("report", "--since", "44h", "--until", "39h")["score"]["value"] == 100
    # A day and more is enough, however long the period is.
    assert ctl.data("report", "--since", "3600d")["score"]["value"] is not None


def test_the_last_judgement_of_what_is_over_is_no_forecast() -> None:
    def case(alert: Alert) -> incident.Incident:
        story = AlertRecord(alert, None, None, None)  # type: ignore[arg-type]
        first = incident.first_notified(alert, ())
        return incident.Incident(alert, story, first, None, None, None, (), ())

    still = leak("a", 3600.0)
    over = msgspec.structs.replace(
        still,
        state="resolved",
        resolved_at_s=still.finding.judged_at_s + 600.0,
        **wording.ending(Ending.ENDED_NEAR_LIMIT),
    )
    assert "full at" in incident.foreseen(case(still), now_s=still.opened_at_s)
    assert incident.foreseen(case(over), now_s=still.opened_at_s) == ""
    assert incident.held_true(case(over)) is None


def case(
    *, after_s: float | None, ended: Ending = Ending.ENDED_NEAR_LIMIT, **changes: Any
) -> incident.Incident:
    """Return a leak that was told at 1000 s, to be full at 2000 s (1500 - 3000)."""
    eta = EtaRange(low_s=500.0, mid_s=1000.0, high_s=2000.0)
    first = making.finding(**{"judged_at_s": 1000.0, "eta": eta, **changes})
    over_s = None if after_s is None else 1000.0 + after_s
    alert = making.alert(
        finding=first, resolved_at_s=over_s, **({} if over_s is None else wording.ending(ended)),
        state="firing" if over_s is None else "resolved",
    )  # fmt: skip
    story = AlertRecord(alert, None, None, None)  # type: ignore[arg-type]
    return incident.Incident(alert, story, first, None, None, None, (), ())


@pytest.mark.parametrize(
    ("after_s", "held", "said"),
    [
        (1200.0, True, "within the forecast interval"),
        (100.0, False, "7 min before the interval"),
        (2300.0, False, "5 min after the interval"),
    ],
)
def test_an_end_is_held_against_the_interval(after_s: float, held: bool, said: str) -> None:
    one = case(after_s=after_s)
    assert incident.held_true(one) is held
    assert said in incident.outcome(one, now_s=4000.0)


def test_an_end_of_another_kind_says_what_it_saved() -> None:
    one = case(after_s=400.0, ended=Ending.PROCESS_ENDED)
    assert incident.held_true(one) is None
    assert "10 min before memory would have been full" in incident.outcome(one, now_s=4000.0)
    assert "before" not in incident.outcome(
        case(after_s=1500.0, ended=Ending.PROCESS_ENDED), now_s=4000.0
    )


def test_what_is_open_is_so_and_what_has_no_forecast_has_none() -> None:
    assert incident.outcome(case(after_s=None), now_s=4000.0) == "it is still open"
    assert incident.foreseen(case(after_s=None, eta=None), now_s=4000.0) == ""
    open_ended = case(after_s=None, eta=EtaRange(low_s=500.0, mid_s=1000.0, high_s=None))
    assert "or later)" in incident.foreseen(open_ended, now_s=4000.0)
    assert incident.held_true(case(after_s=900.0, eta=None)) is None
