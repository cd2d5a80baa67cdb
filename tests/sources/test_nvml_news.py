"""Events of cards, from their states alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.nvml.card import Card, placeholder
from gpuwatchd.collect.nvml.device_health import BACK_AFTER_S, StateChanges
from gpuwatchd.core.model import Device

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceState, Event

UID = "GPU-1"


def play(*states: DeviceState, every_s: float = 5.0) -> list[Event]:
    """Return what is told while a card has these states, one after the other."""
    device = Device(uid=UID, vendor="nvidia", index=0, name="A", memory_total_bytes=None)
    card, news = Card(UID, device), StateChanges()
    told: list[Event] = []
    for turn, state in enumerate(states):
        card.state = state
        told += news.take([card], 1000.0 + turn * every_s, turn * every_s)
    return told


def kinds(*states: DeviceState, every_s: float = 5.0) -> list[str]:
    return [event.kind for event in play(*states, every_s=every_s)]


@pytest.mark.parametrize(
    ("state", "kind", "hardware"),
    [
        ("lost", "gpu-lost", True),
        ("no-permission", "gpu-lost", None),
        ("hung", "gpu-hung", True),
        ("reset-required", "reset-required", True),
    ],
)
def test_what_ends_is_told_once_and_what_returns_too(
    state: DeviceState, kind: str, hardware: bool | None
) -> None:
    told = play("ok", state, state, state, "ok", "ok", "ok", "ok")
    assert [event.kind for event in told] == [kind, "gpu-back"]
    assert told[0].hardware is hardware
    assert told[0].at_s == 1005.0
    assert told[1].text == "the GPU answers again after 15s"
    assert {event.device_uid for event in told} == {UID}


def test_worse_after_bad_is_news_and_the_time_counts_from_the_first() -> None:
    told = play("ok", "hung", "lost", "reset-required", "ok", "ok", "ok")
    assert [event.kind for event in told] == ["gpu-hung", "gpu-lost", "reset-required", "gpu-back"]
    assert told[-1].text.endswith("after 15s")


def test_coming_and_going_is_one_incident() -> None:
    turns: list[DeviceState] = ["lost", "ok"]
    assert kinds("ok", *turns * 20) == ["gpu-lost"]
    assert BACK_AFTER_S > 5.0
    assert kinds("ok", *turns * 3, "ok", "ok") == ["gpu-lost", "gpu-back"]


@pytest.mark.parametrize("state", ["asleep", "released", "unsupported"])
def test_letting_go_is_no_loss(state: DeviceState) -> None:
    assert kinds("ok", state, state, "ok", "ok", "ok") == []
    assert kinds("ok", "lost", state, "ok", "ok", "ok") == ["gpu-lost", "gpu-back"]


def test_what_never_answered_is_not_lost_but_may_need_a_reset() -> None:
    assert kinds("lost", "lost", "hung") == []
    assert kinds("reset-required", "reset-required") == ["reset-required"]


def test_a_stand_in_is_no_card() -> None:
    news = StateChanges()
    card = placeholder(0, "ok")
    states: list[DeviceState] = ["ok", "lost"]
    for state in states:
        card.state = state
        assert news.take([card], 0.0, 0.0) == ()
