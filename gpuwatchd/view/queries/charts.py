"""Pictures of devices and processes: the one place where every view gets them from."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gpuwatchd.charts.chart_model import Curve, Mark, Picture
from gpuwatchd.core import text, units
from gpuwatchd.core.design import FLAGS
from gpuwatchd.core.model import Subject, is_leak, limit_of
from gpuwatchd.store import curves, legacy_text
from gpuwatchd.store.tables import SAVED, TO_SAVE, same_process
from gpuwatchd.view.queries import current_state, recorded_chart, state_location
from gpuwatchd.view.text import badges, subject_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.charts.chart_model import AlertStep
    from gpuwatchd.core.design import Kind
    from gpuwatchd.core.model import Alert, Device, Event, Finding, ProcessInfo
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import ActionEvent
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query

_LATE_S = 150.0
"""The newest samples wait in memory for a minute, and a sample of the live state is of now."""
_UNWRITTEN_S = 75.0
"""So long after the last sample that is written the newest one still belongs to it."""
_NOT_YET = "not in the history yet"


class Asked(NamedTuple):
    """What is to be drawn."""

    begin_s: float
    end_s: float
    """Span of the past, epoch seconds; what lies ahead is added by a forecast."""
    points: int = 400
    """At most so many points, whatever the span."""


_MARGIN = 0.02
"""So much of what is drawn lies before the first sample."""
_LEAST_S = 300.0
"""Nothing is drawn of less time, however young a record is."""
_WORTH = 0.1
"""What is empty before the first sample is left out where it is more than this."""


class _Subject(NamedTuple):
    """Who a picture is of, and what is known of it now."""

    id: Subject
    title: str
    kind: Kind
    verdict: str
    finding: Finding | None
    limit_bytes: float | None
    live: tuple[float, int] | None = None
    """(instant, bytes) of the newest look; None where there is none."""
    now_s: float = 0.0
    marks: tuple[Mark, ...] = ()
    """What the live state knows of it."""
    notes: tuple[str, ...] = ()


def of_device(history: Reader | None, view: View, item: LiveDevice, asked: Asked) -> Picture:
    """Return the picture of a device; without a history what the live state has of it."""
    used = item.used_bytes
    badge = badges.device(item)
    finding = item.finding
    if finding is not None and finding.subject.host:
        finding = None
    about = _Subject(
        id=Subject(device_uid=item.device.uid),
        title=text.clean(f"{item.device.label}  {item.device.name}".rstrip()),
        kind=badge.kind,
        verdict=text.clean(badge.words, limit=1024),
        finding=finding,
        limit_bytes=_limit(Subject(device_uid=item.device.uid), finding, used, item),
        live=None if used is None else (view.taken_at_s, used),
        now_s=max(view.taken_at_s, asked.end_s),
    )
    marks = live_marks(view, about.id, item.events)
    few = recorded_chart.sparse(item.recent_bytes, item.recent_step_s, view.taken_at_s)
    if history is None:
        return _picture(about, asked, _within(few, about, asked), curves.NOTHING, marks=marks)
    span = (asked.begin_s, asked.end_s)
    recorded = history.ask(curves.of_device, item.device.uid, span, asked.points)
    marks += device_marks(history, item.device, asked.begin_s, asked.end_s)
    reasons = gap_reasons(history, item.device, asked.begin_s, asked.end_s)
    return _recorded(about, asked, few, recorded, marks=marks, reasons=reasons)


def of_process(
    history: Reader | None, view: View, item: LiveDevice, process: LiveProcess, asked: Asked
) -> Picture:
    """Return the picture of a process that is on a device now."""
    info, used = process.info, process.used_bytes
    subject = Subject(device_uid=item.device.uid, process=info.key)
    badge = badges.process(process)
    about = _Subject(
        id=subject,
        title=_process_title(item.device, info),
        kind=badge.kind,
        verdict=text.clean(badge.words, limit=1024),
        finding=process.finding,
        limit_bytes=_limit(subject, process.finding, used, item),
        live=None if used is None else (view.taken_at_s, used),
        now_s=max(view.taken_at_s, asked.end_s),
    )
    others = subject_facts.why_sooner(item, about.limit_bytes, process)
    note = f"full at {units.size(about.limit_bytes)}: {others}" if others else ""
    about = about._replace(
        marks=tuple(live_marks(view, about.id, ())), notes=(note,) if note else ()
    )
    if history is None:
        marks = [*about.marks, *began_mark(info)]
        return _picture(about, asked, _within(Curve(), about, asked), curves.NOTHING, marks=marks)
    return _of_process(history, item.device, info, about, asked)


def past_process(history: Reader, device: Device, info: ProcessInfo, asked: Asked) -> Picture:
    """Return the picture of a process that has ended, or is not on the device now."""
    # What others held is known only of an alert: what it was judged by, else the card.
    judged = [
        alert.finding.limit_bytes
        for alert in history.alerts(asked.begin_s)
        if alert.subject == Subject(device_uid=device.uid, process=info.key)
        and alert.finding.limit_bytes is not None
    ]
    total = device.memory_total_bytes
    about = _Subject(
        id=Subject(device_uid=device.uid, process=info.key),
        title=_process_title(device, info),
        kind="unknown",
        verdict="has ended",
        finding=None,
        limit_bytes=judged[-1] if judged else None if total is None else float(total),
        now_s=max(state_location.now_s(), asked.end_s),
    )
    return _of_process(history, device, info, about, asked)


def all_devices(query: Query, asked: Asked) -> tuple[list[Picture], View]:
    """Return the pictures of every device that ``--gpu`` lets through, and where they are from.

    Raises
    ------
    GpuwatchdError
        Where there is neither a live state nor a history nor a GPU, or what there is cannot be
        read.
    """
    if not state_location.recorded(state_location.state_dir()):
        view = current_state.load_view(query)
        return [of_device(None, view, item, asked) for item in view.devices], view
    from gpuwatchd.view.queries import history_query as recorded_past  # noqa: PLC0415 - 97 ms: numpy comes with it

    view = current_state.load_view(query, want_trend=True)
    with closing(recorded_past.reader()) as history:
        return [of_device(history, view, item, asked) for item in view.devices], view


def since_record(pictures: Sequence[Picture], asked: Asked) -> Asked:
    """Return what is asked for without the empty time before any of its pictures begins.

    As it is where less than a tenth of it is empty, or nothing is drawn at all.
    """
    # Of a bucket, which may stand for an hour, only its middle is known.
    begun = (
        picture.curve.at_s[0] - picture.curve.width_s for picture in pictures if not picture.empty
    )
    first_s = min(begun, default=None)
    if first_s is None:
        return asked
    begin_s = first_s - _MARGIN * (asked.end_s - first_s)
    begin_s = min(begin_s, asked.end_s - _LEAST_S)
    if begin_s <= asked.begin_s + _WORTH * (asked.end_s - asked.begin_s):
        return asked
    return asked._replace(begin_s=begin_s)


def _of_process(
    history: Reader, device: Device, info: ProcessInfo, about: _Subject, asked: Asked
) -> Picture:
    span = (asked.begin_s, asked.end_s)
    recorded = history.ask(curves.of_process, device.uid, info.key, span, asked.points)
    marks = [*about.marks, *process_marks(history, device, info, asked.begin_s)]
    if about.live is not None:
        marks = [mark for mark in marks if mark.kind != "ended"]
    reasons = gap_reasons(history, device, asked.begin_s, asked.end_s)
    return _recorded(about, asked, Curve(), recorded, marks=marks, reasons=reasons)


def _recorded(
    about: _Subject,
    asked: Asked,
    few: Curve,
    recorded: curves.RecordedCurve,
    *,
    marks: list[Mark],
    reasons: list[Reason],
) -> Picture:
    """Return the picture of what is recorded, on to the newest look.

    The ``few`` points that the live state remembers fill in what is not written yet.
    """
    live = _live(about, asked)
    if live is not None:
        late_s = max(_UNWRITTEN_S, recorded.limit_s)
        late_s += curves.HOUR_S if recorded.level == "hour" else 0.0
        written = len(recorded.holes)
        recorded = recorded_chart.joined(recorded, few, live[0], late_s)
        reasons = [*reasons, *((end_s, None, _NOT_YET) for _, end_s in recorded.holes[written:])]
    drawn = recorded_chart.curve(recorded, live)
    return _picture(about, asked, drawn, recorded, marks=marks, reasons=reasons)


def _picture(
    about: _Subject,
    asked: Asked,
    drawn: Curve,
    recorded: curves.RecordedCurve,
    *,
    marks: list[Mark],
    reasons: list[Reason] | None = None,
) -> Picture:
    missing = recorded_chart.gaps(
        [*recorded.holes, *_tail(about, asked, drawn, recorded)], reasons or ()
    )
    within, left_out = recorded_chart.ordered(marks, asked.begin_s, asked.end_s)
    return Picture(
        key=about.id.id,
        title=about.title,
        kind=about.kind,
        verdict=about.verdict,
        begin_s=asked.begin_s,
        end_s=asked.end_s,
        now_s=about.now_s,
        curve=drawn,
        floor=recorded_chart.floor(drawn),
        limit_bytes=about.limit_bytes,
        forecast=recorded_chart.forecast(about.finding, drawn, about.limit_bytes),
        marks=within,
        gaps=missing,
        notes=recorded_chart.notes(drawn, missing, left_out=left_out) + about.notes,
    )


def _live(about: _Subject, asked: Asked) -> tuple[float, int] | None:
    """Return the newest look where it belongs to the span."""
    if about.live is None or not asked.begin_s <= about.live[0] <= asked.end_s + _LATE_S:
        return None
    return about.live


def _within(curve: Curve, about: _Subject, asked: Asked) -> Curve:
    """Return what the live state has, as far as it is in the span."""
    inside = [n for n, at_s in enumerate(curve.at_s) if at_s >= asked.begin_s]
    while inside and curve.used_bytes[inside[0]] is None:
        del inside[0]
    if not inside:
        return recorded_chart.curve(curves.NOTHING, _live(about, asked))
    used = tuple(curve.used_bytes[n] for n in inside)
    at_s = tuple(curve.at_s[n] for n in inside)
    return Curve(at_s=at_s, used_bytes=used, low_bytes=used, high_bytes=used)


def _tail(
    about: _Subject, asked: Asked, drawn: Curve, recorded: curves.RecordedCurve
) -> Sequence[curves.Span]:
    """Return the time after the last sample of a device, where that is a gap."""
    if about.id.process is not None or not recorded.points or not drawn.at_s:
        return ()
    last_s = max(recorded.points[-1].last_s, drawn.at_s[-1])
    late_s = _LATE_S + (curves.HOUR_S if recorded.level == "hour" else 0.0)
    if _live(about, asked) is not None and last_s >= asked.end_s - late_s:
        return ()
    return [(last_s, asked.end_s)] if asked.end_s - last_s > late_s else ()


def _process_title(device: Device, info: ProcessInfo) -> str:
    return f"{text.clean(verdict_text.who(info))} on {text.clean(device.label)}"


def _limit(
    subject: Subject, finding: Finding | None, held_bytes: float | None, item: LiveDevice
) -> float | None:
    """Return where a subject runs out: one that leaks keeps the limit that it was judged by."""
    judged = finding.limit_bytes if finding and finding.subject == subject else None
    if judged is not None and is_leak(finding):
        return judged
    reading = item.reading
    limit = limit_of(held_bytes, None if reading is None else reading.free_bytes)
    limit = judged if limit is None else limit
    if limit is not None or subject.process is not None:
        return limit
    total = item.device.memory_total_bytes
    if total is None and reading is not None:
        total = reading.total_bytes
    return None if total is None else float(total)


# What happened, as marks of a picture: in the words of ``history --events`` and ``alerts``.

_WHY: Final = {
    "start": "the daemon was not running",
    "boot": "the machine was off",
    "clock-step": "the clock was set",
    "suspend": "the machine was asleep",
}
"""Why nothing is known before a segment."""
_GONE: Final = {
    "gpu-lost": "the GPU was lost",
    "gpu-hung": "the driver did not answer",
    "released": "the GPU was released on request",
}
"""Why nothing is known after an event."""
_MATTERS: Final = 0.05
"""Processes that never held this share of a device are no mark on its picture."""
_MOST_PROCESSES: Final = 12

Reason = tuple[float, float | None, str]
"""Instant, seconds before it that are missing (None: not known), why."""


def live_marks(view: View, subject: Subject, events: Sequence[Event]) -> list[Mark]:
    """Return what the live state knows: open alerts and the newest events of a device.

    The history has them too, but later, or not at all.
    """
    shown = [alert for alert in view.alerts if alert.state in current_state.SHOWN]
    return alert_marks(shown, subject) + [
        _event(event.at_s, event.kind, event.text) for event in events
    ]


def alert_marks(alerts: Iterable[Alert], subject: Subject) -> list[Mark]:
    """Return how far the alerts of a device or of a process got."""
    return [
        mark
        for alert in alerts
        if alert.subject.device_uid == subject.device_uid
        and subject.process in {None, alert.subject.process}
        for mark in _steps(alert)
    ]


def device_marks(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Mark]:
    """Return what is recorded of a device, of time, of its alerts, its jobs and large processes."""
    marks = _happened(history, device, begin_s)
    marks += alert_marks(history.alerts(begin_s), Subject(device_uid=device.uid))
    marks += [
        _action(event)
        for event in history.action_events(begin_s)
        if not event.device_uids or device.uid in event.device_uids
    ]
    marks += _processes(history, device, begin_s, end_s)
    return list(dict.fromkeys(marks))


def process_marks(history: Reader, device: Device, info: ProcessInfo, begin_s: float) -> list[Mark]:
    """Return what is recorded of a process: its alerts, its checkpoints, its begin and end."""
    marks = _happened(history, device, begin_s)
    marks += alert_marks(history.alerts(begin_s), Subject(device_uid=device.uid, process=info.key))
    marks += [
        _action(event)
        for event in history.action_events(begin_s)
        if event.process is not None and same_process(event.process, info.key)
    ]
    marks += began_mark(info)
    span = history.ask(curves.lived, info.key)
    if span is not None:
        marks.append(_life_mark(span[1], "ended", info))
    return list(dict.fromkeys(marks))


def began_mark(info: ProcessInfo) -> list[Mark]:
    """Return the mark of a process's start, where that is known."""
    at_s = info.key.started_at_s
    return [] if at_s is None else [_life_mark(at_s, "began", info)]


def gap_reasons(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Reason]:
    """Return why time is missing, as far as the history says."""
    found: list[Reason] = [
        (segment.at_s, segment.gap_s, _WHY.get(segment.reason, "no data"))
        for segment in history.segments(begin_s)
        if segment.at_s <= end_s
    ]
    found += [
        (event.at_s, None, _GONE[event.kind])
        for event in history.events(begin_s - 60.0)
        if event.kind in _GONE and event.device_uid in {device.uid, device.parent_uid, None}
    ]
    return found


def _life_mark(at_s: float, kind: Literal["began", "ended"], info: ProcessInfo) -> Mark:
    """Return the mark of a process's begin or end."""
    what = "started" if kind == "began" else "was seen last"
    return Mark(at_s=at_s, kind=kind, text=f"{text.clean(verdict_text.who(info))} {what}")


def _happened(history: Reader, device: Device, begin_s: float) -> list[Mark]:
    """Return what is recorded of time, and of what happened to a device or its card."""
    marks = [
        Mark(at_s=segment.at_s, kind="restart", text=subject_facts.segment_words(segment))
        for segment in history.segments(begin_s)
    ]
    return marks + [
        _event(event.at_s, event.kind, event.detail)
        for event in history.events(begin_s)
        if event.device_uid in {device.uid, device.parent_uid, None}
    ]


def _event(at_s: float, kind: str, value: str) -> Mark:
    shown = f"{subject_facts.sort_of(text.clean(kind), text.clean(value))} {text.clean(value)}"
    return Mark(at_s=round(at_s, 3), kind="event", text=shown.strip())


def _action(event: ActionEvent) -> Mark:
    return Mark(
        at_s=event.at_s,
        kind="saved" if event.kind == SAVED else "asked" if event.kind in TO_SAVE else "event",
        text=f"{event.kind.replace('-', ' ')}: {action_words(event)}",
    )


def action_words(event: ActionEvent) -> str:
    """Return whose work an action was about, who asked for it or reported it, and its result."""
    key, name = event.process, text.clean(event.name)
    if key is None:
        value = "a process"
    elif name:
        value = name if legacy_text.is_stand_in(name, key.pid) else f"{name}[{key.pid}]"
    else:
        value = f"pid {key.pid}"
    value += f" by {text.clean(event.who)}" if event.who else ""
    return value + (f": {text.clean(event.result)}" if event.result else "")


def _steps(alert: Alert) -> list[Mark]:
    """Return how far an alert got, and what became of it: a mark each, one at an instant."""
    fired_s, critical_s = alert.firing_at_s, alert.critical_at_s
    if critical_s is None and alert.severity == "critical" and not alert.died:
        critical_s = fired_s  # of an earlier version
    steps: list[tuple[float | None, AlertStep]] = [
        (alert.watch_at_s, "watch"),
        (fired_s, "alert"),
        (critical_s, "critical"),
    ]
    if fired_s is None and alert.watch_at_s is None:
        if alert.state not in current_state.SHOWN:
            return []
        steps.append((alert.changed_at_s, "watch" if alert.state == "watch" else "alert"))
    steps.append((alert.resolved_at_s, "died" if alert.died else "resolved"))
    # The history keeps milliseconds: the same alert is to be the same marks.
    at = {round(at_s, 3): kind for at_s, kind in steps if at_s is not None}
    return [
        Mark(
            at_s=at_s,
            kind=kind,
            text=_step_text(kind, alert),
            severity=alert.severity,
        )
        for at_s, kind in at.items()
    ]


def _step_text(kind: AlertStep, alert: Alert) -> str:
    """Return what a mark is called, of what, and why; a death whose reason says all by that."""
    title, word = text.clean(alert.title or alert.key), FLAGS[kind].word
    why = f": {text.clean(alert.ended)}" if alert.ended and kind in {"died", "resolved"} else ""
    return f"{title}{why}" if kind == "died" and why else f"{word}: {title}{why}"


def _processes(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Mark]:
    """Return when the largest processes of a device began and were seen last."""
    presences = history.ask(curves.present, device.uid, (begin_s, end_s))
    least = _MATTERS * (device.memory_total_bytes or 0)
    # Of equal ones the first.
    ranked = sorted(presences, key=lambda presence: -(presence.peak_bytes or 0))
    large = [one for one in ranked if one.peak_bytes is not None and one.peak_bytes >= least]
    large = large[:_MOST_PROCESSES]
    infos = history.ask(curves.who, {presence.process for presence in large})
    newest_s = max((presence.last_s for presence in presences), default=0.0)
    marks: list[Mark] = []
    for presence in large:
        if (info := infos.get(presence.process)) is not None:
            marks.append(_life_mark(presence.first_s, "began", info))
            if presence.last_s < newest_s - curves.PROCESS_GAP_S:
                marks.append(_life_mark(presence.last_s, "ended", info))
    return marks
