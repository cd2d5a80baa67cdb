"""What one device costs for an hour: the user's own price, or the row of a dated table."""

from __future__ import annotations

import datetime as dt
import fnmatch
from typing import TYPE_CHECKING, Final

from gpuwatchd.core.model import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.core.config import CostSection
    from gpuwatchd.core.config.prices import PriceRow
    from gpuwatchd.core.model import Device

OLD_DAYS: Final = 180
"""A price that is older than this is shown with its age."""
_DAY_S: Final = 86_400.0
_MONTH_DAYS: Final = 30.44
_INSTANCE: Final = " MIG "


class Price(Value, frozen=True, kw_only=True):
    """What one device costs for an hour, in US dollars; electricity apart."""

    usd_per_hour: float
    """Of this device: of a MIG instance, its slice of the card."""
    whole_usd_per_hour: float
    """Of the whole card."""
    electricity_usd_per_hour: float | None = None
    """On top, where the device is owned: by its measured power; None: not asked for, or unknown."""
    basis: str
    """Where it comes from: "A100 40GB, on-demand, as of 2024-06"; "yours"."""
    age_days: int | None = None
    """Of a row of the table."""
    source: str = ""
    """Page and calculation of a row: "AWS us-east-1, p4d.24xlarge: 21.957642 an hour / 8 GPUs"."""

    @property
    def is_old(self) -> bool:
        """Say whether it is a row of the table that is too old to be trusted as it is."""
        return self.age_days is not None and self.age_days > OLD_DAYS

    @property
    def running_usd_per_hour(self) -> float:
        """Price of an hour with the electricity that is known."""
        return self.usd_per_hour + (self.electricity_usd_per_hour or 0.0)


class Prices:
    """Looks prices up.

    The first that is there counts: the longest glob of ``[cost] prices`` that fits, then
    ``usd-per-gpu-hour``; then, where devices are owned, what they cost over their lifetime; else
    the longest match of the table among the offers that the user asked for.
    """

    def __init__(self, section: CostSection, rows: Sequence[PriceRow]) -> None:
        self.section = section
        self._rows = rows

    @property
    def off(self) -> bool:
        """Whether money is not counted at all."""
        return self.section.mode == "off"

    @property
    def per_usd(self) -> float | None:
        """Units of the user's currency for one US dollar; None where that is missing."""
        return 1.0 if self.section.currency.upper() == "USD" else self.section.per_usd

    @property
    def currency(self) -> str:
        """Three letters."""
        return self.section.currency.upper()

    @property
    def problem(self) -> str:
        """Why nothing can be priced, in one sentence; "" when something can."""
        if self.per_usd is None and not self.off:
            return f"[cost] per-usd is needed where currency is {self.currency}: no money is shown"
        return ""

    def of(
        self,
        device: Device,
        devices: Mapping[str, Device],
        *,
        now_s: float,
        power_w: float | None = None,
    ) -> Price | None:
        """Return the price of a device; None where it is unknown.

        Parameters
        ----------
        device, devices
            It, and every device by uid: an instance is priced as its slice of the card's memory.
        power_w
            What the card takes on the mean, as measured; None where that is unknown.
        """
        rate = self.per_usd
        if self.off or rate is None:
            return None
        card = device if device.parent_uid is None else devices.get(device.parent_uid)
        name = device.name.partition(_INSTANCE)[0] if card is None else card.name
        slice_ = _slice(device, card)
        own = _longest(self.section.prices, name)
        if own is not None:
            return _priced(self.section.prices[own] / rate, slice_, f'yours, for "{own}"')
        if self.section.usd_per_gpu_hour is not None:
            return _priced(self.section.usd_per_gpu_hour, slice_, "yours")
        if self.section.mode == "owned":
            return self._owned(rate, slice_, power_w)
        row = self._row(name)
        return None if row is None else _of_row(row, slice_, now_s)

    def _owned(self, rate: float, slice_: float | None, power_w: float | None) -> Price | None:
        paid, per_kwh = self.section.purchase, self.section.electricity_per_kwh
        hours = float(self.section.lifetime) / 3600.0
        if paid is None or hours <= 0 or slice_ is None:
            return None
        basis = f"owned, over {hours / 24 / 365:.3g} years"
        current = None
        if per_kwh is not None and power_w is not None:
            current = power_w / 1000.0 * per_kwh / rate * slice_
            basis += f", with electricity at {power_w:.0f} W"
        elif per_kwh is not None:
            basis += ", without electricity: its power is unknown"
        price = _priced(paid / rate / hours, slice_, basis)
        if price is None or current is None:
            return price
        return Price(
            usd_per_hour=price.usd_per_hour,
            whole_usd_per_hour=price.whole_usd_per_hour,
            electricity_usd_per_hour=current,
            basis=basis,
        )

    def _row(self, name: str) -> PriceRow | None:
        offered = [row for row in self._rows if row.basis == self.section.offer]
        best = _longest([row.match for row in offered], name)
        fitting = [row for row in offered if row.match == best]
        return max(fitting, key=lambda row: row.as_of, default=None)


def _slice(device: Device, card: Device | None) -> float | None:
    """Return the share of its card's memory that a device has; None where that is unknown."""
    if device.parent_uid is None:
        return 1.0
    whole = None if card is None else card.memory_total_bytes
    if not whole or device.memory_total_bytes is None:
        return None
    return min(1.0, device.memory_total_bytes / whole)


def _longest(globs: Iterable[str], name: str) -> str | None:
    """Return the most specific glob that fits: the one with most letters that are no wildcard."""
    fitting = [glob for glob in globs if fnmatch.fnmatchcase(name.casefold(), glob.casefold())]
    return max(fitting, key=lambda glob: (sum(c not in "*?" for c in glob), glob), default=None)


def _priced(
    whole: float, slice_: float | None, basis: str, age_days: int | None = None, source: str = ""
) -> Price | None:
    if slice_ is None:
        return None
    return Price(
        usd_per_hour=whole * slice_,
        whole_usd_per_hour=whole,
        basis=basis,
        age_days=age_days,
        source=source,
    )


def _of_row(row: PriceRow, slice_: float | None, now_s: float) -> Price | None:
    noon = dt.datetime(row.as_of.year, row.as_of.month, row.as_of.day, tzinfo=dt.UTC)
    age_days = max(0, int((now_s - noon.timestamp()) / _DAY_S))
    basis = f"{row.name}, {row.basis}, as of {row.as_of:%Y-%m}"
    if age_days > OLD_DAYS:
        basis += f", {age_days / _MONTH_DAYS:.0f} months old"
    where = row.provider if row.region == "any" else f"{row.provider} {row.region}"
    source = f"{where}, {row.note}; {row.source}"
    return _priced(row.usd_per_gpu_hour, slice_, basis, age_days, source)
