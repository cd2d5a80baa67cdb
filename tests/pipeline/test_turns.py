"""What is flat is settled as the detectors would; where many grow, no tick takes long."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.analysis import screen, verdict
from gpuwatchd.core.codes import LimitKind
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import EtaRange, MemoryLimit, ProcessInfo, ProcessKey, Subject
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline import tracks
from gpuwatchd.pipeline.track import Headroom, Track
from gpuwatchd.store.ring import Ring
from tests import making
from tests.making import GIB, MIB, sample
from tests.pipeline.play import EAGER, Script
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Device, Sample

SETTINGS = DetectionSection()
TICK_S = 5.0


def track(pid: int = 7, total: float | None = 80.0 * GIB, **changes: Any) -> Track:
    subject = Subject(device_uid="GPU-1", process=ProcessKey(pid=pid, started_at_s=900.0))
    headroom = Headroom(total_bytes=total, free_bytes=total)
    ring = Ring(8 * 3600.0)
    made = Track(
        subject=subject, device=making.CARD, window=ring, evidence=ring, headroom=headroom,
        title=Title(),
    )  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(st.sampled_from([0, 0, 0, 2, 4, -2, -4, 60, 200]), min_size=1, max_size=120),
    pauses=st.just([85.0] * 120)
    | st.lists(st.sampled_from([1.0, 5.0, 5.0, 5.0, 30.0, 90.0]), min_size=120, max_size=120),
    base_mib=st.sampled_from([0, 300, 20_000, 70_000]),
    total=st.sampled_from([None, 80.0 * GIB]),
)
def test_what_a_ring_settles_is_what_the_detectors_say(
    steps: list[int], pauses: list[float], base_mib: int, total: float | None
) -> None:
    held, at_s, one = float(base_mib * MIB), 1000.0, track(total=total)
    for step, pause_s in zip(steps, pauses, strict=False):
        held, at_s = max(held + step * MIB, 0.0), at_s + pause_s
        one.window.add(at_s, held)  # type: ignore[attr-defined]
    own, other = msgspec.structs.replace(one), msgspec.structs.replace(one)
    finding = tracks.settled_finding(own, SETTINGS)
    series = other.series()
    (pattern,) = screen.first_look([series], SETTINGS)
    if finding is None:
        return
    assert own.base_bytes == other.base_bytes
    if pattern is None or finding.pattern == "unknown":
        assert msgspec.to_builtins(finding) == msgspec.to_builtins(verdict.judge(series, SETTINGS))
    else:
        assert (finding.pattern, finding.samples) == (pattern, series.t_s.size)


def test_most_of_what_is_flat_is_settled() -> None:
    one = track()
    for tick in range(400):
        one.window.add(1000.0 + TICK_S * tick, 5.0 * GIB + (tick % 3) * 2 * MIB)  # type: ignore[attr-defined]
        assert tracks.settled_finding(one, SETTINGS) is not None
    one.window.add(4000.0, 6.0 * GIB)  # type: ignore[attr-defined]
    assert tracks.settled_finding(one, SETTINGS) is None


def growing(count: int, total: float | None = 80.0 * GIB, **changes: Any) -> list[Track]:
    """Return subjects that have grown beyond all that was seen of them."""
    made = [track(pid, total, judged_s=1000.0, **changes) for pid in range(count)]
    for one in made:
        for at_s, held in ((1000.0, 1.0 * GIB), (1005.0, 2.0 * GIB)):
            one.window.add(at_s, held)  # type: ignore[attr-defined]
    return made


def calm(count: int) -> list[Track]:
    """Return subjects that move without passing what was seen of them."""
    return growing(count, peak=3.0 * GIB)


def played(due: list[Track], ticks: int) -> tuple[dict[int, list[float]], list[int]]:
    """Let everybody be due in each tick; return when each was judged, and how many a tick."""
    turns, judged, sizes = tracks.Turns(), {id(one): [1000.0] for one in due}, []
    for tick in range(1, ticks + 1):
        now_s = 1000.0 + TICK_S * tick
        chosen = turns.take(due, [SETTINGS] * len(due), now_s)
        sizes.append(len(chosen))
        for one in chosen:
            one.judged_s = now_s
            judged[id(one)].append(now_s)
    return judged, sizes


def longest_s(times: list[float], end_s: float) -> float:
    return max(b - a for a, b in zip(times, [*times[1:], end_s], strict=True))


@pytest.mark.parametrize("count", [32, 96])
@pytest.mark.parametrize(("total", "more_per_s"), [(80.0 * GIB, 1.0 / 30.0), (None, 0.0)])
def test_many_that_grow_take_turns_and_nobody_waits_for_good(
    count: int, total: float | None, more_per_s: float
) -> None:
    many, others = growing(count, total=total), calm(count)
    ticks = 4 * count
    judged, sizes = played(many + others, ticks)
    # What is full within the hour has more of them.
    sustained = min(tracks.JUDGED_PER_S + more_per_s * count, 5.0) * TICK_S
    assert max(sizes) <= 2 * tracks.MOST
    assert max(sizes[ticks // 2 :]) <= 2 * sustained, "calm ones count half"
    end_s = 1000.0 + TICK_S * ticks
    # Three quarters of the time are for what grows, a quarter for what moves and counts half.
    assert max(longest_s(judged[id(one)], end_s) for one in many) <= 1.5 * count / (
        tracks.JUDGED_PER_S * 0.75
    )
    assert max(longest_s(judged[id(one)], end_s) for one in others) <= 1.5 * count / (
        tracks.JUDGED_PER_S * 0.5
    )


def test_nearest_to_the_limit_and_about_to_be_told_go_first() -> None:
    many = growing(40)
    last = many[-1]
    last.finding = making.finding(tier="watch", eta=EtaRange(low_s=300, mid_s=400, high_s=500))
    last.alert = making.alert(state="watch", alert_confirmations=2, finding=last.finding)
    for one in many[:20]:  # people know of these
        one.alert = making.alert(state="firing", finding=making.finding())
    judged, _ = played(many, 240)
    told = [len(judged[id(one)]) for one in many[:20]]
    assert len(judged[id(last)]) > 4 * max(told)
    assert min(told) > 1


@pytest.mark.parametrize("left_s", [4 * 3600.0, 6 * 3600.0, 24 * 3600.0])
@pytest.mark.parametrize("told", [False, True])
def test_what_has_hours_left_waits_for_a_sixtieth_of_them(left_s: float, told: bool) -> None:
    many = growing(12, pause_s=60.0, peak=2.0 * GIB - 1)
    least_s = min(left_s / 60.0, 480.0)
    eta = EtaRange(low_s=left_s / 2, mid_s=left_s, high_s=2 * left_s)
    for one in many:
        one.finding = making.finding(tier="alert" if told else "none", eta=eta)
        one.alert = making.alert(state="firing", finding=one.finding) if told else None
    judged, _ = played(many, 400)
    pauses = [b - a for times in judged.values() for a, b in itertools.pairwise(times)]
    assert least_s <= min(pauses) <= max(pauses) <= least_s + 4 * TICK_S


def test_what_had_hours_left_and_bursts_is_looked_at_at_once() -> None:
    many = growing(12, pause_s=60.0, peak=2.0 * GIB - 1)
    for one in many:
        one.finding = making.finding(tier="none", eta=EtaRange(low_s=2e4, mid_s=4e4, high_s=8e4))
        one.judged_s = 1065.0
    many[7].window.add(1070.0, 20.0 * GIB)  # type: ignore[attr-defined]
    assert tracks.Turns().take(many, [SETTINGS] * len(many), 1075.0) == [many[7]]


def test_memory_of_the_host_waits_for_its_turn_though_it_is_seldom_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (own,) = growing(1)
    own.subject = msgspec.structs.replace(own.subject, host=True)
    turns = tracks.Turns()
    monkeypatch.setattr(tracks, "JUDGED_PER_S", 0.0)
    turns._saved = 0.0
    assert turns.take([own], [SETTINGS], 1000.0) == []
    assert turns.waiting == [own]


def test_a_step_of_the_clock_is_no_time_for_judgements() -> None:
    many, turns = growing(200), tracks.Turns()
    sizes = [len(turns.take(many, [SETTINGS] * 200, 1000.0 + TICK_S * tick)) for tick in range(40)]
    turns.move(3600.0)
    assert len(turns.take(many, [SETTINGS] * 200, 4600.0 + TICK_S * 40)) <= max(sizes)


def test_a_limit_of_its_own_is_not_filled_by_others_of_the_device() -> None:
    (own,) = growing(1)
    own.headroom.take(1000.0, 80.0 * GIB, 80.0 * GIB)
    own.headroom.take(1060.0, 80.0 * GIB, 20.0 * GIB)
    assert tracks._left_s(own) == pytest.approx(20.0)
    own.limit = MemoryLimit(kind=LimitKind.DMEM, name="job", process_bytes=4.0 * GIB)
    own.headroom.growing = {"another": 1.0 * GIB}
    assert tracks._left_s(own) == pytest.approx(2.0 / 0.4)
    own.sharing = frozenset({"another"})
    assert tracks._left_s(own) == pytest.approx(2.0 / 1.4)


LEAKS, CARD = 16, msgspec.structs.replace(making.CARD, memory_total_bytes=48 * GIB)


def leaking(tick: int) -> Sample:
    """Return processes that leak at 1 to 8 MB/s from the first minute on."""
    infos = [ProcessInfo(key=ProcessKey(pid=n, started_at_s=5.0), name="a") for n in range(LEAKS)]
    rates = [1e6 + 7e6 * (n * 5 % LEAKS) / LEAKS for n in range(LEAKS)]
    grown = [int(max(0, tick - 12) * TICK_S * rate / (2 * MIB)) * 2 * MIB for rate in rates]
    uses = zip(infos, [GIB + more for more in grown], strict=True)
    return sample(1000.0 + TICK_S * tick, list(uses), device=CARD)


def opened(
    play: Callable[[int], Sample], ticks: int, card: Device = making.CARD
) -> tuple[dict[str, dict[int, int]], int]:
    """Return the tick of each watch and alert by process, and how many judgements that took."""
    pipeline = make_pipeline(config=EAGER, sources=[Script(play, devices=(card,))])
    out: dict[str, dict[int, int]] = {}
    for tick in range(ticks):
        for change in pipeline.tick().changes:
            if change.subject.process is not None:
                out.setdefault(change.state, {}).setdefault(change.subject.process.pid, tick)
    return out, pipeline.state.tracks.evaluations


def test_a_crowd_of_leaks_is_told_as_soon_as_without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "FEW", 1e9)
    free, every = opened(leaking, 96, CARD)
    # A quarter of the crowd that the constants are for.
    monkeypatch.setattr(tracks, "FEW", 1.0)
    for name in ("JUDGED_PER_S", "_SOON_PER_S", "SAVED"):
        monkeypatch.setattr(tracks, name, getattr(tracks, name) / 4)
    turns, fewer = opened(leaking, 106, CARD)
    assert (len(free["watch"]), len(free["firing"])) == (16, 7)
    for state, most_s in (("watch", 10.0), ("firing", 60.0)):
        late = [turns[state][pid] - tick for pid, tick in free[state].items()]
        assert max(late) * TICK_S <= most_s, state
    assert fewer < 0.6 * every


def crowd(tick: int) -> Sample:
    """Return 48 processes whose memory goes up and down, and one that grows from a tick on."""
    infos = [
        ProcessInfo(key=ProcessKey(pid=100 + n, started_at_s=5.0), name=f"p{n}") for n in range(49)
    ]
    held = [GIB + ((tick + n) % (9 + n % 7)) * 40 * MIB for n in range(48)]
    held.append(GIB + max(0, tick - 80) * 120 * MIB)
    return sample(1000.0 + TICK_S * tick, list(zip(infos, held, strict=True)))


def test_a_leak_among_many_that_move_is_told_when_it_was_without_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, _ = opened(crowd, 180)
    monkeypatch.setattr(tracks, "FEW", 1e9)
    free, _ = opened(crowd, 180)
    for state in ("watch", "firing"):
        assert turns[state][148] == free[state][148], state
