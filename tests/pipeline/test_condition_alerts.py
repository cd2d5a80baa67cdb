"""GPUs that are lost and memory that is held: one alert each, at the right time, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import Config, PolicySection
from gpuwatchd.core.model import Alert, DeviceReading, Fault, ProcessUse
from gpuwatchd.pipeline.condition_alerts import ALONE_S, DRIVER_S, HUNG_S, RESET_S, ConditionAlerts
from gpuwatchd.pipeline.state import Settings, State
from gpuwatchd.pipeline.track import Headroom, TrackedDevice
from tests.making import CARD

if TYPE_CHECKING:
    from gpuwatchd.core.model import Device, DeviceState

T0 = 100_000.0
TICK_S = 5.0
OTHER = msgspec.structs.replace(CARD, uid="GPU-other", index=1)


class World:
    """Devices whose states are set by hand."""

    def __init__(self, *devices: Device, **policy: object) -> None:
        config = Config(policy=PolicySection(**policy))  # type: ignore[arg-type]
        self.state = State(config)
        self.alarms = ConditionAlerts(self.state)
        self.now_s = T0
        for device in devices:
            self.state.devices[device.uid] = TrackedDevice(
                device=device,
                reading=None,
                headroom=Headroom(),
                processes={},
                own_tracks=[],
                source=device.source or "nvml",
            )
            self.set(device, "ok")

    def set(
        self, device: Device, state: DeviceState | None, uses: tuple[ProcessUse, ...] = ()
    ) -> None:
        seen = self.state.devices[device.uid]
        seen.faults = () if state == "ok" else (Fault(where="nvml", why="it is a test"),)
        seen.reading = (
            None
            if state is None
            else DeviceReading(
                device_uid=device.uid, used_bytes=None, free_bytes=None, total_bytes=None,
                uses=uses if state == "ok" else None, state=state,
            )
        )  # fmt: skip

    def run(self, for_s: float) -> list[Alert]:
        """Let time go by; return what changed."""
        changed = []
        for _ in range(round(for_s / TICK_S)):
            self.now_s += TICK_S
            changed += self.alarms.step(self.now_s)
        return changed

    @property
    def open(self) -> list[Alert]:
        return [alarm.alert for alarm in self.state.conditions.values() if alarm.alert]


def losing() -> World:
    """Return a world in which one of two GPUs has just been lost."""
    world = World(CARD, OTHER)
    world.run(10)
    world.set(CARD, "lost")
    return world


def test_a_lost_gpu_raises_one_alert_and_recovers() -> None:
    world = World(CARD, OTHER)
    assert world.run(60) == []
    world.set(CARD, "lost")
    assert world.run(ALONE_S) == []
    (opened,) = world.run(2 * TICK_S)
    assert (opened.kind, opened.state, opened.severity) == ("gpu", "firing", "critical")
    assert opened.key == f"gpu:{CARD.uid}"
    assert opened.opened_at_s == T0 + 60 + TICK_S
    assert opened.next_notice_at_s == pytest.approx(opened.changed_at_s + 30.0)
    assert opened.finding.pattern == "unknown"
    assert opened.finding.reason.startswith("the GPU no longer answers; it is a test")
    assert any("dmesg" in line for line in opened.finding.advice)
    assert world.run(3600) == []
    assert len(world.open) == 1
    world.set(CARD, "ok")
    assert world.run(50) == []
    (over,) = world.run(30)
    assert (over.state, over.ended_code, over.key) == (
        "resolved",
        Ending.DEVICE_ANSWERS,
        opened.key,
    )
    assert world.open == []


def test_a_driver_that_is_exchanged_is_no_alarm_until_it_stays_away() -> None:
    world = World(CARD, OTHER)
    world.run(10)
    for card in (CARD, OTHER):
        world.set(card, "lost")
    assert world.run(DRIVER_S - 60) == []
    for card in (CARD, OTHER):
        world.set(card, "ok")
    assert world.run(60) == []
    for card in (CARD, OTHER):
        world.set(card, "lost")
    opened = world.run(DRIVER_S + 10)
    assert {alert.key for alert in opened} == {f"gpu:{CARD.uid}", f"gpu:{OTHER.uid}"}
    assert len({alert.group for alert in opened}) == 1
    assert opened[0].group
    assert "nor does the other" in opened[0].finding.reason


def test_a_release_during_a_loss_begins_the_count_anew() -> None:
    world = World(CARD, OTHER)
    world.run(10)
    for _ in range(10):
        world.set(CARD, "lost")
        assert world.run(40) == []
        world.set(CARD, "released")
        assert world.run(40) == []


def test_what_never_answered_is_not_lost_but_may_need_a_reset() -> None:
    world = World(CARD)
    world.set(CARD, "lost")
    assert world.run(3600) == []
    world.set(CARD, "reset-required")
    (opened,) = world.run(RESET_S + 10)
    assert opened.severity == "warning"
    assert any("--gpu-reset -i 0" in line for line in opened.finding.advice)


def test_a_hang_lasts_longer_than_a_busy_driver() -> None:
    world = World(CARD)
    world.run(10)
    world.set(CARD, "hung")
    assert world.run(HUNG_S - 10) == []
    (opened,) = world.run(30)
    assert opened.finding.reason.startswith("a call to its driver does not return")


def test_worse_is_news_at_once() -> None:
    world = World(CARD, OTHER)
    world.set(CARD, "reset-required")
    (opened,) = world.run(60)
    alarm = world.state.conditions[opened.key]
    alarm.alert = msgspec.structs.replace(opened, notices=1, last_notice_at_s=world.now_s)
    world.set(CARD, "ok")
    world.run(5)
    world.set(CARD, "lost")
    worse = world.run(120)
    assert [alert.severity for alert in worse] == ["critical"]
    assert worse[0].next_notice_at_s == worse[0].changed_at_s
    assert worse[0].notices == 1


@pytest.mark.parametrize(("state", "recorded"), [(None, "replay"), ("no-permission", "simulate")])
def test_a_source_that_falls_silent_is_told_a_recording_that_ends_is_not(
    state: DeviceState | None, recorded: str
) -> None:
    world = World(CARD)
    world.run(10)
    world.set(CARD, state)
    seen = world.state.devices[CARD.uid]
    seen.source = recorded
    assert world.run(3600) == []
    seen.source = "nvml"
    assert world.run(DRIVER_S - 10) == []
    (opened,) = world.run(60)
    assert opened.finding.reason.startswith("the GPU can no longer be read")
    assert opened.severity == "warning"


def test_an_instance_is_not_told_of_beside_its_card() -> None:
    part = msgspec.structs.replace(OTHER, uid="MIG-1", parent_uid=CARD.uid)
    world = World(CARD, part)
    world.run(10)
    world.set(CARD, "lost")
    world.set(part, "lost")
    assert [alert.key for alert in world.run(400)] == [f"gpu:{CARD.uid}"]


def test_time_without_a_look_does_not_count() -> None:
    world = losing()
    world.run(20)
    world.now_s += 8 * 3600.0  # the machine slept
    assert world.run(30) == []
    assert len(world.run(30)) == 1


def test_a_clock_set_back_moves_an_open_alert() -> None:
    world = losing()
    (opened,) = world.run(100)
    world.now_s -= 7200.0
    assert world.run(60) == []
    (moved,) = world.open
    assert moved.opened_at_s == pytest.approx(opened.opened_at_s - 7200.0, abs=TICK_S + 0.1)
    assert moved.next_notice_at_s is not None
    assert moved.next_notice_at_s < world.now_s + 60


def test_an_alert_of_an_earlier_run_goes_on() -> None:
    world = losing()
    (opened,) = world.run(100)
    told = msgspec.structs.replace(opened, notices=1, next_notice_at_s=None)
    again = World(CARD, OTHER)
    again.now_s = world.now_s + 30
    again.alarms.adopt(told, again.now_s)
    again.set(CARD, None)
    assert again.run(60) == []
    again.set(CARD, "lost")
    assert again.run(60) == []
    assert [(alert.key, alert.notices) for alert in again.open] == [(opened.key, 1)]
    again.set(CARD, "ok")
    (over,) = again.run(120)
    assert over.state == "resolved"
    assert over.next_notice_at_s is not None


def test_one_whose_device_never_comes_back_is_over_after_a_day() -> None:
    world = losing()
    world.run(100)
    del world.state.devices[CARD.uid]
    assert world.run(80_000) == []
    (over,) = world.run(10_000)
    assert over.ended_code is Ending.NOT_SEEN


def test_turned_off_nothing_is_told_and_what_was_is_over() -> None:
    world = World(CARD, OTHER, tell_hardware=False)
    world.run(10)
    world.set(CARD, "lost")
    assert world.run(400) == []
    world = losing()
    world.run(100)
    world.state.settings = Settings(Config(policy=PolicySection(tell_hardware=False)))
    (over,) = world.run(10)
    assert over.ended_code is Ending.TURNED_OFF


_STATES = st.sampled_from(
    ["ok", "lost", "hung", "reset-required", "released", "asleep", "no-permission", None]
)


@given(story=st.lists(st.tuples(_STATES, st.integers(1, 80)), max_size=25))
@settings(max_examples=150, deadline=None)
def test_no_order_of_states_opens_two_or_ends_one_without_a_good_reading(
    story: list[tuple[DeviceState | None, int]],
) -> None:
    world = World(CARD, OTHER)
    is_open, well_ticks = False, 0
    for state, ticks in story:
        world.set(CARD, state)
        for _ in range(ticks):
            changed = world.run(TICK_S)
            well_ticks = well_ticks + 1 if state == "ok" else 0
            for alert in changed:
                assert alert.key == f"gpu:{CARD.uid}"
                if alert.state == "resolved":
                    assert is_open
                    assert well_ticks * TICK_S >= 60.0
                    is_open = False
                else:
                    # Opened, or escalated: never by what is meant, or well.
                    assert state not in {"ok", "released", "asleep"}
                    is_open = True
            assert is_open == bool(world.open)
            assert len(world.open) <= 1
