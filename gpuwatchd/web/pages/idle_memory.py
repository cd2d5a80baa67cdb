"""Idle memory, as ``zombies`` tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.view.answers.base import Shape
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import direct_holdings
from gpuwatchd.view.text import badges, cost_text, verdict_text
from gpuwatchd.view.text import idle_memory as idle_text
from gpuwatchd.web.pages import parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Holding
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.text.cost_text import Book


class HoldingCard(Shape):
    """Memory that is held without work."""

    key: str
    gpu: str
    badge: parts.BadgeMark
    kind: str
    who: str
    context: str
    process: str | None
    held: str
    since: str
    lasts: str
    hours: str
    cost: str
    evidence: str
    advice: tuple[str, ...]


class IdleMemory(parts.PageAnswer):
    """What is held, by whom, since when, what it costs and what would free it."""

    holdings: tuple[HoldingCard, ...]
    prices: tuple[str, ...]
    unknown: str
    checked: str
    openers: tuple[tuple[int, str], ...]
    """Depth and text of each line on open device files."""


def idle_memory(query: Query, _: Mapping[str, str]) -> IdleMemory:
    """Return what is held without work."""
    view, loose = direct_holdings.idle_memory(query)
    every = [item.device for item in view.devices]
    book = cost_text.Book(query.load_config().config, every, now_s=view.taken_at_s)
    unknown = idle_text.unknown_lists(view)
    out = Page()
    idle_text.openers_told(out, loose, sure=not unknown)
    priced = [holding.device_uid for holding in view.holdings if holding.cost_usd is not None]
    return IdleMemory(
        page=parts.frame(view),
        holdings=tuple(_holding(holding, view, book) for holding in view.holdings),
        prices=tuple(f"cost: its share of {line}" for line in book.lines(priced)),
        unknown=unknown,
        checked=idle_text.checked(view),
        openers=tuple((depth, words) for depth, words, _ in parts.lines(out)),
    )


def _holding(holding: Holding, view: View, book: Book) -> HoldingCard:
    item = next((i for i in view.devices if i.device.uid == holding.device_uid), None)
    since_s, process, now_s = holding.since_s, holding.process, view.taken_at_s
    hours = holding.gib_hours
    addresses = [
        parts.address(item, live)
        for live in (None if item is None else item.processes) or ()
        if item is not None and process is not None and live.info.key == process.key
    ]
    return HoldingCard(
        key=text.clean(holding.id),
        gpu="?" if item is None else text.clean(item.device.label),
        badge=parts.mark(badges.holding(holding)),
        kind=holding.kind,
        who="nobody" if process is None else text.clean(verdict_text.who(process)),
        context="" if process is None else parts.joined(idle_text.context(process)),
        process=addresses[0] if addresses else None,
        held=units.size(holding.held_bytes),
        since="?" if since_s is None else units.clock(since_s, now_s=now_s),
        lasts="?" if since_s is None else units.duration(max(0.0, now_s - since_s)),
        hours="?" if hours is None else f"{hours:,.1f}",
        cost=cost_text.money(book, holding.cost_usd),
        evidence=text.clean(holding.evidence, limit=parts.LINE),
        advice=tuple(text.clean(line, limit=parts.LINE) for line in holding.advice),
    )
