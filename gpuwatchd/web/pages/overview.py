"""The overview: a card for each GPU, who grows most, what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text, units
from gpuwatchd.core.design import FLAGS, LEGEND, LOOKS, Kind
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.answers.base import AsItIs, Sentence, Shape, fill, sources
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import current_state, direct_holdings, user_filter
from gpuwatchd.view.queries import subjects as judged
from gpuwatchd.view.text import badges, cost_text, prediction, status, subject_facts, verdict_text
from gpuwatchd.view.text import idle_memory as idle_text
from gpuwatchd.web.pages import parts
from gpuwatchd.web.pages.parts import BadgeMark, PageAnswer, address, frame, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.core.model import Holding, ProcessInfo
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.text.cost_text import Book


class HoldingCard(Shape):
    """Memory that is held without work."""

    key: str
    gpu: str
    badge: BadgeMark
    kind: str
    who: str
    context: Sentence
    process: str | None
    pid: int | None
    """Of a process that this user may ask to end; null for others'."""
    held: str
    since: str
    lasts: str
    hours: str
    cost: str
    evidence: Sentence
    advice: tuple[Sentence, ...]
    FROM = sources(key="id")


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
        openers=tuple(parts.lines(out)),
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
    return fill(
        HoldingCard,
        holding,
        gpu="?" if item is None else text.clean(item.device.label),
        badge=badges.holding(holding),
        who="nobody" if process is None else verdict_text.who(process),
        context="" if process is None else parts.joined(idle_text.context(process)),
        process=addresses[0] if addresses else None,
        pid=process.key.pid if process is not None and _is_own(process, item) else None,
        held=units.size(holding.held_bytes),
        since="?" if since_s is None else units.clock(since_s, now_s=now_s),
        lasts="?" if since_s is None else units.duration(max(0.0, now_s - since_s)),
        hours="?" if hours is None else f"{hours:,.1f}",
        cost=cost_text.money(book, holding.cost_usd),
    )


def _is_own(process: ProcessInfo, item: LiveDevice | None) -> bool:
    return item is not None and not item.device.recorded and process.user == user_filter.user()


_MEANS: Final[dict[Kind, str]] = {
    "critical": "leaks, and it will soon be full; a message was sent",
    "leak": "leaks, with evidence enough for an alert",
    "watch": "grows, not yet proven: shown, not sent",
    "calm": "stable, or it rises and falls as it should",
    "unknown": "no verdict: too little is known, or it rests",
    "trouble": "the GPU cannot be read, or is broken",
    "held": "idle memory",
}
_PARTS: Final = {
    "curve": "each point is a sample, or the mean of many",
    "range": "where one point stands for many: from the least to the most of them",
    "floor": "the level that memory always came back to; a leak raises it",
    "fit": "the fitted growth, from where it started",
    "band": "the memory will be full within this time, nine times in ten, if it continues",
    "limit": "where memory ends",
    "gap": "there is no data for this time, and nothing is drawn over it",
    "now": "the newest sample",
}


class Meaning(Shape):
    """A kind of verdict, and what it means."""

    badge: BadgeMark
    means: str


class Legend(PageAnswer):
    """Every mark with its meaning, and every part of a chart with its name."""

    kinds: tuple[Meaning, ...]
    parts: tuple[tuple[str, str, str], ...]
    marks: tuple[tuple[str, str, str], ...]


def legend(query: Query, _: Mapping[str, str]) -> Legend:
    """Return what the marks, colours and lines mean."""
    return Legend(
        page=frame(current_state.load_view(query)),
        kinds=tuple(
            Meaning(
                badge=BadgeMark(kind=kind, mark=look.mark, word=look.word, words=""),
                means=_MEANS[kind],
            )
            for kind, look in LOOKS.items()
        ),
        parts=tuple((part, words, _PARTS[part]) for part, words in LEGEND.items()),
        marks=tuple((flag.mark, flag.word, flag.colour) for flag in FLAGS.values()),
    )


ROWS: Final = 200
"""More processes than these are sent only to who asks for all."""


class DeviceCard(Shape):
    """One device at a glance."""

    uid: str
    label: str
    name: str
    memory: str
    badge: BadgeMark
    used: str
    percent: str
    share: float | None
    spark: tuple[float | None, ...]
    """Its last values, 0-1 of the scale they are drawn on; None is a gap."""
    verdict: tuple[Sentence, ...]
    """What the badge does not say: what exactly, how fast, until when, by whom."""
    facts: tuple[AsItIs, ...]
    notes: tuple[Sentence, ...]
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
    badge: BadgeMark
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


def device(view: View, item: LiveDevice) -> DeviceCard:
    """Return the card of one device."""
    used, total = item.used_bytes, item.total_bytes
    state = subject_facts.state(item, now_s=view.taken_at_s, released_until_s=view.released_until_s)
    broken = [] if state else subject_facts.broken(item, now_s=view.taken_at_s)
    return fill(
        DeviceCard,
        item.device,
        memory=subject_facts.memory_note(item.device),
        badge=badges.device(item),
        used=f"{status.amount(used)}/{units.size(total)}",
        percent=status.share_of(used, total).strip(),
        share=None if used is None or not total else min(1.0, used / total),
        spark=spark(item, total),
        verdict=_verdict(view, item),
        facts=[parts.joined([part]) for part in status.extras(item)],
        notes=parts.clean(
            (
                parts.joined(state),
                parts.joined(broken),
                subject_facts.processes(item),
                subject_facts.unowned(item),
                subject_facts.others(view, item),
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


def ordered(items: Iterable[LiveDevice]) -> list[tuple[LiveDevice, LiveProcess]]:
    """Return processes, those that grow fastest first, then by what they hold: as `top` has it."""
    pairs = [(item, process) for item in items for process in item.processes or ()]
    return sorted(pairs, key=lambda pair: subject_facts.place(*pair))


def table(
    entries: Sequence[tuple[LiveDevice, LiveProcess]], parameters: Mapping[str, str]
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
        badge=fill(BadgeMark, badges.process(process)),
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


class JudgedSubject(Shape):
    """A judged subject with its figures, labelled as ``predict`` labels them."""

    key: str
    who: str
    badge: BadgeMark
    process: str | None
    reason: str
    facts: tuple[tuple[str, str], ...]


class JudgedDevice(DeviceCard):
    """One GPU, and what is judged on it."""

    subjects: tuple[JudgedSubject, ...]
    none: str
    """What to say where nothing is judged."""


class Predictions(PageAnswer):
    """For each GPU, how fast it grows, how sure that is and when it will be full."""

    devices: tuple[JudgedDevice, ...]


def predictions(query: Query, _: Mapping[str, str]) -> Predictions:
    """Return what is foreseen of each GPU."""
    view = judged.judged_view(query)
    devices = tuple(_device(view, item, whole=not query.user) for item in view.devices)
    return Predictions(page=frame(view), devices=devices)


def _device(view: View, item: LiveDevice, *, whole: bool) -> JudgedDevice:
    instead = subject_facts.judged_instead(item, view.devices)
    return fill(
        JudgedDevice,
        device(view, item),
        subjects=subjects(item, whole=whole),
        none=instead or verdict_text.verdict(None, samples=item.samples)[0],
    )


def subjects(
    item: LiveDevice, *, whole: bool, only: LiveProcess | None = None
) -> tuple[JudgedSubject, ...]:
    """Return each judged subject.

    Parameters
    ----------
    whole
        Whether the device itself is one of them.
    only
        This process alone.
    """
    found = []
    for who, finding, process in prediction.subjects(item, whole=whole):
        if only is not None and (process is None or process.info.key != only.info.key):
            continue
        full = prediction.told_in_full(finding)
        facts = prediction.facts(item, finding, process) if full else []
        found.append(
            JudgedSubject(
                key=finding.subject.id,
                who=joined([who]),
                badge=fill(BadgeMark, badges.badge(finding)),
                process=None if process is None else address(item, process),
                reason="" if full else joined([finding.reason]),
                facts=tuple((label, joined([value])) for label, value in facts),
            )
        )
    return tuple(found)
