"""Whose growth explains the device's growth."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd import blame
from gpuwatchd.model import ProcessKey, Series, Subject

Array = npt.NDArray[np.floating[Any]]
T = np.arange(0.0, 3600.0, 10.0)
A, B, C = (ProcessKey(pid=pid, started_at_s=1.0) for pid in (1, 2, 3))


def one(x: Array, t: Array = T) -> Series:
    return Series(
        subject=Subject(device_uid="G"),
        t_s=np.asarray(t, dtype=np.float64),
        used_bytes=np.asarray(x, dtype=np.float64),
        limit_bytes=None,
    )


def test_shares_add_up_and_are_ranked() -> None:
    device = one(8e9 + 3e6 * T)
    found = blame.share(
        device, {A: one(1e9 + 1e6 * T), B: one(5e9 + 2e6 * T)}, since_s=0.0, names={B: "train.py"}
    )
    assert [one.name for one in found] == ["train.py", "pid 1"]
    assert [one.process for one in found] == [B, A]
    assert sum(one.share for one in found) == pytest.approx(1.0)
    assert found[0].share == pytest.approx(2 / 3, rel=0.05)
    assert found[0].rate_bytes_per_s == pytest.approx(2e6, rel=0.1)


def test_what_nobody_owns_is_said() -> None:
    found = blame.share(one(8e9 + 2e6 * T), {A: one(1e9 + 1e6 * T)}, since_s=0.0)
    assert {one.process for one in found} == {A, None}
    nobody = next(one for one in found if one.process is None)
    assert nobody.name == blame.UNATTRIBUTED
    assert nobody.share == pytest.approx(0.5, abs=0.05)


def test_what_was_given_back_is_no_growth() -> None:
    burst = one(1e9 + 4e9 * ((T > 1000) & (T < 2000)))
    found = blame.share(one(8e9 + 1e6 * T), {A: one(1e9 + 1e6 * T), B: burst}, since_s=0.0)
    assert [one.process for one in found] == [A]


def test_a_process_that_came_later_counts_from_nothing() -> None:
    late = T[T >= 1800]
    device = one(4e9 + 3e9 * (T >= 1800))
    found = blame.share(device, {C: one(np.full(late.size, 3e9), late)}, since_s=0.0)
    assert [(one.process, round(one.share, 2)) for one in found] == [(C, 1.0)]


@pytest.mark.parametrize("x", [np.full(T.size, 4e9), 4e9 - 1e5 * T])
def test_nobody_is_blamed_when_nothing_grows(x: Array) -> None:
    assert blame.share(one(x), {A: one(1e9 + 1e6 * T)}, since_s=0.0) == ()
    assert blame.share(one(x[:0], T[:0]), {}, since_s=0.0) == ()
    assert blame.share(one(x), {}, since_s=9e9) == ()


def test_small_shares_are_left_out() -> None:
    found = blame.share(
        one(8e9 + 1e6 * T), {A: one(1e9 + 1e6 * T), B: one(1e9 + 1e4 * T)}, since_s=0.0
    )
    assert [one.process for one in found] == [A]
