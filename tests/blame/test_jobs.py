"""Which ranks leak alike, who speaks for them, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatchd.analysis.attribution import ledger
from gpuwatchd.core.model import EtaRange, Finding, ProcessInfo, ProcessKey
from tests.making import calm, finding


def rank(number: int, found: Finding | None = None, **changes: Any) -> ledger.Rank:
    info = ProcessInfo(
        key=ProcessKey(pid=100 + number, started_at_s=1.0), name="python", user="alice",
        argv=("python", "train.py"), group="torchrun 7f3a", rank=number,
    )  # fmt: skip
    return ledger.Rank(subject=f"s{number}", info=info, gpu=number, finding=found, **changes)


def eta(mid_s: float) -> EtaRange:
    return EtaRange(low_s=mid_s * 0.8, mid_s=mid_s, high_s=mid_s * 1.3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"rate_bytes_per_s": 400_000.0}, True),
        ({"rate_bytes_per_s": 420_000.0}, False),
        ({"rate_bytes_per_s": 100_000.0}, False),
        ({"rate_bytes_per_s": -1.0}, False),
        ({"onset_at_s": 9_550.0}, True),
        ({"onset_at_s": 7_500.0}, False),
        ({"onset_at_s": None}, True),
    ],
)
def test_alike(changes: dict[str, Any], expected: bool) -> None:
    assert ledger.similar_leaks(finding(), finding(**changes)) is expected
    assert ledger.similar_leaks(finding(**changes), finding()) is expected


def test_only_leaks_of_other_processes_belong_together() -> None:
    own = rank(0, finding())
    ranks = [own, rank(1, finding()), rank(2, calm()), rank(3)]
    assert [one.subject for one in ledger.group_ranks(own, ranks)] == ["s0", "s1"]
    assert ledger.group_ranks(own, [own, rank(2, calm())]) == []
    assert ledger.group_ranks(rank(0, calm()), ranks) == []
    # The same process on two devices is no job.
    again = ledger.Rank(subject="other device", info=own.info, gpu=5, finding=finding())
    assert ledger.group_ranks(own, [own, again]) == []


def test_an_open_alert_leads_then_the_first_to_be_full() -> None:
    first, second = rank(0, finding(eta=eta(9000))), rank(1, finding(eta=eta(600)))
    assert ledger.lead_rank([first, second]).subject == "s1"
    told = rank(2, finding(eta=None), state="watch", opened_at_s=5.0)
    older = rank(3, finding(eta=None), state="watch", opened_at_s=4.0)
    fired = rank(4, finding(), state="firing", opened_at_s=9.0)
    assert ledger.lead_rank([first, told]).subject == "s2"
    assert ledger.lead_rank([told, older]).subject == "s3"
    assert ledger.lead_rank([told, older, fired]).subject == "s4"
    same = [rank(6, finding(eta=None)), rank(5, finding(eta=None))]
    assert ledger.lead_rank(same).subject == "s5"


def test_one_judgement_for_all() -> None:
    own = rank(0, finding(eta=eta(9000), tier="watch", severity="info"))
    other = rank(1, finding(eta=eta(600), severity="critical", rate_bytes_per_s=300_000.0))
    found = ledger.joined_finding(own, [own, other], 4)
    assert found.subject == own.finding.subject if own.finding else False
    assert (found.tier, found.severity, found.eta) == ("alert", "critical", eta(600))
    assert found.reason.startswith("2 of 4 ranks of torchrun 7f3a leak alike, together ")
    assert "and rank 1 on GPU 1 is full first; rank 0 on GPU 0 the floor rose" in found.reason
    assert [(one.name, round(one.share, 2)) for one in found.blame] == [
        ("rank 1 on GPU 1", 0.59),
        ("rank 0 on GPU 0", 0.41),
    ]


def test_nobody_is_called_calm_who_was_not_judged() -> None:
    own = rank(2, finding())
    assert "calm" in ledger.lone_leak_text(own, [rank(0, calm()), rank(1, calm())])
    assert "calm" not in ledger.lone_leak_text(own, [rank(0, calm()), rank(1)])
    assert "1 of the others" in ledger.lone_leak_text(own, [rank(0, finding()), rank(1, calm())])
