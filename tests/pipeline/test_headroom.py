"""The limit that really binds: what is free at this instant, and who else takes from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import DeviceReading, ProcessInfo, ProcessKey, Sample, Subject
from gpuwatchd.pipeline import replay
from gpuwatchd.pipeline.track import Headroom
from tests.making import CARD, GIB, KEY, LEAKER, MIB, finding, present, sample
from tests.pipeline.play import Script, run
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceState

SECOND = ProcessInfo(key=ProcessKey(pid=4712, started_at_s=1_001.0), name="python", user="bob")
OTHER = Subject(device_uid=CARD.uid, process=SECOND.key)
MINE = Subject(device_uid=CARD.uid, process=KEY)
WHOLE = Subject(device_uid=CARD.uid)


def both(tick: int) -> Sample:
    """Two processes, each of which leaks 10 MiB/s."""
    grown = max(0, tick - 20) * 50 * MIB
    return sample(1000.0 + 5.0 * tick, [(LEAKER, 20 * GIB + grown), (SECOND, 5 * GIB + grown)])


def alone(tick: int) -> Sample:
    grown = max(0, tick - 20) * 50 * MIB
    return sample(1000.0 + 5.0 * tick, [(LEAKER, 20 * GIB + grown), (SECOND, 5 * GIB)])


def test_a_subject_runs_out_when_nothing_is_free() -> None:
    room = Headroom(total_bytes=80.0, free_bytes=30.0, used_bytes=45.0)
    assert room.limit(10.0, whole=False) == 40.0
    # Five are the driver's reserve: used and free do not add up to the total.
    assert room.limit(45.0, whole=True) == 75.0
    assert Headroom(total_bytes=80.0).limit(45.0, whole=True) == 80.0
    assert Headroom(total_bytes=80.0).limit(45.0, whole=False) is None
    assert Headroom(free_bytes=30.0).limit(None, whole=False) is None


def test_only_leaks_of_others_count_and_never_below_zero() -> None:
    room = Headroom()
    room.note(finding(subject=OTHER, rate_bytes_per_s=5e6))
    assert sum(room.others(MINE)) == 5e6
    assert sum(room.others(OTHER)) == 0.0
    room.note(finding(subject=MINE, rate_bytes_per_s=-3.0))
    room.note(finding(subject=WHOLE, rate_bytes_per_s=9e6))
    assert sum(room.others(OTHER)) == 0.0
    room.note(finding(subject=OTHER, rate_bytes_per_s=5e6, tier="none"))
    assert sum(room.others(MINE)) == 0.0
    room.note(finding(subject=OTHER, rate_bytes_per_s=5e6, pattern="plateau"))
    assert sum(room.others(MINE)) == 0.0


def left_s(play: Script) -> float:
    pipeline = make_pipeline(config=Config(), sources=[play])
    found = run(pipeline, 200)[-1].findings[MINE.id]
    pipeline.close()
    return present(found.eta).mid_s


def test_two_leaks_share_what_is_free() -> None:
    one, two = left_s(Script(alone)), left_s(Script(both))
    free = (80 - 25) * GIB - 179 * 50 * MIB
    assert one == pytest.approx(free / (10 * MIB), rel=0.05)
    assert two == pytest.approx((free - 179 * 50 * MIB) / (20 * MIB), rel=0.05)


def test_a_neighbour_that_has_gone_takes_nothing_any_more() -> None:
    def leaves(tick: int) -> Sample:
        now = both(tick)
        if tick < 150:
            return now
        return sample(now.taken_mono_s, [(LEAKER, now.readings[0].uses[0].used_bytes)])  # type: ignore[index]

    pipeline = make_pipeline(config=Config(), sources=[Script(leaves)])
    run(pipeline, 145)
    seen = pipeline.state.devices[CARD.uid]
    assert sum(seen.headroom.others(MINE)) == pytest.approx(10 * MIB, rel=0.05)
    run(pipeline, 20)
    assert seen.headroom.others(MINE) == ()
    pipeline.close()


def test_a_slice_of_a_card_is_judged_by_its_own_memory() -> None:
    card = msgspec.structs.replace(
        CARD, uid="MIG-1", memory_total_bytes=10 * GIB, parent_uid=CARD.uid
    )

    def play(tick: int) -> Sample:
        grown = max(0, tick - 20) * 20 * MIB
        return sample(1000.0 + 5.0 * tick, [(LEAKER, 2 * GIB + grown)], device=card)

    pipeline = make_pipeline(config=Config(), sources=[Script(play, devices=(CARD, card))])
    found = run(pipeline, 200)[-1].findings[Subject(device_uid="MIG-1", process=KEY).id]
    pipeline.close()
    assert found.limit_bytes == 10 * GIB
    assert found.eta is not None
    assert found.eta.mid_s == pytest.approx((8 * GIB - 179 * 20 * MIB) / (4 * MIB), rel=0.05)


def test_recorded_neighbours_count_too() -> None:
    t = 1_700_000_000.0 + np.arange(0.0, 1000.0, 5.0, dtype=np.float64)
    grown = np.maximum(0.0, np.arange(200) - 20.0) * 50 * MIB

    def log(info: ProcessInfo, used: float) -> LogSeries:
        return LogSeries(
            subject=Subject(device_uid=CARD.uid, process=info.key), device=CARD, process=info,
            t_s=t, used_bytes=used + grown, limit_bytes=80.0 * GIB, total_bytes=80.0 * GIB,
            breaks=(),
        )  # fmt: skip

    series = [log(LEAKER, 20.0 * GIB), log(SECOND, 5.0 * GIB)]
    found = replay.analyze(LogFile(path="x", devices=[CARD], series=series), Config())
    free = 55 * GIB - 2 * 179 * 50 * MIB
    for one in found:
        assert present(present(one.finding).eta).mid_s == pytest.approx(free / (20 * MIB), rel=0.06)


@pytest.mark.parametrize("state", ["released", "asleep", "lost", "hung"])
def test_a_device_that_is_not_read_keeps_the_room_that_was_read_last(state: DeviceState) -> None:
    """Without a limit the same growth would be believed more, and have no time to its end."""

    def stops(tick: int) -> Sample:
        if tick < 60:
            return alone(tick)
        silent = DeviceReading(
            device_uid=CARD.uid, used_bytes=None, free_bytes=None, total_bytes=None, state=state,
            uses_reason="not read",
        )  # fmt: skip
        return msgspec.structs.replace(sample(1000.0 + 5.0 * tick, []), readings=(silent,))

    pipeline = make_pipeline(config=Config(), sources=[Script(stops)])
    before = run(pipeline, 60)[-1].findings[MINE.id]
    later = [tick.findings[MINE.id] for tick in run(pipeline, 40) if MINE.id in tick.findings]
    pipeline.close()
    assert before.limit_bytes is not None
    assert before.eta is not None
    assert {one.limit_bytes for one in later} <= {before.limit_bytes}
    assert max(one.confidence for one in later) == pytest.approx(before.confidence, abs=0.02)
