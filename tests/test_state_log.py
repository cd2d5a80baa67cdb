"""Which changes of state get a line of the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.state_log import _MOST_KEYS, MOST_LINES, PER_S, StateLog
from tests.making import present


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_a_state_is_logged_once_and_its_end_says_how_long_it_lasted() -> None:
    clock = Clock()
    states = StateLog(clock)
    assert states.change("a", "well", first="well") is None
    ill = present(states.change("a", "ill", first="well"))
    assert (ill.was, ill.unlogged) == ("well", 0)
    assert [states.change("a", "ill") for _ in range(100)] == [None] * 100
    clock.now_s += 35.0
    well = present(states.change("a", "well"))
    assert (well.was, well.after_s, well.unlogged) == ("ill", 35.0, 0)
    assert states.logged("a") == "well"
    assert states.logged("b") is None


def test_what_goes_to_and_fro_is_bounded_and_the_newest_line_becomes_right() -> None:
    clock = Clock()
    states = StateLog(clock)
    lines = 0
    for turn in range(1001):
        clock.now_s += 1.0
        lines += states.change("a", "ill" if turn % 2 == 0 else "well", first="well") is not None
    assert lines == MOST_LINES
    assert states.logged("a") == "well"  # what is logged is old ...
    clock.now_s += PER_S
    late = present(states.change("a", "ill"))
    assert late.unlogged == 1001 - MOST_LINES - 1
    assert states.change("b", "ill") is not None, "one thing costs no other its lines"


def test_it_does_not_grow_without_end() -> None:
    states = StateLog(Clock())
    for number in range(10_000):
        states.change(str(number), "ill", first="well")
    assert len(states._things) <= _MOST_KEYS
    assert states.logged("4999") == "ill"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.floats(0, 5000))))
def test_each_line_is_of_a_state_that_is_new_in_the_log(
    steps: list[tuple[str, str, float]],
) -> None:
    clock = Clock()
    states = StateLog(clock)
    logged: dict[str, list[tuple[str, float]]] = {"a": [], "b": []}
    for key, state, pause_s in steps:
        clock.now_s += pause_s
        change = states.change(key, state)
        if change is not None:
            assert change.was == (logged[key][-1][0] if logged[key] else None)
            assert change.was != state
            logged[key].append((state, clock.now_s))
    for lines in logged.values():
        for first, last in zip(lines, lines[MOST_LINES:], strict=False):
            assert last[1] - first[1] >= PER_S
