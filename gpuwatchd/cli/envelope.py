"""The JSON that every verb answers with: one head for all, the payload under ``data``."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

from gpuwatchd import __version__
from gpuwatchd.core import text, units
from gpuwatchd.core.model import LEAK_PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.cli.current_state import Daemon, View
    from gpuwatchd.core.model import Device, EtaRange, Finding
    from gpuwatchd.store.labels import UserLabel
    from gpuwatchd.store.live import KnownRuns

SCHEMA_VERSION = 1


def finite(value: float | None) -> float | None:
    """Return a number that JSON has; None for unknown, infinite and not-a-number."""
    return value if value is not None and math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    """Return whole bytes; None for unknown and infinite."""
    return round(value) if value is not None and math.isfinite(value) else None


def host() -> str:
    """Return the name of this machine."""
    return text.clean(os.uname().nodename)


def _head(verb: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "verb": verb,
        "generated_at": units.instant(time.time()),
        "host": host(),
        "version": __version__,
    }


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
    return {
        **_head(verb),
        "error": {
            "kind": kind,
            "message": text.clean(message, limit=1024),
            "hint": text.clean(hint, limit=1024),
            "exit_code": exit_code,
            "page": page or None,
        },
    }


def daemon_json(daemon: Daemon) -> dict[str, Any]:
    """Return what is known about the daemon."""
    return {
        "running": daemon.running,
        "scope": daemon.scope,
        "pid": daemon.pid,
        "version": daemon.version,
        "started_at": units.instant(daemon.started_at_s),
        "last_sample_at": units.instant(daemon.last_sample_at_s),
        "problems": [text.clean(problem) for problem in daemon.problems],
    }


def eta_json(eta: EtaRange | None) -> dict[str, float | None] | None:
    """Return the band in seconds; None when there is nothing to wait for, high None when open."""
    if eta is None:
        return None
    return {"low_s": finite(eta.low_s), "mid_s": finite(eta.mid_s), "high_s": finite(eta.high_s)}


def is_leak(finding: Finding | None) -> bool:
    """Return whether a judgement says "leak": a leaking pattern that policy did not wave off."""
    return finding is not None and finding.pattern in LEAK_PATTERNS and finding.tier != "none"


def verdict_json(finding: Finding) -> dict[str, Any]:
    """Return a judgement as the contract has it."""
    return {
        "leak": is_leak(finding),
        "tier": finding.tier,
        "pattern": finding.pattern,
        "severity": finding.severity,
        "confidence": finite(finding.confidence),
        "rate_bytes_per_s": finite(finding.rate_bytes_per_s),
        "r_squared": finite(finding.r_squared),
        "p_value": finite(finding.p_value),
        "detector": finding.detector,
        "onset_at": units.instant(finding.onset_at_s),
        "eta": eta_json(finding.eta),
        "levels_off_bytes": _whole(finding.levels_off_bytes),
        "reason": text.clean(finding.reason, limit=1024),
        "advice": [text.clean(line, limit=1024) for line in finding.advice],
    }


def word_json(word: UserLabel) -> dict[str, Any]:
    """Return what the user said of an alert."""
    return {
        "word": word.word,
        "why": maybe(word.why),
        "by": maybe(word.who),
        "given_at": units.instant(word.given_at_s),
        "undone_at": units.instant(word.undone_at_s),
    }


def known_json(history: KnownRuns | None) -> dict[str, Any] | None:
    """Return what is known beside the curve; None where the program cannot be known again."""
    if history is None:
        return None
    return {
        "runs": history.runs,
        "word": history.word,
        "siblings": history.siblings,
        "yesterday": history.yesterday,
    }


def device_json(device: Device) -> dict[str, Any]:
    """Return the identity of a device."""
    return {
        "uid": text.clean(device.uid),
        "index": device.index,
        "name": text.clean(device.name),
        "memory_total_bytes": device.memory_total_bytes,
    }


def maybe(value: str | None) -> str | None:
    """Return foreign text cleaned; None stays None."""
    return None if value is None else text.clean(value)
