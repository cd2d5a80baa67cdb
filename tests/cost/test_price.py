"""Which price counts, and what is said of it."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.analysis import cost
from gpuwatchd.core.config import CostSection, prices
from gpuwatchd.core.config.prices import PriceRow
from gpuwatchd.core.model import Device
from tests.making import present

GIB = 2**30
NOW_S = dt.datetime(2024, 8, 1, tzinfo=dt.UTC).timestamp()
A100 = PriceRow(
    match="NVIDIA A100*40GB*",
    name="A100 40GB",
    usd_per_gpu_hour=4.10,
    basis="on-demand",
    provider="P",
    region="r",
    as_of=dt.date(2024, 6, 1),
    source="https://example.org",
    note="32.77 / 8",
)


def card(name: str = "NVIDIA A100-SXM4-40GB", uid: str = "GPU-1", gib: float = 40.0) -> Device:
    return Device(uid=uid, vendor="nvidia", index=0, name=name, memory_total_bytes=round(gib * GIB))


def of(section: CostSection, device: Device, **more: object) -> cost.Price | None:
    book = cost.Prices(section, (A100,))
    return book.of(device, {device.uid: device}, now_s=NOW_S, **more)  # type: ignore[arg-type]


@pytest.mark.requirement("B16")
def test_the_table_gives_the_price_of_one_gpu_with_its_date() -> None:
    found = present(of(CostSection(), card()))
    assert (found.usd_per_hour, found.basis) == (4.10, "A100 40GB, on-demand, as of 2024-06")
    assert found.source == "P r, 32.77 / 8; https://example.org"


@pytest.mark.parametrize(
    ("section", "device"),
    [
        pytest.param(CostSection(), card("Tesla K80"), id="not in the table"),
        pytest.param(CostSection(offer="spot"), card(), id="another offer"),
        pytest.param(CostSection(mode="owned"), card(), id="owned, no price paid"),
        pytest.param(CostSection(mode="off", usd_per_gpu_hour=2.0), card(), id="off"),
    ],
)
def test_what_has_no_price_is_unknown(section: CostSection, device: Device) -> None:
    assert of(section, device) is None


def test_your_prices_win_and_the_most_specific_of_them() -> None:
    own = {"NVIDIA*": 1.0, "nvidia a100*40gb": 1.8, "*": 9.0}
    found = present(of(CostSection(prices=own, usd_per_gpu_hour=7.0), card()))
    assert (found.usd_per_hour, found.basis) == (1.8, 'yours, for "nvidia a100*40gb"')
    plain = present(of(CostSection(prices={"H100": 1.0}, usd_per_gpu_hour=7.0), card()))
    assert (plain.usd_per_hour, plain.basis) == (7.0, "yours")


def test_an_owned_device_costs_what_was_paid_over_its_lifetime() -> None:
    section = CostSection(mode="owned", purchase=8760.0, lifetime=365 * 86400.0)  # type: ignore[arg-type]
    found = present(of(section, card(), power_w=300.0))
    assert found.usd_per_hour == pytest.approx(1.0)
    assert found.electricity_usd_per_hour is None


def test_its_electricity_is_counted_apart_by_measured_power() -> None:
    section = CostSection(mode="owned", purchase=8760.0, lifetime=365 * 86400.0,  # type: ignore[arg-type]
                          electricity_per_kwh=0.5)  # fmt: skip
    found = present(of(section, card(), power_w=300.0))
    assert (found.usd_per_hour, found.electricity_usd_per_hour) == pytest.approx((1.0, 0.15))
    assert "300 W" in found.basis
    dark = present(of(section, card()))
    assert dark.electricity_usd_per_hour is None
    assert "power is unknown" in dark.basis


def test_prices_are_in_your_currency_and_carried_in_dollars() -> None:
    section = CostSection(prices={"*A100*": 1.8}, currency="EUR", per_usd=0.9)
    found = present(of(section, card()))
    assert found.usd_per_hour == pytest.approx(2.0)


def test_another_currency_needs_its_rate() -> None:
    book = cost.Prices(CostSection(currency="EUR", usd_per_gpu_hour=2.0), ())
    assert book.of(card(), {}, now_s=NOW_S) is None
    assert "per-usd" in book.problem
    assert cost.Prices(CostSection(currency="EUR", per_usd=0.9), ()).problem == ""


@pytest.mark.parametrize(("days", "old"), [(180, False), (181, True)])
def test_an_old_row_says_its_age(days: int, old: bool) -> None:
    row = msgspec.structs.replace(A100, as_of=dt.date(2024, 8, 1) - dt.timedelta(days=days))
    found = present(cost.Prices(CostSection(), (row,)).of(card(), {}, now_s=NOW_S))
    assert found.is_old is old
    assert ("months old" in found.basis) is old


@given(st.lists(st.floats(0.1, 40.0), min_size=1, max_size=7), st.floats(0.0, 100.0))
def test_instances_cost_their_slice_and_at_most_the_card_together(
    sizes: list[float], price: float
) -> None:
    scale = min(1.0, 40.0 / sum(sizes))
    whole = card()
    devices = {whole.uid: whole}
    parts = [
        msgspec.structs.replace(
            card("NVIDIA A100-SXM4-40GB MIG", f"MIG-{number}", gib * scale), parent_uid=whole.uid
        )
        for number, gib in enumerate(sizes)
    ]
    book = cost.Prices(CostSection(usd_per_gpu_hour=price), ())
    found = [book.of(part, devices, now_s=NOW_S) for part in parts]
    assert all(one is not None and one.whole_usd_per_hour == price for one in found)
    assert sum(one.usd_per_hour for one in found if one) <= price * (1 + 1e-6)


def test_an_instance_of_an_unknown_card_is_unknown() -> None:
    part = msgspec.structs.replace(card(), parent_uid="GPU-gone")
    assert of(CostSection(usd_per_gpu_hour=2.0), part) is None


def test_no_row_is_the_price_of_eight() -> None:
    for row in prices.builtin():
        assert row.usd_per_gpu_hour < 20.0, row
        divided = re.search(r": ([\d.]+) an hour / (\d) GPU", row.note)
        if divided:
            amount = float(divided[1]) / int(divided[2])
            assert row.usd_per_gpu_hour == pytest.approx(amount, abs=5e-5), row


@pytest.mark.parametrize("missing", ["as-of", "source", "note"])
def test_a_row_without_its_origin_is_refused(missing: str) -> None:
    lines = ['match = "NVIDIA X"', 'name = "X"', "usd-per-gpu-hour = 1.0", 'basis = "spot"',
             'provider = "P"', 'region = "r"', "as-of = 2026-01-01",
             'source = "https://example.org/x"', 'note = "n"']  # fmt: skip
    whole = "[[price]]\n" + "\n".join(lines)
    assert prices.decode(whole)[0].as_of == dt.date(2026, 1, 1)
    with pytest.raises(msgspec.ValidationError, match=missing):
        prices.decode("\n".join(line for line in whole.split("\n") if not line.startswith(missing)))


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("NVIDIA A100-SXM4-40GB", 2.7447),
        ("NVIDIA A100-SXM4-80GB", 3.4309),
        ("NVIDIA A100 80GB PCIe", 3.673),
        ("NVIDIA H100 80GB HBM3", 6.88),
        ("NVIDIA H200", 10.4365),
        ("NVIDIA GeForce RTX 4090", 0.29),
    ],
)
def test_drivers_names_find_their_row(name: str, usd: float) -> None:
    found = present(cost.Prices(CostSection(), prices.builtin()).of(card(name), {}, now_s=NOW_S))
    assert found.usd_per_hour == usd


def test_the_page_on_costs_shows_every_row() -> None:
    page = (
        Path(__file__).parents[2].joinpath("docs", "how-to", "what-it-costs.md").read_text("utf-8")
    )
    for row in prices.builtin():
        told = f"| {row.name} | ${row.usd_per_gpu_hour:g} | {row.basis} | {row.as_of} |"
        assert told in page
        assert row.note in page
    assert page.count("](https://") == len(prices.builtin())
