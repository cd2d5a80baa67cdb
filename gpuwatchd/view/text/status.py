"""The screen of ``status``: a few lines per GPU, then what is open and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.design import LOOKS
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.core.model.readings import FOR_GOOD_S
from gpuwatchd.view import blocks
from gpuwatchd.view.blocks import width_of
from gpuwatchd.view.queries import current_state, state_location
from gpuwatchd.view.text import (
    badges,
    delivery_text,
    headline,
    subject_facts,
    verdict_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import (
        Alert,
        DeviceReading,
        Finding,
        ServedModel,
        ServerReading,
        Subject,
    )
    from gpuwatchd.store.live import KnownRuns, LiveDevice, LiveProcess
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.text.headline import Standing


SHORT_FROM = 4
"""From so many devices on each has one line."""
_INDENT = "       "
_LEAST_NAME = 8
_ANY_WIDTH = 10_000
_BAR_CELLS = 10
_SPARK_POINTS = (32, 16, 8)
_SPARK_SPAN = 0.1
_LARGEST = 3
_EVENTS = 4


def bar(used: float | None, total: float | None, cells: int, *, ascii_only: bool) -> str:
    """Return a bar of the used share; "" when it is unknown.

    Examples
    --------
    >>> bar(5, 10, 4, ascii_only=True)
    '[##--]'
    """
    if used is None or not total:
        return ""
    full = min(cells, max(0, round(used / total * cells)))
    if ascii_only:
        return f"[{'#' * full}{'-' * (cells - full)}]"
    return "█" * full + "░" * (cells - full)


def card(
    out: Page, view: View, item: LiveDevice, *, whole: bool, verbose: bool, wide: bool = False
) -> None:
    """Write what is known of one device; ``wide`` leaves nothing out."""
    reading = item.reading
    used, total = item.used_bytes, item.total_bytes
    first: list[Part] = [
        (
            blocks.fit(item.device.name, 28, out.safe("…")) if out.terminal else item.device.name,
            "bold",
        )
    ]
    text = bar(used, total, _BAR_CELLS, ascii_only=out.ascii)
    if text:
        first.append(text)
    first.append(f"{amount(used)}/{units.size(total)}{share_of(used, total)}")
    note = subject_facts.memory_note(item.device)
    if note:
        first.append((note, "dim"))
    taken = sum(width_of(p if isinstance(p, str) else p[0]) + 2 for p in first)
    marks = _spark(item, total, room=out.width - len(_INDENT) - taken, ascii_only=out.ascii)
    if marks:
        first.append((marks, "cyan"))
    if verbose and reading is not None:
        first += extras(item)
    out.flow(first, first=f"{item.device.label:<5}  ", rest=_INDENT)
    state = subject_facts.state(item, now_s=view.taken_at_s, released_until_s=view.released_until_s)
    if state:
        out.flow(state, first=_INDENT, rest=_INDENT)
    broken = subject_facts.broken(item, now_s=view.taken_at_s) if not wide else []
    if broken and _readable(item):
        out.flow(broken, first=_INDENT, rest=_INDENT)
    _verdict(out, view, item, whole=whole)
    if wide:
        _hardware(out, view, item)
    _processes(out, item, whole=whole, verbose=verbose, wide_at_s=view.taken_at_s if wide else None)
    rest(out, view, item, indent=_INDENT + "  ")
    if verbose:
        for fault in item.faults:
            out.prose(f"fault: {fault}", "yellow", first=_INDENT, rest=_INDENT + "  ")


def rest(out: Page, view: View, item: LiveDevice, *, indent: str) -> None:
    """Write what other users hold, where only some users' processes are shown."""
    if line := subject_facts.others(view, item):
        out.prose(line, "dim", first=indent, rest=indent + "  ")


def _verdict(out: Page, view: View, item: LiveDevice, *, whole: bool) -> None:
    if not view.trend or not whole:
        return
    instead = subject_facts.judged_instead(item, view.devices)
    if item.finding is None and instead:
        out.flow([(instead, "dim")], first=_INDENT)
    elif _readable(item) or (item.finding is not None and item.finding.tier != "none"):
        out.flow(judgement(item, item.finding), first=_INDENT, rest=_INDENT)


def _readable(item: LiveDevice) -> bool:
    return item.reading is not None and item.reading.state == "ok"


def _hardware(out: Page, view: View, item: LiveDevice) -> None:
    """Write what ``--wide`` adds to a device."""
    reading, device = item.reading, item.device
    facts = [f"{device.source} {device.pci_bus or ''}".strip(), device.uid]
    if device.parent_uid is not None:
        facts.append(f"on card {device.parent_uid}")
    if reading is not None:
        facts += hardware_state(reading)
    out.flow([(fact, "dim") for fact in facts], first=_INDENT, rest=_INDENT)
    means = subject_facts.memory_means(device)
    if means:
        out.prose(means, "dim", first=_INDENT, rest=_INDENT)
    if item.ledger is not None and item.ledger.state != "none":
        out.prose(subject_facts.balance(item.ledger), "dim", first=_INDENT, rest=_INDENT)
    for event in item.events[-_EVENTS:]:
        out.flow(
            subject_facts.happened(event, now_s=view.taken_at_s),
            first=_INDENT,
            rest=_INDENT + "  ",
            whole=True,
        )


def hardware_state(reading: DeviceReading) -> list[str]:
    """Return what the hardware says of itself beside its memory."""
    facts = [] if reading.memory_api is None else [f"memory by {reading.memory_api}"]
    if reading.throttle is not None:
        facts.append(
            f"clocks held by {', '.join(reading.throttle)}" if reading.throttle else "clocks free"
        )
    if reading.ecc_errors is not None:
        facts.append(f"ECC errors: {reading.ecc_errors}")
    if reading.retired_pages:
        facts.append(f"retired pages: {reading.retired_pages}")
    return facts


def amount(used: int | None) -> str:
    """Return what goes before "/80.0 GiB"."""
    if used is None:
        return "?"
    number, unit = units.size_parts(used)
    return number if unit == "GiB" else f"{number} {unit}"


def share_of(used: int | None, total: int | None) -> str:
    """Return the used share with the gap before it; "" where it is unknown."""
    return f"  {units.percent(used / total)}" if used is not None and total else ""


def _spark(item: LiveDevice, total: int | None, *, room: int, ascii_only: bool) -> str:
    values = list(item.recent_bytes)
    known = [value for value in values if value is not None]
    points = next((n for n in _SPARK_POINTS if n <= room), 0)
    if len(known) < 2 or not points:
        return ""
    every = -(-len(values) // points)
    shown: list[float | None] = list(values[::-1][::every][::-1])  # the newest point stays
    low, high = spark_scale(known, total)
    return units.spark(shown, low=low, high=high, ascii_only=ascii_only)


def spark_scale(known: Sequence[float], total: float | None) -> tuple[float, float]:
    """Return from where to where a sparkline goes: what a pool breathes is no mountain.

    The scale spans at least a tenth of the ``total`` that the device has; bytes.

    Examples
    --------
    >>> spark_scale([70, 72], 100)
    (66.0, 76.0)
    >>> spark_scale([10, 60], 100)
    (10.0, 60.0)
    """
    low, high = float(min(known)), float(max(known))
    least = _SPARK_SPAN * (total or high or 1)
    if high - low >= least:
        return low, high
    low = max(0.0, (low + high - least) / 2)
    return low, low + least


def extras(item: LiveDevice) -> list[Part]:
    """Return what the device does, how hot it is, and what it draws, as far as that is known."""
    reading = item.reading
    if reading is None:
        return []
    facts = (
        ("util", reading.util_pct, " %"),
        ("", reading.temp_c, " °C"),
        ("", reading.power_w, " W"),
    )
    return [f"{name} {value:.0f}{unit}".strip() for name, value, unit in facts if value is not None]


def judgement(item: LiveDevice, finding: Finding | None) -> list[Part]:
    """Return the verdict on a device, how fast it grows, until when, and by whom."""
    parts: list[Part] = [verdict_text.verdict(finding, samples=item.samples)]
    if finding is None or finding.pattern not in LEAK_PATTERNS | {"spike"}:
        return parts
    if finding.rate_bytes_per_s is not None or is_leak(finding):
        parts += verdict_text.pace(finding)
    if is_leak(finding):
        by = suspect(item, finding)
        if by:
            parts.append(f"by {by}")
    return parts


def suspect(item: LiveDevice, finding: Finding) -> str:
    """Return whose growth it is: the judged process, else the one that explains most of it."""
    if finding.subject.unattributed:
        return "memory that no process owns"
    blame = headline.chief(finding)
    info = headline.culprit(item, finding)
    key = finding.subject.process if blame is None else blame.process
    if info is not None:
        named = verdict_text.who(info) + (f" ({info.framework})" if info.framework else "")
    elif key is not None:
        named = f"pid {key.pid}"
    else:
        named = blame.name if blame is not None else ""
    return f"{named}, {units.percent(blame.share)}" if blame is not None else named


def _processes(
    out: Page, item: LiveDevice, *, whole: bool, verbose: bool, wide_at_s: float | None
) -> None:
    rows = item.processes or ()
    inner = _INDENT + "  "
    unknown = subject_facts.processes(item)
    if unknown:
        out.prose(unknown, "yellow", first=_INDENT, rest=inner)
    ordered = sorted(rows, key=lambda p: -(p.used_bytes or 0))
    if whole and not verbose:
        ordered = [
            p
            for p in ordered
            if is_leak(p.finding) or is_leak(p.host_finding) or p in ordered[:_LARGEST]
        ]
    subject = item.finding.subject if whole and item.finding is not None else None
    for process in ordered:
        parts = _process(item, process, in_full=not whole, subject=subject)
        out.flow(parts, first=inner, rest=inner + "  ")
        if wide_at_s is not None:
            more = subject_facts.wide(process, now_s=wide_at_s)
            if more:
                out.flow(more, first=inner + "  ", rest=inner + "  ", whole=True)
    if len(rows) > len(ordered):
        out.flow([(f"and {len(rows) - len(ordered)} more (-v)", "dim")], first=inner)
    rest = subject_facts.unowned(item) if whole else ""
    if rest:
        out.flow([(rest, "yellow")], first=inner, rest=inner + "  ")
    elif verbose and not (wide_at_s and item.ledger) and item.unattributed_bytes is not None:
        out.flow([(f"unattributed {units.size(item.unattributed_bytes)}", "dim")], first=inner)


def _beside(process: LiveProcess) -> KnownRuns | None:
    """Return what is known of its program; "rank 0 of 4" has told already of its siblings."""
    history = process.history
    if history is None or process.info.world is None:
        return history
    return msgspec.structs.replace(history, siblings=0)


def _process(
    item: LiveDevice, process: LiveProcess, *, in_full: bool, subject: Subject | None
) -> list[Part]:
    """Return the line of a process; the verdict on ``subject`` is its device's, just above."""
    size, limit = units.size(process.used_bytes), subject_facts.binding(item, process)
    most = "" if limit is None else f" of {units.size(limit.hard_bytes)}"
    parts: list[Part] = [verdict_text.who(process.info), f"{size}{most}"]
    if limit is not None:
        parts.append((subject_facts.limit_words(limit), "dim"))
    parts.append((subject_facts.runs(process.info), "dim"))
    finding = process.finding
    if finding is not None and finding.subject != subject and (in_full or is_leak(finding)):
        parts.append(verdict_text.verdict(finding))
        if in_full and finding.pattern in LEAK_PATTERNS:
            parts += verdict_text.pace(finding)
    if finding is not None and finding.pattern in LEAK_PATTERNS:
        parts.append((verdict_text.baseline_text(_beside(process)), "dim"))
    parts.append((subject_facts.host_growth(process), "yellow"))
    return parts


_SEVERITY_STYLE = {"critical": "red-bold", "warning": "yellow-bold", "info": ""}


def show(
    out: Page,
    view: View,
    *,
    whole: bool = True,
    verbose: bool = False,
    wide: bool = False,
    every: bool = False,
) -> None:
    """Write the screen; without ``whole`` it is about the processes that are left, all of them.

    ``every`` lists stable devices as well where each has one line.
    """
    places = headline.standings(view.devices, view.alerts)
    if whole:
        _headline(out, view, places)
    _banner(out, view)
    delivery_text.write_deaths(out, view)
    short = whole and len(places) >= SHORT_FROM and not (verbose or wide)
    if short:
        lines(out, view, places, every=every)
    for item in () if short else (place.item for place in places):
        card(out, view, item, whole=whole, verbose=verbose or wide, wide=wide)
    if wide:
        for server in view.servers:
            out.flow(server_line(server, now_s=view.taken_at_s), rest="  ")
    _alerts(out, view, _on_lines(view, places) if short else frozenset())
    delivery_text.silences(out, view)
    holdings(out, view)
    for problem in delivery_text.other_problems(view):
        out.flow([("problem: " + problem, "yellow")], rest="  ")
    delivery_text.write_undelivered(out, view)


def _headline(out: Page, view: View, places: Sequence[Standing]) -> None:
    out.prose(*headline.sentence(view, places), rest="  ")


def lines(out: Page, view: View, places: Sequence[Standing], *, every: bool) -> None:
    """Write one line per device; the stable ones as one where others matter more."""
    shown = [place for place in places if every or not _is_folded(view, place)] or places
    for place in shown:
        _line(out, view, place)
    folded = len(places) - len(shown)
    if folded:
        few = "1 more is" if folded == 1 else f"{folded} more are"
        out.line((f"{few} stable (--all)", "dim"))


def _is_folded(view: View, place: Standing) -> bool:
    item = place.item
    broken = subject_facts.broken(item, now_s=view.taken_at_s)
    if any(one.subject.device_uid == item.device.uid for one in current_state.shown(view.alerts)):
        return False
    return place.badge.kind == "calm" and not broken and not subject_facts.unowned(item)


def _line(out: Page, view: View, place: Standing) -> None:
    """Write one device: who makes it grow, how fast and until when, then how full it is."""
    item, badge, finding = place
    used, total = item.used_bytes, item.total_bytes
    state = subject_facts.state(item, now_s=view.taken_at_s, released_until_s=view.released_until_s)
    leak = finding if not state and is_leak(finding) else None
    style = LOOKS[badge.kind].style
    parts: list[Part] = state or [(badge.words, style)]
    if leak is not None:
        host = ("host memory", "yellow") if leak.subject.host else ""
        parts = [(badge.word, style), host, verdict_text.pace(leak)[0]]
        if leak.eta is not None and not verdict_text.stopped(leak):
            parts.append(f"full in {units.duration(leak.eta.mid_s)}")
    if not state and _readable(item):
        parts += subject_facts.broken(item, now_s=view.taken_at_s)[:1]
        parts.append(("" if leak else subject_facts.unowned(item), "yellow"))
    label = f"{item.device.label:<5}  "
    if leak is not None:
        room = out.width - width_of(label) - _cells(parts) if out.terminal else _ANY_WIDTH
        parts.insert(0, _name(item, leak, room, out.safe("…")))
    full = f"{amount(used)}/{units.size(total)}" if used is not None or total is not None else ""
    for extra in (share_of(used, total).strip(), full, item.device.name):
        if width_of(label) + _cells([*parts, extra]) - 2 <= out.width:
            parts.append(extra)
    if out.terminal:
        out.flow(parts, first=label, rest=_INDENT)
    else:
        shown = [part for part in parts if _cells([part])]
        out.line(label, *[cell for part in shown for cell in (part, "  ")][:-1])


def _cells(parts: Iterable[Part]) -> int:
    """Return the columns that parts take, each with its gap."""
    words = (part if isinstance(part, str) else part[0] for part in parts)
    return sum(width_of(word) + 2 for word in words if word)


def _name(item: LiveDevice, finding: Finding, room: int, mark: str) -> str:
    """Return whose growth it is in ``room`` columns: its script is cut before pid and owner."""
    info = headline.culprit(item, finding)
    if info is None or finding.subject.unattributed:
        return blocks.fit(suspect(item, finding), room, mark)
    whole = verdict_text.who(info)
    if width_of(whole) <= room or not verdict_text.is_named(info):
        return blocks.fit(whole, max(room, _LEAST_NAME), mark)
    flag, script = info.entry_point
    end = whole.removeprefix(info.label)
    name = f"{flag}{script}" if script else info.name
    return f"{blocks.fit(name, max(_LEAST_NAME, room - width_of(end)), mark)}{end}"


def _on_lines(view: View, places: Sequence[Standing]) -> frozenset[str]:
    """Return the keys of alerts of which the line of their device says everything."""
    drawn = {
        (place.finding.subject, place.badge.kind)
        for place in places
        if place.finding is not None and is_leak(place.finding)
        if not subject_facts.state(place.item, now_s=view.taken_at_s)
    }
    return frozenset(
        alert.key
        for alert in view.alerts
        if alert.kind == "leak" and not alert.clear_since_s
        if (alert.subject, badges.raised(alert).kind) in drawn
        if not (alert.held_back or delivery_text.delivery_marks(alert, view))
    )


def brief(out: Page, view: View) -> None:
    """Write in a few lines how things are: what is open, what died, what is wrong."""
    _headline(out, view, headline.standings(view.devices, view.alerts))
    _banner(out, view)
    delivery_text.write_deaths(out, view)
    _alerts(out, view)
    delivery_text.write_undelivered(out, view)


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
    return f"{units.count(count, 'holding')} of idle memory{amount}"


def _banner(out: Page, view: View) -> None:
    for code, sentence in view.warnings:
        if code == state_location.NOTE[0]:
            out.line((sentence, "dim"))
            continue
        style = "red-bold" if code.startswith("daemon") else "yellow"
        out.flow([(f"! {sentence}{age(view, code, now_s=view.now_s)}", style)])


def age(view: View, code: str, *, now_s: float) -> str:
    """Return how old what a daemon saw last is, behind a warning about it; "" behind another."""
    if code not in {"daemon-dead", "daemon-late"}:
        return ""
    return f" {units.duration(view.stale_s)} ago ({units.clock(view.taken_at_s, now_s=now_s)})"


def alert_line(alert: Alert, view: View) -> list[Part]:
    """Return one open alert in a line, with why nobody hears of it."""
    state = alert.state if alert.state != "firing" else alert.severity
    finding = alert.finding
    now_s = view.now_s
    calm = verdict_text.calmed(alert, now_s=now_s)
    band = "" if calm else verdict_text.eta(finding.eta)
    return [
        (
            f"{state} since {verdict_text.since(alert, now_s=now_s)}:",
            _SEVERITY_STYLE[alert.severity],
        ),
        alert.title or alert.key,
        (finding.pattern if calm else verdict_text.shape(finding))
        if alert.kind == "leak"
        else finding.reason,
        (verdict_text.SUSPICION, "dim") if alert.state == "watch" else "",
        calm,
        f"full in {band}" if band else "",
        (f"held: {alert.held_back}", "dim") if alert.held_back else "",
        *delivery_text.delivery_marks(alert, view),
    ]


def _alerts(out: Page, view: View, without: frozenset[str] = frozenset()) -> None:
    alerts = current_state.shown(view.alerts)
    for alert in alerts:
        if alert.key not in without:
            out.flow(alert_line(alert, view), rest="  ")
    if any(alert.state == "watch" and alert.key in without for alert in alerts):
        out.flow([(f"watch: {verdict_text.SUSPICION}", "dim")])
    if alerts:
        out.flow([("gpuwatchctl explain shows why, and what to do", "dim")])


# What serving engines say of themselves, for ``--wide``: models, KV cache, requests.


def server_line(server: ServerReading, *, now_s: float) -> list[Part]:
    """Return one server: what it has loaded and how full its cache is."""
    parts: list[Part] = [(f"{server.kind} {server.url}", "bold")]
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
        kept = model.expires_at_s - now_s > FOR_GOOD_S
        until = "unloaded" if kept else units.clock(model.expires_at_s, now_s=now_s)
        facts.append(f"until {until}")
    return f"{model.name} ({', '.join(facts)})" if facts else model.name
