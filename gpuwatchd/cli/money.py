"""Prices and amounts as verbs other than ``cost`` show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.config import prices as table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuwatchd.analysis.cost import Price
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device


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

    def money(self, usd: float | None, *, ascii_only: bool) -> str:
        """Return an amount in the user's currency."""
        rate = self.prices.per_usd
        return units.money(
            None if usd is None or rate is None else usd * rate,
            currency=self.prices.currency,
            ascii_only=ascii_only,
        )

    def lines(self, uids: Iterable[str], *, ascii_only: bool = False) -> Iterator[str]:
        """Yield the price of each model among these devices, as it was counted."""
        said: dict[str, None] = {}
        for uid in uids:
            price = self.of(uid)
            if price is not None:
                hourly = self.money(price.running_usd_per_hour, ascii_only=ascii_only)
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
        own = "[cost] prices in the configuration takes yours"
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
                hourly = self.money(price.usd_per_hour, ascii_only=False)
                age = f", {price.age_days} days old" if price.is_old else ""
                yield (
                    not price.is_old,
                    f"{device.name}: {hourly}/h ({price.basis}){age}",
                    (own if price.is_old else ""),
                )
