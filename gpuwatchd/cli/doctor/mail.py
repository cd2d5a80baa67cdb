"""Does the mail server answer, as far as one comes without sending anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.cli import ruleset
from gpuwatchd.cli.doctor.answer import Asked, Check, ok, warning
from gpuwatchd.core.errors import NotifyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around

_NAME = "mail server"
WITHIN_S = 4.0
"""For the whole conversation."""
NAMES_S = 1.0
"""More for finding the address of a name, which cannot be interrupted."""


def check(around: Around) -> Iterator[Check]:
    """Yield whether the server of [notify.email] answers; nothing where no mail is wanted."""
    section = around.settings.notify.email
    if "email" not in ruleset.used_channels(around.settings) or not section.host:
        return
    if around.offline:
        yield ok(_NAME, "not asked (--offline)")
        return
    host = section.host
    hung = warning(
        "mail-unreachable", _NAME, f"{host} does not answer within {WITHIN_S + NAMES_S:g} s",
        f"getent hosts {host}; is the port open from here?",
    )  # fmt: skip
    yield from Asked(lambda: [_reach(around)], hung).answers(WITHIN_S + NAMES_S)


def _reach(around: Around) -> Check:
    from gpuwatchd.notify.channels.email.channel import Reach  # noqa: PLC0415

    values = msgspec.structs.asdict(around.settings.notify.email)
    server = Reach(**{**values, "timeout": WITHIN_S})
    try:
        return ok(_NAME, server.reach())
    except NotifyError as error:
        hint = error.hint or "gpuwatchctl notify test email"
        return warning(server.fault, _NAME, error.message, hint)
