"""One process: who it is, what is judged of it and why, what it did before."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from gpuwatchd.analysis import program_key
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers.explanation import explained
from gpuwatchd.view.queries import cost_entries, current_state, incidents, subjects
from gpuwatchd.view.text import (
    badges,
    cards,
    device_facts,
    explanation,
    process_facts,
    verdict_text,
)
from gpuwatchd.view.text import cost_table as cost
from gpuwatchd.web.pages import alerts, lookup, overview, page_parts, predict
from gpuwatchd.web.pages.page_parts import head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Device, ProcessInfo
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.profiles import Run
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.queries.incidents import Incidents
    from gpuwatchd.view.query import Query

# One GPU: its numbers, what happened to it, who is on it.


def gpu(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return everything about one GPU but its chart."""
    view = current_state.load_view(flags)
    item = lookup.device(view, query)
    uid = item.device.uid
    alerts = [alert for alert in view.alerts if alert.subject.device_uid == uid]
    mine = {text.clean(alert.key) for alert in alerts}
    return {
        "page": head(view),
        "device": overview.device(view, item),
        "foreseen": predict.subjects(item, whole=True),
        "facts": _device_rows(item),
        "events": [
            page_parts.joined(device_facts.happened(event, now_s=view.taken_at_s))
            for event in item.events[::-1]
        ],
        "alerts": [alert for alert in overview.alerts(view) if alert["key"] in mine],
        **overview.table(overview.ordered([item]), query),
    }


def _device_rows(item: LiveDevice) -> list[list[str]]:
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


_LINE = 1024
_MOST_RUNS = 20
_MOST_ALERTS = 20


def process(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what is known of one process now; of one that has ended, what is recorded."""
    view = current_state.load_view(flags)
    items = [device for device in view.devices if text.clean(device.device.uid) == query.get("gpu")]
    found = lookup.process(items[0], query) if items else None
    if found is None:
        return _over(view, query)
    item = items[0]
    badge = badges.process(found)
    subject = None if found.finding is None else found.finding.subject
    mine = [
        text.clean(alert.key)
        for alert in view.alerts
        if alert.subject.process == found.info.key and alert.subject.device_uid == item.device.uid
    ]
    return {
        "page": head(view),
        "device": {"uid": text.clean(item.device.uid), "label": text.clean(item.device.label)},
        "over": "",
        "who": text.clean(verdict_text.who(found.info)),
        "badge": overview.badge(badge),
        "held": units.size(found.used_bytes),
        "pace": [value for value in overview.pace(found) if value],
        "runs": text.clean(process_facts.runs(found.info)),
        "facts": _facts(found, view),
        "foreseen": [] if subject is None else predict.subjects(item, whole=False, only=found),
        "alerts": [alert for alert in overview.alerts(view) if alert["key"] in mine],
    }


def _over(view: View, query: Mapping[str, str]) -> dict[str, Any]:
    history = lookup.history()
    with nullcontext() if history is None else closing(history):
        info, device = lookup.ended(history, query), lookup.on(history, query)
    label = "a GPU that is not here" if device is None else device.label
    return {
        "page": head(view),
        "device": {"uid": query.get("gpu", ""), "label": text.clean(label)},
        "over": "It is no longer on this GPU; this is its recorded data.",
        "who": text.clean(verdict_text.who(info)),
        "badge": None,
        "held": "",
        "pace": [],
        "runs": text.clean(process_facts.runs(info)),
        "facts": _identity(info, view.taken_at_s),
        "foreseen": [],
        "alerts": [],
    }


def _facts(item: LiveProcess, view: View) -> list[str]:
    texts = [value for value, _ in process_facts.wide(item, now_s=view.taken_at_s)]
    texts += [verdict_text.baseline_text(item.history), process_facts.host_growth(item)]
    return [text.clean(value, limit=_LINE) for value in texts if value]


def _identity(info: ProcessInfo, now_s: float) -> list[str]:
    began_s = info.key.started_at_s
    began = "" if began_s is None else f"since {units.clock(began_s, now_s=now_s)}"
    texts = [*process_facts.where(info), began]
    return [text.clean(value, limit=_LINE) for value in texts if value]


# ---- what takes longer --------------------------------------------------------------------------


def evidence(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the whole reasoning on a process, and its earlier runs; as `explain` tells it."""
    view = subjects.judged_view(flags)
    item = lookup.device(view, query)
    found = lookup.process(item, query)
    if found is None:
        raise GpuwatchdError(
            "it has ended", hint="gpuwatchctl history --pid PID", page="errors#no-such-process"
        )
    case, warnings = explanation.case_about(flags, view, subjects.of_process(view, item, found))
    told = explained(case, explanation.sections(case), explanation.steps(case))
    mine = _alerts(found)
    now_s = time.time()
    return {
        "page": head(view),
        "sections": told.sections,
        "next_steps": told.next_steps,
        "missing": [text.clean(value, limit=_LINE) for _, value in warnings],
        "runs": _runs(found, item, view.taken_at_s),
        "cost": _cost(flags, {alert.key for alert in mine.alerts}, now_s),
        "past": [
            alerts.row(alert, mine, now_s)
            for alert in mine.alerts[:_MOST_ALERTS]
            if alert.state not in incidents.OPEN
        ],
    }


def _alerts(item: LiveProcess) -> Incidents:
    """Return the alerts of a process, the newest first; none where nothing is recorded."""
    try:
        known = incidents.gather(0.0, only_open=False)
    except GpuwatchdError:
        return incidents.Incidents()
    known.alerts = [alert for alert in known.alerts if alert.subject.process == item.info.key]
    return known


def _cost(flags: Query, keys: set[str], now_s: float) -> list[str]:
    """Return what a process has cost, and may cost yet; [] where nobody was ever told of it."""
    if not keys:
        return []
    try:
        bill = cost_entries.gather(flags, now_s - cost_entries.PERIOD_S)
    except GpuwatchdError:
        return []
    bill.entries = [entry for entry in bill.entries if entry.key in keys]
    out = page_parts.Lines()
    cost.incidents(out, bill)
    return out.texts()


def _runs(found: LiveProcess, item: LiveDevice, now_s: float) -> list[list[str]]:
    """Return the earlier runs of the same program, newest first."""
    key = program_key.key_on(found.info.program, item.device)
    history = lookup.history()
    if key is None or history is None:
        return []
    with closing(history):
        runs = [run for run in history.runs(key) if run.process != found.info.key]
    return [_run(run, item.device, now_s) for run in runs[::-1][:_MOST_RUNS]]


def _run(run: Run, device: Device, now_s: float) -> list[str]:
    did = run.profile
    end = "ended near the limit" if did.near_limit else ""
    value = f"marked as {'normal' if did.word == 'normal' else 'a leak'}" if did.word else ""
    alerted = "had an alert" if did.alerted else ""
    elsewhere = "" if run.device_uid == device.uid else "on another GPU"
    return [
        units.clock(run.begun_at_s, now_s=now_s),
        units.duration(did.run_s),
        units.size(did.base_bytes),
        units.size(did.top_bytes),
        page_parts.joined([end, value, alerted, elsewhere]) or "-",
    ]
