"""A notification server without actions: it writes each call to a file, one JSON object a line."""

# mypy: disable-error-code="valid-type,name-defined,no-untyped-call"
# Its annotations are the signatures on the bus; they must stay as they are written.
import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from dbus_fast.aio import MessageBus
from dbus_fast.service import ServiceInterface, method

NAME = "org.freedesktop.Notifications"
FILE = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("plain.jsonl")


class Plain(ServiceInterface):
    """As small as the specification allows."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self._numbers = itertools.count(1)

    @method()
    def GetCapabilities(self) -> "as":  # noqa: F722, N802
        return ["body"]

    @method()
    def GetServerInformation(self) -> "ssss":  # noqa: F821, N802
        return ["Plain", "nobody", "1.0", "1.2"]

    @method()
    def Notify(  # noqa: N802
        self,
        app: "s",  # noqa: F821
        replaces: "u",  # noqa: F821
        icon: "s",  # noqa: F821
        summary: "s",  # noqa: F821
        body: "s",  # noqa: F821
        actions: "as",  # noqa: F722
        hints: "a{sv}",  # noqa: F722
        timeout: "i",  # noqa: F821
    ) -> "u":  # noqa: F821
        number: int = replaces or next(self._numbers)
        told: dict[str, Any] = {
            "number": number, "replaces": replaces, "icon": icon, "summary": summary,
            "body": body, "actions": actions, "urgency": hints["urgency"].value,
        }  # fmt: skip
        with FILE.open("a") as file:
            file.write(json.dumps(told) + "\n")
        return number

    @method()
    def CloseNotification(self, number: "u") -> None:  # noqa: F821, N802
        with FILE.open("a") as file:
            file.write(json.dumps({"closed": number}) + "\n")


async def main() -> None:
    """Serve until ended."""
    bus = await MessageBus().connect()
    bus.export("/org/freedesktop/Notifications", Plain())
    await bus.request_name(NAME)
    await bus.wait_for_disconnect()


if __name__ == "__main__":
    asyncio.run(main())
