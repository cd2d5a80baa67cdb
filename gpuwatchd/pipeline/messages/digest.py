"""Several alerts in one message: what waited, or what a day or a week has brought. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.core.model import Message
from gpuwatchd.pipeline.messages import machine_name, sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert, Severity

MOST = 7
"""Alerts that are named; the others are counted."""
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}
_WHY_CHARS = 40
"""With the instant after it, one line of a screen."""
_ENTRY_CHARS = 130


def digest(
    alerts: Sequence[Alert],
    *,
    number: str,
    why: str,
    from_s: float,
    now_s: float,
    host: str | None = None,
) -> Message:
    """Return one message on several alerts, the worst and those that are open first.

    Parameters
    ----------
    alerts
        Each of them once, with its newest numbers; may be empty: that is news too.
    number
        Makes the message's id, the same however often it is tried: "daily|2026-11-21".
    why
        Of what it is a digest: "of the day", "of quiet hours".
    from_s, now_s
        The period, epoch seconds.
    host
        Name of this machine; by default as it calls itself.
    """
    import hashlib  # noqa: PLC0415 - brings the whole of OpenSSL into a daemon that has no alert

    newest: dict[str, Alert] = {}
    times: dict[str, int] = {}
    for alert in sorted(alerts, key=lambda one: one.opened_at_s):
        newest[alert.code] = alert
        times[alert.code] = times.get(alert.code, 0) + 1
    ordered = sorted(newest.values(), key=_order)
    entries = {}
    for alert in ordered[:MOST]:
        often = f" ({times[alert.code]} times)" if times[alert.code] > 1 else ""
        entries[alert.code] = f"{entry(alert, now_s=now_s)}{often}"
    if len(ordered) > MOST:
        entries["..."] = f"{len(ordered) - MOST} more: gpuwatchctl alerts --all"
    still = [alert for alert in ordered if alert.state != "resolved"]
    worst: Severity = max((a.severity for a in still), key=_RANK.__getitem__, default="info")
    count = len(ordered)
    value = "No alerts" if not count else "1 alert" if count == 1 else f"{count} alerts"
    state = f", {len(still)} still open" if still else ", all over" if count else ""
    digest_id = hashlib.sha256(f"digest|{number}".encode("utf-8", "replace")).hexdigest()[:24]
    return Message(
        id=f"{digest_id}@gpuwatchd",
        notice="digest",
        severity=worst,
        subject=text.cut(
            f"{value} since {units.moment(from_s, now_s=now_s)}{state}"
            f"{sentences.on_host(machine_name.name(host))}",
            sentences.SUBJECT_CHARS,
        ),
        body="\n".join(_body(ordered, text.cut(text.clean(why), _WHY_CHARS), now_s)),
        facts=entries,
        command=f"gpuwatchctl alerts show {ordered[0].code}" if ordered else "gpuwatchctl status",
        alert_key=ordered[0].key if ordered else "",
        also=tuple(alert.key for alert in ordered[1:]),
    )


def _body(alerts: Sequence[Alert], why: str, now_s: float) -> list[str]:
    lines = [f"Digest {why} until {units.moment(now_s, now_s=now_s, zone=True)}."]
    lost = sum(sentences.crashed(alert) for alert in alerts)
    if lost:
        lines.append(f"{lost} probably ran out of memory.")
    return lines


def _order(alert: Alert) -> tuple[bool, int, float]:
    return alert.state == "resolved", -_RANK[alert.severity], -alert.opened_at_s


def entry(alert: Alert, *, now_s: float) -> str:
    """Return one alert in one or two lines of a screen: when, who, what became of it."""
    begun_s = alert.firing_at_s if alert.firing_at_s is not None else alert.opened_at_s
    over = alert.state == "resolved"
    ended_s = alert.resolved_at_s if over else None
    # The time belongs to the word after it: since when it is open, or when it was over.
    at = units.moment(begun_s if ended_s is None else ended_s, now_s=now_s)
    what = sentences.tail(alert, "resolved" if over else "repeat", now_s=now_s)
    mark = "over" if over else f"{alert.severity}, open"
    if sentences.crashed(alert):
        mark = "probably ran out of memory"
    who = sentences.brief(alert)
    room = _ENTRY_CHARS - len(at) - len(mark) - len(what)
    return f"{at} {mark}: {sentences.fitted(who, max(room, 12))}{what}"
