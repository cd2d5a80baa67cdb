"""One process: who it is, what is judged of it and why, what it did before."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from gpuwatchd.analysis import program_key
from gpuwatchd.cli import (
    badges,
    cost_entries,
    current_state,
    incidents,
    process_facts,
    reasoning,
    subjects,
    verdict_text,
)
from gpuwatchd.cli.verbs import cost
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.web.pages import alerts, find, foreseen, lines, overview
from gpuwatchd.web.pages.head import head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.cli.current_state import View
    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.cli.incidents import Found
    from gpuwatchd.core.model import Device, ProcessInfo
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.profiles import Run

_LINE = 1024
_MOST_RUNS = 20
_MOST_ALERTS = 20
_COST_S = 30 * 86_400.0
"""How far back costs are counted, as `cost` does."""


def process(flags: Globals, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what is known of one process now; of one that has ended, what is recorded."""
    view = current_state.see(flags)
    items = [one for one in view.devices if text.clean(one.device.uid) == query.get("gpu")]
    found = find.process(items[0], query) if items else None
    if found is None:
        return _over(flags, view, query)
    item = items[0]
    shown = badges.process(found)
    subject = None if found.finding is None else found.finding.subject
    mine = [
        text.clean(one.key)
        for one in view.alerts
        if one.subject.process == found.info.key and one.subject.device_uid == item.device.uid
    ]
    return {
        "page": head(flags, view),
        "device": {"uid": text.clean(item.device.uid), "label": text.clean(item.device.label)},
        "over": "",
        "who": text.clean(verdict_text.who(found.info)),
        "badge": overview.badge(shown),
        "held": units.size(found.used_bytes),
        "pace": [one for one in overview.pace(found) if one],
        "runs": text.clean(process_facts.runs(found.info)),
        "facts": _facts(found, view),
        "foreseen": [] if subject is None else foreseen.subjects(item, whole=False, only=found),
        "alerts": [one for one in overview.alerts(view) if one["key"] in mine],
    }


def _over(flags: Globals, view: View, query: Mapping[str, str]) -> dict[str, Any]:
    history = find.history()
    with nullcontext() if history is None else closing(history):
        info, device = find.ended(history, query), find.on(history, query)
    label = "a GPU that is not here" if device is None else device.label
    return {
        "page": head(flags, view),
        "device": {"uid": query.get("gpu", ""), "label": text.clean(label)},
        "over": "It is not on this GPU any more; this is what is recorded of it.",
        "who": text.clean(verdict_text.who(info)),
        "badge": None,
        "held": "",
        "pace": [],
        "runs": text.clean(process_facts.runs(info)),
        "facts": _identity(info, view.taken_at_s),
        "foreseen": [],
        "alerts": [],
    }


def _facts(found: LiveProcess, view: View) -> list[str]:
    said = [one for one, _ in process_facts.wide(found, now_s=view.taken_at_s)]
    said += [verdict_text.known(found.history), process_facts.host_growth(found)]
    return [text.clean(one, limit=_LINE) for one in said if one]


def _identity(info: ProcessInfo, now_s: float) -> list[str]:
    began_s = info.key.started_at_s
    began = "" if began_s is None else f"since {units.clock(began_s, now_s=now_s)}"
    said = [*process_facts.where(info), began]
    return [text.clean(one, limit=_LINE) for one in said if one]


# ---- what takes longer --------------------------------------------------------------------------


def evidence(flags: Globals, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the whole reasoning on a process, and its earlier runs; as `explain` tells it."""
    view = subjects.judged_view(flags)
    item = find.device(view, query)
    found = find.process(item, query)
    if found is None:
        raise GpuwatchdError(
            "it has ended", hint="gpuwatchctl history --pid PID", page="errors#no-such-process"
        )
    case, warnings = reasoning.case_about(flags, view, subjects.of_process(view, item, found))
    told = reasoning.as_json(case, reasoning.sections(case), reasoning.steps(case))
    mine = _alerts(found)
    now_s = time.time()
    return {
        "page": head(flags, view),
        "sections": told["sections"],
        "next_steps": told["next_steps"],
        "missing": [text.clean(one, limit=_LINE) for _, one in warnings],
        "runs": _runs(found, item, view.taken_at_s),
        "cost": _cost(flags, {one.key for one in mine.alerts}, now_s),
        "past": [
            alerts.row(one, mine, now_s)
            for one in mine.alerts[:_MOST_ALERTS]
            if one.state not in incidents.OPEN
        ],
    }


def _alerts(found: LiveProcess) -> Found:
    """Return the alerts of a process, the newest first; none where nothing is recorded."""
    try:
        known = incidents.gather(0.0, only_open=False)
    except GpuwatchdError:
        return incidents.Found()
    known.alerts = [one for one in known.alerts if one.subject.process == found.info.key]
    return known


def _cost(flags: Globals, keys: set[str], now_s: float) -> list[str]:
    """Return what a process has cost, and may cost yet; [] where nobody was ever told of it."""
    if not keys:
        return []
    try:
        bill = cost_entries.gather(flags, now_s - _COST_S)
    except GpuwatchdError:
        return []
    bill.entries = [one for one in bill.entries if one.key in keys]
    out = lines.Lines(flags)
    cost.incidents(out, bill)
    return out.texts()


def _runs(found: LiveProcess, item: LiveDevice, now_s: float) -> list[list[str]]:
    """Return the earlier runs of the same program, newest first."""
    key = program_key.key_on(found.info.program, item.device)
    history = find.history()
    if key is None or history is None:
        return []
    with closing(history):
        runs = [one for one in history.runs(key) if one.process != found.info.key]
    return [_run(one, item.device, now_s) for one in runs[::-1][:_MOST_RUNS]]


def _run(one: Run, device: Device, now_s: float) -> list[str]:
    did = one.profile
    end = "ended near the limit" if did.near_limit else ""
    said = f"said to be {'normal' if did.word == 'normal' else 'a leak'}" if did.word else ""
    alerted = "was told of" if did.alerted else ""
    elsewhere = "" if one.device_uid == device.uid else "on another GPU"
    return [
        units.clock(one.begun_at_s, now_s=now_s),
        units.duration(did.run_s),
        units.size(did.base_bytes),
        units.size(did.top_bytes),
        lines.joined([end, said, alerted, elsewhere]) or "-",
    ]
