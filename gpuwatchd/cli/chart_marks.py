"""What happened, as marks of a picture: in the words of ``history --events`` and ``alerts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.charts.drawing import Mark
from gpuwatchd.cli import device_facts, verdict_text
from gpuwatchd.core import text, units
from gpuwatchd.store import curves
from gpuwatchd.store.action_events import SAVED
from gpuwatchd.store.checkpoints import same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.current_state import View
    from gpuwatchd.core.model import Alert, Device, Event, ProcessInfo, ProcessKey, Subject
    from gpuwatchd.store.action_events import ActionEvent
    from gpuwatchd.store.reader import Reader, Segment

TIME_SAYS: Final = {
    "start": "the daemon began to record",
    "boot": "the machine was started",
    "clock-step": "the clock was set",
    "gap": "nothing was recorded before",
}
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
_OPEN: Final = frozenset({"watch", "firing"})

Reason = tuple[float, float | None, str]
"""Instant, seconds before it that are missing (None: not known), why."""


def live(view: View, subject: Subject, events: Sequence[Event]) -> list[Mark]:
    """Return what the live state knows: open alerts and the newest events of a device.

    The history has them too, but later, or not at all.
    """
    marks = [
        _opened(alert) for alert in view.alerts if alert.state in _OPEN and _on(alert, subject)
    ]
    return marks + [_event(event.at_s, event.kind, event.text) for event in events]


def of_device(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Mark]:
    """Return what is recorded of a device, of time, of its alerts, its jobs and large processes."""
    here = {device.uid, device.parent_uid, None}
    marks = [
        _event(event.at_s, event.kind, event.detail)
        for event in history.events(begin_s)
        if event.device_uid in here
    ]
    marks += [_segment(segment) for segment in history.segments(begin_s)]
    marks += _alerts(history, begin_s, device.uid, None)
    marks += [
        _deed(deed)
        for deed in history.action_events(begin_s)
        if not deed.device_uids or device.uid in deed.device_uids
    ]
    return _unique(marks + _processes(history, device, begin_s, end_s))


def of_process(history: Reader, device: Device, info: ProcessInfo, begin_s: float) -> list[Mark]:
    """Return what is recorded of a process: its alerts, its checkpoints, its begin and end."""
    marks = [_segment(segment) for segment in history.segments(begin_s)]
    here = {device.uid, device.parent_uid, None}
    marks += [
        _event(event.at_s, event.kind, event.detail)
        for event in history.events(begin_s)
        if event.device_uid in here
    ]
    marks += _alerts(history, begin_s, device.uid, info.key)
    marks += [
        _deed(deed)
        for deed in history.action_events(begin_s)
        if deed.process is not None and same(deed.process, info.key)
    ]
    marks += began(info)
    span = history.ask(lambda connection: curves.lived(connection, info.key))
    if span is not None:
        marks.append(Mark(at_s=span[1], kind="ended", text=f"{_who(info)} was seen last"))
    return _unique(marks)


def began(info: ProcessInfo) -> list[Mark]:
    """Return the mark of a process's start, where that is known."""
    started_s = info.key.started_at_s
    return (
        []
        if started_s is None
        else [Mark(at_s=started_s, kind="began", text=f"{_who(info)} began")]
    )


def reasons(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Reason]:
    """Return why time is missing, as far as the history says."""
    found: list[Reason] = [
        (segment.at_s, segment.gap_s, _WHY.get(segment.reason, "nothing was recorded"))
        for segment in history.segments(begin_s)
        if segment.at_s <= end_s
    ]
    found += [
        (event.at_s, None, _GONE[event.kind])
        for event in history.events(begin_s - 60.0)
        if event.kind in _GONE and event.device_uid in {device.uid, device.parent_uid, None}
    ]
    return found


# ---- one by one ---------------------------------------------------------------------------------


def _unique(marks: Sequence[Mark]) -> list[Mark]:
    return list(dict.fromkeys(marks))


def _who(info: ProcessInfo) -> str:
    return text.clean(verdict_text.who(info))


def _event(at_s: float, kind: str, value: str) -> Mark:
    shown = f"{device_facts.sort_of(text.clean(kind), text.clean(value))} {text.clean(value)}"
    return Mark(at_s=round(at_s, 3), kind="event", text=shown.strip())


def segment_words(segment: Segment) -> str:
    """Return why time went on differently, and by how much."""
    value = TIME_SAYS.get(segment.reason, text.clean(segment.reason))
    if segment.wall_step_s is not None:
        value += f" by {segment.wall_step_s:+.0f} s"
    if segment.gap_s is not None:
        value += f", {units.duration(segment.gap_s)} are missing"
    return value


def _segment(segment: Segment) -> Mark:
    return Mark(at_s=segment.at_s, kind="restart", text=segment_words(segment))


def _deed(event: ActionEvent) -> Mark:
    key, name = event.process, text.clean(event.name)
    whom = "a process" if key is None else f"{name}[{key.pid}]" if name else f"pid {key.pid}"
    by = f" by {text.clean(event.who)}" if event.who else ""
    value = f": {text.clean(event.result)}" if event.result else ""
    kind = event.kind.replace("-", " ")
    return Mark(
        at_s=event.at_s,
        kind="saved" if event.kind == SAVED else "asked",
        text=f"{kind}: {whom}{by}{value}",
    )


def _on(alert: Alert, subject: Subject) -> bool:
    if alert.subject.device_uid != subject.device_uid:
        return False
    return subject.process is None or alert.subject.process == subject.process


def _alerts(history: Reader, since_s: float, uid: str, key: ProcessKey | None) -> list[Mark]:
    marks = []
    for alert in history.alerts(since_s):
        if alert.subject.device_uid != uid or (key is not None and alert.subject.process != key):
            continue
        if alert.state in _OPEN or alert.firing_at_s is not None or alert.watch_at_s is not None:
            marks.append(_opened(alert))
        if alert.resolved_at_s is not None and (alert.firing_at_s or alert.watch_at_s):
            why = f": {text.clean(alert.ended)}" if alert.ended else ""
            marks.append(
                Mark(
                    at_s=alert.resolved_at_s,
                    kind="resolved",
                    text=f"over: {_title(alert)}{why}",
                    severity=alert.severity,
                )
            )
    return marks


def _opened(alert: Alert) -> Mark:
    at_s = min(
        at for at in (alert.watch_at_s, alert.firing_at_s, alert.opened_at_s) if at is not None
    )
    state = "watch" if alert.firing_at_s is None else alert.severity
    value = f"{state}: {_title(alert)}"
    # The history keeps milliseconds: the same alert is to be the same mark.
    return Mark(at_s=round(at_s, 3), kind="alert", text=value, severity=alert.severity)


def _title(alert: Alert) -> str:
    return text.clean(alert.title or alert.key)


def _processes(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Mark]:
    """Return when the largest processes of a device began and were seen last."""
    presences = history.ask(
        lambda connection: curves.present(connection, device.uid, (begin_s, end_s))
    )
    least = _MATTERS * (device.memory_total_bytes or 0)
    large = sorted(
        (
            presence
            for presence in presences
            if presence.peak_bytes is not None and presence.peak_bytes >= least
        ),
        key=lambda presence: -(presence.peak_bytes or 0),
    )[:_MOST_PROCESSES]
    keys = {presence.process for presence in large}
    infos = history.ask(lambda connection: curves.who(connection, keys))
    newest_s = max((presence.last_s for presence in presences), default=0.0)
    marks: list[Mark] = []
    for presence in large:
        info = infos.get(presence.process)
        if info is None:
            continue
        marks.append(Mark(at_s=presence.first_s, kind="began", text=f"{_who(info)} began"))
        if presence.last_s < newest_s - curves.PROCESS_GAP_S:
            marks.append(
                Mark(at_s=presence.last_s, kind="ended", text=f"{_who(info)} was seen last")
            )
    return marks
