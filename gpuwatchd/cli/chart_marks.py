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
    from gpuwatchd.store.action_events import Deed
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
    found = [_opened(one) for one in view.alerts if one.state in _OPEN and _on(one, subject)]
    return found + [_event(one.at_s, one.kind, one.text) for one in events]


def of_device(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Mark]:
    """Return what is recorded of a device, of time, of its alerts, its jobs and large processes."""
    here = {device.uid, device.parent_uid, None}
    marks = [
        _event(one.at_s, one.kind, one.detail)
        for one in history.events(begin_s)
        if one.device_uid in here
    ]
    marks += [_segment(one) for one in history.segments(begin_s)]
    marks += _alerts(history, begin_s, device.uid, None)
    marks += [
        _deed(one)
        for one in history.deeds(begin_s)
        if not one.device_uids or device.uid in one.device_uids
    ]
    return _unique(marks + _processes(history, device, begin_s, end_s))


def of_process(history: Reader, device: Device, info: ProcessInfo, begin_s: float) -> list[Mark]:
    """Return what is recorded of a process: its alerts, its checkpoints, its begin and end."""
    marks = [_segment(one) for one in history.segments(begin_s)]
    here = {device.uid, device.parent_uid, None}
    marks += [
        _event(one.at_s, one.kind, one.detail)
        for one in history.events(begin_s)
        if one.device_uid in here
    ]
    marks += _alerts(history, begin_s, device.uid, info.key)
    marks += [
        _deed(one)
        for one in history.deeds(begin_s)
        if one.process is not None and same(one.process, info.key)
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
        (one.at_s, one.gap_s, _WHY.get(one.reason, "nothing was recorded"))
        for one in history.segments(begin_s)
        if one.at_s <= end_s
    ]
    found += [
        (one.at_s, None, _GONE[one.kind])
        for one in history.events(begin_s - 60.0)
        if one.kind in _GONE and one.device_uid in {device.uid, device.parent_uid, None}
    ]
    return found


# ---- one by one ---------------------------------------------------------------------------------


def _unique(marks: Sequence[Mark]) -> list[Mark]:
    return list(dict.fromkeys(marks))


def _who(info: ProcessInfo) -> str:
    return text.clean(verdict_text.who(info))


def _event(at_s: float, kind: str, said: str) -> Mark:
    shown = f"{device_facts.sort_of(text.clean(kind), text.clean(said))} {text.clean(said)}"
    return Mark(at_s=round(at_s, 3), kind="event", text=shown.strip())


def segment_words(one: Segment) -> str:
    """Return why time went on differently, and by how much."""
    said = TIME_SAYS.get(one.reason, text.clean(one.reason))
    if one.wall_step_s is not None:
        said += f" by {one.wall_step_s:+.0f} s"
    if one.gap_s is not None:
        said += f", {units.duration(one.gap_s)} are missing"
    return said


def _segment(one: Segment) -> Mark:
    return Mark(at_s=one.at_s, kind="restart", text=segment_words(one))


def _deed(one: Deed) -> Mark:
    key, name = one.process, text.clean(one.name)
    whom = "a process" if key is None else f"{name}[{key.pid}]" if name else f"pid {key.pid}"
    by = f" by {text.clean(one.who)}" if one.who else ""
    said = f": {text.clean(one.result)}" if one.result else ""
    kind = one.kind.replace("-", " ")
    return Mark(
        at_s=one.at_s,
        kind="saved" if one.kind == SAVED else "asked",
        text=f"{kind}: {whom}{by}{said}",
    )


def _on(alert: Alert, subject: Subject) -> bool:
    if alert.subject.device_uid != subject.device_uid:
        return False
    return subject.process is None or alert.subject.process == subject.process


def _alerts(history: Reader, since_s: float, uid: str, key: ProcessKey | None) -> list[Mark]:
    marks = []
    for one in history.alerts(since_s):
        if one.subject.device_uid != uid or (key is not None and one.subject.process != key):
            continue
        if one.state in _OPEN or one.firing_at_s is not None or one.watch_at_s is not None:
            marks.append(_opened(one))
        if one.resolved_at_s is not None and (one.firing_at_s or one.watch_at_s):
            why = f": {text.clean(one.ended)}" if one.ended else ""
            marks.append(
                Mark(
                    at_s=one.resolved_at_s,
                    kind="resolved",
                    text=f"over: {_title(one)}{why}",
                    severity=one.severity,
                )
            )
    return marks


def _opened(one: Alert) -> Mark:
    at_s = min(at for at in (one.watch_at_s, one.firing_at_s, one.opened_at_s) if at is not None)
    state = "watch" if one.firing_at_s is None else one.severity
    said = f"{state}: {_title(one)}"
    # The history keeps milliseconds: the same alert is to be the same mark.
    return Mark(at_s=round(at_s, 3), kind="alert", text=said, severity=one.severity)


def _title(one: Alert) -> str:
    return text.clean(one.title or one.key)


def _processes(history: Reader, device: Device, begin_s: float, end_s: float) -> list[Mark]:
    """Return when the largest processes of a device began and were seen last."""
    found = history.ask(lambda connection: curves.present(connection, device.uid, (begin_s, end_s)))
    least = _MATTERS * (device.memory_total_bytes or 0)
    large = sorted(
        (one for one in found if one.peak_bytes is not None and one.peak_bytes >= least),
        key=lambda one: -(one.peak_bytes or 0),
    )[:_MOST_PROCESSES]
    keys = {one.process for one in large}
    infos = history.ask(lambda connection: curves.who(connection, keys))
    newest_s = max((one.last_s for one in found), default=0.0)
    marks: list[Mark] = []
    for one in large:
        info = infos.get(one.process)
        if info is None:
            continue
        marks.append(Mark(at_s=one.first_s, kind="began", text=f"{_who(info)} began"))
        if one.last_s < newest_s - curves.PROCESS_GAP_S:
            marks.append(Mark(at_s=one.last_s, kind="ended", text=f"{_who(info)} was seen last"))
    return marks
