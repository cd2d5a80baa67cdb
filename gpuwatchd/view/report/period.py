"""What is known of a period: how its GPUs were used, by whom, what happened, and how well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.model import ProcessInfo
from gpuwatchd.store import occupancy
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.queries import recorded_chart
from gpuwatchd.view.queries.current_view import View

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
    from gpuwatchd.view.report.incident import Channel, Incident


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
    stretches = (stretch for use in uses for stretch in use.stretches)
    together = recorded_chart.merged(stretches, _LEAST_GAP_S)
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


class Usage(NamedTuple):
    """How the devices of a period were used."""

    devices: Sequence[DeviceUse] = ()
    holders: Sequence[Holder] = ()
    """Those that are told of, most memory-hours first."""
    others: Holder | None = None
    """What everybody else had, where --user leaves them out."""
    quality: Quality = Quality()


_PRESENT_S = 120.0
"""A period that ends so long ago ends now."""


class Charts(NamedTuple):
    """The charts of a report but those of its incidents."""

    devices: Mapping[str, Picture] = {}
    """By UUID."""
    processes: Sequence[tuple[ProcessInfo, Picture]] = ()
    """Of those that --pid names."""


@dataclass(frozen=True)
class Period:
    """Everything that is known of a period."""

    query: Query
    asked: Asked
    found: Incidents
    bill: Bill
    view: View | None
    devices: Sequence[Device] = ()
    infos: Sequence[ProcessInfo] = ()
    """Those that --pid names."""
    alerts: Sequence[Alert] = ()
    """Those that were open in it and became more than a suspicion, worst first."""
    watched: Sequence[Alert] = ()
    """Suspicions that stayed such."""
    in_full: Sequence[Incident] = ()
    """The first of the alerts."""
    channels: Mapping[str, Channel] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    charts: Charts = field(default_factory=Charts)
    warnings: Sequence[tuple[str, str]] = ()

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
