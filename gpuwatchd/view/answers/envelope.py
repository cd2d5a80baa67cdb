"""The JSON that every verb answers with: one head for all, the payload under ``data``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpuwatchd import __version__
from gpuwatchd.core import text, units
from gpuwatchd.view.answers.base import (
    LONGEST,
    SCHEMA_VERSION,
    Answer,
    DaemonState,
    Failure,
    Fault,
    Warned,
    fill,
    finite,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.view.queries.current_state import View

A = TypeVar("A", bound=Answer)


def host() -> str:
    """Return the name of this machine."""
    return text.clean(os.uname().nodename)


def _head(verb: str) -> dict[str, Any]:
    """Return the keys that every answer begins with."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verb": verb,
        "generated_at": units.instant(time.time()),
        "host": host(),
        "version": __version__,
    }


class Answered(NamedTuple):
    """An answer, and what it comes to."""

    answer: Any
    exit_code: int = 0
    """As of the verb with ``--exit-code``: 1 where no GPU could be read, 3 for findings."""


def answer_of(
    kind: type[A],
    data: Any,
    *,
    view: View | None = None,
    source: str | None = None,
    warnings: Iterable[tuple[str, str]] = (),
    **beside: Any,
) -> A:
    """Return the answer of a verb that succeeded.

    Parameters
    ----------
    kind
        The answer.
    data
        The payload.
    view
        Where the payload was seen; gives source, age, daemon and its own warnings.
    source
        Where the payload comes from when there is no view: "database", "files", ...
    warnings
        (code, sentence) of what is missing or doubtful.
    beside
        What belongs to the answer but is no part of the payload.
    """
    seen = [*(view.warnings if view is not None else ()), *warnings]
    whole: Any = kind
    answer: A = whole(
        **_head(kind.VERB),
        source=view.source if view is not None else source,
        stale_s=finite(view.stale_s) if view is not None else None,
        warnings=tuple(Warned(code=code, text=text.clean(words)) for code, words in seen),
        daemon=fill(DaemonState, view.daemon) if view is not None else None,
        data=data,
        **beside,
    )
    return answer


def failure(verb: str, kind: str, message: str, **parts: Any) -> Failure:
    """Return the answer of a verb that failed; the arguments are those of :func:`fault`."""
    return Failure(**_head(verb), error=fault(kind, message, **parts))


def fault(kind: str, message: str, *, hint: str, exit_code: int, page: str = "") -> Fault:
    """Return what an answer has in place of ``data``, or beside it, where something failed.

    ``page`` is of the documentation, "" is none.
    """
    return Fault(
        kind=kind,
        message=text.clean(message, limit=LONGEST),
        hint=text.clean(hint, limit=LONGEST),
        exit_code=exit_code,
        page=page or None,
    )
