"""``cost`` where a part is unknown: what is known of it stands there; prices are whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.analysis.cost import Entry, Price, Prices
from gpuwatchd.cli import cost_entries
from gpuwatchd.core.config import CostSection
from tests import making
from tests.cli.test_cost import asked, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.cli.cost_entries import Bill
    from tests.cli.calls import Ctl

NOW_S = 1_800_000_000.0


def _entry(key: str, gpu: str, usd: float | None, ahead: float | None, whole: float) -> Entry:
    return Entry(
        what="at-risk", key=key, title=f"{gpu}: python", device_uid=gpu, gpu=gpu, user="alice",
        until_at_s=NOW_S, gpu_hours=2.0, usd=usd, ahead_gpu_hours=0.5, ahead_usd=ahead,
        whole_gpu_hours=whole,
    )  # fmt: skip


@pytest.fixture
def billed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what makes ``cost`` find these entries, at this price of GPU-1."""

    def set_(*entries: Entry, price: Price | None = None) -> None:
        def gather(_: object, since_s: float) -> Bill:
            bill = cost_entries.Bill(Prices(CostSection(), ()), since_s, NOW_S)
            bill.entries.extend(entries)
            bill.devices = {making.CARD.uid: making.CARD}
            bill.used = {making.CARD.uid: price}
            return bill

        monkeypatch.setattr(cost_entries, "gather", gather)

    return set_


def test_what_is_known_of_the_time_until_full_is_said(
    billed: Callable[..., None], ctl: Ctl
) -> None:
    billed(_entry("a", "GPU 0", 4.0, 1.0, 2.0), _entry("b", "GPU 1", None, None, 2.0))
    lines = shown(ctl).splitlines()
    assert next(one for one in lines if one.startswith("at risk now")).endswith("$4.00 + ?")
    assert next(one for one in lines if "until memory is full" in one).endswith("$1.00 + ?")
    total = asked(ctl)["sums"]["at_risk"]
    assert (total["ahead_usd"], total["known_ahead_usd"]) == (None, 1.0)


def test_a_share_is_said_only_where_it_differs_from_the_whole(
    billed: Callable[..., None], ctl: Ctl
) -> None:
    billed(_entry("a", "GPU 0", 4.0, 1.0, 2.04), _entry("b", "GPU 1", 4.0, 1.0, 8.0))
    said = shown(ctl, "--by", "incident")
    assert "its share of 2.0" not in said
    assert said.count("its share of 8.0, in which others were there too") == 1


def test_a_price_with_electricity_has_it_in_its_amount(
    billed: Callable[..., None], ctl: Ctl
) -> None:
    basis = "owned, over 4 years, with electricity at 300 W"
    price = Price(
        usd_per_hour=0.40, whole_usd_per_hour=0.40, basis=basis, electricity_usd_per_hour=0.09
    )
    billed(_entry("a", "GPU 0", 0.98, 0.25, 2.0), price=price)
    assert f"$0.49/h ({basis})" in " ".join(shown(ctl).split())
