"""Everything that is known of a period that a report is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.queries.current_view import View
from gpuwatchd.view.report.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Alert, Device, Holding, ProcessInfo
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.queries.cost_entries import Bill
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.report.incident import Channel, Incident
    from gpuwatchd.view.report.usage import Asked


_PRESENT_S = 120.0
"""A period that ends so long ago ends now."""


class Charts(NamedTuple):
    """The charts of a report but those of its incidents."""

    devices: Mapping[str, Picture] = {}
    """By UUID."""
    processes: Sequence[tuple[ProcessInfo, Picture]] = ()
    """Of those that --pid names."""


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
    in_full: list[Incident] = field(default_factory=list)
    """The first of the alerts."""
    channels: dict[str, Channel] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    charts: Charts = field(default_factory=Charts)
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
