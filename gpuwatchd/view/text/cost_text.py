"""A bill in words: what ``cost`` and ``report`` say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.config import prices as table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuwatchd.analysis.cost import Price
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device
    from gpuwatchd.view.queries.cost_entries import Bill

TITLES: Final = {
    "at-risk": "at risk now",
    "lost": "lost in crashes near the limit, probably",
    "held": "idle memory",
    "saved": "saved by early warning, probably",
}
SHORT: Final = {
    "at-risk": "at risk now",
    "lost": "probably lost",
    "held": "idle memory",
    "saved": "saved",
}
SINCE: Final = {
    "start": "since its start, no checkpoint known",
    "checkpoint": "since its last checkpoint",
    "first-seen": "since it was first seen, no checkpoint known",
}


def money(bill: Bill | Book, usd: float | None, *, ascii_only: bool = False) -> str:
    """Return an amount in the user's currency."""
    rate = bill.prices.per_usd
    return units.money(
        None if usd is None or rate is None else usd * rate,
        currency=bill.prices.currency,
        ascii_only=ascii_only,
    )


def partly(bill: Bill, usd: float | None, known_usd: float, *, ascii_only: bool = False) -> str:
    """Return a sum; of one that is partly unknown, what is known and that there is more."""
    if usd is None and known_usd > 0:
        return f"{money(bill, known_usd, ascii_only=ascii_only)} + ?"
    return money(bill, usd, ascii_only=ascii_only)


def prices(bill: Bill, *, ascii_only: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the devices and the price that they were counted with, one sentence per model."""
    by_model: dict[tuple[str, str], tuple[Price | None, list[str]]] = {}
    for uid, price in sorted(bill.used.items(), key=lambda pair: bill.devices[pair[0]].label):
        device = bill.devices[uid]
        at = (device.name, "" if price is None else price.basis)
        by_model.setdefault(at, (price, []))[1].append(device.label)
    for (name, basis), (price, labels) in by_model.items():
        if price is None:
            value = f"no price is known of {name}: set yours in [cost] prices"
        else:
            hourly = money(bill, price.running_usd_per_hour, ascii_only=ascii_only)
            value = f"{hourly}/h ({basis})"
            if price.usd_per_hour != price.whole_usd_per_hour:
                whole = money(bill, price.whole_usd_per_hour, ascii_only=ascii_only)
                value += f", of {whole}/h for the whole card"
            if price.source:
                value += f"; {price.source}"
        yield ", ".join(labels), value


# Prices and amounts as verbs other than ``cost`` show them.


class Book:
    """Prices of the devices at hand, by the configuration in force."""

    def __init__(self, settings: Config, devices: Iterable[Device], *, now_s: float) -> None:
        self.prices = cost.Prices(settings.cost, table.builtin())
        self._devices = {device.uid: device for device in devices}
        self._now_s = now_s

    def of(self, uid: str) -> Price | None:
        """Return what a device costs; None where that is unknown."""
        device = self._devices.get(uid)
        if device is None:
            return None
        return self.prices.of(device, self._devices, now_s=self._now_s)

    def lines(self, uids: Iterable[str], *, ascii_only: bool = False) -> Iterator[str]:
        """Yield the price of each model among these devices, as it was counted."""
        said: dict[str, None] = {}
        for uid in uids:
            price = self.of(uid)
            if price is not None:
                hourly = money(self, price.running_usd_per_hour, ascii_only=ascii_only)
                said[f"{hourly}/h ({price.basis})"] = None
        yield from said

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        """Yield (is well, sentence, what mends it) of each model's price."""
        prices = self.prices
        if prices.off:
            yield True, 'money is not counted: [cost] mode = "off"', ""
            return
        if prices.problem:
            yield False, prices.problem, "gpuwatchctl config path"
            return
        own = "set yours in [cost] prices of the configuration"
        names = set()
        for uid, device in self._devices.items():
            price = self.of(uid)
            if device.name in names:
                continue
            names.add(device.name)
            if price is None:
                # Not worth a warning: hours are counted all the same.
                yield True, f"no price is known of {device.name}: GPU-hours are counted alone", own
            else:
                hourly = money(self, price.usd_per_hour)
                age = f", {price.age_days} days old" if price.is_old else ""
                yield (
                    not price.is_old,
                    f"{device.name}: {hourly}/h ({price.basis}){age}",
                    (own if price.is_old else ""),
                )
