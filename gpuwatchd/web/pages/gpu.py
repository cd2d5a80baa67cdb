"""One GPU: its numbers, what happened to it, who is on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.cli import cards, current_state, device_facts
from gpuwatchd.core import text
from gpuwatchd.web.pages import find, foreseen, lines, overview
from gpuwatchd.web.pages.head import head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.store.live import LiveDevice


def gpu(flags: Globals, query: Mapping[str, str]) -> dict[str, Any]:
    """Return everything about one GPU but its chart."""
    view = current_state.see(flags)
    item = find.device(view, query)
    uid = item.device.uid
    alerts = [alert for alert in view.alerts if alert.subject.device_uid == uid]
    mine = {text.clean(alert.key) for alert in alerts}
    return {
        "page": head(flags, view),
        "device": overview.device(view, item),
        "foreseen": foreseen.subjects(item, whole=True),
        "facts": _facts(item),
        "events": [
            lines.joined(device_facts.happened(event, now_s=view.taken_at_s))
            for event in item.events[::-1]
        ],
        "alerts": [alert for alert in overview.alerts(view) if alert["key"] in mine],
        **overview.table(overview.ordered([item]), query),
    }


def _facts(item: LiveDevice) -> list[list[str]]:
    """Return label and words of what is known beside the curve."""
    device, reading = item.device, item.reading
    pairs = [
        ("UUID", device.uid),
        ("read by", f"{device.source} {device.pci_bus or ''}".strip()),
        ("on card", device.parent_uid or ""),
        ("memory", device_facts.memory_means(device)),
        ("hardware", "" if reading is None else ", ".join(cards.hardware_state(reading))),
        ("account", "" if item.ledger is None else device_facts.balance(item.ledger)),
        *(("fault", fault) for fault in item.faults),
    ]
    return [[label, text.clean(words, limit=1024)] for label, words in pairs if words]
