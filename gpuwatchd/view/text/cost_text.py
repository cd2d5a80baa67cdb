"""A bill in words: what ``cost`` and ``report`` say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.core.config import prices as table
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import cost_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuwatchd.analysis.cost import Price
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device
    from gpuwatchd.view.blocks import Page
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
ACTS: Final = "freed by ending or restarting processes"
ACTS_LOST: Final = "work that these lost"
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
            value = f"{money(bill, price.running_usd_per_hour, ascii_only=ascii_only)}/h ({basis})"
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
        yield from dict.fromkeys(
            f"{money(self, price.running_usd_per_hour, ascii_only=ascii_only)}/h ({price.basis})"
            for price in map(self.of, uids)
            if price is not None
        )

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
                age = f", {price.age_days} days old" if price.is_old else ""
                yield (
                    not price.is_old,
                    f"{device.name}: {money(self, price.usd_per_hour)}/h ({price.basis}){age}",
                    (own if price.is_old else ""),
                )


# The table of ``cost``: the sums, by whom, every incident.

_NAME, _CELL = 24, 11


def show(out: Page, bill: Bill, by: str) -> None:
    """Write the sums, then whose they are."""
    out.warn([*bill.warnings, *bill.old_prices()])
    since = units.clock(bill.since_s, now_s=bill.now_s)
    out.line((f"What leaks and idle memory cost since {since}", "bold"))
    out.line((f"{'':<42}{'incidents':>10}{'GPU-hours':>12}{'money':>15}", "bold"))
    for what in cost.WHATS:
        _sum_lines(out, bill, what)
    for row in act_rows(bill, ascii_only=out.ascii):
        _row(out, *row)
    if bill.acts:
        out.prose(act_facts(bill), first="  ", rest="  ")
    if not bill.entries and not bill.acts:
        out.line(("none in this period", "green"))
    elif bill.entries and by == "incident":
        incidents(out, bill)
    elif bill.entries:
        _groups(out, bill, by)
    if not out.quiet:
        if bill.used:
            out.line("")
        for labels, value in prices(bill, ascii_only=out.ascii):
            out.prose(value, "dim", first=f"{labels}: ", rest="  ", whole=True)


def _row(out: Page, label: str, count: str, hours: str, amount: str) -> None:
    out.line(f"{label:<42}{count:>10}{hours:>12}{amount:>15}")


def _sum_lines(out: Page, bill: Bill, what: str) -> None:
    for row in sum_rows(bill, what, ascii_only=out.ascii):
        _row(out, *row)
    found = cost.summed(bill.of(what))
    if found.electricity_usd is not None:
        electricity = money(bill, found.electricity_usd, ascii_only=out.ascii)
        out.line((f"{'  of that, electricity':<64}{electricity:>15}", "dim"))
    if what == "lost" and (people := _people(out, bill)):
        out.line(people)


def sum_rows(
    bill: Bill, what: str, *, ascii_only: bool = False
) -> Iterator[tuple[str, str, str, str]]:
    """Yield label, incidents, GPU-hours and money of one sort of cost, and of what is ahead."""
    found = cost.summed(bill.of(what))
    total = partly(bill, found.usd, found.known_usd, ascii_only=ascii_only)
    yield TITLES[what], str(found.incidents), cost.in_hours(found.gpu_hours), total
    if what == "at-risk" and found.ahead_gpu_hours is not None:
        ahead = partly(bill, found.ahead_usd, found.known_ahead_usd, ascii_only=ascii_only)
        yield "  and until memory is full", "", cost.in_hours(found.ahead_gpu_hours), ahead


def act_rows(bill: Bill, *, ascii_only: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield label, number, GPU-hours and money of what steps freed and lost, if any were taken."""
    if not bill.acts:
        return
    found = cost.acts_summed(bill.acts)
    hours = cost.in_hours(found.freed_gpu_hours)
    if found.freed_gpu_hours is None and found.known_freed_gpu_hours:
        hours = f"{cost.in_hours(found.known_freed_gpu_hours)} + ?"
    amount = partly(bill, found.freed_usd, found.known_freed_usd, ascii_only=ascii_only)
    yield ACTS, str(found.acts), hours, amount
    lost = money(bill, found.lost_usd, ascii_only=ascii_only)
    yield f"  {ACTS_LOST}", "", cost.in_hours(found.lost_gpu_hours), lost


def act_facts(bill: Bill) -> str:
    """Return how many acts of each step there were, their memory, and which jobs went on."""
    found = cost.acts_summed(bill.acts)
    memory = units.size(found.freed_bytes)
    if found.freed_bytes is None and found.known_freed_bytes:
        memory = f"{units.size(found.known_freed_bytes)} + ?"
    steps = ", ".join(f"{count} {step}" for step, count in found.by_step.items())
    parts = [f"{steps}: {memory} of memory freed"]
    if found.begun_again:
        parts.append(f"{found.went_on} of {found.begun_again} went on from a checkpoint")
    if found.undecided:
        parts.append(f"of {found.undecided} it is too early to say")
    return "; ".join(parts)


def _people(out: Page, bill: Bill) -> str:
    hours, amount = bill.engineer()
    if not hours:
        return ""
    money = units.money(amount, currency=bill.prices.currency, ascii_only=out.ascii)
    title = f"  and people, an hour for each of {hours} lost runs"
    return f"{title:<64}{money:>15}"


def _groups(out: Page, bill: Bill, by: str) -> None:
    heads = ("at risk", "until full", "lost", "held", "saved")
    out.line("")
    out.line((f"{'by ' + by:<{_NAME}}" + "".join(f"{head:>{_CELL}}" for head in heads), "bold"))
    for name, entries in cost.grouped(bill.entries, cost_entries.BY[by]):
        sums = {what: cost.summed(e for e in entries if e.what == what) for what in cost.WHATS}
        cells = [
            _cell(out, bill, sums["at-risk"].usd, sums["at-risk"].gpu_hours),
            _cell(out, bill, sums["at-risk"].ahead_usd, sums["at-risk"].ahead_gpu_hours or 0.0),
            *(
                _cell(out, bill, sums[what].usd, sums[what].gpu_hours)
                for what in ("lost", "held", "saved")
            ),
        ]
        label = blocks.fit(text.clean(name), _NAME - 1, "." if out.ascii else "…")
        gap = " " * (_NAME - blocks.width_of(label))
        out.line(label + gap + "".join(f"{cell:>{_CELL}}" for cell in cells))


def _cell(out: Page, bill: Bill, usd: float | None, hours: float | None) -> str:
    """Return money; without a price the hours; a dash where there is nothing."""
    if hours == 0.0 or (hours is None and usd is None):
        return "-" if hours == 0.0 else "?"
    if usd is not None:
        return money(bill, usd, ascii_only=out.ascii)
    return "?" if hours is None else f"{cost.in_hours(hours)} h"


def incidents(out: Page, bill: Bill) -> None:
    """Write every incident of a bill: what it cost, since when, and what it may cost yet."""
    for name, entries in cost.grouped(bill.entries, lambda entry: f"{entry.what}\0{entry.key}"):
        what, entry = name.partition("\0")[0], entries[0]
        found = cost.summed(entries)
        since = SINCE[entry.since] if what in {"at-risk", "lost"} else ""
        parts: list[blocks.Part] = [
            (SHORT[what], "bold"),
            entry.title,
            f"{partly(bill, found.usd, found.known_usd, ascii_only=out.ascii)} {since}".strip(),
            f"{cost.in_hours(found.gpu_hours)} GPU-hours",
        ]
        whole = cost.in_hours(cost.total(e.whole_gpu_hours for e in entries))
        if whole not in {"?", cost.in_hours(found.gpu_hours)}:
            parts.append(f"its share of {whole}, in which others were there too")
        if found.ahead_gpu_hours is not None:
            ahead = partly(bill, found.ahead_usd, found.known_ahead_usd, ascii_only=out.ascii)
            parts.append(f"{ahead} more until memory is full")
        out.line("")
        out.flow(parts, rest="  ", whole=True)
        if entry.said:
            out.prose(entry.said, "dim", first="  ", rest="  ")
