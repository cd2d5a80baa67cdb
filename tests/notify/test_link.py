"""What the server says of buttons is taken for what it is: any program may say it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatchd.core.model import Button, Message
from gpuwatchd.notify.channels.desktop.connection import Link, Shown


class _Nothing:
    def build(self) -> Any:
        raise AssertionError("nothing is shown here")

    def notification(self, message: Message, **_: Any) -> Any:
        raise AssertionError("nothing is shown here")


@pytest.mark.parametrize(
    ("number", "key", "heard"),
    [
        (7, "default", ["show"]),
        (7, "show", ["show"]),
        (7, "snooze", ["snooze"]),
        (7, "checkpoint", []),
        (7, "rm -rf", []),
        (7, "", []),
        (8, "snooze", []),
        (0, "default", []),
        (2**32 - 1, "show", []),
    ],
)
def test_only_a_button_that_a_pop_up_of_ours_has_is_pressed(
    message: Message, number: int, key: str, heard: list[str]
) -> None:
    shown = Shown(None)
    buttons = (
        Button(name="snooze", label="Snooze 1 h", command="x"),
        Button(name="show", label="Show", command="y"),
    )
    shown.put("m", 7, msgspec.structs.replace(message, buttons=buttons))
    pressed: list[str] = []
    link = Link(_Nothing(), shown, lambda name, _: pressed.append(name))
    link._on_action(number, key)
    assert pressed == heard
