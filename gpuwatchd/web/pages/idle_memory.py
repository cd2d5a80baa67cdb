"""Idle memory, as ``zombies`` tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.core import text, units
from gpuwatchd.view.queries import direct_holdings
from gpuwatchd.view.text import badges, cost_text, verdict_text
from gpuwatchd.view.text import idle_memory as idle_text
from gpuwatchd.web.pages import overview, page_parts
from gpuwatchd.web.pages.page_parts import head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Holding
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.text.cost_text import Book

_LINE = 1024


def idle_memory(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all alike
    """Return what is held, by whom, since when, what it costs and what would free it."""
    view, loose = direct_holdings.idle_memory(flags)
    every = [item.device for item in view.devices]
    book = cost_text.Book(flags.load_config().config, every, now_s=view.taken_at_s)
    out = page_parts.Lines()
    idle_text.openers_told(out, loose, sure=not idle_text.unknown_lists(view))
    priced = [holding.device_uid for holding in view.holdings if holding.cost_usd is not None]
    return {
        "page": head(view),
        "holdings": [_holding(holding, view, book) for holding in view.holdings],
        "prices": [f"cost: its share of {line}" for line in book.lines(priced)],
        "unknown": idle_text.unknown_lists(view),
        "checked": idle_text.checked(view),
        "openers": [[depth, words_] for depth, words_, _ in out.kept],
    }


def _holding(holding: Holding, view: View, book: Book) -> dict[str, Any]:
    items = {item.device.uid: item for item in view.devices}
    item = items.get(holding.device_uid)
    since_s, process = holding.since_s, holding.process
    address = None
    if item is not None and process is not None:
        live = next((p for p in item.processes or () if p.info.key == process.key), None)
        address = None if live is None else overview.address(item, live)
    now_s = view.taken_at_s
    hours = holding.gib_hours
    return {
        "key": text.clean(holding.id),
        "gpu": "?" if item is None else text.clean(item.device.label),
        "badge": overview.badge(badges.holding(holding)),
        "kind": holding.kind,
        "who": "nobody" if process is None else text.clean(verdict_text.who(process)),
        "context": "" if process is None else page_parts.joined(idle_text.context(process)),
        "process": address,
        "held": units.size(holding.held_bytes),
        "since": "?" if since_s is None else units.clock(since_s, now_s=now_s),
        "lasts": "?" if since_s is None else units.duration(max(0.0, now_s - since_s)),
        "hours": "?" if hours is None else f"{hours:,.1f}",
        "cost": cost_text.money(book, holding.cost_usd),
        "evidence": text.clean(holding.evidence, limit=_LINE),
        "advice": [text.clean(line, limit=_LINE) for line in holding.advice],
    }
