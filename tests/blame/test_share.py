"""Whose growth explains the device's growth."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import attribution
from gpuwatchd.core.model import ProcessKey, Series
from tests import making

Array = npt.NDArray[np.floating[Any]]
T = np.arange(0.0, 3600.0, 10.0)
A, B, C = (ProcessKey(pid=pid, started_at_s=1.0) for pid in (1, 2, 3))


def one(x: Array, t: Array = T) -> Series:
    return making.series(t, x)


@pytest.mark.requirement("G36")
def test_shares_add_up_and_are_ranked() -> None:
    device = one(8e9 + 3e6 * T)
    found = attribution.share(
        device, {A: one(1e9 + 1e6 * T), B: one(5e9 + 2e6 * T)}, since_s=0.0, names={B: "train.py"}
    )
    assert [one.name for one in found] == ["train.py", "pid 1"]
    assert [one.process for one in found] == [B, A]
    assert sum(one.share for one in found) == pytest.approx(1.0)
    assert found[0].share == pytest.approx(2 / 3, rel=0.05)
    assert found[0].rate_bytes_per_s == pytest.approx(2e6, rel=0.1)


@pytest.mark.parametrize("points", [4, 30, 360])
def test_the_rate_of_a_straight_rise_is_that_of_its_verdict(points: int) -> None:
    """It stands beside the growth rate on one screen, and must not be another one."""
    t = T[:points]
    (found,) = attribution.share(one(8e9 + 2e6 * t, t), {A: one(1e9 + 2e6 * t, t)}, since_s=0.0)
    assert found.rate_bytes_per_s == pytest.approx(2e6, rel=1e-6)


@pytest.mark.requirement("B8", "G36")
def test_what_nobody_owns_is_said() -> None:
    found = attribution.share(one(8e9 + 2e6 * T), {A: one(1e9 + 1e6 * T)}, since_s=0.0)
    assert {one.process for one in found} == {A, None}
    nobody = next(one for one in found if one.process is None)
    assert nobody.name == attribution.UNATTRIBUTED
    assert nobody.share == pytest.approx(0.5, abs=0.05)


def test_what_was_given_back_is_no_growth() -> None:
    burst = one(1e9 + 4e9 * ((T > 1000) & (T < 2000)))
    found = attribution.share(one(8e9 + 1e6 * T), {A: one(1e9 + 1e6 * T), B: burst}, since_s=0.0)
    assert [one.process for one in found] == [A]


def test_a_process_that_came_later_counts_from_nothing() -> None:
    late = T[T >= 1800]
    device = one(4e9 + 3e9 * (T >= 1800))
    found = attribution.share(device, {C: one(np.full(late.size, 3e9), late)}, since_s=0.0)
    assert [(one.process, round(one.share, 2)) for one in found] == [(C, 1.0)]


@pytest.mark.parametrize("x", [np.full(T.size, 4e9), 4e9 - 1e5 * T])
def test_nobody_is_blamed_when_nothing_grows(x: Array) -> None:
    assert attribution.share(one(x), {A: one(1e9 + 1e6 * T)}, since_s=0.0) == ()
    assert attribution.share(one(x[:0], T[:0]), {}, since_s=0.0) == ()
    assert attribution.share(one(x), {}, since_s=9e9) == ()


def test_small_shares_are_left_out() -> None:
    found = attribution.share(
        one(8e9 + 1e6 * T), {A: one(1e9 + 1e6 * T), B: one(1e9 + 1e4 * T)}, since_s=0.0
    )
    assert [one.process for one in found] == [A]


def test_what_one_frees_does_not_hide_what_another_takes() -> None:
    """A takes 7 GB, B gives back 5 and nobody owns 2 more: the device grew by 4."""
    a, b, rest = 1e9 + 7e9 * T / 3600, 9e9 - 5e9 * T / 3600, 1e9 + 2e9 * T / 3600
    found = attribution.share(one(a + b + rest), {A: one(a), B: one(b)}, since_s=0.0)
    assert [(who.process, round(who.share, 2)) for who in found] == [(A, 0.78), (None, 0.22)]
    assert found[0].rate_bytes_per_s == pytest.approx(7e9 / 3600, rel=0.1)


def test_what_is_freed_when_nobody_grows_beside_it_blames_the_one_who_takes() -> None:
    a, b = 1e9 + 8e9 * T / 3600, 6e9 - 3e9 * T / 3600
    found = attribution.share(one(a + b + 1e9), {A: one(a), B: one(b)}, since_s=0.0)
    assert [(who.process, round(who.share, 2)) for who in found] == [(A, 1.0)]


def test_processes_that_share_memory_share_the_blame_and_nobody_else() -> None:
    """Both hold the same 4 GB and grow by it: the device grows half of their sum."""
    shared = 4e9 + 3e9 * T / 3600
    found = attribution.share(one(shared + 1e9), {A: one(shared), B: one(shared)}, since_s=0.0)
    assert [(who.process, round(who.share, 2)) for who in found] == [(A, 0.5), (B, 0.5)]


def test_nobody_is_said_to_own_growth_while_some_memory_is_unknown() -> None:
    device, a = one(4e9 + 4e9 * T / 3600), one(1e9 + 1e9 * T / 3600)
    (found,) = attribution.share(device, {A: a}, since_s=0.0, complete=False)
    assert (found.process, round(found.share, 2)) == (A, 0.25)
    assert attribution.share(device, {}, since_s=0.0, complete=False) == ()


def test_a_process_that_was_there_before_it_was_listed_counts_from_what_it_had() -> None:
    """Its list could not be read for a while: that is no growth from nothing."""
    late = T >= 1800
    a = 5e9 + 1e9 * T / 3600
    device = one(a + 2e9 + 1e9 * T / 3600)
    found = attribution.share(device, {A: one(a[late], T[late])}, since_s=100.0)
    shares = {who.process: who.share for who in found}
    assert shares[A] < 0.5


def test_a_slip_between_two_readings_is_no_growth_of_nobody() -> None:
    rng = np.random.default_rng(5)
    a = 1e9 + 4e9 * T / 3600
    seen = a.copy()
    slips = rng.choice(T.size, 30, replace=False)
    seen[slips] -= 0.8e9
    found = attribution.share(one(a + 5e8), {A: one(seen)}, since_s=0.0)
    assert [who.process for who in found] == [A]


def test_where_the_kernel_keeps_pages_only_processes_count() -> None:
    found = attribution.share(
        None, {A: one(1e9 + 1e6 * T), B: one(1e9 + 3e6 * T), C: one(0 * T)}, since_s=0.0
    )
    assert [(who.process, round(who.share, 2)) for who in found] == [(B, 0.75), (A, 0.25)]
    assert attribution.share(None, {}, since_s=0.0) == ()


@pytest.mark.parametrize("pattern", ["gradual", "step", "sawtooth"])
@pytest.mark.parametrize("noise", [0.0, 64e6])
def test_shares_in_the_lab(pattern: str, noise: float) -> None:
    """One leaks in some pattern, one swings, one is flat, all with noise of a caching allocator."""
    rng = np.random.default_rng(11)
    leak = {
        "gradual": 6e9 * T / 3600,
        "step": 1e9 * np.floor(T / 600),
        "sawtooth": 6e9 * T / 3600 + 1.5e9 * ((T % 300) / 300),
    }[pattern]
    a = 2e9 + leak + noise * rng.standard_normal(T.size)
    b = 3e9 + 2e9 * (np.sin(2 * np.pi * T / 420) > 0) + noise * rng.standard_normal(T.size)
    c = 1e9 + noise * rng.standard_normal(T.size)
    device = a + b + c + 6e8
    found = attribution.share(one(device), {A: one(a), B: one(b), C: one(c)}, since_s=0.0)
    assert found[0].process == A
    assert found[0].share > 0.85
