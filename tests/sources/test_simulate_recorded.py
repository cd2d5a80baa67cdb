"""A world that was made beforehand: recorded shapes, and memory that nobody owns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.collect.scenarios.worlds import MIB, Actor, Card, Flat, Recorded, World
from gpuwatchd.collect.simulate import SimulateSource
from tests.conftest import present


def test_a_recorded_value_holds_until_the_next() -> None:
    shape = Recorded((0.0, 10.0, 25.0), (5.0, 7.0, 1.0))
    assert [shape.at(age) for age in (-3.0, 0.0, 9.9, 10.0, 24.0, 25.0, 1e9)] == [
        5.0, 5.0, 5.0, 7.0, 7.0, 1.0, 1.0,
    ]  # fmt: skip


@given(
    st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=20, unique=True),
    st.floats(min_value=-1e6, max_value=2e6),
)
def test_a_recorded_shape_says_nothing_new(ages: list[float], at: float) -> None:
    values = tuple(float(k) for k in range(len(ages)))
    shape = Recorded(tuple(sorted(ages)), values)
    assert shape.at(at) == max(
        (value for age, value in zip(sorted(ages), values, strict=True) if age <= at), default=0.0
    )


def _world(loose: Recorded) -> World:
    worker = Actor(
        name="worker", user="alice", argv=("worker",), shape=Flat(600.0 * MIB), pattern="stable",
        starts_s=30.0,
    )  # fmt: skip
    card = Card(
        name="Card", total_bytes=1000 * MIB, reserved_bytes=0, overhead_bytes=10 * MIB,
        actors=(worker,), loose=loose,
    )  # fmt: skip
    return World(title="made beforehand", cards=(card,))


def test_what_nobody_owns_is_used_and_belongs_to_no_process() -> None:
    source = SimulateSource("lab", world=_world(Recorded((0.0, 60.0), (0.0, 100.0 * MIB))))
    source.advance(40.0)
    before = source.read().readings[0]
    source.advance(40.0)
    after = source.read().readings[0]
    assert before.used_bytes == 610 * MIB
    assert after.used_bytes == 710 * MIB
    assert after.free_bytes == 290 * MIB
    assert [use.used_bytes for use in present(after.uses)] == [600 * MIB]


def test_a_process_dies_of_what_nobody_owns() -> None:
    source = SimulateSource("lab", world=_world(Recorded((0.0,), (500.0 * MIB,))))
    source.advance(40.0)
    reading = source.read().readings[0]
    assert reading.uses == ()
    assert reading.used_bytes == 510 * MIB
    assert [one.oom_at_s is not None for one in source.truth()] == [True]
