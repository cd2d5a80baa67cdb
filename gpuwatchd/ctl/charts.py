"""The one place where the live screen, ``plot``, reports and the live page get pictures from."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd import text
from gpuwatchd.ctl import badges, look, past, whose, words
from gpuwatchd.ctl.envelope import is_leak
from gpuwatchd.errors import SourceUnavailable
from gpuwatchd.model import Subject
from gpuwatchd.pictures.chart import Curve, Forecast, Gap, Mark, Picture
from gpuwatchd.store.live import LiveDevice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.ctl.look import View
    from gpuwatchd.model import Device, Finding, ProcessInfo, ProcessKey
    from gpuwatchd.store.live import LiveProcess
    from gpuwatchd.store.reader import Reader

_GAP_STEPS = 3.5
"""So many usual distances without a sample are a gap."""
_LEAST_GAP_S = 90.0
_FOR_A_FLOOR = 12
_FRESH_S = 900.0
"""A judgement older than that at the end of the span is not drawn."""
_RESTARTS = {
    "start": "the daemon began to record",
    "boot": "the machine was started",
    "clock-step": "the clock was set",
}
_Row = tuple[float, float | None, float | None, float | None]
"""Instant, mean, lowest, highest."""


class Asked(NamedTuple):
    """From and to, epoch seconds, and how many points at most."""

    begin_s: float
    end_s: float
    points: int = 400


def of_device(history: Reader | None, view: View, item: LiveDevice, asked: Asked) -> Picture:
    """Return the chart of a device; without a history what the live state has."""
    device, badge = item.device, badges.device(item)
    bucket_s = (asked.end_s - asked.begin_s) / asked.points
    if history is None:
        rows, width_s = _recent(view, item), 0.0
    else:
        found = history.device_rows(device.uid, asked.begin_s, asked.end_s, bucket_s)
        width_s = found[0].width_s if found else 0.0
        rows = [
            (
                row.at_s + row.width_s / 2,
                row.used_mean_bytes,
                row.used_min_bytes,
                row.used_max_bytes,
            )
            for row in found
        ]
    return _picture(
        Subject(device_uid=device.uid), f"{device.label}  {text.clean(device.name)}", badge,
        asked, view.taken_at_s, rows, width_s,
        limit=device.memory_total_bytes, finding=item.finding,
        marks=_marks(history, device, asked, None),
    )  # fmt: skip


def of_process(
    history: Reader | None, view: View, item: LiveDevice, process: LiveProcess, asked: Asked
) -> Picture:
    """Return the chart of a process that runs."""
    rows, width_s = _of_key(history, item.device, process.info.key, asked)
    if process.used_bytes is not None and asked.begin_s <= view.taken_at_s <= asked.end_s:
        now = float(process.used_bytes)
        if not rows or rows[-1][0] < view.taken_at_s:
            rows.append((view.taken_at_s, now, now, now))
    free = item.reading.free_bytes if item.reading is not None else None
    limit = None if free is None or process.used_bytes is None else free + process.used_bytes
    return _picture(
        Subject(device_uid=item.device.uid, process=process.info.key),
        f"{words.who(process.info)} on {item.device.label}", badges.process(process),
        asked, view.taken_at_s, rows, width_s, limit=limit, finding=process.finding,
        marks=_marks(history, item.device, asked, process.info.key),
    )  # fmt: skip


def past_process(history: Reader, device: Device, info: ProcessInfo, asked: Asked) -> Picture:
    """Return the chart of a process that has ended."""
    rows, width_s = _of_key(history, device, info.key, asked)
    badge = badges.Badge("unknown", "ended", "has ended")
    return _picture(
        Subject(device_uid=device.uid, process=info.key), f"{words.who(info)} on {device.label}",
        badge, asked, min(time.time(), asked.end_s), rows, width_s,
        limit=device.memory_total_bytes, finding=None,
        marks=_marks(history, device, asked, info.key),
    )  # fmt: skip


def all_devices(flags: Globals, asked: Asked) -> list[Picture]:
    """Return the charts of all devices that ``--gpu`` lets through."""
    recorded = whose.recorded(whose.state_dir())
    try:
        view = look.see(flags, want_trend=recorded)
    except SourceUnavailable:
        if not recorded:
            raise
        view = look.View("database", time.time(), ())
    if not recorded:
        return [of_device(None, view, item, asked) for item in view.devices]
    with past.reader() as history:
        items = list(view.devices) or [
            LiveDevice(device=device, reading=None)
            for device in history.devices()
            if flags.wants(device)
        ]
        return [of_device(history, view, item, asked) for item in items]


# ---- what a picture is made of


def _picture(  # noqa: PLR0913, PLR0917 - everything that is on it
    subject: Subject,
    title: str,
    badge: badges.Badge,
    asked: Asked,
    now_s: float,
    rows: list[_Row],
    width_s: float,
    *,
    limit: int | None,
    finding: Finding | None,
    marks: tuple[Mark, ...],
) -> Picture:
    curve, gaps = _curve(rows, width_s)
    floor = _floor(curve)
    return Picture(
        key=subject.id, title=title, kind=badge.kind, verdict=badge.words,
        begin_s=asked.begin_s, end_s=asked.end_s, now_s=now_s, curve=curve, floor=floor,
        limit_bytes=limit, forecast=_forecast(finding, curve, floor, limit, asked),
        marks=marks, gaps=gaps,
    )  # fmt: skip


def _recent(view: View, item: LiveDevice) -> list[_Row]:
    values, step_s = item.recent_bytes, item.recent_step_s
    if not step_s:
        return []
    return [
        (view.taken_at_s - (len(values) - 1 - n) * step_s, value, value, value)
        for n, value in enumerate(values)
    ]


def _of_key(
    history: Reader | None, device: Device, key: ProcessKey, asked: Asked
) -> tuple[list[_Row], float]:
    if history is None:
        return [], 0.0
    found = [
        row
        for row in history.process_rows(device.uid, asked.begin_s, asked.end_s)
        if row.process == key
    ]
    width_s = found[0].width_s if found else 0.0
    every = -(-len(found) // asked.points) or 1
    rows: list[_Row] = []
    for n in range(0, len(found), every):
        some = found[n : n + every]
        known = [float(row.used_max_bytes) for row in some if row.used_max_bytes is not None]
        at_s = (some[0].at_s + some[-1].at_s + width_s) / 2
        mean = sum(known) / len(known) if known else None
        rows.append((at_s, mean, min(known, default=None), max(known, default=None)))
    return rows, width_s * every


def _curve(rows: Sequence[_Row], width_s: float) -> tuple[Curve, tuple[Gap, ...]]:
    rows = [row for row in rows if row[1] is not None]
    steps = [after[0] - before[0] for before, after in pairwise(rows)]
    most_s = max(_GAP_STEPS * median(steps), _LEAST_GAP_S) if steps else 0.0
    whole: list[_Row] = []
    gaps: list[Gap] = []
    for row in rows:
        if whole and row[0] - whole[-1][0] > most_s:
            begin_s, end_s = whole[-1][0] + width_s / 2, row[0] - width_s / 2
            gaps.append(Gap(begin_s=begin_s, end_s=end_s, why=""))
            whole.append(((begin_s + end_s) / 2, None, None, None))
        whole.append(row)
    at_s, used, low, high = zip(*whole, strict=True) if whole else ((), (), (), ())
    curve = Curve(at_s=at_s, used_bytes=used, low_bytes=low, high_bytes=high, width_s=width_s)
    return curve, tuple(gaps)


def _floor(curve: Curve) -> Curve | None:
    """Return the lowest level from each instant on: what was never given back."""
    if sum(value is not None for value in curve.low_bytes) < _FOR_A_FLOOR:
        return None
    lowest: float | None = None
    found: list[float | None] = []
    for value in reversed(curve.low_bytes):
        if value is not None:
            lowest = value if lowest is None else min(lowest, value)
        found.append(None if value is None else lowest)
    levels = tuple(reversed(found))
    return Curve(at_s=curve.at_s, used_bytes=levels, low_bytes=levels, high_bytes=levels)


def _forecast(
    finding: Finding | None, curve: Curve, floor: Curve | None, limit: int | None, asked: Asked
) -> Forecast | None:
    if finding is None or not is_leak(finding) or not finding.rate_bytes_per_s:
        return None
    known = [value for value in (floor or curve).used_bytes if value is not None]
    if not known or not asked.begin_s <= finding.judged_at_s <= asked.end_s + _FRESH_S:
        return None
    eta = finding.eta
    return Forecast(
        judged_at_s=finding.judged_at_s, level_bytes=known[-1],
        rate_bytes_per_s=finding.rate_bytes_per_s, onset_at_s=finding.onset_at_s,
        limit_bytes=None if limit is None else float(limit),
        low_s=None if eta is None else eta.low_s, mid_s=None if eta is None else eta.mid_s,
        high_s=None if eta is None else eta.high_s,
    )  # fmt: skip


def _marks(
    history: Reader | None, device: Device, asked: Asked, process: ProcessKey | None
) -> tuple[Mark, ...]:
    if history is None:
        return ()
    found = [
        Mark(at_s=one.at_s, kind="restart", text=_RESTARTS[one.reason])
        for one in history.segments(asked.begin_s)
        if one.reason in _RESTARTS
    ]
    found += [
        Mark(at_s=one.at_s, kind="event", text=text.clean(one.detail or one.kind))
        for one in history.events(asked.begin_s)
        if one.device_uid in {device.uid, device.parent_uid, None}
    ]
    found += _alerts(history, device, asked, process)
    inside = (mark for mark in found if asked.begin_s <= mark.at_s <= asked.end_s)
    return tuple(sorted(inside, key=lambda mark: mark.at_s))


def _alerts(
    history: Reader, device: Device, asked: Asked, process: ProcessKey | None
) -> Iterable[Mark]:
    for one in history.alerts(asked.begin_s):
        subject = one.subject
        if subject.device_uid != device.uid or (process and subject.process != process):
            continue
        said = text.clean(one.finding.reason or one.title, limit=200)
        at_s = one.firing_at_s or one.watch_at_s or one.opened_at_s
        yield Mark(at_s=at_s, kind="alert", text=said, severity=one.severity)
        if one.resolved_at_s is not None:
            over = text.clean(one.ended or "over", limit=200)
            yield Mark(at_s=one.resolved_at_s, kind="resolved", text=over)
