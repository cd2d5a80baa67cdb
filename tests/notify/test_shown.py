"""Which pop-up is which incident's, also over a restart, and never a stranger's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.model import Button, Message
from gpuwatchd.notify.channels.desktop.connection import MOST, Link, Shown

if TYPE_CHECKING:
    from pathlib import Path


def served(folder: Path, server: str = "bus :1.5") -> Shown:
    """Return the pop-ups of a folder, as a server has them."""
    shown = Shown(folder / "popups.json")
    shown.serve(server)
    return shown


def test_a_restart_knows_the_pop_ups_of_the_same_server(tmp_path: Path, message: Message) -> None:
    path = tmp_path / "popups.json"
    served(tmp_path).put("m1", 7, message)
    again = Shown(path)
    assert again.number("m1") == 0
    again.serve("bus :1.5")
    assert again.number("m1") == 7
    kept = again.message(7)
    assert kept is not None
    assert (kept.subject, kept.body, kept.finding, kept.facts) == (message.subject, "", None, {})
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("server", ["bus :1.9", "other :1.5", ""])
def test_another_server_has_none_of_ours(tmp_path: Path, message: Message, server: str) -> None:
    first = served(tmp_path)
    first.put("m1", 7, message)
    first.serve(server)
    assert first.number("m1") == 0
    again = served(tmp_path, server)
    assert (again.number("m1"), again.message(7)) == (0, None)


def test_a_pop_up_that_tells_of_others_stays_when_one_of_them_changes(message: Message) -> None:
    shown = Shown(None)
    both = msgspec.structs.replace(message, alert_key="a", also=("b",))
    assert shown.incident(both) == message.id
    shown.put(shown.incident(both), 7, both)
    later = {"id": "m2", "thread": message.id, "notice": "resolved"}
    over = msgspec.structs.replace(both, **later, alert_key="b", also=())
    assert shown.number(shown.incident(over)) == 0
    shown.put(shown.incident(over), 8, over)
    assert shown.number(shown.incident(over)) == 8
    again = msgspec.structs.replace(both, **later)
    assert shown.number(shown.incident(again)) == 7


def test_what_is_closed_is_forgotten(tmp_path: Path, message: Message) -> None:
    shown = served(tmp_path)
    shown.put("m1", 7, message)
    shown.put("m2", 8, message)
    shown.closed(7)
    assert (shown.number("m1"), shown.number("m2")) == (0, 8)
    again = served(tmp_path)
    assert (again.number("m1"), again.number("m2")) == (0, 8)


def test_a_number_that_is_given_anew_is_the_new_ones(message: Message) -> None:
    shown = Shown(None)
    shown.put("m1", 7, message)
    shown.put("m2", 7, message)
    assert (shown.number("m1"), shown.number("m2")) == (0, 7)


def test_it_does_not_grow(tmp_path: Path, message: Message) -> None:
    shown = served(tmp_path)
    for n in range(1, 3 * MOST):
        shown.put(f"m{n}", n, message)
    assert shown.number(f"m{3 * MOST - 1}") == 3 * MOST - 1
    assert shown.number("m1") == 0
    assert (tmp_path / "popups.json").stat().st_size < MOST * 1000


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"server": 5}', b"\xff" * 100])
def test_a_broken_file_is_no_file(tmp_path: Path, message: Message, content: bytes) -> None:
    (tmp_path / "popups.json").write_bytes(content)
    shown = served(tmp_path)
    assert shown.number("m1") == 0
    shown.put("m1", 3, message)
    assert served(tmp_path).number("m1") == 3


def test_a_place_that_cannot_be_written_is_no_failure(tmp_path: Path, message: Message) -> None:
    shown = served(tmp_path / "none")
    shown.put("m1", 3, message)
    assert shown.number("m1") == 3
    assert not (tmp_path / "none").exists()


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
