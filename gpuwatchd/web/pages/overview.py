"""The overview: a card for each GPU, who grows most, what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.core import text, units
from gpuwatchd.core.design import LOOKS
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.queries import alert_order, current_state
from gpuwatchd.view.text import (
    badges,
    cards,
    device_facts,
    process_facts,
    status,
    verdict_text,
)
from gpuwatchd.web.pages import page_parts
from gpuwatchd.web.pages.page_parts import head, silent_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.text.badges import Badge

    Entry = tuple[LiveDevice, LiveProcess]

ROWS: Final = 200
"""More processes than these are sent only to who asks for all."""


def overview(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return everything at a glance; ``filter`` narrows the processes, ``all`` sends each."""
    view = current_state.load_view(flags)
    return {
        "page": head(view),
        "devices": [device(view, item) for item in view.devices],
        "alerts": alerts(view),
        "held": status.held(view),
        **table(ordered(view.devices), query),
    }


def table(pairs: Sequence[Entry], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of processes that are wanted, and how many there are."""
    wish = query.get("filter", "")
    fitting = [
        (item, process)
        for item, process in pairs
        if process_facts.matches(item, process, wish, badge=badges.process(process).word)
    ]
    shown = fitting if query.get("all") else fitting[:ROWS]
    rows = [_row(*pair) for pair in shown]
    return {"processes": rows, "fitting": len(fitting), "count": len(pairs)}


# ---- devices ------------------------------------------------------------------------------------


def device(view: View, item: LiveDevice) -> dict[str, Any]:
    """Return the card of one device."""
    reading = item.reading
    total = reading.total_bytes if reading is not None else None
    total = total if total is not None else item.device.memory_total_bytes
    used = reading.used_bytes if reading is not None else None
    state = device_facts.state(item, now_s=view.taken_at_s, released_until_s=view.released_until_s)
    broken = [] if state else device_facts.broken(item, now_s=view.taken_at_s)
    others = view.others.get(item.device.uid)
    said = (
        page_parts.joined(state),
        page_parts.joined(broken),
        device_facts.processes(item),
        device_facts.unowned(item),
        "" if others is None else others.line(none=not item.processes),
    )
    return {
        "uid": text.clean(item.device.uid),
        "label": text.clean(item.device.label),
        "name": text.clean(item.device.name),
        "memory": device_facts.memory_note(item.device),
        "badge": badge(badges.device(item)),
        "used": f"{cards.amount(used)}/{units.size(total)}",
        "percent": cards.share_of(used, total).strip(),
        "share": None if used is None or not total else min(1.0, used / total),
        "spark": spark(item, total),
        "verdict": verdict(view, item),
        "facts": [page_parts.joined([part]) for part in cards.extras(item)],
        "notes": [text.clean(value, limit=1024) for value in said if value],
        "processes": None if item.processes is None else len(item.processes),
    }


def verdict(view: View, item: LiveDevice) -> list[str]:
    """Return what its badge does not say: what exactly, how fast, until when, by whom."""
    if not view.trend:
        return []
    instead = device_facts.judged_instead(item, view.devices)
    if item.finding is None and instead:
        return [instead]
    first, *others = (page_parts.joined([part]) for part in cards.judgement(item, item.finding))
    beside = badges.device(item)
    texts = [beside.rest if beside.judged else first, *others]
    return [text.clean(value, limit=1024) for value in texts if value]


def badge(of: Badge) -> dict[str, str]:
    """Return a verdict at a glance."""
    return {
        "kind": of.kind,
        "mark": LOOKS[of.kind].mark,
        "word": text.clean(of.word),
        "words": text.clean(of.words, limit=1024),
        "rest": text.clean(of.rest, limit=1024),
    }


def spark(item: LiveDevice, total: int | None) -> list[float | None]:
    """Return the last values of a device, 0-1 of the scale they are drawn on; None is a gap."""
    known = [value for value in item.recent_bytes if value is not None]
    if len(known) < 2:
        return []
    low, high = cards.spark_scale(known, total)
    scale = (high - low) or 1.0
    return [None if v is None else round((v - low) / scale, 3) for v in item.recent_bytes]


# ---- processes ----------------------------------------------------------------------------------


def address(item: LiveDevice, one: LiveProcess) -> str:
    """Return where a process is found on the page: device, pid and when it began."""
    began_s = one.info.key.started_at_s
    began = "-" if began_s is None else str(round(began_s * 1000))
    return f"{text.clean(item.device.uid)}/{one.info.key.pid}/{began}"


def ordered(items: Iterable[LiveDevice]) -> list[Entry]:
    """Return processes, those that grow fastest first, then by what they hold: as `top` has it."""
    pairs = [(item, process) for item in items for process in item.processes or ()]
    return sorted(pairs, key=lambda pair: process_facts.place(*pair))


def _row(item: LiveDevice, one: LiveProcess) -> dict[str, Any]:
    rate, full = pace(one)
    return {
        "key": address(item, one),
        "gpu": text.clean(item.device.label),
        "who": text.clean(verdict_text.who(one.info)),
        "runs": text.clean(process_facts.runs(one.info)),
        "held": units.size(one.used_bytes),
        "rate": rate,
        "full": full,
        "badge": badge(badges.process(one)),
        "host": text.clean(process_facts.host_growth(one)),
    }


def pace(item: LiveProcess) -> tuple[str, str]:
    """Return how fast a process grows and until when; "" where it does not."""
    finding = item.finding
    if finding is None or finding.pattern not in LEAK_PATTERNS:
        return "", ""
    past = verdict_text.stopped(finding)
    if past:
        return past, ""
    return verdict_text.growth(finding.rate_bytes_per_s), verdict_text.eta(finding.eta) if is_leak(
        finding
    ) else ""


# ---- alerts and memory that is held -------------------------------------------------------------


def alerts(view: View) -> list[dict[str, Any]]:
    """Return the strip of what is open, the worst first."""
    silent = silent_until(view)
    return [_alert(alert, view, silent) for alert in alert_order.shown(view.alerts)]


def _alert(alert: Alert, view: View, silent: Mapping[str, str]) -> dict[str, Any]:
    begin, title, *rest = status.alert_line(alert, view)
    return {
        "id": alert.code,
        "key": text.clean(alert.key),
        "badge": badge(badges.alert(alert)),
        "when": page_parts.joined([begin]).rstrip(":"),
        "title": page_parts.joined([title]),
        "line": page_parts.joined(rest),
        "silent": silent.get(alert.key, ""),
    }
