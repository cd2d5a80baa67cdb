"""A bill as JSON and in words: what ``cost`` and ``report`` say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.core.config import prices as table
from gpuwatchd.view.answers import envelope
from gpuwatchd.view.answers.base import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuwatchd.analysis.cost import Entry, Price, Prices, Sum
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
BY: Final[dict[str, Callable[[Entry], str]]] = {
    "gpu": lambda one: one.gpu,
    "user": lambda one: one.user or "(unknown)",
    "job": lambda one: one.job or "(no job)",
    "incident": lambda one: one.title,
}
SINCE: Final = {
    "start": "since its start, no checkpoint known",
    "checkpoint": "since its last checkpoint",
    "first-seen": "since it was first seen, no checkpoint known",
}


def money_json(name: str, usd: float | None, prices: Prices) -> dict[str, float | None]:
    """Return an amount in US dollars and in the user's currency."""
    rate = prices.per_usd
    known = finite(usd)
    own = None if known is None or rate is None else known * rate
    return {f"{name}_usd": known, name: own}


def entry_json(entry: Entry, prices: Prices) -> dict[str, Any]:
    """Return one thing that costs."""
    return {
        **envelope.fields(entry, "what key title device_uid"),
        "user": text.clean(entry.user) or None,
        "job": text.clean(entry.job) or None,
        **envelope.fields(entry, "since since_at until_at gpu_hours"),
        **money_json("cost", entry.usd, prices),
        **money_json("electricity", entry.electricity_usd, prices),
        "whole_gpu_hours": finite(entry.whole_gpu_hours),
        **money_json("whole", entry.whole_usd, prices),
        "ahead_gpu_hours": finite(entry.ahead_gpu_hours),
        **money_json("ahead", entry.ahead_usd, prices),
        "basis": text.clean(entry.basis) or None,
        "reason": text.clean(entry.said, limit=1024),
    }


def sum_json(found: Sum, prices: Prices) -> dict[str, Any]:
    """Return a sum; what is partly unknown is null."""
    return {
        "incidents": found.incidents,
        "gpu_hours": finite(found.gpu_hours),
        **money_json("cost", found.usd, prices),
        **money_json("known_cost", found.known_usd, prices),
        **money_json("electricity", found.electricity_usd, prices),
        "ahead_gpu_hours": finite(found.ahead_gpu_hours),
        **money_json("ahead", found.ahead_usd, prices),
        **money_json("known_ahead", found.known_ahead_usd, prices),
    }


def sums_json(entries: Sequence[Entry], prices: Prices) -> dict[str, Any]:
    """Return a sum for each sort of cost."""
    return {
        what.replace("-", "_"): sum_json(
            cost.summed(entry for entry in entries if entry.what == what), prices
        )
        for what in cost.WHATS
    }


def beside(bill: Bill, by: str) -> dict[str, Any]:
    """Return sums, groups and prices; ``by`` is a key of :data:`BY`."""
    prices = bill.prices
    hours, people = engineer(bill)
    return {
        "since_at": units.instant(bill.since_s),
        "currency": prices.currency,
        "per_usd": prices.per_usd,
        "sums": sums_json(bill.entries, prices),
        "engineer_hours": hours,
        "engineer": people,
        "by": by,
        "groups": [
            {"name": text.clean(name), "sums": sums_json(group, prices)}
            for name, group in cost.grouped(bill.entries, BY[by])
        ],
        "prices": prices_json(bill),
    }


def prices_json(bill: Bill) -> list[dict[str, Any]]:
    """Return the price of each device, as it was counted with."""
    prices = bill.prices
    return [
        {
            "device_uid": text.clean(uid),
            "name": text.clean(bill.devices[uid].name),
            **money_json("per_hour", None if price is None else price.usd_per_hour, prices),
            **money_json(
                "whole_per_hour", None if price is None else price.whole_usd_per_hour, prices
            ),
            "basis": None if price is None else text.clean(price.basis),
            "source": None if price is None else text.clean(price.source, limit=1024) or None,
            "age_days": None if price is None else price.age_days,
        }
        for uid, price in bill.used.items()
    ]


def engineer(bill: Bill) -> tuple[int | None, float | None]:
    """Return hours of people for lost runs, and what they cost in the user's currency."""
    rate = bill.prices.section.engineer_per_hour
    if rate is None:
        return None, None
    runs = len({(entry.key, entry.until_at_s) for entry in bill.of("lost")})
    return runs, runs * rate


def old(bill: Bill) -> list[tuple[str, str]]:
    """Return a sentence for each price that is too old to be trusted as it is."""
    found = {price.basis: price for price in bill.used.values() if price is not None}
    return [
        ("old-price", f"a price is {price.age_days} days old: {basis}; set [cost] prices")
        for basis, price in found.items()
        if price.is_old
    ]


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
