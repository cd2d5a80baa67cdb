"""Names that are not words of the field: what to say instead, and where they still stand.

Looked at: the last part of a module's or package's name, classes, public functions and methods.
A verb of the command line keeps its name, and so does what it is written in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shape.tree import Module, Tree

ANYWHERE = {
    "announce": "notify",
    "announced": "notified",
    "bearer": "(goes away with State)",
    "blamed": "with_attribution",
    "brim": "limit_reached",
    "bygone": "resolved",
    "charted": "chart_screen",
    "courier": "dispatcher",
    "deeds": "action_events",
    "dresser": "message builder",
    "dressing": "message builder",
    "drawn": "report_charts",
    "estate": "restored",
    "farewell": "final_write",
    "fate": "later outcome",
    "glance": "process_probe",
    "glimpse": "snapshot",
    "happenings": "event log",
    "herald": "alert notifier",
    "hindsight": "later_outcome",
    "hush": "suppression",
    "keeping": "history writer",
    "knowledge": "run baselines",
    "losses": "undelivered_alerts",
    "memo": "track baseline",
    "norms": "idle_levels",
    "occupied": "occupancy",
    "owing": "pending_resolved",
    "plotted": "chart_selection",
    "pressed": "action handler",
    "room": "headroom",
    "shelf": "profile store",
    "speaker": "action reply",
    "spoken": "text_description",
    "stints": "intervals",
    "tenure": "coverage",
    "unheard": "undelivered_alerts",
    "ailing": "device_health",
    "vigil": "persistence_check",
    "wish": "request body",
    "wishes": "request bodies",
}
"""Word -> what to say instead; not allowed as any whole word of a name."""
ALONE = {
    "came": "kind",
    "found": "the thing: alerts, rows",
    "full": "limit_reached",
    "health": "device_health",
    "known": "the thing: alerts, rows",
    "lane": "channel worker",
    "letters": "fallbacks",
    "letting go": "driver_release",
    "look": "refresh, current_state",
    "marks": "meta",
    "mine": "user_filter",
    "over": "resolved",
    "past": "alert_history, history_query, previous_runs",
    "post": "outbox",
    "release": "driver_release",
    "said": "text, message, label",
    "say": "render",
    "seen": "readings, device_state",
    "shapes": "answers",
    "tell": "notify",
    "told": "notified",
    "whose": "locations",
    "zombies": "idle memory",
}
"""Name -> what to say instead; not allowed as a whole name."""
WITHIN = {
    "gpuwatchd.pipeline": {"about": "subject_facts"},
    "gpuwatchd.store": {"word": "user label", "words": "labels"},
    "gpuwatchd.web": {"answers": "responses"},
}
"""Package -> names that are not allowed in it, as ``ALONE``."""
VERBS = ("gpuwatchd.cli.verbs.release", "gpuwatchd.cli.verbs.zombies")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words(name: str) -> list[str]:
    """Return the words of an identifier, small: ``RunBaselines`` and ``run_baselines``."""
    return [word.lower() for word in _WORD.findall(name)]


def instead(name: str, where: str) -> str | None:
    """Return what to say in place of a name in a module; None when it is allowed."""
    parts = words(name)
    whole = " ".join(parts)
    for package, table in WITHIN.items():
        if f"{where}.".startswith(f"{package}.") and whole in table:
            return table[whole]
    if whole in ALONE:
        return ALONE[whole]
    return next((ANYWHERE[part] for part in parts if part in ANYWHERE), None)


def forbidden(tree: Tree) -> Iterator[tuple[Module, int, str]]:
    """Yield (module, line, "name: what to say instead") of each name that is not allowed."""
    for module in tree.values():
        own = [(1, module.name.rpartition(".")[2])] if module.name not in VERBS else []
        classes = [(node.lineno, node.name) for node in module.classes]
        functions = [(node.lineno, node.name) for node in module.functions]
        for line, name in own + classes + [one for one in functions if one[1][0] != "_"]:
            better = instead(name, module.name)
            if better is not None:
                yield module, line, f"{name}: {better}"
