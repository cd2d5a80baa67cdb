"""What a report is asked about, and everything that is known of it: gathered once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatchd.core.errors import GpuwatchdError, StoreError, StoreNewer
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.queries import alert_query, cost_entries, current_state, user_filter
from gpuwatchd.view.report import incident, usage
from gpuwatchd.view.text.device_facts import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.charts.scales import Picture
    from gpuwatchd.core.model import Alert, Device, Holding, ProcessInfo
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.queries.cost_entries import Bill
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.report.incident import Incident
    from gpuwatchd.view.report.usage import Asked, DeviceUse, Holder

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
    quality: usage.Quality = field(default_factory=usage.Quality)
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
        return current_state.View(
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
    bill = cost_entries.gather(query, asked.since_s)
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
    entries = period.bill.entries
    if query.user:
        people = user_filter.People(query.user)
        entries = [entry for entry in entries if people.has(entry.user)]
    keys = {alert.key for alert in [*period.alerts, *period.watched]}
    held = {holding.id for holding in period.holdings}
    period.bill.entries = [entry for entry in entries if entry.key in keys or entry.key in held]
    worth = incident.worth(period.bill.entries)
    period.alerts = incident.order(period.alerts, worth)


def _from_history(period: Period, history: Reader) -> None:
    asked, query = period.asked, period.query
    every = history.devices()
    devices = {device.uid: device for device in every} | period.found.devices
    period.devices = [device for device in devices.values() if query.wants(device)]
    if not period.devices:
        raise _no_such_gpu(query, list(devices.values()))
    every_holder = usage.holders(history, period.devices, period.found.infos, asked, period.bill)
    if asked.pids:
        period.infos = _named_processes(period, [holder.info for holder in every_holder])
        keys = {info.key for info in period.infos}
        every_holder = [holder for holder in every_holder if holder.info.key in keys]
        here = {holder.device_uid for holder in every_holder}
        here |= {alert.subject.device_uid for alert in period.alerts}
        period.devices = [
            device for device in period.devices if device.uid in here
        ] or period.devices
    period.uses = [usage.of_device(history, device, asked) for device in in_order(period.devices)]
    people = user_filter.People(query.user) if query.user else None
    period.holders = [
        holder for holder in every_holder if people is None or people.own(holder.info)
    ]
    if people is not None:
        rest = [holder for holder in every_holder if not people.own(holder.info)]
        period.others = usage.joined(rest) if rest else None
    period.quality = usage.data_quality(history, period.devices, period.uses, asked)
    incident.add_incidents(period, history)
    incident.draw_charts(period, history)


def _without_history(period: Period) -> None:
    """Put together what the live state alone knows."""
    period.devices = [
        device for device in period.found.devices.values() if period.query.wants(device)
    ]
    if not period.devices:
        raise _no_such_gpu(period.query, list(period.found.devices.values()))
    period.uses = [usage.DeviceUse(device) for device in in_order(period.devices)]
    incident.add_incidents(period, None)
    incident.draw_charts(period, None)


def _named_processes(period: Period, infos: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Return the processes that --pid names; GpuwatchdError when none of them was seen."""
    pids = period.asked.pids
    processes = list({info.key: info for info in infos if info.key.pid in pids}.values())
    if period.query.user:
        people = user_filter.People(period.query.user)
        processes = [info for info in processes if people.own(info)]
    if not processes and not period.alerts:
        raise GpuwatchdError(
            f"pid {', '.join(map(str, pids))} was on no GPU in this period",
            hint="gpuwatchctl history --since 7d; or a longer --since",
            page="errors#no-such-process",
        )
    return processes


def _no_such_gpu(query: Query, devices: Sequence[Device]) -> GpuwatchdError:
    if not query.gpu:
        return GpuwatchdError(
            "no data recorded yet: no GPU was ever seen",
            hint="gpuwatchctl service install",
            page="errors#nothing-recorded",
        )
    return GpuwatchdError(
        f"no GPU matches {', '.join(query.gpu)}",
        hint=f"GPUs here: {', '.join(device.label for device in devices)}",
        page="errors#no-such-gpu",
    )
