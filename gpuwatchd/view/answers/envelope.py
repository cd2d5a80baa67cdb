"""The JSON that every verb answers with: one head for all, the payload under ``data``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuwatchd import __version__
from gpuwatchd.core import text, units
from gpuwatchd.core.model import is_leak
from gpuwatchd.view.answers.base import Answer, DaemonState, Warned, fill, finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.core.model import Device, EtaRange, Finding, ProcessKey
    from gpuwatchd.store.live import KnownRuns
    from gpuwatchd.store.tables import UserLabel
    from gpuwatchd.view.queries.current_state import Daemon, View

SCHEMA_VERSION: Final = 1
A = TypeVar("A", bound=Answer)


def fields(of: object, names: str) -> dict[str, Any]:
    """Return attributes under their own names, as JSON has them.

    Parameters
    ----------
    of
        Whose attributes.
    names
        Keys, in order, with spaces between them. ``at`` and ``*_at`` are the instants of ``at_s``
        and ``*_at_s``; numbers are finite or null, texts and lists of texts are clean.
    """
    return {name: _field(of, name) for name in names.split()}


def _field(of: object, name: str) -> Any:
    """Return one attribute: JSON has neither infinities nor control characters."""
    if name == "at" or name.endswith("_at"):
        return units.instant(getattr(of, f"{name}_s"))
    value = getattr(of, name)
    if isinstance(value, str):
        return text.clean(value)
    if isinstance(value, (tuple, list)):
        return [text.clean(line) for line in value]
    return finite(value) if isinstance(value, float) else value


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
    filled: A = whole(
        schema_version=SCHEMA_VERSION,
        verb=kind.VERB,
        generated_at=units.instant(time.time()) or "",
        host=host(),
        version=__version__,
        source=view.source if view is not None else source,
        stale_s=finite(view.stale_s) if view is not None else None,
        warnings=tuple(Warned(code=code, text=text.clean(words)) for code, words in seen),
        daemon=fill(DaemonState, view.daemon) if view is not None else None,
        data=data,
        **beside,
    )
    return filled


def answer(
    verb: str,
    data: Any,
    *,
    view: View | None = None,
    source: str | None = None,
    warnings: Iterable[tuple[str, str]] = (),
    beside: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the envelope of a verb that succeeded.

    Parameters
    ----------
    verb
        Its name.
    data
        The payload.
    view
        Where the payload was seen; gives source, age, daemon and its own warnings.
    source
        Where the payload comes from when there is no view: "database", "files", ...
    warnings
        (code, sentence) of what is missing or doubtful.
    beside
        What belongs to the answer but is no part of the payload's list.
    """
    seen = [*(view.warnings if view is not None else ()), *warnings]
    return {
        **_head(verb),
        "source": view.source if view is not None else source,
        "stale_s": finite(view.stale_s) if view is not None else None,
        "warnings": [{"code": code, "text": text.clean(words)} for code, words in seen],
        "daemon": daemon_json(view.daemon) if view is not None else None,
        "data": data,
        **(beside or {}),
    }


def failure(
    verb: str, kind: str, message: str, *, hint: str, exit_code: int, page: str = ""
) -> dict[str, Any]:
    """Return the envelope of a verb that failed; ``page`` is of the documentation, "" is none."""
    error = error_json(kind, message, hint=hint, exit_code=exit_code, page=page)
    return {**_head(verb), **error}


def error_json(
    kind: str, message: str, *, hint: str, exit_code: int, page: str = ""
) -> dict[str, Any]:
    """Return what an answer has in place of ``data``, or beside it, where something failed."""
    return {
        "error": {
            "kind": kind,
            "message": text.clean(message, limit=1024),
            "hint": text.clean(hint, limit=1024),
            "exit_code": exit_code,
            "page": page or None,
        }
    }


def daemon_json(daemon: Daemon) -> dict[str, Any]:
    """Return what is known about the daemon."""
    return fields(daemon, "running scope pid version started_at last_sample_at problems")


def eta_json(eta: EtaRange | None) -> dict[str, float | None] | None:
    """Return the band in seconds; None when there is nothing to wait for, high None when open."""
    return None if eta is None else fields(eta, "low_s mid_s high_s")


def verdict_json(finding: Finding) -> dict[str, Any]:
    """Return a judgement as the contract has it."""
    level = finite(finding.levels_off_bytes)
    return {
        "leak": is_leak(finding),
        **fields(
            finding,
            "tier pattern severity confidence rate_bytes_per_s r_squared p_value detector onset_at",
        ),
        "eta": eta_json(finding.eta),
        "levels_off_bytes": None if level is None else round(level),
        "reason": text.clean(finding.reason, limit=1024),
        "advice": [text.clean(line, limit=1024) for line in finding.advice],
    }


def word_json(word: UserLabel) -> dict[str, Any]:
    """Return what the user said of an alert."""
    return {
        **fields(word, "word why"),
        "by": maybe(word.who),
        **fields(word, "given_at undone_at"),
    }


def known_json(history: KnownRuns | None) -> dict[str, Any] | None:
    """Return what is known beside the curve; None where the program cannot be known again."""
    return None if history is None else fields(history, "runs word siblings yesterday")


def device_json(device: Device) -> dict[str, Any]:
    """Return the identity of a device."""
    return fields(device, "uid index name memory_total_bytes")


def process_json(process: ProcessKey | None) -> dict[str, Any] | None:
    """Return which process is meant, for certain; None for none."""
    return None if process is None else fields(process, "pid started_at")


def maybe(value: str | None) -> str | None:
    """Return foreign text cleaned; None stays None."""
    return None if value is None else text.clean(value)
