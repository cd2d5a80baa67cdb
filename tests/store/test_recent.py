"""After a restart the daemon sees the window that it had."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import settings as laws
from hypothesis import strategies as st

from tests.store.world import BOOT, CARDS, INFOS, KNOWN, T0, Time, opened, sample


@laws(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 5, 5, 5, 5, 40, 300]),
            st.integers(0, 3),
            st.tuples(*[st.sampled_from([None, 100, 100, 200])] * 3),
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([10, 60]),
)
def test_every_point_of_every_process_comes_back(
    ticks: list[tuple[int, int, tuple[int | None, ...]]], flush_s: int
) -> None:
    """Though an unchanged process is written once a minute only."""
    with TemporaryDirectory() as folder:
        time = Time()
        history = opened(Path(folder), time, flush=flush_s)
        expected: dict[int | None, list[tuple[float, int]]] = {}
        seen: dict[int, list[float]] = {}
        for pause_s, count, held in ticks:
            time.pass_s(pause_s)
            uses = held[:count]
            history.record(sample(time.now_s, 7, uses=uses), CARDS, KNOWN)
            history.flush_due(time.now_s)
            expected.setdefault(None, []).append((time.now_s, 7))
            for info, used in zip(INFOS, uses, strict=False):
                seen.setdefault(info.key.pid, []).append(time.now_s)
                if used is not None:
                    expected.setdefault(info.key.pid, []).append((time.now_s, used))
        history.close()
        history = opened(Path(folder), time)
        found = {
            None if (key := subject.process) is None else key.pid: points
            for subject, points in history.recent_series(T0)
        }
        history.close()
        assert found[None] == expected[None]
        for pid, sights in seen.items():
            points = set(expected.get(pid, ()))
            back = set(found.get(pid, ()))
            assert points <= back
            # Being away for less than a minute may be bridged; nothing is made up at the ends.
            assert all(min(sights) < at_s < max(sights) for at_s, _ in back - points)


def test_keys_are_exactly_those_of_before(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    history.record(sample(T0, uses=(5, 6)), CARDS, KNOWN)
    history.close()
    history = opened(tmp_path, time)
    keys = [subject.process for subject, _ in history.recent_series(0)]
    history.close()
    assert keys == [None, INFOS[0].key, INFOS[1].key]


def test_another_boot_is_not_continued(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    history.record(sample(T0, uses=(5,), boot_id="boot-0"), CARDS, KNOWN)
    history.close()
    time.pass_s(60)
    history = opened(tmp_path, time)
    assert list(history.recent_series(0)) == []
    history.record(sample(time.now_s, boot_id=BOOT), CARDS, KNOWN)
    history.flush(time.now_s)
    assert [points for _, points in history.recent_series(0)] == [[(T0 + 60, 1000)]]
    history.close()


def test_only_what_was_taken_since_the_clock_was_set(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    history.record(sample(T0), CARDS, {})
    time.now_s = T0 - 600
    history.segment("clock-step", wall_step_s=-600.0)
    history.record(sample(T0 - 590), CARDS, {})
    time.now_s = T0 - 580
    history.close()
    history = opened(tmp_path, time)
    assert [points for _, points in history.recent_series(0)] == [[(T0 - 590, 1000)]]
    history.close()


def test_since_bounds_it(tmp_path: Path) -> None:
    time = Time(T0 + 100)
    history = opened(tmp_path, time)
    for tick in range(10):
        history.record(sample(T0 + 5 * tick), CARDS, {})
    history.flush(T0 + 50)
    ((_, points),) = history.recent_series(T0 + 30)
    assert [at_s - T0 for at_s, _ in points] == [30, 35, 40, 45]
    history.close()
