"""How urgent an alert is."""

from __future__ import annotations

import pytest

from gpuwatchd.alerts import grade
from gpuwatchd.core.model import EtaRange, Finding
from tests.making import finding


def at(mid_s: float, low_s: float | None = None, **changes: object) -> Finding:
    low = mid_s / 1.5 if low_s is None else low_s
    return finding(eta=EtaRange(low_s=low, mid_s=mid_s, high_s=None), **changes)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (at(3_500), "critical"),
        (at(3_700), "warning"),
        (at(200_000), "warning"),
        (at(5_000, low_s=1_700, confidence=0.95), "critical"),
        (at(5_000, low_s=1_700, confidence=0.8), "warning"),
        (finding(eta=None, severity="critical", growth_bytes=9e9), "warning"),
        (finding(eta=None, severity="info"), "info"),
        (at(600, tier="watch", severity="warning"), "warning"),
        (at(600, tier="watch", severity="info"), "info"),
    ],
)
def test_the_time_that_is_left_makes_it_urgent(one: Finding, expected: str) -> None:
    assert grade(one) == expected


def test_what_is_critical_needs_twice_the_time_to_be_less() -> None:
    assert grade(at(7_000), "critical") == "critical"
    assert grade(at(7_300), "critical") == "warning"
    assert grade(at(9_000, low_s=3_500, confidence=0.5), "critical") == "critical"
    assert grade(at(7_000), "warning") == "warning"


def test_a_warning_does_not_become_information() -> None:
    assert grade(finding(eta=None, severity="info"), "warning") == "warning"
