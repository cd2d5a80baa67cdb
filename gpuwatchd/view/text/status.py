"""The screen of ``status``: a few lines per GPU, then what is open and what is wrong."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.core import units
from gpuwatchd.view.queries import current_state, state_location
from gpuwatchd.view.text import cards, delivery_text, verdict_text

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert, ServedModel, ServerReading
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_state import View

_SEVERITY_STYLE = {"critical": "red-bold", "warning": "yellow-bold", "info": ""}


def show(
    out: Page, view: View, *, whole: bool = True, verbose: bool = False, wide: bool = False
) -> None:
    """Write the screen; without ``whole`` it is about the processes that are left, all of them."""
    _banner(out, view)
    delivery_text.banner(out, view)
    for item in view.devices:
        cards.card(out, view, item, whole=whole, verbose=verbose or wide, wide=wide)
    if wide:
        for server in view.servers:
            out.flow(server_line(server, now_s=view.taken_at_s), rest="  ")
    _alerts(out, view)
    delivery_text.silences(out, view)
    holdings(out, view)
    for problem in delivery_text.other_problems(view):
        out.flow([("problem: " + problem, "yellow")], rest="  ")


def holdings(out: Page, view: View) -> None:
    """Write one line on idle memory."""
    words = held(view)
    if words:
        out.flow([(f"{words}:", "yellow"), ("gpuwatchctl zombies", "cyan")], gap=" ")


def held(view: View) -> str:
    """Return how much memory is idle; "" where there is none."""
    count = len(view.holdings)
    if not count:
        return ""
    amounts = [holding.held_bytes for holding in view.holdings]
    known = [amount for amount in amounts if amount is not None]
    least = ">= " if len(known) < count else ""
    amount = f", {least}{units.size(sum(known))}" if known else ""
    plural = "holding" if count == 1 else "holdings"
    return f"{count} {plural} of idle memory{amount}"


def _banner(out: Page, view: View) -> None:
    for code, sentence in view.warnings:
        if code == state_location.NOTE[0]:
            out.line((sentence, "dim"))
            continue
        style = "red-bold" if code.startswith("daemon") else "yellow"
        out.flow([(f"! {sentence}{age(view, code, now_s=time.time())}", style)])


def age(view: View, code: str, *, now_s: float) -> str:
    """Return how old what a daemon saw last is, behind a warning about it; "" behind another."""
    if code not in {"daemon-dead", "daemon-late"}:
        return ""
    at = units.clock(view.taken_at_s, now_s=now_s)
    return f" {units.duration(view.stale_s)} ago ({at})"


def alert_line(alert: Alert, view: View) -> list[Part]:
    """Return one open alert in a line, with why nobody hears of it."""
    state = alert.state if alert.state != "firing" else alert.severity
    finding = alert.finding
    now_s = time.time()
    calm = verdict_text.calmed(alert, now_s=now_s)
    band = "" if calm else verdict_text.eta(finding.eta)
    rate = "" if calm else verdict_text.growth(finding.rate_bytes_per_s)
    return [
        (
            f"{state} since {verdict_text.since(alert, now_s=now_s)}:",
            _SEVERITY_STYLE[alert.severity],
        ),
        alert.title or alert.key,
        f"{rate} {finding.pattern}".strip() if alert.kind == "leak" else finding.reason,
        calm,
        f"full in {band}" if band else "",
        (f"held: {alert.held_back}", "dim") if alert.held_back else "",
        *delivery_text.delivery_marks(alert, view),
    ]


def _alerts(out: Page, view: View) -> None:
    alerts = current_state.shown(view.alerts)
    for alert in alerts:
        out.flow(alert_line(alert, view), rest="  ")
    if alerts:
        out.flow([("gpuwatchctl explain shows why, and what to do", "dim")])


# What serving engines say of themselves, for ``--wide``: models, KV cache, requests.

_FOR_GOOD_S = 10 * 365 * 86400.0
"""Ollama gives a day centuries ahead for a model that stays until somebody unloads it."""


def server_line(server: ServerReading, *, now_s: float) -> list[Part]:
    """Return one server: what it has loaded and how full its cache is."""
    named = f"{server.kind} {server.url}"
    parts: list[Part] = [(named, "bold")]
    if server.pid is not None:
        parts.append(f"pid {server.pid}")
    if not server.ok:
        return [*parts, (f"does not answer: {server.why or 'no reason is known'}", "yellow")]
    if server.models is not None:
        parts += [_served_model(model, now_s=now_s) for model in server.models] or [
            "no model loaded"
        ]
    if server.kv_share is not None:
        parts.append(f"KV cache {units.percent(server.kv_share)}")
    if server.running is not None:
        waiting = f", {server.waiting} waiting" if server.waiting else ""
        parts.append(f"{server.running} running{waiting}")
    if server.pool_share is not None:
        parts.append((f"pool {units.percent(server.pool_share)} of the device", "dim"))
    return parts


def _served_model(model: ServedModel, *, now_s: float) -> str:
    facts = []
    if model.vram_bytes is not None:
        facts.append(units.size(model.vram_bytes) if model.vram_bytes else "on the CPU")
    if model.expires_at_s is not None and model.expires_at_s > now_s:
        kept = model.expires_at_s - now_s > _FOR_GOOD_S
        until = "unloaded" if kept else units.clock(model.expires_at_s, now_s=now_s)
        facts.append(f"until {until}")
    return f"{model.name} ({', '.join(facts)})" if facts else model.name
