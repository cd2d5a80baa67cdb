"""What serving engines say of themselves, for ``--wide``: models, KV cache, requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.cli.output import Out, Part
    from gpuwatchd.core.model import ServedModel, ServerReading

_FOR_GOOD_S = 10 * 365 * 86400.0
"""Ollama gives a day centuries ahead for a model that stays until somebody unloads it."""


def show(out: Out, servers: Iterable[ServerReading], *, now_s: float) -> None:
    """Write one line for each server."""
    for server in servers:
        out.flow(line(server, now_s=now_s), rest="  ")


def line(server: ServerReading, *, now_s: float) -> list[Part]:
    """Return one server: what it has loaded and how full its cache is."""
    named = f"{server.kind} {server.url}"
    parts: list[Part] = [(named, "bold")]
    if server.pid is not None:
        parts.append(f"pid {server.pid}")
    if not server.ok:
        return [*parts, (f"does not answer: {server.why or 'no reason is known'}", "yellow")]
    if server.models is not None:
        parts += [_model(model, now_s=now_s) for model in server.models] or ["no model loaded"]
    if server.kv_share is not None:
        parts.append(f"KV cache {units.percent(server.kv_share)}")
    if server.running is not None:
        waiting = f", {server.waiting} waiting" if server.waiting else ""
        parts.append(f"{server.running} running{waiting}")
    if server.pool_share is not None:
        parts.append((f"pool {units.percent(server.pool_share)} of the device", "dim"))
    return parts


def _model(model: ServedModel, *, now_s: float) -> str:
    facts = []
    if model.vram_bytes is not None:
        facts.append(units.size(model.vram_bytes) if model.vram_bytes else "on the CPU")
    if model.expires_at_s is not None and model.expires_at_s > now_s:
        kept = model.expires_at_s - now_s > _FOR_GOOD_S
        until = "unloaded" if kept else units.clock(model.expires_at_s, now_s=now_s)
        facts.append(f"until {until}")
    return f"{model.name} ({', '.join(facts)})" if facts else model.name
