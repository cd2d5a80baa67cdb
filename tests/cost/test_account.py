"""Entries add up: by device, by name, by kind; an early warning saves little, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.analysis import cost
from gpuwatchd.analysis.cost import ChargedUsage, Entry, Part, Price

hours = st.one_of(st.none(), st.floats(0.0, 1e4))


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    return [
        Entry(
            what=draw(st.sampled_from(cost.WHATS)), key=draw(st.sampled_from("abc")), title="t",
            device_uid="u", gpu=draw(st.sampled_from(["GPU 0", "GPU 1"])),
            user=draw(st.sampled_from(["", "alice", "bob"])), until_at_s=0.0,
            gpu_hours=draw(hours), usd=draw(hours), ahead_gpu_hours=draw(hours),
        )
        for _ in range(draw(st.integers(0, 8)))
    ]  # fmt: skip


@given(entries())
def test_groups_add_up_to_the_whole_and_lose_nobody(drawn: list[Entry]) -> None:
    whole = cost.summed(drawn)
    for name in (lambda one: one.gpu, lambda one: one.user, lambda one: one.key):
        groups = cost.grouped(drawn, name)
        assert sum(len(group) for _, group in groups) == len(drawn)
        parts = [cost.summed(group) for _, group in groups]
        assert sum(part.known_usd for part in parts) == pytest.approx(whole.known_usd)
        if whole.usd is not None:
            assert sum(part.usd or 0.0 for part in parts) == pytest.approx(whole.usd)


@given(entries())
def test_a_sum_with_an_unknown_part_is_unknown_and_never_negative(drawn: list[Entry]) -> None:
    found = cost.summed(drawn)
    assert (found.usd is None) == any(one.usd is None for one in drawn)
    assert found.known_usd >= 0.0


def stint(until_s: float = 1000.0, shares: tuple[float | None, ...] = (1.0,)) -> ChargedUsage:
    price = Price(usd_per_hour=4.0, whole_usd_per_hour=4.0, basis="yours",
                  electricity_usd_per_hour=0.5)  # fmt: skip
    parts = tuple((f"GPU-{i}", Part(2.0, share, price)) for i, share in enumerate(shares))
    return ChargedUsage(parts, 0.0, "start", until_s)


LIKE = Entry(
    what="saved", key="k", title="t", device_uid="", gpu="", until_at_s=1000.0, gpu_hours=None,
    usd=None,
)  # fmt: skip


def test_entries_of_a_stint_are_one_for_each_device() -> None:
    found = cost.entries_of(stint(shares=(1.0, 0.5)), LIKE, left_s=3600.0)
    assert [one.device_uid for one in found] == ["GPU-0", "GPU-1"]
    assert [one.ahead_gpu_hours for one in found] == [1.0, 0.5]
    assert found[0].usd == pytest.approx(9.0)
    assert found[0].electricity_usd == pytest.approx(1.0)


def test_without_a_forecast_nothing_lies_ahead() -> None:
    (found,) = cost.entries_of(stint(), LIKE)
    assert (found.ahead_gpu_hours, found.ahead_usd) == (None, None)


@given(
    told=st.lists(st.floats(0.0, 2000.0), max_size=3),
    low_at_s=st.floats(0.0, 1e6),
    share=st.floats(0.0, 1.0),
)
def test_never_more_is_saved_than_from_the_end_to_the_earliest_crash(
    told: list[float], low_at_s: float, share: float
) -> None:
    found = cost.saved(stint(shares=(share,)), LIKE, told_at_s=told, low_at_s=low_at_s)
    limit_h = max(0.0, low_at_s - 1000.0) / 3600.0
    assert sum(one.gpu_hours or 0.0 for one in found) <= limit_h * share + 1e-9
    if not told or min(told) >= 1000.0 or low_at_s < 1600.0:
        assert found == []


def test_a_share_that_is_unknown_saves_an_unknown_amount() -> None:
    (found,) = cost.saved(stint(shares=(None,)), LIKE, told_at_s=[1.0], low_at_s=9000.0)
    assert (found.gpu_hours, found.usd) == (None, None)


@pytest.mark.parametrize(
    ("started", "saved", "first", "expected"),
    [
        (100.0, None, 130.0, (100.0, "start")),
        (100.0, 500.0, 130.0, (500.0, "checkpoint")),
        (100.0, None, 100.0 + 7200.0, (7300.0, "first-seen")),
        (None, None, 130.0, (130.0, "first-seen")),
        (100.0, None, None, (100.0, "start")),
    ],
)
def test_from_when_on_it_counts(
    started: float | None,
    saved: float | None,
    first: float | None,
    expected: tuple[float | None, str],
) -> None:
    assert cost.counted_from(started, saved, first) == expected
