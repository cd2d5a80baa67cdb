"""Messages as they are handed to every channel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.pipeline import message_snapshots
from tests.recordings import places
from tests.recordings.items import Item
from tests.recordings.worlds import INCIDENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.recordings.worlds import Stage

_VOLATILE: Final = {"date", "content-type"}
"""The boundary between the parts of a mail is drawn by lot."""


def items(stage: Stage) -> Iterator[Item]:
    """Yield each notice for each channel."""
    cases = dict(message_snapshots.cases())
    for name, message in cases.items():
        for channel, render in CHANNELS.items():
            yield Item(
                f"messages/{name}/{channel}",
                partial(render, message),
                whole=channel in {"mail-text", "pop-up"},
            )
    for scenario in INCIDENTS:
        for channel, render in CHANNELS.items():
            yield Item(
                f"messages/of {scenario}/{channel}", partial(_driven, stage, scenario, render)
            )


def _driven(stage: Stage, scenario: str, render: Callable[[Any], str]) -> str:
    return "\n=====\n".join(render(one.message) for one in stage.incident(scenario).post.taken)


def _stored(message: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(message)).decode()


def _mail(message: Any) -> Any:
    return places.mail.compose(
        message, sender="gpu@example.org", to=["ops@example.org"], host="lab3"
    )


def _headers(message: Any) -> str:
    mail = _mail(message)
    rows = [f"{name}: {value}" for name, value in mail.items() if name.lower() not in _VOLATILE]
    parts = [f"part {part.get_content_type()}" for part in mail.walk()]
    return "\n".join([*rows, *parts])


def _part(kind: str, message: Any) -> str:
    body = _mail(message).get_body((kind,))
    assert body is not None
    return str(body.get_content())


def _popup(message: Any) -> str:
    shown = places.desktop._Library.notification(
        message,
        body=places.render.popup(message, markup=True),
        buttons=message.buttons,
        pressed=lambda name: None,
        dispatched=lambda: None,
    )
    icon = shown.icon.name if shown.icon is not None else None
    buttons = [f"[{one.title}] {one.identifier}" for one in shown.buttons]
    return "\n".join(
        [
            f"{shown.title}",
            f"{shown.urgency} {icon} {shown.thread}",
            shown.message,
            *buttons,
            "-- without markup",
            places.render.popup(message, markup=False),
        ]
    )


def _chat(message: Any) -> str:
    parts = [places.chat._body(message, room) for room in (60, 280, 2000, 7790)]
    return "\n--\n".join([places.chat._title(message), *parts])


def _command(message: Any) -> str:
    environ = places.command.environment(message, {"PATH": "/usr/bin", "HOME": "/home/alice"})
    rows = [f"{name}={value}" for name, value in sorted(environ.items())]
    return "\n".join([places.command.payload(message).decode(), *rows])


CHANNELS: Final[dict[str, Callable[[Any], str]]] = {
    "stored": _stored,
    "mail-headers": _headers,
    "mail-text": partial(_part, "plain"),
    "mail-html": partial(_part, "html"),
    "pop-up": _popup,
    "chat": _chat,
    "command": _command,
}
