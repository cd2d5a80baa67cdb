"""A notification server for a session bus: it shows nothing and writes down what it is asked.

Run within the machine by a Python that has dbus_fast; its argument is the file for the notes.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

NAME = "org.freedesktop.Notifications"
PATH = "/org/freedesktop/Notifications"
XML = f"""<node><interface name="{NAME}">
<method name="Notify">
<arg direction="in" type="s"/><arg direction="in" type="u"/><arg direction="in" type="s"/>
<arg direction="in" type="s"/><arg direction="in" type="s"/><arg direction="in" type="as"/>
<arg direction="in" type="a{{sv}}"/><arg direction="in" type="i"/>
<arg direction="out" type="u"/></method>
<method name="CloseNotification"><arg direction="in" type="u"/></method>
<method name="GetCapabilities"><arg direction="out" type="as"/></method>
<method name="GetServerInformation"><arg direction="out" type="s"/><arg direction="out" type="s"/>
<arg direction="out" type="s"/><arg direction="out" type="s"/></method>
<signal name="NotificationClosed"><arg type="u"/><arg type="u"/></signal>
<signal name="ActionInvoked"><arg type="u"/><arg type="s"/></signal>
</interface></node>"""
ANSWERS: dict[str, tuple[str, list[Any]]] = {
    "GetServerInformation": ("ssss", ["noted", "tests", "1", "1.2"]),
    "GetCapabilities": ("as", [["body", "body-markup", "actions", "persistence"]]),
    "CloseNotification": ("", []),
}


def answers(message: Message, notes: Path, count: list[int]) -> Message | None:
    """Return the answer to a call of the notification service; None for any other."""
    if message.message_type is not MessageType.METHOD_CALL:
        return None
    if message.member == "Introspect" and message.path == PATH:
        return Message.new_method_return(message, "s", [XML])
    if message.interface != NAME:
        return None
    if message.member != "Notify":
        return Message.new_method_return(message, *ANSWERS[message.member or ""])
    program, _, icon, summary, body, actions, hints, timeout = message.body
    noted = {
        "program": program, "icon": icon, "summary": summary, "body": body, "actions": actions,
        "hints": {name: str(hint.value) for name, hint in hints.items()}, "timeout": timeout,
    }  # fmt: skip
    count.append(len(count) + 1)
    with notes.open("a", encoding="utf-8") as file:
        file.write(json.dumps(noted) + "\n")
    return Message.new_method_return(message, "u", [count[-1]])


def ready(notes: Path) -> None:
    """Show that calls are answered from now on."""
    notes.touch()


async def main(notes: Path) -> None:
    """Own the name until the bus ends."""
    bus = await MessageBus().connect()
    count: list[int] = []
    bus.add_message_handler(lambda message: answers(message, notes, count))
    await bus.request_name(NAME)
    ready(notes)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
