"""What a report is asked about, and everything that is known of it: gathered once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError, StoreError, StoreNewer
from gpuwatchd.core.model import ProcessInfo
from gpuwatchd.store import occupancy
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.queries import alert_query, cost_entries, current_state, user_filter
from gpuwatchd.view.queries.current_view import View
from gpuwatchd.view.report import incident
from gpuwatchd.view.text.subject_facts import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpuwatchd.analysis.cost import Price
    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Alert, Device, Holding, ProcessKey
    from gpuwatchd.store.occupancy import Stretch
    from gpuwatchd.store.reader import Reader, Segment
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.queries.cost_entries import Bill
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.report.incident import Incident


_HOUR_S: Final = 3600.0
_MOST_ROWS: Final = 750
_NICE_S: Final = (60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 604800.0)

MOST_GAPS: Final = 20
_LEAST_GAP_S: Final = 180.0
_NEAR_S: Final = 120.0
_UNREADABLE: Final = frozenset({"gpu-lost", "gpu-hung", "reset-required"})
_SAYS: Final = {
    "start": "the daemon was not running",
    "boot": "the machine was off or starting",
    "gap": "no data",
    "clock-step": "the clock was set",
}
"""Why time is missing before a segment of this reason."""


class Asked(NamedTuple):
    """What a report is to be about."""

    since_s: float
    until_s: float
    pids: Sequence[int] = ()
    top: int = 5
    everything: bool = False
    charts: bool = True

    @property
    def span_s(self) -> float:
        """Length of the period."""
        return self.until_s - self.since_s


class DeviceUse(NamedTuple):
    """One device over a period; None is unknown."""

    device: Device
    stretches: tuple[Stretch, ...] = ()
    """When it was read."""
    mean_bytes: float | None = None
    """Of the time that it was read."""
    peak_bytes: int | None = None
    peak_at_s: float | None = None
    util_pct: float | None = None
    """Mean over the time of which it is known."""
    busy_hours: float | None = None
    """Utilisation times time: hours at 100 %."""
    energy_kwh: float | None = None

    @property
    def watched_s(self) -> float:
        """For how long it was read."""
        return sum(end - begin for begin, end in self.stretches)


class Holder(NamedTuple):
    """One process on one device over a period; several joined are one of nobody in particular."""

    info: ProcessInfo
    device_uid: str
    gib_hours: float | None
    gpu_hours: float | None
    usd: float | None
    peak_bytes: int | None
    first_at_s: float
    last_at_s: float
    many: int = 1
    """Processes, of joined ones."""


def of_device(history: Reader, device: Device, asked: Asked) -> DeviceUse:
    """Return how much a device was used."""
    bucket_s = next((s for s in _NICE_S if asked.span_s / s <= _MOST_ROWS), _NICE_S[-1])
    rows = history.device_rows(device.uid, asked.since_s, asked.until_s, bucket_s)
    device_rows = [row for row in rows if row.used_max_bytes is not None]
    top = max(device_rows, key=lambda row: row.used_max_bytes or 0, default=None)
    weight = sum(row.n for row in device_rows)
    held = sum((row.used_mean_bytes or 0) * row.n for row in device_rows)
    stretches = history.ask(
        lambda connection: occupancy.stretches(connection, device.uid, asked.since_s, asked.until_s)
    )
    watched_s = sum(end - begin for begin, end in stretches)
    pairs = [(row.util_pct, max(row.n, 1)) for row in rows if row.util_pct is not None]
    samples = sum(count for _, count in pairs)
    util = sum(util * count for util, count in pairs) / samples if samples else None
    energy = [row.energy_j for row in rows if row.energy_j is not None]
    return DeviceUse(
        device=device,
        stretches=tuple(stretches),
        mean_bytes=held / weight if weight else None,
        peak_bytes=None if top is None else top.used_max_bytes,
        peak_at_s=None if top is None else top.at_s,
        util_pct=util,
        busy_hours=None if util is None else util / 100.0 * watched_s / _HOUR_S,
        energy_kwh=sum(energy) / 3.6e6 if energy else None,
    )


def holders(
    history: Reader,
    devices: Sequence[Device],
    processes: Mapping[ProcessKey, ProcessInfo],
    asked: Asked,
    bill: Bill,
) -> list[Holder]:
    """Return who held what of the devices, most memory-hours first."""
    prices = {device.uid: _price(bill, device) for device in devices}
    found = []
    for tenure in history.ask(lambda it: occupancy.holders(it, asked.since_s, asked.until_s)):
        if tenure.device_uid not in prices:
            continue
        price, hours = prices[tenure.device_uid], tenure.gpu_hours
        hourly = None if price is None else price.running_usd_per_hour
        found.append(
            Holder(
                info=processes.get(tenure.process) or ProcessInfo(key=tenure.process, name="?"),
                device_uid=tenure.device_uid,
                gib_hours=tenure.gib_hours,
                gpu_hours=hours,
                usd=None if hours is None or hourly is None else hours * hourly,
                peak_bytes=tenure.peak_bytes,
                first_at_s=tenure.first_at_s,
                last_at_s=tenure.last_at_s,
            )
        )
    return sorted(found, key=_weight)


def _price(bill: Bill, device: Device) -> Price | None:
    """Return the price that a device is counted with, and let it be named."""
    if device.uid not in bill.used:
        devices = bill.devices | {device.uid: device}
        bill.devices.setdefault(device.uid, device)
        bill.used[device.uid] = bill.prices.of(device, devices, now_s=bill.now_s)
    return bill.used[device.uid]


def _weight(holder: Holder) -> tuple[float, float, int]:
    return -(holder.gib_hours or 0.0), -(holder.gpu_hours or 0.0), holder.info.key.pid


def grouped(
    found: Sequence[Holder], name: Callable[[ProcessInfo], str]
) -> list[tuple[str, Holder]]:
    """Return holders added up by a name, most memory-hours first."""
    groups: dict[str, list[Holder]] = {}
    for holder in found:
        groups.setdefault(name(holder.info), []).append(holder)
    added = [(label, joined(some)) for label, some in groups.items()]
    return sorted(added, key=lambda pair: _weight(pair[1]))


def joined(found: Sequence[Holder]) -> Holder:
    """Return several holders as one; a sum of which a part is unknown is unknown."""
    return Holder(
        info=found[0].info,
        device_uid=found[0].device_uid,
        gib_hours=cost.total(holder.gib_hours for holder in found),
        gpu_hours=cost.total(holder.gpu_hours for holder in found),
        usd=cost.total(holder.usd for holder in found),
        peak_bytes=max((holder.peak_bytes for holder in found if holder.peak_bytes is not None),
                       default=None),
        first_at_s=min(holder.first_at_s for holder in found),
        last_at_s=max(holder.last_at_s for holder in found),
        many=len({holder.info.key for holder in found}),
    )  # fmt: skip


class Missing(NamedTuple):
    """A time of which nothing is known."""

    begin_s: float
    end_s: float
    why: str
    """"" where that is not known."""
    labels: tuple[str, ...]
    """Devices; () for all of them."""


class Quality(NamedTuple):
    """How well a period is known."""

    watched_share: float | None = None
    """Of the period in which at least one device was read; None without a history."""
    begun_s: float | None = None
    """When the record begins, where that is within the period."""
    missing: tuple[Missing, ...] = ()
    restarts: int = 0
    boots: int = 0
    clock_steps: tuple[Segment, ...] = ()
    faults: tuple[tuple[float, str, str], ...] = ()
    """What could not be read, as events have it: (instant, device, words)."""
    per_device: tuple[tuple[Device, float], ...] = ()
    """Share of the period that each was read."""


def data_quality(
    history: Reader, devices: Sequence[Device], uses: Sequence[DeviceUse], asked: Asked
) -> Quality:
    """Return how well a period is known."""
    segments = [
        segment for segment in history.segments(asked.since_s) if segment.at_s < asked.until_s
    ]
    reasons = [segment.reason for segment in segments]
    labels = {device.uid: device.label for device in devices}
    span_s = max(asked.span_s, 1.0)
    together = _union([stretch for use in uses for stretch in use.stretches])
    begun_s = None
    if together and together[0][0] - asked.since_s > _LEAST_GAP_S:
        oldest = min((first for one in devices if (first := history.oldest_s(one.uid))),
                     default=None)  # fmt: skip
        # An hour of the oldest roll-ups may begin before the record does.
        if oldest is not None and oldest > asked.since_s:
            begun_s = together[0][0]
    first_s = asked.since_s if begun_s is None else begun_s
    return Quality(
        watched_share=min(1.0, sum(end - begin for begin, end in together) / span_s),
        begun_s=begun_s,
        missing=(*_missing(together, segments, first_s, asked), *_own_gaps(uses, together, asked)),
        restarts=reasons.count("start") + reasons.count("boot"),
        boots=reasons.count("boot"),
        clock_steps=tuple(segment for segment in segments if segment.reason == "clock-step"),
        faults=tuple(
            (event.at_s, labels.get(event.device_uid or "", ""), event.detail)
            for event in history.events(asked.since_s)
            if event.at_s < asked.until_s
            and event.kind in _UNREADABLE
            and event.device_uid in labels
        ),
        per_device=tuple((use.device, min(1.0, use.watched_s / span_s)) for use in uses),
    )


def percent(share: float | None) -> str:
    """Return a share of a period; little is not nothing, and nearly all of it is not all.

    Examples
    --------
    >>> percent(0.002), percent(0.5), percent(0.997), percent(1.0), percent(0.0)
    ('< 1 %', '50 %', '> 99 %', '100 %', '0 %')
    """
    if share is not None and 0.0 < share < 0.01:
        return "< 1 %"
    if share is not None and 0.99 < share < 1.0:
        return "> 99 %"
    return units.percent(share)


def _union(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return when at least one device was read."""
    whole: list[Stretch] = []
    for begin, end in sorted(stretches):
        if whole and begin - whole[-1][1] <= _LEAST_GAP_S:
            whole[-1] = whole[-1][0], max(whole[-1][1], end)
        else:
            whole.append((begin, end))
    return whole


def _holes(stretches: Sequence[Stretch], begin_s: float, end_s: float) -> Iterator[Stretch]:
    at_s = begin_s
    for begin, end in stretches:
        if begin - at_s > _LEAST_GAP_S:
            yield at_s, begin
        at_s = max(at_s, end)
    if end_s - at_s > _LEAST_GAP_S:
        yield at_s, end_s


def _missing(
    together: Sequence[Stretch], segments: Sequence[Segment], first_s: float, asked: Asked
) -> Iterator[Missing]:
    """Yield when no device was read; what lies before the record began is no gap in it."""
    for begin, end in _holes(together, first_s, asked.until_s):
        near = [segment for segment in segments if abs(segment.at_s - end) <= _NEAR_S]
        yield Missing(begin, end, _SAYS.get(near[-1].reason, "") if near else "", ())


def _own_gaps(
    uses: Sequence[DeviceUse], together: Sequence[Stretch], asked: Asked
) -> Iterator[Missing]:
    """Yield when some device could not be read although others were."""
    if len(uses) < 2:
        return
    for use in uses:
        for begin, end in _holes(use.stretches, asked.since_s, asked.until_s):
            for from_s, to_s in together:
                low, high = max(begin, from_s), min(end, to_s)
                if high - low > _LEAST_GAP_S:
                    yield Missing(low, high, "", (use.device.label,))


def sentences(quality: Quality, *, now_s: float) -> Iterator[str]:
    """Yield what cannot be said, and why."""
    if quality.watched_share is None:
        yield "There is no history: only the present state is shown, not the past."
        return
    if quality.begun_s is not None:
        begun = units.moment(quality.begun_s, now_s=now_s)
        yield f"The record starts at {begun}: there is no data before that."
    whole = [missing for missing in quality.missing if not missing.labels]
    if whole:
        lost_s = sum(missing.end_s - missing.begin_s for missing in whole)
        yield (
            f"In {units.duration(lost_s)} no data was recorded: leaks, crashes and idle memory of "
            "that time are not in this report, and its hours are in no sum."
        )
    if any(missing.labels for missing in quality.missing):
        labels = sorted({label for missing in quality.missing for label in missing.labels})
        yield f"{', '.join(labels)} could not be read at times, or was not there."
    if quality.clock_steps:
        count = len(quality.clock_steps)
        times = "once" if count == 1 else f"{count} times"
        yield f"The clock was set {times}: durations across that moment are not certain."


_PRESENT_S = 120.0
"""A period that ends so long ago ends now."""


@dataclass
class Period:
    """Everything that is known of a period."""

    query: Query
    asked: Asked
    found: Incidents
    bill: Bill
    view: View | None = None
    devices: list[Device] = field(default_factory=list)
    infos: list[ProcessInfo] = field(default_factory=list)
    """Those that --pid names."""
    alerts: list[Alert] = field(default_factory=list)
    """Those that were open in it and became more than a suspicion, worst first."""
    watched: list[Alert] = field(default_factory=list)
    """Suspicions that stayed such."""
    told: list[Incident] = field(default_factory=list)
    """The first of the alerts, in full."""
    uses: list[DeviceUse] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    others: Holder | None = None
    """What everybody else had, where --user leaves them out."""
    pictures: dict[str, Picture] = field(default_factory=dict)
    """Of GPUs, by UUID."""
    process_pictures: list[tuple[ProcessInfo, Picture]] = field(default_factory=list)
    quality: Quality = field(default_factory=Quality)
    channels: dict[str, incident.Channel] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """The instant of everything that is shown as of now."""
        return self.bill.now_s

    @property
    def present(self) -> bool:
        """Whether it ends now, so that the live state belongs to it."""
        return self.asked.until_s >= self.now_s - _PRESENT_S

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Return idle memory now."""
        if self.view is None or not self.present:
            return ()
        pids = self.asked.pids
        return tuple(
            holding
            for holding in self.view.holdings
            if not pids or (holding.process is not None and holding.process.key.pid in pids)
        )

    def item(self, device: Device) -> LiveDevice:
        """Return the live state of a device; where that is not of this period, only the device."""
        for one in self.view.devices if self.view is not None and self.present else ():
            if one.device.uid == device.uid:
                return one
        return LiveDevice(device=device, reading=None)

    def shown_view(self) -> View:
        """Return the view that charts are drawn by."""
        if self.view is not None and self.present:
            return self.view
        return View(
            "database", self.asked.until_s, tuple(self.item(device) for device in self.devices)
        )


def gather(query: Query, asked: Asked) -> Period:
    """Return everything that is known of a period.

    Raises
    ------
    GpuwatchdError
        When nothing is recorded at all, or not of what is asked for.
    """
    try:
        found = alert_query.gather(asked.since_s, only_open=False)
    except GpuwatchdError as error:
        if error.page != "errors#no-history":
            raise
        why = "no data to report: no history and no live state"
        raise GpuwatchdError(why, hint=error.hint, page=error.page) from error
    if query.user:
        found.keep_of(user_filter.People(query.user))
    bill = cost_entries.gather(query, asked.since_s, asked.until_s)
    found.alerts = [cost_entries.counted(bill, alert) for alert in found.alerts]
    period = Period(query, asked, found, bill, _view(query))
    # That no daemon runs is found by several, and said once.
    pairs: dict[str, tuple[str, str]] = {}
    for code, sentence in (*found.warnings, *bill.warnings):
        pairs.setdefault("daemon" if code.startswith("daemon") else sentence, (code, sentence))
    period.warnings = list(pairs.values())
    _choose(period)
    try:
        from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - SQLite comes with it

        with history_query.reader() as history:
            _from_history(period, history)
    except StoreNewer:
        raise  # What is there is not to be told without most of it.
    except StoreError:
        if found.trouble is None:
            raise
        _without_history(period)
    return period


def _view(query: Query) -> View | None:
    """Return the live state; None where there is none (the GPUs themselves are not asked)."""
    state, _ = current_state.read_state()
    if state is None or not state.devices:
        return None
    try:
        return current_state.load_view(query, want_trend=True)
    except GpuwatchdError:
        if query.gpu:
            return None  # A GPU that is gone may be in the history.
        raise


def _choose(period: Period) -> None:
    """Sort alerts of the period: those to tell, those that stayed a suspicion."""
    asked, query, found = period.asked, period.query, period.found
    for alert in found.alerts:
        if alert.opened_at_s >= asked.until_s or not found.wanted(query, alert):
            continue
        if (alert.resolved_at_s or asked.until_s) < asked.since_s:
            continue
        process = alert.subject.process
        if asked.pids and (process is None or process.pid not in asked.pids):
            continue
        if alert.firing_at_s is not None:
            period.alerts.append(alert)
        elif alert.watch_at_s is not None or alert.state == "watch":
            period.watched.append(alert)
    people = user_filter.People(query.user)
    entries = [entry for entry in period.bill.entries if people.has(entry.user)]
    keys = {alert.key for alert in [*period.alerts, *period.watched]}
    held = {holding.id for holding in period.holdings}
    period.bill.entries = [entry for entry in entries if entry.key in keys or entry.key in held]
    period.bill.acts[:] = [
        act
        for act in period.bill.acts
        if people.has(act.user)
        and (not asked.pids or (act.process is not None and act.process.pid in asked.pids))
    ]
    worth = incident.worth(period.bill.entries)
    period.alerts = incident.order(period.alerts, worth)


def _from_history(period: Period, history: Reader) -> None:
    asked, query = period.asked, period.query
    every = history.devices()
    devices = {device.uid: device for device in every} | period.found.devices
    period.devices = _asked_for(query, list(devices.values()))
    every_holder = holders(history, period.devices, period.found.infos, asked, period.bill)
    if asked.pids:
        period.infos = _named_processes(period, [holder.info for holder in every_holder])
        keys = {info.key for info in period.infos}
        every_holder = [holder for holder in every_holder if holder.info.key in keys]
        here = {holder.device_uid for holder in every_holder}
        here |= {alert.subject.device_uid for alert in period.alerts}
        period.devices = [
            device for device in period.devices if device.uid in here
        ] or period.devices
    period.uses = [of_device(history, device, asked) for device in in_order(period.devices)]
    people = user_filter.People(query.user)
    period.holders = [holder for holder in every_holder if people.own(holder.info)]
    rest = [holder for holder in every_holder if not people.own(holder.info)]
    period.others = joined(rest) if rest else None
    period.quality = data_quality(history, period.devices, period.uses, asked)
    incident.add_incidents(period, history)
    incident.draw_charts(period, history)


def _without_history(period: Period) -> None:
    """Put together what the live state alone knows."""
    period.devices = _asked_for(period.query, list(period.found.devices.values()))
    period.uses = [DeviceUse(device) for device in in_order(period.devices)]
    incident.add_incidents(period, None)
    incident.draw_charts(period, None)


def _named_processes(period: Period, infos: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Return the processes that --pid names; GpuwatchdError when none of them was seen."""
    pids = period.asked.pids
    people = user_filter.People(period.query.user)
    named = {info.key: info for info in infos if info.key.pid in pids and people.own(info)}
    processes = list(named.values())
    if not processes and not period.alerts:
        raise GpuwatchdError(
            f"pid {', '.join(map(str, pids))} was on no GPU in this period",
            hint="gpuwatchctl history --since 7d; or a longer --since",
            page="errors#no-such-process",
        )
    return processes


def _asked_for(query: Query, devices: Sequence[Device]) -> list[Device]:
    if not devices:
        raise GpuwatchdError(
            "no data recorded yet: no GPU was ever seen",
            hint="gpuwatchctl service install",
            page="errors#nothing-recorded",
        )
    current_state.require_gpus(query, devices)
    return [device for device in devices if query.wants(device)]
