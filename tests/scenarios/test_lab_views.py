"""A run of the laboratory looks the same from everywhere: device, process, simulated source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuwatchd.collect.simulate import SimulateSource
from gpuwatchd.core.config import Config
from gpuwatchd.pipeline import Pipeline
from tests.conftest import present
from tests.scenarios import views, worlds
from tests.scenarios.replay import replay
from tests.scenarios.world import MIB

if TYPE_CHECKING:
    from tests.scenarios.worlds import Item


def source_of(item: Item) -> SimulateSource:
    source = SimulateSource("lab", world=views.world(item), epoch_s=views.EPOCH_S)
    source.advance(0.0)
    return source


@pytest.mark.parametrize("family", ["late_onset", "job_array", "orphans", "restarts", "kv_cache"])
def test_the_simulated_source_shows_what_was_recorded(family: str) -> None:
    item = worlds.build(family, 4, longest_h=1.0)
    source = source_of(item)
    run = item.run
    changes = np.array([edge for part in run.parts for edge in (part.begin_s, part.end_s)])
    step = 2 * float(np.diff(run.t[:40]).max())
    compared = 0
    for at in np.linspace(60.0, item.length_s - 60.0, 80).tolist():
        if np.abs(changes - at).min() < step:
            continue
        compared += 1
        source.advance(at - source.elapsed_s)
        sample = source.read()
        index = int(np.searchsorted(run.t, np.floor(at), side="right")) - 1
        near = run.device[max(0, index - 1) : index + 2]
        used = present(sample.readings[0].used_bytes)
        assert near.min() - 2 * MIB <= used <= near.max() + 2 * MIB
        uses = present(sample.readings[0].uses)
        assert len(uses) == sum(part.begin_s < at < part.end_s for part in run.parts)
    assert compared > 20


@pytest.mark.parametrize(
    ("family", "seed"), [("linear_fast", 1), ("cyclic_floor", 3), ("leaker_neighbours", 2)]
)
def test_the_simulated_leaker_dies_when_the_laboratory_says(family: str, seed: int) -> None:
    item = worlds.build(family, seed)
    planted = [one for one in source_of(item).truth() if one.leak]
    assert len(planted) == 1
    told = planted[0]
    assert item.truth.oom_s == pytest.approx(present(told.oom_at_s) - views.EPOCH_S, abs=1.5)
    assert item.truth.onset_s == pytest.approx(present(told.onset_at_s) - views.EPOCH_S, abs=1e-3)
    assert told.rate_bytes_per_s == item.truth.rate_bytes_per_s
    assert told.pattern in item.truth.patterns


def test_harmless_items_plant_no_leak() -> None:
    source = source_of(worlds.build("rolling_update", 3, longest_h=1.0))
    assert source.truth()
    assert not [one for one in source.truth() if one.leak]


@pytest.mark.parametrize(("family", "seed"), [("late_onset", 3), ("segments", 3)])
def test_the_daemon_sees_in_the_simulated_world_what_the_replay_sees(
    family: str, seed: int
) -> None:
    item = worlds.build(family, seed)
    leaker = next(view for view in item.processes.values() if view.leaker)
    life = replay(leaker.series, stop_at_alert=True)
    source = source_of(item)
    pipeline = Pipeline(config=Config(), sources=[source])
    first: dict[str, float] = {}
    interval = float(np.median(np.diff(item.series.t_s)))
    while "firing" not in first and source.elapsed_s < present(item.truth.oom_s):
        for change in pipeline.tick().changes:
            if change.subject.process is not None:
                first.setdefault(change.state, source.elapsed_s)
        source.advance(interval)
    pipeline.close()
    assert first["watch"] == pytest.approx(present(life.watch_s), abs=300.0)
    assert first["firing"] == pytest.approx(present(life.alert_s), abs=300.0)


def test_two_leaks_are_two_truths() -> None:
    item = worlds.build("two_leaks", 0)
    one, two = (view for view in item.processes.values() if view.leaker)
    both = present(one.truth.rate_bytes_per_s) + present(two.truth.rate_bytes_per_s)
    assert both == pytest.approx(item.truth.rate_bytes_per_s)
    assert two.begin_s > one.begin_s
    # The later one counts from its own first sample.
    assert one.truth.oom_s == item.truth.oom_s
    assert present(two.truth.oom_s) == pytest.approx(
        present(item.truth.oom_s) - two.begin_s, abs=31.0
    )
    slope = np.polyfit(one.series.t_s - one.series.t_s[0], one.series.used_bytes, 1)[0]
    assert slope == pytest.approx(present(one.truth.rate_bytes_per_s), rel=0.1)


def test_every_life_of_a_restarted_leaker_is_a_process() -> None:
    item = worlds.build("restarts", 2)
    lives = [view for view in item.processes.values() if view.leaker]
    assert len(lives) >= 3
    for life in lives:
        assert life.truth.leak
        assert life.truth.onset_s == 0.0
        assert life.truth.oom_s == pytest.approx(item.truth.oom_s, abs=31.0)
    assert [life.end_s is None for life in lives[:-1]] == [False] * (len(lives) - 1)


def test_what_was_known_of_a_process_holds_no_later_limit() -> None:
    item = worlds.build("leaker_neighbours", 2)
    leaker = next(view for view in item.processes.values() if view.leaker)
    count = leaker.series.t_s.size // 2
    known = leaker.at(count)
    assert known.t_s.size == count
    assert known.limit_bytes == leaker.limits[count - 1]
    assert known.age_s == pytest.approx(known.t_s[-1] - views.EPOCH_S - leaker.begin_s)
    assert present(known.subject.process).started_at_s == views.EPOCH_S + leaker.begin_s


def test_a_leak_that_nobody_owns_shows_on_the_device_only() -> None:
    item = worlds.build("orphans", 5)
    run = item.run
    assert np.all(np.diff(present(run.loose)) >= 0)
    for view in item.processes.values():
        assert not view.leaker
        assert np.ptp(view.series.used_bytes) <= 0.05 * run.total
    card = views.world(item).cards[0]
    at = item.length_s / 2
    index = int(np.searchsorted(run.t, at, side="right")) - 1
    assert card.loose.at(at) == present(run.loose)[index]
