"""What is answered of the recorded past: ``history``, ``plot`` and ``cost``."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpuwatchd.analysis import cost as analysis_cost
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Subject
from gpuwatchd.store import curves, recent_points
from gpuwatchd.view.answers import history as rows
from gpuwatchd.view.answers import report
from gpuwatchd.view.answers.base import Answered, answer_of, fill
from gpuwatchd.view.queries import (
    charts,
    cost_entries,
    current_state,
    history_query,
    state_location,
    user_filter,
)
from gpuwatchd.view.queries.charts import Asked, action_words, alert_marks
from gpuwatchd.view.text import subject_facts

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import AllocatorReading, Device, ProcessInfo, ProcessKey
    from gpuwatchd.store.reader import ProcessRow, Reader
    from gpuwatchd.view.answers.base import Answer
    from gpuwatchd.view.queries.cost_entries import Bill
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query

_DAY_S = 86_400.0
_ROUND_S = (60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800)
MOST_ROWS = 48
"""Of a device's table that is fitted to its time."""


class EmptySpan(ValueError):
    """A time that ends before it begins."""


def span(since_s: float | None, until_s: float | None, *, now_s: float) -> tuple[float, float]:
    """Return the time that is asked about, epoch seconds; the last day by default.

    Raises
    ------
    EmptySpan
        When it ends before it begins.
    """
    end_s = now_s if until_s is None else until_s
    begin_s = end_s - _DAY_S if since_s is None else since_s
    if begin_s >= end_s:
        raise EmptySpan("--since is not before --until")
    return begin_s, end_s


class Processes(NamedTuple):
    """Processes that are shown instead of the devices, by pid or by user; false for none."""

    pids: Sequence[int]
    people: user_filter.People | None

    def __bool__(self) -> bool:
        return bool(self.pids) or self.people is not None

    def has(self, key: ProcessKey, info: ProcessInfo | None) -> bool:
        """Say whether a process is meant."""
        if self.pids and key.pid not in self.pids:
            return False
        return self.people is None or self.people.own(info)


class Recorded(NamedTuple):
    """What is recorded of one device."""

    device: Device
    rows: Sequence[rows.DeviceRow | rows.ProcessRow]
    events: Sequence[rows.Event]
    """Oldest first."""
    infos: Sequence[ProcessInfo]
    """Who the processes are, where it is about processes."""


class History:
    """What is asked of the history, of the GPUs and users of a query.

    Parameters
    ----------
    since_s, until_s
        Epoch seconds; by default the last day.
    bucket_s
        Samples within so many seconds are one row; None for samples as they are kept.
    pids
        Processes whose memory is shown instead of the devices'.
    events
        What happened is shown, instead of memory.

    Raises
    ------
    EmptySpan
        When the time ends before it begins.
    """

    def __init__(
        self,
        query: Query,
        *,
        since_s: float | None = None,
        until_s: float | None = None,
        bucket_s: float | None = None,
        pids: Sequence[int] = (),
        events: bool = False,
    ) -> None:
        self._query = query
        self._span = span(since_s, until_s, now_s=state_location.now_s() + 1.0)
        self._bucket_s = bucket_s
        self._events = events
        self.processes = Processes(pids, user_filter.People(query.user) if query.user else None)

    def queries(self, *, fit: bool = False) -> list[str]:
        """Return what :meth:`read` asks of the database, for those who go on with sqlite3."""
        since_s, until_s = self._span
        bucket_s = _width(until_s - since_s) if fit else self._bucket_s
        queries = []
        with history_query.reader() as reader:
            for device in self._devices(reader):
                if self.processes:
                    reader.process_rows(device.uid, since_s, until_s)
                else:
                    reader.device_rows(device.uid, since_s, until_s, bucket_s)
                queries.append(reader.last_query)
        return queries

    def read(self, *, fit: bool = False) -> list[Recorded]:
        """Return what is recorded, device by device.

        ``fit``: by rows of a width of which no more than :data:`MOST_ROWS` cover the time.

        Raises
        ------
        GpuwatchdError
            When there is no history, or nothing in that time.
        """
        since_s, until_s = self._span
        bucket_s = _width(until_s - since_s) if fit else self._bucket_s
        with history_query.reader() as reader:
            devices = self._devices(reader)
            every = [self._rows(reader, device, bucket_s) for device in devices]
            first = min((row.at for some in every for row in some), default=None)
            if fit and first is not None:
                # What began a moment ago would be one row of a table for a day.
                finer_s = _width(until_s - max(since_s, units.parse_instant(first, now_s=0.0)))
                if finer_s < (bucket_s or 0.0):
                    every = [self._rows(reader, device, finer_s) for device in devices]
            infos = []
            if self.processes:
                infos = [
                    info for info in reader.processes(since_s) if self.processes.has(info.key, info)
                ]
            recorded = [
                Recorded(device, some, self._happened(reader, device), infos)
                for device, some in zip(devices, every, strict=True)
            ]
        if not any(device.events if self._events else device.rows for device in recorded):
            if self.processes and not infos:
                raise _nobody(self._query, self.processes.pids)
            what = "no event" if self._events else "nothing"
            raise GpuwatchdError(
                f"{what} is recorded between {units.clock(since_s)} and {units.clock(until_s)}",
                hint="the daemon writes once a minute; what is now: gpuwatchctl status",
                page="errors#nothing-recorded",
            )
        return recorded

    def answer(self) -> Answered:
        """Return what ``history --json`` answers."""
        kind = rows.HistoryOfProcesses if self.processes else rows.History
        warnings = state_location.service_warnings()
        return Answered(answer_of(kind, self.read(), source="database", warnings=warnings))

    def _devices(self, reader: Reader) -> list[Device]:
        devices = subject_facts.in_order(reader.devices())
        current_state.require_gpus(self._query, devices)
        return [device for device in devices if self._query.wants(device)]

    def _rows(
        self, reader: Reader, device: Device, bucket_s: float | None
    ) -> Sequence[rows.DeviceRow | rows.ProcessRow]:
        if self._events:
            return []
        since_s, until_s = self._span
        if not self.processes:
            found = reader.device_rows(device.uid, since_s, until_s, bucket_s)
            return [fill(rows.DeviceRow, row, gpu=device.index, uid=device.uid) for row in found]
        infos = {info.key: info for info in reader.processes(since_s)}
        used = reader.process_rows(device.uid, since_s, until_s)
        load = partial(recent_points.of_allocators, minutes=any(row.width_s for row in used[:1]))
        allocators = reader.ask(load, device.uid, since_s, until_s)
        return [
            fill(
                rows.ProcessRow,
                row,
                gpu=device.index,
                uid=device.uid,
                name=info and info.name,
                user=info and info.user,
                allocated_bytes=(last := _last(allocators.get(row.process, ()), row))
                and last.allocated_bytes,
                reserved_bytes=last and last.reserved_bytes,
            )
            for row in _joined(used, bucket_s)
            if self.processes.has(row.process, info := infos.get(row.process))
        ]

    def _happened(self, reader: Reader, device: Device) -> list[rows.Event]:
        """Return what happened to a device, its alerts and time; if asked, also to jobs."""
        since_s, until_s = self._span
        here = {device.uid, device.parent_uid, None}
        infos = {info.key: info for info in reader.processes()} if self.processes else {}

        def meant(process: ProcessKey | None) -> bool:
            if not self.processes:
                return True
            return process is not None and self.processes.has(process, infos.get(process))

        alerts = [alert for alert in reader.alerts(since_s) if meant(alert.subject.process)]
        happened = [
            fill(rows.Event, event, text=text.clean(event.detail))
            for event in reader.events(since_s)
            if event.device_uid in here
        ]
        happened += [
            fill(
                rows.Event,
                segment,
                kind=segment.reason,
                text=subject_facts.segment_words(segment),
            )
            for segment in reader.segments(since_s)
        ]
        happened += [
            fill(rows.Event, mark)
            for mark in alert_marks(alerts, Subject(device_uid=device.uid))
            if mark.at_s >= since_s
        ]
        if self._events:
            happened += [
                fill(rows.Event, event, text=action_words(event))
                for event in reader.action_events(since_s)
                if (not event.device_uids or device.uid in event.device_uids)
                and meant(event.process)
            ]
        end = units.instant(until_s) or ""
        return sorted((event for event in happened if event.at < end), key=lambda event: event.at)


def _width(span_s: float) -> float:
    return next((float(s) for s in _ROUND_S if span_s / s <= MOST_ROWS), float(_ROUND_S[-1]))


def _joined(used: Sequence[ProcessRow], bucket_s: float | None) -> Sequence[ProcessRow]:
    """Return one row per process and bucket: its highest and its last value."""
    if not bucket_s:
        return used
    joined: dict[tuple[object, float], ProcessRow] = {}
    for row in used:
        start_s = row.at_s // bucket_s * bucket_s
        before = joined.get((row.process, start_s))
        host_bytes, highest = row.host_last_bytes, [row.used_max_bytes]
        if before is not None:
            highest.append(before.used_max_bytes)
            host_bytes = before.host_last_bytes if host_bytes is None else host_bytes
        joined[row.process, start_s] = msgspec.structs.replace(
            row,
            at_s=start_s,
            width_s=bucket_s,
            used_max_bytes=max((value for value in highest if value is not None), default=None),
            host_last_bytes=host_bytes,
        )
    return list(joined.values())


def _last(readings: Sequence[AllocatorReading], row: ProcessRow) -> AllocatorReading | None:
    """Return what the allocator of a row's process said last, up to the row's end."""
    end_s = row.at_s + max(row.width_s - 0.001, 0.0)
    at = bisect_right(readings, end_s, key=lambda reading: reading.at_s)
    held = at > 0 and readings[at - 1].at_s >= row.at_s - history_query.HOLD_S
    return readings[at - 1] if held else None


def history(query: Query, **asked: Any) -> Answered:
    """Return what ``history --json`` answers; arguments and errors as of :class:`History`."""
    return History(query, **asked).answer()


def pictures(query: Query, **asked: Any) -> Answered:
    """Return what ``plot --json`` answers; arguments and errors as of :func:`selection`."""
    return Answered(pictures_answer(selection(query, **asked)))


def pictures_answer(of: Selection) -> Answer:
    """Return pictures as ``plot --json`` answers them."""
    return answer_of(rows.Plot, of.pictures, source="database", warnings=of.warnings)


# Which pictures are meant: of GPUs, of processes that run, or of ones that have ended.

_MOST = 32
"""Processes: of more nobody sees anything, and each is a question to the history."""


class Selection(NamedTuple):
    """What is drawn."""

    pictures: list[Picture]
    left_out: int
    """Processes that are meant too."""
    missing: str = ""
    """What was asked for and is not there, as a sentence."""

    @property
    def smaller(self) -> str:
        """Whether processes are left out, as a sentence; "" for none."""
        if not self.left_out:
            return ""
        return f"and {self.left_out} more processes, smaller ones; --pid draws one"

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Code and sentence of what is not shown."""
        pairs = (("not-all", self.smaller), ("no-such-gpu", self.missing))
        return [pair for pair in pairs if pair[1]]


def selection(
    query: Query,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    pids: Sequence[int] = (),
) -> Selection:
    """Return what is to be drawn of a time, at least one picture with something on it.

    Parameters
    ----------
    since_s, until_s
        Epoch seconds; by default the last day, or what is recorded of it.
    pids
        Of processes; none means the GPUs, or with ``--user`` all of these users' processes.

    Raises
    ------
    EmptySpan
        When the time ends before it begins.
    GpuwatchdError
        When there is no such GPU or process, or nothing is known of that time.
    """
    between = span(since_s, until_s, now_s=state_location.now_s())
    asked = Asked(*between)
    selection = _asked_for(query, pids, asked)
    pictures = selection.pictures
    first_s = min(
        (picture.curve.at_s[0] for picture in pictures if not picture.empty), default=None
    )
    # One look of now is no curve: without a history there will be no more than that.
    alone = all(len(picture.curve.at_s) < 2 for picture in pictures)
    if first_s is None or (alone and not state_location.recorded(state_location.state_dir())):
        raise _nothing(between)
    shorter = charts.since_record(pictures, asked)
    if since_s is None and shorter != asked:
        return _asked_for(query, pids, shorter)
    return selection


def _nothing(span: tuple[float, float]) -> GpuwatchdError:
    if not state_location.recorded(state_location.state_dir()):
        return GpuwatchdError(
            "there is no history yet to draw",
            hint="gpuwatchctl service install; without a GPU: gpuwatchctl demo",
            page="errors#no-history",
        )
    between = f"{units.clock(span[0])} and {units.clock(span[1])}"
    return GpuwatchdError(
        f"no data between {between}",
        hint="ask for a longer time, such as --since 7d; what is now: gpuwatchctl status",
        page="errors#nothing-recorded",
    )


def _asked_for(query: Query, pids: Sequence[int], asked: Asked) -> Selection:
    if not pids and not query.user:
        pictures, view = charts.all_devices(query, asked)
        return Selection(pictures, 0, _nobody_there(view))
    if not state_location.recorded(state_location.state_dir()):
        return _processes(query, None, pids, asked)
    with history_query.reader() as history:
        return _processes(query, history, pids, asked)


def _processes(
    query: Query, history: Reader | None, pids: Sequence[int], asked: Asked
) -> Selection:
    """Return the pictures of processes: of those that run, then of others, the largest first."""
    view = current_state.load_view(query, want_trend=True)
    running = [
        (item, process)
        for item in view.devices
        for process in item.processes or ()
        if not pids or process.info.key.pid in pids
    ]
    running.sort(key=lambda pair: -(pair[1].used_bytes or 0))
    pairs = {(item.device.uid, process.info.key) for item, process in running}
    ended = [] if history is None else _ended(query, history, pids, asked, pairs)
    count = len(running) + len(ended)
    pictures = [
        charts.of_process(history, view, item, process, asked) for item, process in running[:_MOST]
    ]
    if history is not None:
        room = _MOST - len(pictures)
        drawn = [charts.past_process(history, *pair, asked) for pair in ended[:room]]
        pictures += [picture for picture in drawn if not picture.empty]
        count -= sum(picture.empty for picture in drawn)
    if not pictures:
        raise _nobody(query, pids)
    return Selection(pictures, count - len(pictures), _nobody_there(view))


def _nobody_there(view: View) -> str:
    return next((text for code, text in view.warnings if code == "no-such-gpu"), "")


def _nobody(query: Query, pids: Sequence[int]) -> GpuwatchdError:
    named = f"pid {', '.join(map(str, pids))}" if pids else f"user {', '.join(query.user)}"
    return GpuwatchdError(
        f"no process of {named} is or was on a GPU here in that time",
        hint="gpuwatchctl status; of an earlier time: --since 7d",
        page="errors#no-such-process",
    )


def _ended(
    query: Query,
    history: Reader,
    pids: Sequence[int],
    asked: Asked,
    container: Container[tuple[str, ProcessKey]],
) -> list[tuple[Device, ProcessInfo]]:
    """Return the others that were on a GPU in that time, the largest first."""
    people = user_filter.People(query.user)
    infos = {
        info.key: info
        for info in history.processes(asked.begin_s)
        if (not pids or info.key.pid in pids) and people.own(info)
    }
    span = (asked.begin_s, asked.end_s)
    found: list[tuple[int, Device, ProcessInfo]] = []
    for device in filter(query.wants, history.devices()):
        there = {
            presence.process: presence.peak_bytes or 0
            for presence in history.ask(curves.present, device.uid, span)
        }
        # What was not rolled up yet, or not any more, can be asked for by its pid.
        keys = infos.keys() if pids else infos.keys() & there.keys()
        found += [
            (there.get(key, 0), device, infos[key])
            for key in keys
            if (device.uid, key) not in container
        ]
    found.sort(key=lambda entry: -entry[0])
    return [(device, info) for _, device, info in found]


def bill(query: Query, since_s: float | None = None) -> Bill:
    """Return what leaks and idle memory cost, of the users that are meant.

    Raises
    ------
    GpuwatchdError
        When there is neither a history nor a live state.
    """
    now_s = state_location.now_s()
    since_s = now_s - cost_entries.PERIOD_S if since_s is None else since_s
    found = cost_entries.gather(query, since_s, now_s)
    people = user_filter.People(query.user)
    found.warnings.extend(current_state.require_gpus(query, list(found.devices.values())))
    found.entries = [entry for entry in found.entries if people.has(entry.user)]
    found.acts[:] = [act for act in found.acts if people.has(act.user)]
    return found


def cost(query: Query, *, since_s: float | None = None, by: str = "gpu") -> Answered:
    """Return what ``cost --json`` answers, added up ``by`` a key of :data:`.cost_entries.BY`.

    Nothing older than ``since_s`` counts, epoch seconds; by default 30 days.

    Raises
    ------
    GpuwatchdError
        When there is neither a history nor a live state.
    """
    of = bill(query, since_s)
    prices = of.prices
    hours, people = of.engineer()
    return Answered(
        answer_of(
            report.Cost,
            tuple(report.paid(entry, prices) for entry in of.entries),
            source=of.source,
            warnings=[*of.warnings, *of.old_prices()],
            since_at=of.since_s,
            currency=prices.currency,
            per_usd=prices.per_usd,
            sums=report.sums(of.entries, prices),
            acts=report.acts(of),
            engineer_hours=hours,
            engineer=people,
            by=by,
            groups=[
                report.Group(name=text.clean(name), sums=report.sums(entries, prices))
                for name, entries in analysis_cost.grouped(of.entries, cost_entries.BY[by])
            ],
            prices=report.prices_used(of),
        )
    )
