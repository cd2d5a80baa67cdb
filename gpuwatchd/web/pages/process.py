"""One GPU, and one process: who it is, what is judged of it and why, what it did before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis import program_key
from gpuwatchd.charts import chart_model, text_description
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import explanation as shapes
from gpuwatchd.view.answers import history as chart_shapes
from gpuwatchd.view.answers.base import AsItIs, Sentence, Shape, fill
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import alert_query, charts, cost_entries, current_state, subjects
from gpuwatchd.view.text import badges, cost_text, explanation, status, subject_facts, verdict_text
from gpuwatchd.web.pages import alerts, overview, parts
from gpuwatchd.web.pages.parts import PageAnswer, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Device
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.profiles import Run
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query


SPANS: Final = ("1h", "6h", "24h", "7d", "30d")
POINTS: Final = 400
_NEXT_S: Final = (2.0, 3600.0)


class ChartMark(Shape):
    """Something that happened."""

    when: str
    kind: str
    severity: str | None
    text: Sentence


class DescribedPicture(chart_shapes.PictureShape):
    """A chart, and what it shows in words."""

    sentence: AsItIs


class ChartAnswer(PageAnswer):
    """One chart, what happened on it, and after how long it is worth asking again."""

    picture: DescribedPicture
    zones: tuple[tuple[float, float, str], ...]
    """When local time is how far ahead of UTC, and its name."""
    marks: tuple[ChartMark, ...]
    """The newest first."""
    empty: bool
    notes: tuple[str, ...]
    next_s: float


def picture(query: Query, parameters: Mapping[str, str]) -> ChartAnswer:
    """Return one chart; ``tight`` leaves out the time before the record of the subject begins."""
    view = current_state.load_view(query)
    span = parameters.get("span", "")
    span_s = units.parse_duration(span if span in SPANS else SPANS[0])
    end_s = view.now_s
    asked = charts.Asked(end_s - span_s, end_s, POINTS)
    with parts.history() as history:
        drawn = _picture(view, history, parameters, asked)
        shorter = charts.since_record([drawn], asked) if parameters.get("tight") else asked
        if shorter != asked:
            asked, span_s = shorter, end_s - shorter.begin_s
            drawn = _picture(view, history, parameters, asked)
    least_s, most_s = _NEXT_S
    return ChartAnswer(
        page=frame(view),
        picture=fill(DescribedPicture, drawn, sentence=text_description.sentence(drawn)),
        # A forecast reaches further, at most twice the span again.
        zones=tuple(chart_model.zone_rows(asked.begin_s, end_s + 2 * span_s)),
        marks=tuple(
            fill(ChartMark, mark, when=units.moment(mark.at_s, now_s=end_s))
            for mark in drawn.marks[::-1]
        ),
        empty=drawn.empty,
        notes=tuple(text.clean(note, limit=400) for note in drawn.notes),
        next_s=min(most_s, max(least_s, view.interval_s, span_s / POINTS)),
    )


def _picture(
    view: View, history: Reader | None, parameters: Mapping[str, str], asked: charts.Asked
) -> Picture:
    if "pid" not in parameters:
        return charts.of_device(history, view, parts.device(view, parameters), asked)
    item, process = parts.process(view, parameters)
    if item is not None and process is not None:
        return charts.of_process(history, view, item, process, asked)
    info, device = parts.ended(history, parameters)
    if history is None or device is None:
        raise GpuwatchdError(
            "there is no data of it", hint="gpuwatchctl history", page="errors#nothing-recorded"
        )
    return charts.past_process(history, device, info, asked)


_MOST_RUNS = 20
_MOST_ALERTS = 20


class GpuPage(parts.PageAnswer):
    """Everything about one GPU but its chart."""

    device: overview.DeviceCard
    foreseen: tuple[overview.JudgedSubject, ...]
    facts: tuple[tuple[str, str], ...]
    """Label and words of what is known beside the curve."""
    events: tuple[str, ...]
    alerts: tuple[parts.AlertLine, ...]
    processes: tuple[overview.ProcessRow, ...]
    fitting: int
    count: int


def gpu(query: Query, parameters: Mapping[str, str]) -> GpuPage:
    """Return everything about one GPU but its chart."""
    view = current_state.load_view(query)
    item = parts.device(view, parameters)
    entries = overview.ordered([item])
    rows, fitting = overview.table(entries, parameters)
    return GpuPage(
        page=parts.frame(view),
        device=overview.device(view, item),
        foreseen=overview.subjects(item, whole=True),
        facts=_device_facts(item),
        events=tuple(
            parts.joined(subject_facts.happened(event, now_s=view.taken_at_s))
            for event in item.events[::-1]
        ),
        alerts=parts.open_alerts(view, uid=item.device.uid),
        processes=rows,
        fitting=fitting,
        count=len(entries),
    )


def _device_facts(item: LiveDevice) -> tuple[tuple[str, str], ...]:
    device, reading = item.device, item.reading
    pairs = [
        ("UUID", device.uid),
        ("read by", f"{device.source} {device.pci_bus or ''}".strip()),
        ("on card", device.parent_uid or ""),
        ("memory", subject_facts.memory_means(device)),
        ("hardware", "" if reading is None else ", ".join(status.hardware_state(reading))),
        ("account", "" if item.ledger is None else subject_facts.balance(item.ledger)),
        *(("fault", fault) for fault in item.faults),
    ]
    return tuple((label, text.clean(words, limit=parts.LINE)) for label, words in pairs if words)


class Place(Shape):
    """A GPU."""

    uid: str
    label: str


class ProcessPage(parts.PageAnswer, kw_only=True):
    """What is known of one process now; of one that has ended, what is recorded."""

    device: Place
    over: str = ""
    """That it has ended."""
    who: str
    badge: parts.BadgeMark | None = None
    held: str = ""
    pace: tuple[str, ...] = ()
    runs: str
    facts: tuple[str, ...]
    foreseen: tuple[overview.JudgedSubject, ...] = ()
    alerts: tuple[parts.AlertLine, ...] = ()


def process(query: Query, parameters: Mapping[str, str]) -> ProcessPage:
    """Return what is known of one process."""
    view = current_state.load_view(query)
    item, live = parts.process(view, parameters)
    if item is None or live is None:
        return _over(view, parameters)
    now_s, uid = view.taken_at_s, item.device.uid
    wide = [words for words, _ in subject_facts.wide(live, now_s=now_s)]
    return ProcessPage(
        page=parts.frame(view),
        device=fill(Place, item.device),
        who=text.clean(verdict_text.who(live.info)),
        badge=fill(parts.BadgeMark, badges.process(live)),
        held=units.size(live.used_bytes),
        pace=tuple(words for words in overview.pace(live) if words),
        runs=text.clean(subject_facts.runs(live.info)),
        facts=parts.clean(
            [*wide, verdict_text.baseline_text(live.history), subject_facts.host_growth(live)]
        ),
        foreseen=() if live.finding is None else overview.subjects(item, whole=False, only=live),
        alerts=parts.open_alerts(view, uid=uid, process=live.info.key),
    )


def _over(view: View, parameters: Mapping[str, str]) -> ProcessPage:
    with parts.history() as history:
        info, device = parts.ended(history, parameters)
    label = "a GPU that is not here" if device is None else device.label
    began_s = info.key.started_at_s
    began = "" if began_s is None else f"since {units.clock(began_s, now_s=view.taken_at_s)}"
    return ProcessPage(
        page=parts.frame(view),
        device=Place(uid=parameters.get("gpu", ""), label=text.clean(label)),
        over="It is no longer on this GPU; this is its recorded data.",
        who=text.clean(verdict_text.who(info)),
        runs=text.clean(subject_facts.runs(info)),
        facts=parts.clean([*subject_facts.where(info), began]),
    )


class EvidencePage(parts.PageAnswer):
    """The whole reasoning on a process, and its earlier runs; as `explain` tells it."""

    sections: tuple[shapes.Section, ...]
    next_steps: tuple[shapes.NextStep, ...]
    missing: tuple[str, ...]
    runs: tuple[tuple[str, ...], ...]
    """Of the same program, the newest first."""
    cost: tuple[str, ...]
    """What it has cost, and may cost yet; nothing where it had no alert."""
    past: tuple[alerts.AlertRow, ...]


def evidence(query: Query, parameters: Mapping[str, str]) -> EvidencePage:
    """Return the whole reasoning on a process."""
    view = subjects.judged_view(query)
    item = parts.device(view, parameters)
    _, live = parts.process(view, parameters)
    if live is None:
        raise GpuwatchdError(
            "it has ended", hint="gpuwatchctl history --pid PID", page="errors#no-such-process"
        )
    case, warnings = explanation.case_about(query, view, subjects.of_process(view, item, live))
    whole = shapes.explained(case)
    mine = _alerts(live)
    now_s = view.now_s
    return EvidencePage(
        page=parts.frame(view),
        sections=whole.sections,
        next_steps=whole.next_steps,
        missing=parts.clean(words for _, words in warnings),
        runs=_runs(live, item, view.taken_at_s),
        cost=_cost(query, {alert.key for alert in mine.alerts}, now_s),
        past=tuple(
            alerts.row(alert, mine, now_s)
            for alert in mine.alerts[:_MOST_ALERTS]
            if alert.state not in alert_query.OPEN
        ),
    )


def _alerts(live: LiveProcess) -> Incidents:
    """Return the alerts of a process, the newest first; none where nothing is recorded."""
    try:
        known = alert_query.gather(0.0, only_open=False)
    except GpuwatchdError:
        return alert_query.Incidents()
    known.alerts = [alert for alert in known.alerts if alert.subject.process == live.info.key]
    return known


def _cost(query: Query, keys: set[str], now_s: float) -> tuple[str, ...]:
    bill, out = cost_entries.of_alerts(query, keys, now_s), Page()
    if bill is None:
        return ()
    cost_text.incidents(out, bill)
    return tuple(words for _, words in parts.lines(out))


def _runs(live: LiveProcess, item: LiveDevice, now_s: float) -> tuple[tuple[str, ...], ...]:
    key = program_key.key_on(live.info.program, item.device)
    with parts.history() as history:
        known = [] if key is None or history is None else history.runs(key)
    runs = [run for run in known if run.process != live.info.key]
    return tuple(_run(run, item.device, now_s) for run in runs[::-1][:_MOST_RUNS])


def _run(run: Run, device: Device, now_s: float) -> tuple[str, ...]:
    did = run.profile
    remarks = (
        "ended near the limit" if did.near_limit else "",
        f"marked as {'normal' if did.word == 'normal' else 'a leak'}" if did.word else "",
        "had an alert" if did.alerted else "",
        "" if run.device_uid == device.uid else "on another GPU",
    )
    return (
        units.clock(run.begun_at_s, now_s=now_s),
        units.duration(did.run_s),
        units.size(did.base_bytes),
        units.size(did.top_bytes),
        parts.joined(remarks) or "-",
    )
