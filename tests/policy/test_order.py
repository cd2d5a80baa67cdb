"""Whatever happens in whatever order: nobody is told twice, nothing is lost, nothing stays owed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatchd.alerts import Override, Rules
from gpuwatchd.core.config.validation import parse
from gpuwatchd.core.model import Matcher
from tests.policy.world import RANK, World, fresh

pytestmark = pytest.mark.slow

ORDER = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
QUIET = Rules(quiet={"all": (parse("22:00-07:00"),)}, channels=("desktop", "email"))
SEVERE = Rules(channels=("desktop", "email"), severity={"email": "critical", "desktop": "warning"})
FEW = Rules(max_per_hour=2)
NEVER = Rules(repeat_s=())
MUTED = Rules(
    overrides=(
        Override(matcher=Matcher(key="*100@*"), name="override 1", mute=True),
        Override(matcher=Matcher(key="*101@*"), name="override 2", severity="warning"),
    )
)
EVENTS = st.one_of(
    st.tuples(
        st.just("how"),
        st.integers(0, 2),
        st.sampled_from(["calm", "warning", "critical", "urgent", "unknown", "silent", "gone"]),
    ),
    st.tuples(st.just("run"), st.sampled_from([10.0, 30.0, 120.0, 400.0, 900.0, 2000.0])),
    st.tuples(st.just("run"), st.sampled_from([120.0, 400.0])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("clock"), st.sampled_from([3600.0, -600.0, 86_400.0, -86_400.0 * 365])),
    st.tuples(st.just("silence"), st.sampled_from([300.0, 3600.0]), st.booleans()),
    st.tuples(st.just("unsilence")),
    st.tuples(st.just("reload"), st.sampled_from([Rules(), QUIET, SEVERE, FEW, NEVER, MUTED])),
    st.tuples(st.just("lost")),
    st.tuples(st.just("back")),
)


def play(world: World, events: list[tuple[Any, ...]]) -> None:
    for event in events:
        match event:
            case ("how", number, how):
                world.how[world.keys[number]] = how
            case ("run", seconds):
                world.run(seconds)
            case ("restart",):
                world.step(3.0)
                world.restart()
                world.step(3.0)
            case ("clock", by_s):
                world.step_clock(by_s)
            case ("silence", seconds, even):
                world.silence(seconds, matcher=Matcher(kind="leak"), even_critical=even, who="bob")
            case ("unsilence",):
                world.silences.clear()
            case ("reload", rules):
                world.reload(rules)
            case ("lost",):
                world.lost = True
            case _:
                world.lost = False


@pytest.mark.parametrize(
    "rules", [Rules(), QUIET, SEVERE, FEW, MUTED], ids=["plain", "quiet", "severe", "few", "muted"]
)
@ORDER
@given(st.lists(EVENTS, min_size=3, max_size=30))
def test_no_order_of_events_tells_twice_or_loses_anything(
    rules: Rules, events: list[tuple[Any, ...]]
) -> None:
    world = World(rules)
    play(world, events)
    told_before_the_end = len(world.told)
    # Then all is well, for two days.
    world.lost = False
    world.silences.clear()
    world.how = dict.fromkeys(world.keys, "calm")
    world.run(3 * 3600.0, every_s=60.0)
    world.run(2 * 86_400.0, every_s=3600.0)
    assert [b.alert for b in (*world.bearers.values(), world.gpu) if b.alert is not None] == []
    assert world.alert_notifier.resolved.pending_resolved == {}
    assert [a for a in world.store.alerts() if a.resolved_at_s is None] == []
    for key in (*world.keys, "gpu:GPU-0"):
        _cool(world, key)
        _ends_after_beginnings(world, key)
    _ends_are_told_or_explained(world)
    _holds_are_said_once(world)
    assert len(world.told) >= told_before_the_end


def _cool(world: World, key: str) -> None:
    """Say that nobody is told twice within a cool-down, but of something worse."""
    last_s, known = float("-inf"), "over"
    for one in world.told:
        if key not in one.keys:
            continue
        if one.notice == "resolved":
            known = "over"
            continue
        severity = one.severities[key]
        if one.at_s - last_s < world.rules.cooldown_s - 1.0:
            assert RANK[severity] > RANK[known], (key, world.told)
            assert severity == "critical" or one.notice == "escalated"
        last_s, known = one.at_s, severity


def _ends_after_beginnings(world: World, key: str) -> None:
    """Say that an end is told after a beginning, and once."""
    about = world.notices(key)
    for before, after in itertools.pairwise(["resolved", *about]):
        assert not (before == "resolved" and after in {"resolved", "repeat"}), about


def _ends_are_told_or_explained(world: World) -> None:
    for alert in world.store.alerts():
        assert alert.resolved_at_s is not None
        assert alert.next_notice_at_s is None
        if alert.notices > 0 and alert.firing_at_s is not None:
            assert alert.told_over or alert.held_back, alert


def _holds_are_said_once(world: World) -> None:
    """Say that why something is held is written down when it changes, not at every look."""
    last: dict[str, tuple[object, ...]] = {}
    for one, opening_s in zip(world.store.decisions, world.store.openings, strict=True):
        said = (one.notice, one.reason, opening_s)
        if one.kind == "hold" and not one.target:
            assert last.get(one.alert_key) != said, one
            last[one.alert_key] = said
        else:
            last.pop(one.alert_key, None)


@ORDER
@given(
    st.lists(st.sampled_from(["critical", "urgent"]), min_size=1, max_size=3),
    st.lists(EVENTS, max_size=12),
)
def test_every_critical_alert_is_told_or_says_why_not(
    hows: list[str], events: list[tuple[Any, ...]]
) -> None:
    world = World(SEVERE)
    play(world, events)
    world.lost = False
    world.silences.clear()
    world.reload(SEVERE)  # Mutes and caps are gone.
    for key, how in zip(world.keys, hows, strict=False):
        world.how[key] = how
    begun_s = world.mono_s
    world.run(2400.0)
    for key, _ in zip(world.keys, hows, strict=False):
        alert = world.alert(key)
        assert (alert.state, alert.severity) == ("firing", "critical")
        lately = [one for one in world.told if key in one.keys and one.at_s > begun_s - 2400.0]
        assert alert.told_severity == "critical"
        assert lately or alert.notices > 0


@ORDER
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([60.0, 90.0, 120.0])), max_size=12))
def test_what_flaps_within_the_hold_is_never_told(pattern: list[tuple[int, float]]) -> None:
    world, key = fresh(Rules(flap_hold_s=120.0))
    for number, on_s in pattern:
        world.be(key, "urgent", 40.0)  # pending: it has not fired yet
        world.run(min(on_s, 110.0))
        world.be(key, "gone", 60.0 * (1 + number))
    assert world.told == []
