"""What held memory costs."""

from __future__ import annotations

import pytest

from gpuwatchd.analysis import cost

GIB = 2**30


def test_memory_times_time() -> None:
    assert cost.gib_hours(24 * GIB, 7200.0) == 48.0
    assert cost.gib_hours(0, 7200.0) == 0.0
    assert cost.gib_hours(24 * GIB, -5.0) == 0.0


@pytest.mark.parametrize(("held", "time"), [(None, 1.0), (1.0, None)])
def test_unknown_stays_unknown(held: float | None, time: float | None) -> None:
    assert cost.gib_hours(held, time) is None
    assert cost.usd(held, time, total_bytes=GIB, usd_per_gpu_hour=1.0) is None


def test_dollars_are_its_share_of_the_device() -> None:
    price = {"total_bytes": 80.0 * GIB, "usd_per_gpu_hour": 4.0}
    assert cost.usd(20 * GIB, 3600.0, **price) == 1.0
    assert cost.usd(90 * GIB, 3600.0, **price) == 4.0
    assert cost.usd(-1, 3600.0, **price) == 0.0


@pytest.mark.parametrize(("total", "price"), [(None, 4.0), (0, 4.0), (80 * GIB, None)])
def test_without_a_price_or_a_total_there_is_no_amount(
    total: float | None, price: float | None
) -> None:
    assert cost.usd(GIB, 60.0, total_bytes=total, usd_per_gpu_hour=price) is None
