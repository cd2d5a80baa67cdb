"""Money beside other answers: the price of what is held, and of each GPU."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli.money import Book
from gpuwatchd.core.config import Config, CostSection, prices
from gpuwatchd.core.model import Holding
from gpuwatchd.store.live import LiveDevice
from tests.cli import world
from tests.making import CARD, GIB

if TYPE_CHECKING:

    from gpuwatchd.core.config.prices import PriceRow
    from tests.cli.calls import Ctl

NOW_S = dt.datetime(2026, 11, 21, tzinfo=dt.UTC).timestamp()
A100 = msgspec.structs.replace(CARD, name="NVIDIA A100-SXM4-40GB")


@pytest.mark.parametrize(
    ("late_s", "section", "well", "words"),
    [
        (0.0, {}, True, "A100-SXM4-40GB: $2.74/h (A100 40GB, on-demand, as of 2026-11)"),
        (200 * 86_400.0, {}, False, "212 days old"),
        (0.0, {"offer": "reserved"}, True, "no price is known"),
        (0.0, {"currency": "CHF"}, False, "per-usd"),
        (0.0, {"mode": "off"}, True, "money is not counted"),
    ],
)
def test_doctor_names_the_price_and_what_is_wrong_with_it(
    late_s: float, section: dict[str, Any], well: bool, words: str
) -> None:
    config = Config(cost=CostSection(**section))
    ((good, said, hint),) = Book(config, [A100], now_s=NOW_S + late_s).checks()
    assert (good, bool(hint)) == (well, not well)
    assert words in said


def test_doctor_prints_it(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tuple(msgspec.structs.replace(row, as_of=dt.date(2024, 6, 1)) for row in prices.builtin())

    def table() -> tuple[PriceRow, ...]:
        return old

    monkeypatch.setattr(prices, "builtin", table)
    world.write(devices=(LiveDevice(device=A100, reading=None),), alerts=())
    found = [one for one in ctl.data("doctor", code=None) if one["name"] == "price"]
    assert [one["level"] for one in found] == ["warning"]
    assert "as of 2024-06" in found[0]["text"]


def test_zombies_show_the_price_of_what_they_hold(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_PRICES", '{ "NVIDIA A100" = 1.8 }')
    monkeypatch.setenv("GPUWATCHD_COST_CURRENCY", "EUR")
    monkeypatch.setenv("GPUWATCHD_COST_PER_USD", "0.9")
    held = Holding(
        kind="idle", device_uid=CARD.uid, held_bytes=20 * GIB, since_s=time.time() - 7200.0,
        gib_hours=40.0, cost_usd=1.0,
    )  # fmt: skip
    world.write(holdings=(held,), alerts=())
    said = ctl("zombies")
    assert "€0.90" in said
    assert 'cost: its share of €1.80/h (yours, for "NVIDIA A100")' in said
