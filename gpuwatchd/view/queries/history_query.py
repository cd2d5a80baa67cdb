"""The history, read-only: what was seen last, judged again with the settings in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast, get_args

import msgspec

from gpuwatchd.alerts import recent_deaths
from gpuwatchd.analysis import declared
from gpuwatchd.analysis.hardware import application_xid
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import (
    DeviceReading,
    Event,
    EventKind,
    ProcessInfo,
    Series,
    Subject,
    limit_of,
)
from gpuwatchd.core.model.alerts import SAID_FOR_S
from gpuwatchd.core.model.findings import base_of, with_host_reason
from gpuwatchd.pipeline.device_rings import Activity
from gpuwatchd.store import curves, legacy_text
from gpuwatchd.store import reader as store
from gpuwatchd.store.live import KnownRuns, LiveDevice, LiveProcess
from gpuwatchd.store.schema import FILE_NAME
from gpuwatchd.view.queries import state_location
from gpuwatchd.view.queries.current_view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Device, Finding, FloatArray, Period, ProcessKey, Profile
    from gpuwatchd.store.reader import DeviceRow, ProcessRow, Reader
    from gpuwatchd.store.tables import UserLabel
    from gpuwatchd.view.query import Query

__all__ = ["FILE_NAME"]

_LOOK_BACK_S = (curves.RAW_SPAN_S, curves.MINUTE_SPAN_S, 5 * 365 * 86400.0)
_JUST_NOW_S = 600.0
"""So long ago is the last sample as a rule; hours would be read for its time alone."""
_ALIVE_S = 150.0
"""An unchanged process has one row a minute; later than this it was gone at the end."""
_AHEAD_S = 60.0
"""The daemon's clock may have been ahead of ours."""
HOLD_S = 75.0
"""So long a value holds that is written once a minute while it does not change."""
_SPARK_POINTS = 32
_DAY_S = 86400.0
_BROKEN = {"gpu-lost", "gpu-hung", "reset-required", "ecc"}


def reader() -> Reader:
    """Return the open history that this call is about.

    Raises
    ------
    StoreError
        When there is none or it cannot be read.
    """
    place = state_location.chosen()
    if place.scope == "user" and not state_location.recorded(place.state_dir):
        state_location.require_read_access()
    return store.Reader.open(place.state_dir)


def judged(
    query: Query, warnings: list[tuple[str, str]] | None = None, *, max_age_s: float | None = None
) -> View | None:
    """Return the GPUs as the history saw them last, judged with the settings in force.

    Parameters
    ----------
    warnings
        Takes what is wrong with a history that exists; None: that is raised.
    max_age_s
        How old the newest sample may be; None for any age.

    Raises
    ------
    StoreError
        The history cannot be read, and nothing takes that.
    """
    if not state_location.recorded(state_location.state_dir()):
        return None
    settings = query.load_config().config.detection
    now_s = state_location.now_s()
    devices: list[LiveDevice] = []
    newest_s = 0.0
    try:
        with reader() as history:
            since_s = begun_s(history)
            infos = {info.key: info for info in history.processes()}
            happened = _events(history, now_s)
            words = history.user_labels()
            past = history.alerts(now_s - SAID_FOR_S)
            pairs = [
                (device, rows)
                for device in history.devices()
                if (rows := last_rows(history, device, now_s, since_s))
                and (max_age_s is None or now_s - rows[-1].at_s <= max_age_s)
            ]
            newest_s = max((rows[-1].at_s for _, rows in pairs), default=0.0)
            # A card that was cut into instances once may be whole again.
            parents = {
                device.parent_uid for device, rows in pairs if rows[-1].at_s >= newest_s - _ALIVE_S
            }
            # To judge is what takes time: only what is asked for, unless nothing there is.
            for device, rows in [pair for pair in pairs if query.wants(pair[0])] or pairs:
                span = (rows[0].at_s, rows[-1].at_s + max(rows[-1].width_s, 1.0))
                used = history.process_rows(device.uid, *span)
                context = DeviceContext(history, device, infos, words)
                alone = device.memory_kind != "coherent" or not used
                whole = alone and device.uid not in parents
                item = _live(device, rows, used, context, settings, whole=whole)
                mine = tuple(event for event in happened if event.device_uid == device.uid)
                devices.append(msgspec.structs.replace(item, events=mine))
    except StoreError as error:
        if warnings is None:
            raise
        warnings.append(("history", error.message))
        return None
    if not devices:
        return None
    past = [alert for alert in past if not any(word.is_about(alert) for word in words)]
    view = View("database", newest_s, tuple(devices), deaths=recent_deaths(past, now_s))
    view.warnings.append(
        ("from-history", "evaluated from the history, without alerts, files and model servers")
    )
    return view


def _events(history: Reader, now_s: float) -> list[Event]:
    """Return what happened to devices within the last day, as far as its kind is still known."""
    return [
        Event(
            at_s=event.at_s,
            kind=cast("EventKind", event.kind),
            device_uid=event.device_uid,
            text=event.detail,
            hardware=_by_hardware(event.kind, event.detail),
        )
        for event in history.events(now_s - _DAY_S)
        if event.kind in get_args(EventKind)
    ]


def _by_hardware(kind: str, text: str) -> bool | None:
    """Return whose doing an event was; the history does not keep that."""
    if kind != "xid":
        return True if kind in _BROKEN else None
    number = legacy_text.xid(text)
    by_application = None if number is None else application_xid(number)
    return None if by_application is None else not by_application


class DeviceContext(NamedTuple):
    """Who is on one device, what is known of their earlier runs, what the user said of them."""

    history: Reader
    device: Device
    infos: dict[ProcessKey, ProcessInfo]
    words: Sequence[UserLabel]

    def of(self, info: ProcessInfo) -> tuple[tuple[Profile, ...], KnownRuns | None]:
        """Return the earlier runs that a process is judged by, and the same for people."""
        from gpuwatchd.analysis import program_key  # noqa: PLC0415 - 4 ms: only where the history is judged
        from gpuwatchd.pipeline.run_baselines import chosen  # noqa: PLC0415 - 34 ms

        key = program_key.key_on(info.program, self.device)
        if key is None:
            return (), None
        runs = self.history.runs(key)
        # What the user said of this very process is no earlier run.
        mine = {w.row for w in self.words if w.subject.process == info.key}
        own = sum(run.word is not None and run.word in mine for run in runs)
        profiles = chosen(runs, self.words, device_uid=self.device.uid, process=info.key)
        said = [run.word for run in profiles if run.word is not None]
        return profiles, KnownRuns(runs=len(profiles) - own, word=said[-1] if said else None)


def begun_s(history: Reader) -> float:
    """Return since when the clock has run evenly: the last boot or the last step of the clock."""
    segments = history.segments()
    own = [segment for segment in segments if segment.boot_id == segments[-1].boot_id]
    steps = (segment.at_s for segment in own[::-1] if segment.reason == "clock-step")
    return next(steps, own[0].at_s if own else 0.0)


def last_rows(history: Reader, device: Device, now_s: float, from_s: float) -> list[DeviceRow]:
    """Return the last hours of a device, as fine as they are kept, ending with its last sample.

    Nothing from before ``from_s``: see :func:`begun_s`.
    """
    for back_s in (_JUST_NOW_S, *_LOOK_BACK_S):
        # Not a second longer: a longer span is read from coarser rows.
        coarse = history.device_rows(device.uid, now_s + _AHEAD_S - back_s, now_s + _AHEAD_S)
        if not coarse:
            continue
        end_s = coarse[-1].at_s + max(coarse[-1].width_s, 1.0)
        fine = history.device_rows(device.uid, max(from_s, end_s - curves.RAW_SPAN_S + 1.0), end_s)
        if fine or back_s != _JUST_NOW_S:
            return [row for row in fine or coarse if row.used_last_bytes is not None]
    return []


def _live(
    device: Device,
    rows: Sequence[DeviceRow],
    used: Sequence[ProcessRow],
    context: DeviceContext,
    settings: DetectionSection,
    *,
    whole: bool,
) -> LiveDevice:
    """Return one device as the history knows it; ``whole``: it is judged as a whole too."""
    end_s, last = rows[-1].at_s, rows[-1].used_last_bytes or 0
    total = device.memory_total_bytes
    free = total - last if total is not None else None
    points = {key: own for key, own in by_process(used).items() if own[-1][0] >= end_s - _ALIVE_S}
    ticks = [row.at_s for row in rows]
    on_host = _on_host(device, [row for row in used if row.process in points], ticks, settings)
    busy = [(row.at_s + row.width_s, row.util_pct) for row in rows if row.util_pct is not None]
    period = Activity({"utilisation": track(busy)}).period
    processes = []
    for key, own in points.items():
        info = context.infos.get(key) or ProcessInfo(key=key, name="?")
        subject = Subject(device_uid=device.uid, process=key)
        runs, shown = context.of(info)
        series = series_of(
            subject, filled(own, ticks), free, total, info=info, runs=runs, activity=period
        )
        host_bytes, host_finding = on_host.get(key, (None, None))
        processes.append(
            LiveProcess(
                info=info,
                used_bytes=own[-1][1],
                finding=_judge(series, settings),
                history=shown,
                host_bytes=host_bytes,
                host_finding=host_finding,
            )
        )
    curve = [(row.at_s, row.used_last_bytes or 0) for row in rows]
    series = series_of(Subject(device_uid=device.uid), track(curve), free, total, activity=period)
    own_finding = _judge(series, settings) if whole else None
    owned = [row.used_last_bytes for row in used if row.at_s >= end_s - _ALIVE_S]
    told = processes and device.memory_kind == "dedicated" and None not in owned
    every = -(-len(curve) // _SPARK_POINTS)
    return LiveDevice(
        device=device,
        reading=DeviceReading(
            device_uid=device.uid,
            used_bytes=last,
            free_bytes=free,
            total_bytes=total,
            util_pct=rows[-1].util_pct,
        ),
        unattributed_bytes=last - sum(p.used_bytes or 0 for p in processes) if told else None,
        finding=_worst(own_finding, [p.finding for p in processes]),
        processes=tuple(processes) if used else None,
        recent_bytes=tuple(value for _, value in curve[::-1][::every][::-1]),
        samples=len(rows),
    )


def _on_host(
    device: Device, used: Sequence[ProcessRow], ticks: Sequence[float], settings: DetectionSection
) -> dict[ProcessKey, tuple[int, Finding]]:
    """Return what each process held on the host last, and the judgement on that.

    What is free there now stands for what was free then.
    """
    from gpuwatchd.collect.host.procfs import headroom  # noqa: PLC0415 - 28 ms: only where the history is judged

    points = by_process(used, host=True)
    space = headroom() if points else None
    free, total = (None, None) if space is None else (space.free_bytes, space.total_bytes)
    out = {}
    for key, own in points.items():
        subject = Subject(device_uid=device.uid, process=key, host=True)
        series = series_of(subject, filled(own, ticks), free, total)
        out[key] = own[-1][1], with_host_reason(_judge(series, settings))
    return out


def by_process(
    rows: Sequence[ProcessRow], *, host: bool = False
) -> dict[ProcessKey, list[tuple[float, int]]]:
    """Return what each process held over time (seconds, bytes), on the device or on the host."""
    points: dict[ProcessKey, list[tuple[float, int]]] = {}
    for row in rows:
        value = row.host_last_bytes if host else row.used_last_bytes
        if value is not None:
            points.setdefault(row.process, []).append((row.at_s, value))
    return points


class Track(NamedTuple):
    """Memory over time, as detectors want it. Both have the same shape (n,)."""

    at_s: FloatArray
    """Epoch seconds, oldest first."""
    used_bytes: FloatArray


def track(points: Sequence[tuple[float, float]]) -> Track:
    """Return points (seconds, bytes) as a track."""
    import numpy as np  # noqa: PLC0415 - 68 ms

    count = len(points)
    return Track(
        np.fromiter((at_s for at_s, _ in points), np.float64, count),
        np.fromiter((value for _, value in points), np.float64, count),
    )


def filled(points: Sequence[tuple[float, int]], ticks: Sequence[float]) -> Track:
    """Return the points of a process at its device's ticks too.

    A process that does not change is written once a minute only; its value holds until its next
    row, but never over a gap.
    """
    import numpy as np  # noqa: PLC0415 - 68 ms

    known = track(sorted(points))  # of one whose start is unknown there may be several rows
    at_s = np.asarray(ticks, dtype=np.float64)
    before = known.at_s.searchsorted(at_s, side="right") - 1
    age_s = at_s - known.at_s[before]
    # A tick of before the first row looks back at the last one, which is later.
    more = (age_s > 0.0) & (age_s <= HOLD_S)
    whole_s = np.concatenate((known.at_s, at_s[more]))
    order = whole_s.argsort(kind="stable")
    values = np.concatenate((known.used_bytes, known.used_bytes[before[more]]))
    return Track(whole_s[order], values[order])


def series_of(
    subject: Subject,
    known: Track,
    free_bytes: int | None,
    total_bytes: int | None,
    *,
    info: ProcessInfo | None = None,
    runs: tuple[Profile, ...] = (),
    activity: Callable[[float], Period | None] | None = None,
) -> Series:
    """Return what is known of a subject as detectors want it; the last is the present.

    Of declared sizes the command line is known alone: servers and files are not asked again.
    """
    key = None if info is None or subject.host else subject.process
    begun_s = None if key is None else key.started_at_s
    age_s = None if begun_s is None else float(known.at_s[-1]) - begun_s
    framework = None if info is None else info.framework
    told = declared.of_shown_argv(() if key is None or info is None else info.argv)
    return Series(
        subject=subject,
        t_s=known.at_s,
        used_bytes=known.used_bytes,
        limit_bytes=limit_of(float(known.used_bytes[-1]), free_bytes),
        total_bytes=None if total_bytes is None else float(total_bytes),
        framework=framework,
        history=runs,
        age_s=age_s,
        facts=declared.facts(
            declared.Declared(told), framework=framework, card_bytes=total_bytes, age_s=age_s
        ),
        activity=activity,
        base_bytes=base_of(known.at_s, known.used_bytes, age_s),
    )


def _judge(series: Series, settings: DetectionSection) -> Finding:
    from gpuwatchd.analysis import verdict  # noqa: PLC0415 - 150 ms

    return verdict.judge(series, settings)


def _worst(whole: Finding | None, processes: Sequence[Finding | None]) -> Finding | None:
    """Return what the device is shown with: whoever is to blame goes before the whole."""
    from gpuwatchd.pipeline.live_state import worst  # noqa: PLC0415 - 28 ms

    blamed = worst(processes)
    finding = worst([whole, *processes])
    if blamed is not None and finding is not None and "none" != blamed.tier == finding.tier:
        return blamed
    return finding
