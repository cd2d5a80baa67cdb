"""What is written through the API: the bodies of requests, and the words of the verbs for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from gpuwatchd.core import typed
from gpuwatchd.web.endpoints import LONGEST_VALUE, BadQuery

if TYPE_CHECKING:
    from typing import Any

Text = Annotated[str, Meta(max_length=LONGEST_VALUE)]
_RULE = ("gpu", "user", "process", "framework", "job", "kind")


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every body."""


class SnoozeBody(RequestBody, frozen=True, kw_only=True):
    """Tell nobody of an alert, or of whatever fits a rule, for a while."""

    alert: Text | None = None
    """Its id or key, a pid, or "latest"; absent where a rule is given."""
    for_: Text = msgspec.field(name="for")
    """A duration such as 1h or 2d, at most 30d; of an alert also "until-resolved"."""
    why: Text | None = None
    even_critical: bool = False
    """Also keep still when it is critical."""
    gpu: Text | None = None
    user: Text | None = None
    process: Text | None = None
    framework: Text | None = None
    job: Text | None = None
    kind: Literal["leak", "gpu", "held"] | None = None


class FeedbackBody(RequestBody, frozen=True, kw_only=True):
    """Say of an alert whether it is normal or a leak."""

    alert: Text
    word: Literal["normal", "leak"]
    why: Text | None = None


def snooze(body: bytes) -> list[str]:
    """Return the words that set a silence.

    Raises
    ------
    BadQuery
        When the body is not what is wanted.
    """
    wish = _decoded(body, SnoozeBody)
    given = [f"--{name}={value}" for name in _RULE if (value := getattr(wish, name)) is not None]
    if wish.why:
        given.append(f"--why={wish.why}")
    if wish.even_critical:
        given.append("--even-critical")
    named = [] if wish.alert is None else [wish.alert]
    return ["snooze", "set", *given, "--", *named, wish.for_]


def unsnooze(which: str) -> list[str]:
    """Return the words that take a silence back."""
    return ["snooze", "clear", "--", which]


def feedback(body: bytes) -> list[str]:
    """Return the words that say what an alert is.

    Raises
    ------
    BadQuery
        When the body is not what is wanted.
    """
    wish = _decoded(body, FeedbackBody)
    why = [f"--why={wish.why}"] if wish.why else []
    return ["feedback", "say", *why, "--", wish.alert, wish.word]


def unsay(which: str) -> list[str]:
    """Return the words that take back what was said of an alert."""
    return ["feedback", "undo", "--", which]


def _decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return typed.decode(body, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) if isinstance(error, msgspec.ValidationError) else "no JSON object"
        raise BadQuery(
            f"the body: {text}", hint="/api/v1/openapi.json says what it consists of"
        ) from None
