"""The overview: a card for each GPU, who grows most, what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text, units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.answers.base import Shape
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.text import badges, status, subject_facts, verdict_text
from gpuwatchd.web.pages import parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query

    Entry = tuple[LiveDevice, LiveProcess]

ROWS: Final = 200
"""More processes than these are sent only to who asks for all."""


class DeviceCard(Shape):
    """One device at a glance."""

    uid: str
    label: str
    name: str
    memory: str
    badge: parts.BadgeMark
    used: str
    percent: str
    share: float | None
    spark: tuple[float | None, ...]
    """Its last values, 0-1 of the scale they are drawn on; None is a gap."""
    verdict: tuple[str, ...]
    """What the badge does not say: what exactly, how fast, until when, by whom."""
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    processes: int | None


class ProcessRow(Shape):
    """One process in the table."""

    key: str
    gpu: str
    who: str
    runs: str
    held: str
    rate: str
    full: str
    badge: parts.BadgeMark
    host: str


class Overview(parts.PageAnswer):
    """Everything at a glance."""

    devices: tuple[DeviceCard, ...]
    alerts: tuple[parts.AlertLine, ...]
    held: str
    processes: tuple[ProcessRow, ...]
    fitting: int
    count: int


def overview(query: Query, parameters: Mapping[str, str]) -> Overview:
    """Return everything at a glance; ``filter`` narrows the processes, ``all`` sends each."""
    view = current_state.load_view(query)
    entries = ordered(view.devices)
    rows, fitting = table(entries, parameters)
    return Overview(
        page=parts.frame(view),
        devices=tuple(device(view, item) for item in view.devices),
        alerts=parts.open_alerts(view),
        held=status.held(view),
        processes=rows,
        fitting=fitting,
        count=len(entries),
    )


# ---- devices


def device(view: View, item: LiveDevice) -> DeviceCard:
    """Return the card of one device."""
    reading = item.reading
    total = reading.total_bytes if reading is not None else None
    total = total if total is not None else item.device.memory_total_bytes
    used = reading.used_bytes if reading is not None else None
    state = subject_facts.state(item, now_s=view.taken_at_s, released_until_s=view.released_until_s)
    broken = [] if state else subject_facts.broken(item, now_s=view.taken_at_s)
    others = view.others.get(item.device.uid)
    return DeviceCard(
        uid=text.clean(item.device.uid),
        label=text.clean(item.device.label),
        name=text.clean(item.device.name),
        memory=subject_facts.memory_note(item.device),
        badge=parts.mark(badges.device(item)),
        used=f"{status.amount(used)}/{units.size(total)}",
        percent=status.share_of(used, total).strip(),
        share=None if used is None or not total else min(1.0, used / total),
        spark=spark(item, total),
        verdict=_verdict(view, item),
        facts=tuple(parts.joined([part]) for part in status.extras(item)),
        notes=parts.clean(
            (
                parts.joined(state),
                parts.joined(broken),
                subject_facts.processes(item),
                subject_facts.unowned(item),
                "" if others is None else others.line(none=not item.processes),
            )
        ),
        processes=None if item.processes is None else len(item.processes),
    )


def _verdict(view: View, item: LiveDevice) -> tuple[str, ...]:
    if not view.trend:
        return ()
    instead = subject_facts.judged_instead(item, view.devices)
    if item.finding is None and instead:
        return (instead,)
    first, *others = (parts.joined([part]) for part in status.judgement(item, item.finding))
    beside = badges.device(item)
    return parts.clean([beside.rest if beside.judged else first, *others])


def spark(item: LiveDevice, total: int | None) -> tuple[float | None, ...]:
    """Return the last values of a device, 0-1 of the scale they are drawn on."""
    known = [value for value in item.recent_bytes if value is not None]
    if len(known) < 2:
        return ()
    low, high = status.spark_scale(known, total)
    scale = (high - low) or 1.0
    return tuple(None if v is None else round((v - low) / scale, 3) for v in item.recent_bytes)


# ---- processes


def ordered(items: Iterable[LiveDevice]) -> list[Entry]:
    """Return processes, those that grow fastest first, then by what they hold: as `top` has it."""
    pairs = [(item, process) for item in items for process in item.processes or ()]
    return sorted(pairs, key=lambda pair: subject_facts.place(*pair))


def table(
    entries: Sequence[Entry], parameters: Mapping[str, str]
) -> tuple[tuple[ProcessRow, ...], int]:
    """Return the rows of processes that are wanted, and how many fit."""
    wish = parameters.get("filter", "")
    fitting = [
        (item, process)
        for item, process in entries
        if subject_facts.matches(item, process, wish, badge=badges.process(process).word)
    ]
    shown = fitting if parameters.get("all") else fitting[:ROWS]
    return tuple(_row(*entry) for entry in shown), len(fitting)


def _row(item: LiveDevice, process: LiveProcess) -> ProcessRow:
    rate, full = pace(process)
    return ProcessRow(
        key=parts.address(item, process),
        gpu=text.clean(item.device.label),
        who=text.clean(verdict_text.who(process.info)),
        runs=text.clean(subject_facts.runs(process.info)),
        held=units.size(process.used_bytes),
        rate=rate,
        full=full,
        badge=parts.mark(badges.process(process)),
        host=text.clean(subject_facts.host_growth(process)),
    )


def pace(process: LiveProcess) -> tuple[str, str]:
    """Return how fast a process grows and until when; "" where it does not."""
    finding = process.finding
    if finding is None or finding.pattern not in LEAK_PATTERNS:
        return "", ""
    past = verdict_text.stopped(finding)
    full = verdict_text.eta(finding.eta) if is_leak(finding) and not past else ""
    return past or verdict_text.growth(finding.rate_bytes_per_s), full
