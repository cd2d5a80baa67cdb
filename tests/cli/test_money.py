"""Money beside other answers: the price of what is held, and of each GPU."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.cli import main
from gpuwatchd.cli.cost_text import Book
from gpuwatchd.core.config import Config, CostSection, prices
from gpuwatchd.core.model import Holding
from gpuwatchd.store.live import LiveDevice
from tests.cli import world
from tests.making import CARD, GIB

if TYPE_CHECKING:
    import pytest

    from gpuwatchd.core.config.prices import PriceRow

NOW_S = dt.datetime(2026, 11, 21, tzinfo=dt.UTC).timestamp()
A100 = msgspec.structs.replace(CARD, name="NVIDIA A100-SXM4-40GB")


def checks(now_s: float = NOW_S, **section: object) -> list[tuple[bool, str, str]]:
    config = Config(cost=CostSection(**section))  # type: ignore[arg-type]
    return list(Book(config, [A100], now_s=now_s).checks())


def test_doctor_names_the_price_and_where_it_is_from() -> None:
    ((well, said, hint),) = checks()
    assert well
    assert said == "NVIDIA A100-SXM4-40GB: $2.74/h (A100 40GB, on-demand, as of 2026-11)"
    assert hint == ""


def test_doctor_warns_of_a_price_that_is_half_a_year_old() -> None:
    ((well, said, hint),) = checks(NOW_S + 200 * 86_400)
    assert not well
    assert "212 days old" in said
    assert "[cost] prices" in hint


def test_doctor_does_not_warn_of_a_price_that_nobody_knows() -> None:
    ((well, said, _),) = checks(offer="reserved")
    assert well
    assert "no price is known" in said


def test_doctor_warns_of_a_currency_without_its_rate() -> None:
    ((well, said, _),) = checks(currency="CHF")
    assert not well
    assert "per-usd" in said


def test_doctor_says_that_money_is_off() -> None:
    assert checks(mode="off")[0][1].startswith("money is not counted")


def test_doctor_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tuple(msgspec.structs.replace(row, as_of=dt.date(2024, 6, 1)) for row in prices.builtin())

    def table() -> tuple[PriceRow, ...]:
        return old

    monkeypatch.setattr(prices, "builtin", table)
    world.write(devices=(LiveDevice(device=A100, reading=None),), alerts=())
    main(["doctor", "--json"])
    found = [one for one in json.loads(capsys.readouterr().out)["data"] if one["name"] == "price"]
    assert [one["level"] for one in found] == ["warning"]
    assert "as of 2024-06" in found[0]["text"]


def test_zombies_show_the_price_of_what_they_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_PRICES", '{ "NVIDIA A100" = 1.8 }')
    monkeypatch.setenv("GPUWATCHD_COST_CURRENCY", "EUR")
    monkeypatch.setenv("GPUWATCHD_COST_PER_USD", "0.9")
    held = Holding(
        kind="idle", device_uid=CARD.uid, held_bytes=20 * GIB, since_s=time.time() - 7200.0,
        gib_hours=40.0, cost_usd=1.0,
    )  # fmt: skip
    world.write(holdings=(held,), alerts=())
    assert main(["zombies"]) == 0
    said = capsys.readouterr().out
    assert "€0.90" in said
    assert 'cost: its share of €1.80/h (yours, for "NVIDIA A100")' in said
