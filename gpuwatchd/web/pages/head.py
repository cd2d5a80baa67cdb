"""What every view says: whether it is live, what is missing, and which alerts are open."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuwatchd import __version__
from gpuwatchd.cli import delivery_text, envelope, locations, ranking, undelivered
from gpuwatchd.core import text, units
from gpuwatchd.web.pages import lines

if TYPE_CHECKING:
    from gpuwatchd.cli.current_state import View
    from gpuwatchd.cli.flags import Globals


def head(flags: Globals, view: View) -> dict[str, Any]:
    """Return the part of an answer that the frame around each view is drawn from."""
    now_s = time.time()
    open_now = ranking.shown(view.alerts)
    return {
        "host": envelope.host(),
        "version": __version__,
        "clock": units.clock(now_s, now_s=now_s, seconds=True),
        "zone": units.zone(now_s),
        "seen": units.clock(view.taken_at_s, now_s=now_s, seconds=True),
        "live": live(view),
        "interval_s": view.interval_s,
        "daemon": _daemon(view, now_s),
        "warnings": _warnings(flags, view, now_s),
        "open": [
            {
                "key": text.clean(alert.key),
                "said": lines.of_alert(alert, view),
                "watched": alert.state == "watch",
            }
            for alert in open_now
        ],
        "counted": ranking.counted(open_now),
    }


def live(view: View) -> bool:
    """Return whether a daemon keeps this fresh."""
    late = any(code == "daemon-late" for code, _ in view.warnings)
    return view.source == "state-file" and view.daemon.running and not late


def _daemon(view: View, now_s: float) -> str:
    daemon = view.daemon
    if not daemon.running:
        return "No daemon is running."
    since = ""
    if daemon.started_at_s is not None:
        since = f" since {units.clock(daemon.started_at_s, now_s=now_s)}"
    whom = " for the whole machine" if daemon.scope == "system" else ""
    return f"The daemon {daemon.version or '?'} runs{whom}{since}."


def _warnings(flags: Globals, view: View, now_s: float) -> list[dict[str, Any]]:
    """Return what ``status`` says above and below the GPUs, one sentence each."""
    said = []
    for code, sentence in view.warnings:
        age = ""
        if code in {"daemon-dead", "daemon-late"}:
            at = units.clock(view.taken_at_s, now_s=now_s)
            age = f" {units.duration(view.stale_s)} ago ({at})"
        bad = code.startswith("daemon")
        words = text.clean(sentence, limit=1024) + age
        if code == locations.NOTE[0]:
            bad = False
        said.append({"code": code, "text": words, "bad": bad, "more": []})
    said += _unheard(flags, view)
    problems = undelivered.other_problems(view)
    said += [{"code": "problem", "text": text.clean(p), "bad": False, "more": []} for p in problems]
    return said


def _unheard(flags: Globals, view: View) -> list[dict[str, Any]]:
    """Return what nobody has heard of, each with the lines below it, and what is silent."""
    out = lines.Lines(flags)
    if view.untold or view.lost:
        undelivered.banner(out, view)
    undelivered.silent(out, view)
    said: list[dict[str, Any]] = []
    for depth, words, style in out.kept:
        if depth and said:
            said[-1]["more"].append(words)
            continue
        bad = style == undelivered.ALARM
        plain = words[len(undelivered.MARK) :] if bad else words
        said.append({"code": "unheard", "text": plain, "bad": bad, "more": []})
    return said


def silent_until(view: View) -> dict[str, str]:
    """Return key of an open alert -> "silent until 14:00", of those that are snoozed."""
    from gpuwatchd import alerts  # noqa: PLC0415 - the page alone asks for it here

    now_s = time.time()
    held = delivery_text.in_force(view.silences, now_s)
    pairs = ((alert.key, alerts.silenced(alert, held, now_s)) for alert in view.alerts)
    return {
        key: delivery_text.silent(silence, now_s=now_s)
        for key, silence in pairs
        if silence is not None
    }
