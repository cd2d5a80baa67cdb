"""Growth that no process shows by itself is found as that of the device, and joining is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuwatchd.core.config import Config
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.pipeline import replay
from gpuwatchd.pipeline.device_rings import Arrivals
from gpuwatchd.pipeline.track import Headroom
from gpuwatchd.store.ring import Ring
from tests.making import GIB, MIB, sample
from tests.pipeline.play import Script
from tests.pipeline.test_joined_logs import BEGIN_S, log_of, part, times, whole
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray, ProcessUse, Sample

    BoolArray = npt.NDArray[np.bool_]
    Case = tuple[FloatArray, FloatArray, dict[int, tuple[str, BoolArray, FloatArray]]]
    """Times, the device, and by pid name, whether it is there, and what it holds."""

ONSET_MIN = 20.0


def minutes(t_s: FloatArray) -> FloatArray:
    return np.asarray((t_s - BEGIN_S) / 60.0)


def grown(t_s: FloatArray, mib_per_min: float) -> FloatArray:
    return np.asarray(np.maximum(0.0, minutes(t_s) - ONSET_MIN) * mib_per_min * MIB)


def noise(t_s: FloatArray, gib: float, seed: int) -> FloatArray:
    levels = np.random.default_rng(seed).uniform(0.0, gib * GIB, t_s.size // 20 + 1)
    return np.repeat(levels, 20)[: t_s.size]


def case(
    t_s: FloatArray, *held: tuple[str, FloatArray], since_min: Sequence[float] = (0.0,) * 12
) -> Case:
    """Return a machine until it is full; each process joins when it says."""
    there = [minutes(t_s) >= since for since in since_min]
    used = np.full(t_s.size, GIB, dtype=np.float64)
    for (_, own), joined in zip(held, there, strict=False):
        used[joined] += own[joined]
    n = int(np.argmax(used > 79.9 * GIB)) or t_s.size
    parts = enumerate(zip(held, there, strict=False))
    return t_s[:n], used[:n], {k: (name, m[:n], own[:n]) for k, ((name, own), m) in parts}


def alike_and_small() -> Case:
    t = times(90, step_s=30.0)
    return case(t, *(("worker", GIB + grown(t, 75.0) + noise(t, 0.3, k)) for k in range(12)))


def steps_in_turn() -> Case:
    t, held = times(110, step_s=30.0), []
    for k in range(12):
        later = minutes(t) - ONSET_MIN - 2.0 * k
        steps = np.where(later > 0.0, 1.0 + np.floor(later / 24.0), 0.0)
        held.append((f"w{k}", np.asarray(1.5 * GIB + 1.2 * GIB * steps)))
    return case(t, *held)


def moving_among_workers(mib_per_min: float = 300.0) -> Case:
    t = times(160, step_s=30.0)
    shares = np.random.default_rng(3).dirichlet(np.full(6, 2.0), t.size // 12 + 1)
    share = np.repeat(shares, 12, axis=0)[: t.size]
    total = 20.0 * GIB + grown(t, mib_per_min)
    return case(t, *(("worker", total * share[:, k]) for k in range(6)))


def moving_without_growth() -> Case:
    return moving_among_workers(0.0)


def loads_one_after_another() -> Case:
    t = times(120, step_s=30.0)
    since = [15.0 + 14.0 * k for k in range(6)]
    held = [np.clip((minutes(t) - a) / 12.0, 0.05, 1.0) * 8.0 * GIB for a in since]
    return case(t, *(("worker", own) for own in held), since_min=since)


def warm_ups_one_after_another() -> Case:
    t = times(150, step_s=30.0)
    since = [10.0 + 15.0 * k for k in range(6)]
    held = [9.0 - 6.0 * np.exp(-np.maximum(0.0, minutes(t) - a) / 15.0) for a in since]
    return case(t, *(("worker", own * GIB) for own in held), since_min=since)


def first_in_log(machine: Case, *, listed: bool = True) -> float | None:
    """Return when the first alert fires, in seconds; None without any."""
    t, used, processes = machine
    series = [whole(t, used)]
    if listed:
        series += [part(pid, t[m], held[m], name) for pid, (name, m, held) in processes.items()]
    found = replay.analyze(log_of(*series), Config())
    return min((event.at_s for one in found for event in one.alerts), default=None)


def first_live(machine: Case) -> float | None:
    t, used, processes = machine
    infos = {
        pid: ProcessInfo(key=ProcessKey(pid=pid, started_at_s=1.0), name=name, group=name)
        for pid, (name, _, _) in processes.items()
    }

    def play(tick: int) -> Sample:
        uses = [(infos[p], int(own[tick])) for p, (_, m, own) in processes.items() if m[tick]]
        return sample(float(t[tick]), uses, used_bytes=int(used[tick]))

    pipeline = make_pipeline(config=Config(), sources=[Script(play)])
    for at_s in t.tolist():
        if any(change.state == "firing" for change in pipeline.tick().changes):
            return float(at_s)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("first", [first_in_log, first_live])
@pytest.mark.parametrize("made", [alike_and_small, steps_in_turn, moving_among_workers])
def test_a_process_list_never_silences_its_device(
    made: Callable[[], Case], first: Callable[[Case], float | None]
) -> None:
    machine = made()
    alone, beside = first_in_log(machine, listed=False), first(machine)
    assert alone is not None
    assert beside is not None
    assert beside - alone <= 0.1 * (machine[0][-1] - BEGIN_S - 60.0 * ONSET_MIN)


@pytest.mark.parametrize("first", [first_in_log, first_live])
@pytest.mark.parametrize(
    "made", [moving_without_growth, loads_one_after_another, warm_ups_one_after_another]
)
def test_what_each_process_takes_in_one_go_is_no_growth_of_all(
    made: Callable[[], Case], first: Callable[[Case], float | None]
) -> None:
    assert first(made()) is None


def uses(**held: float) -> tuple[ProcessUse, ...]:
    infos = [(ProcessInfo(key=key(pid), name="w"), int(gib * GIB)) for pid, gib in held.items()]
    return sample(0.0, infos).readings[0].uses or ()


def key(pid: str) -> ProcessKey:
    return ProcessKey(pid=int(pid[1:]), started_at_s=1.0)


def test_what_comes_with_a_process_stays_with_it() -> None:
    arrivals = Arrivals()

    def brought(at_s: float, **held: float) -> float:
        return arrivals.total(uses(**held), 0.0, at_s, {}) / GIB

    assert brought(0.0, p1=4) == 0.0, "it was there before"
    assert brought(10.0, p1=4, p2=2) == 2.0
    assert brought(60.0, p1=4, p2=3) == 3.0
    assert brought(120.0, p1=4, p2=5) == 3.0
    assert brought(130.0, p1=4) == 0.0
    assert brought(140.0, p1=4, p2=5) == 3.0, "one list without it may be a slip"
    assert arrivals.total(uses(p1=4), 6.0 * GIB, 150.0, {}) == 0.0
    assert arrivals.total(uses(p1=4, p3=6), 0.0, 160.0, {}) == 0.0, "it was there, unlisted"


def test_after_a_restart_the_device_is_known_without_what_had_come() -> None:
    t = np.arange(0.0, 1800.0, 30.0)
    came = t >= 600.0
    first, late, device = Ring(7200.0), Ring(7200.0), Ring(7200.0)
    for at_s, here in zip(t.tolist(), came.tolist(), strict=True):
        first.add(at_s, 4.0 * GIB)
        device.add(at_s, (10.0 if here else 4.0) * GIB)
        if here:
            late.add(at_s, 6.0 * GIB)
    arrivals = Arrivals()
    arrivals.restore(device, {key("p1"): first, key("p2"): late})
    assert set(arrivals.rings[0].window()[1].tolist()) == {4.0 * GIB}
    assert arrivals.total(uses(p1=4, p2=6), 0.0, 1800.0, {}) == 6.0 * GIB


def test_a_device_has_a_ring_without_arrivals_from_the_first_on() -> None:
    arrivals, rings = Arrivals(), (Ring(3600.0), Ring(3600.0))
    rings[0].add(0.0, 4.0 * GIB)
    arrivals.total(uses(p1=4.0), 0.0, 0.0, {})
    assert list(arrivals.values(rings, (4 * GIB, 0))) == []
    arrivals.total(uses(p1=4.0, p2=2.0), 0.0, 10.0, {})
    assert list(arrivals.values(rings, (6 * GIB, 0))) == [(arrivals.rings[0], 4 * GIB)]
    assert arrivals.rings[0] is not rings[0]
    assert arrivals.rings[0].window()[1].tolist() == [4.0 * GIB]


def test_a_device_without_arrivals_runs_out_of_what_is_free_beside_its_own() -> None:
    room = Headroom(total_bytes=24.0 * GIB, used_bytes=16.0 * GIB, free_bytes=8.0 * GIB)
    assert room.limit(10.0 * GIB, whole=True, joint=True) == 18.0 * GIB
    assert room.limit(10.0 * GIB, whole=True) == 24.0 * GIB
