"""``cost``: what leaks and idle memory cost: at risk now, lost, held, and saved by a warning."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from gpuwatchd import cost, text, units
from gpuwatchd.ctl import costs, envelope, mine, options, output
from gpuwatchd.ctl.envelope import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.cost import Entry, Price, Prices, Sum
    from gpuwatchd.ctl.costs import Bill
    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.ctl.output import Out

_DAY_S: Final = 86_400.0
_TITLES: Final = {
    "at-risk": "at risk now",
    "lost": "lost in crashes near the limit, probably",
    "held": "held without work",
    "saved": "saved by early warning, probably",
}
_SHORT: Final = {
    "at-risk": "at risk now",
    "lost": "probably lost",
    "held": "held without work",
    "saved": "saved",
}
_BY: Final[dict[str, Callable[[Entry], str]]] = {
    "gpu": lambda one: one.gpu,
    "user": lambda one: one.user or "(unknown)",
    "job": lambda one: one.job or "(no job)",
    "incident": lambda one: one.title,
}
_NAME, _CELL = 24, 11
_SINCE: Final = {
    "start": "since its start, no checkpoint known",
    "checkpoint": "since its last checkpoint",
    "first-seen": "since it was first seen, no checkpoint known",
}


@click.command(
    "cost",
    epilog=options.examples("cost", "cost --since 7d --by user", "cost --by incident --json"),
)
@click.option("--since", type=options.Instant(), metavar="TIME", help="Not older than this (30d).")
@click.option(
    "--by",
    type=click.Choice(list(_BY)),
    default="gpu",
    show_default=True,
    help="What it is added up by.",
)
@options.user_option
def command(since: float | None, by: str) -> int:
    """Tell what leaks and idle memory cost, in GPU-hours and money.

    \b
    at risk   open leaks: since the job's start, or its last known
              checkpoint, and on until memory is full (middle of the
              forecast)
    lost      jobs that ended near the limit, probably out of memory:
              from the last checkpoint, or the start, to the end
    held      memory held without work, as its share of the device
    saved     jobs that ended after somebody had been told, at least 10
              minutes before the earliest crash that was foreseen: only
              the hours from that end to that crash, which would have
              been lost too; nothing of what the job had cost before

    A GPU that several processes hold is shared by what each holds over time. Hours that nobody
    watched are not counted. Prices are yours ([cost]) or a dated table's, per GPU; without one
    hours are counted alone.
    """  # noqa: D301 - click's own mark for text that keeps its lines
    flags = options.current()
    since_s = time.time() - 30 * _DAY_S if since is None else since
    bill = costs.gather(flags, since_s)
    if flags.user:
        people = mine.People(flags.user)
        bill.entries = [one for one in bill.entries if people.has(one.user)]
    if flags.json:
        output.emit_json(
            envelope.answer(
                "cost",
                [_entry_json(one, bill.prices) for one in bill.entries],
                source=bill.source,
                warnings=[*bill.warnings, *_old(bill)],
                beside=_beside(bill, by),
            )
        )
    else:
        _show(output.Out(flags), flags, bill, by)
    return 0


# ---- JSON ---------------------------------------------------------------------------------------


def _money_json(name: str, usd: float | None, prices: Prices) -> dict[str, float | None]:
    """Return an amount in US dollars and in the user's currency."""
    rate = prices.per_usd
    known = finite(usd)
    own = None if known is None or rate is None else known * rate
    return {f"{name}_usd": known, name: own}


def _entry_json(one: Entry, prices: Prices) -> dict[str, Any]:
    return {
        "what": one.what,
        "key": text.clean(one.key),
        "title": text.clean(one.title),
        "device_uid": text.clean(one.device_uid),
        "user": text.clean(one.user) or None,
        "job": text.clean(one.job) or None,
        "since": one.since,
        "since_at": units.instant(one.since_at_s),
        "until_at": units.instant(one.until_at_s),
        "gpu_hours": finite(one.gpu_hours),
        **_money_json("cost", one.usd, prices),
        **_money_json("electricity", one.electricity_usd, prices),
        "whole_gpu_hours": finite(one.whole_gpu_hours),
        **_money_json("whole", one.whole_usd, prices),
        "ahead_gpu_hours": finite(one.ahead_gpu_hours),
        **_money_json("ahead", one.ahead_usd, prices),
        "basis": text.clean(one.basis) or None,
        "reason": text.clean(one.said, limit=1024),
    }


def _sum_json(found: Sum, prices: Prices) -> dict[str, Any]:
    return {
        "incidents": found.incidents,
        "gpu_hours": finite(found.gpu_hours),
        **_money_json("cost", found.usd, prices),
        **_money_json("known_cost", found.known_usd, prices),
        **_money_json("electricity", found.electricity_usd, prices),
        "ahead_gpu_hours": finite(found.ahead_gpu_hours),
        **_money_json("ahead", found.ahead_usd, prices),
        **_money_json("known_ahead", found.known_ahead_usd, prices),
    }


def _sums_json(entries: Sequence[Entry], prices: Prices) -> dict[str, Any]:
    return {
        what.replace("-", "_"): _sum_json(
            cost.summed(one for one in entries if one.what == what), prices
        )
        for what in cost.WHATS
    }


def _beside(bill: Bill, by: str) -> dict[str, Any]:
    prices = bill.prices
    hours, people = _engineer(bill)
    return {
        "since_at": units.instant(bill.since_s),
        "currency": prices.currency,
        "per_usd": prices.per_usd,
        "sums": _sums_json(bill.entries, prices),
        "engineer_hours": hours,
        "engineer": people,
        "by": by,
        "groups": [
            {"name": text.clean(name), "sums": _sums_json(group, prices)}
            for name, group in cost.grouped(bill.entries, _BY[by])
        ],
        "prices": [
            {
                "device_uid": text.clean(uid),
                "name": text.clean(bill.devices[uid].name),
                **_money_json("per_hour", None if price is None else price.usd_per_hour, prices),
                **_money_json(
                    "whole_per_hour", None if price is None else price.whole_usd_per_hour, prices
                ),
                "basis": None if price is None else text.clean(price.basis),
                "source": None if price is None else text.clean(price.source, limit=1024) or None,
                "age_days": None if price is None else price.age_days,
            }
            for uid, price in bill.used.items()
        ],
    }


def _engineer(bill: Bill) -> tuple[int | None, float | None]:
    """Return hours of people for lost runs, and what they cost in the user's currency."""
    rate = bill.prices.section.engineer_per_hour
    if rate is None:
        return None, None
    runs = len({(one.key, one.until_at_s) for one in bill.of("lost")})
    return runs, runs * rate


def _old(bill: Bill) -> list[tuple[str, str]]:
    """Return a sentence for each price that is too old to be trusted as it is."""
    found = {price.basis: price for price in bill.used.values() if price is not None}
    return [
        ("old-price", f"a price is {price.age_days} days old: {basis}; set [cost] prices")
        for basis, price in found.items()
        if price.is_old
    ]


# ---- the screen ---------------------------------------------------------------------------------


def _show(out: Out, flags: Globals, bill: Bill, by: str) -> None:
    for _, sentence in [*bill.warnings, *_old(bill)]:
        out.flow(output.sentence(f"! {sentence}", "yellow"), rest="  ", gap=" ")
    since = units.clock(bill.since_s, now_s=bill.now_s)
    out.line((f"What leaks and idle memory cost since {since}", "bold"))
    out.line((f"{'':<42}{'incidents':>10}{'GPU-hours':>12}{'money':>15}", "bold"))
    for what in cost.WHATS:
        entries = bill.of(what)
        found = cost.summed(entries)
        _sum_line(out, bill, _TITLES[what], found, found.incidents)
        if what == "at-risk" and found.ahead_gpu_hours is not None:
            _ahead_line(out, bill, found)
        if found.electricity_usd is not None:
            money = _money(out, bill, found.electricity_usd)
            out.line((f"{'  of that, electricity':<64}{money:>15}", "dim"))
        if what == "lost" and (people := _people(out, bill)):
            out.line(people)
    if not bill.entries:
        out.line(("nothing of the kind was seen in this period", "green"))
    elif by == "incident":
        _incidents(out, bill)
    else:
        _groups(out, bill, by)
    if not flags.quiet:
        _prices(out, bill)


def _sum_line(out: Out, bill: Bill, title: str, found: Sum, count: int) -> None:
    hours = cost.in_hours(found.gpu_hours)
    out.line(f"{title:<42}{count:>10}{hours:>12}{_total(out, bill, found):>15}")


def _ahead_line(out: Out, bill: Bill, found: Sum) -> None:
    hours = cost.in_hours(found.ahead_gpu_hours)
    money = _partly(out, bill, found.ahead_usd, found.known_ahead_usd)
    out.line(f"{'  and until memory is full':<42}{'':>10}{hours:>12}{money:>15}")


def _people(out: Out, bill: Bill) -> str:
    hours, amount = _engineer(bill)
    if not hours:
        return ""
    money = units.money(amount, currency=bill.prices.currency, ascii_only=out.ascii)
    title = f"  and people, an hour for each of {hours} lost runs"
    return f"{title:<64}{money:>15}"


def _money(out: Out, bill: Bill, usd: float | None) -> str:
    rate = bill.prices.per_usd
    return units.money(
        None if usd is None or rate is None else usd * rate,
        currency=bill.prices.currency,
        ascii_only=out.ascii,
    )


def _total(out: Out, bill: Bill, found: Sum) -> str:
    return _partly(out, bill, found.usd, found.known_usd)


def _partly(out: Out, bill: Bill, usd: float | None, known_usd: float) -> str:
    """Return a sum; of one that is partly unknown, what is known and that there is more."""
    if usd is None and known_usd > 0:
        return f"{_money(out, bill, known_usd)} + ?"
    return _money(out, bill, usd)


def _groups(out: Out, bill: Bill, by: str) -> None:
    heads = ("at risk", "until full", "lost", "held", "saved")
    out.line("")
    out.line((f"{'by ' + by:<{_NAME}}" + "".join(f"{head:>{_CELL}}" for head in heads), "bold"))
    for name, entries in cost.grouped(bill.entries, _BY[by]):
        sums = {what: cost.summed(e for e in entries if e.what == what) for what in cost.WHATS}
        cells = [
            _cell(out, bill, sums["at-risk"].usd, sums["at-risk"].gpu_hours),
            _cell(out, bill, sums["at-risk"].ahead_usd, sums["at-risk"].ahead_gpu_hours or 0.0),
            *(
                _cell(out, bill, sums[what].usd, sums[what].gpu_hours)
                for what in ("lost", "held", "saved")
            ),
        ]
        label = output.fit(text.clean(name), _NAME - 1, "." if out.ascii else "…")
        gap = " " * (_NAME - output.width_of(label))
        out.line(label + gap + "".join(f"{cell:>{_CELL}}" for cell in cells))


def _cell(out: Out, bill: Bill, usd: float | None, hours: float | None) -> str:
    """Return money; without a price the hours; a dash where there is nothing."""
    if hours == 0.0 or (hours is None and usd is None):
        return "-" if hours == 0.0 else "?"
    if usd is not None:
        return _money(out, bill, usd)
    return "?" if hours is None else f"{cost.in_hours(hours)} h"


def _incidents(out: Out, bill: Bill) -> None:
    for name, entries in cost.grouped(bill.entries, lambda one: f"{one.what}\0{one.key}"):
        what, one = name.partition("\0")[0], entries[0]
        found = cost.summed(entries)
        hours = f"{cost.in_hours(found.gpu_hours)} GPU-hours"
        since = _SINCE[one.since] if what in {"at-risk", "lost"} else ""
        parts: list[output.Part] = [
            (_SHORT[what], "bold"),
            one.title,
            f"{_total(out, bill, found)} {since}".strip(),
            hours,
        ]
        whole = cost.in_hours(cost.total(e.whole_gpu_hours for e in entries))
        if whole not in {"?", cost.in_hours(found.gpu_hours)}:
            parts.append(f"its share of {whole}, in which others were there too")
        if found.ahead_gpu_hours is not None:
            ahead = _partly(out, bill, found.ahead_usd, found.known_ahead_usd)
            parts.append(f"{ahead} more until memory is full")
        out.line("")
        out.flow(parts, rest="  ", whole=True)
        if one.said:
            out.flow(output.sentence(one.said, "dim"), first="  ", rest="  ", gap=" ")


def _prices(out: Out, bill: Bill) -> None:
    if not bill.used:
        return
    out.line("")
    by_model: dict[tuple[str, str], tuple[Price | None, list[str]]] = {}
    for uid, price in sorted(bill.used.items(), key=lambda one: bill.devices[one[0]].label):
        device = bill.devices[uid]
        at = (device.name, "" if price is None else price.basis)
        by_model.setdefault(at, (price, []))[1].append(device.label)
    for (name, basis), (price, labels) in by_model.items():
        first = f"{', '.join(labels)}: "
        if price is None:
            why = f"no price is known of {name}: [cost] prices takes yours"
            out.flow(output.sentence(why, "dim"), first=first, rest="  ", gap=" ")
            continue
        said = f"{_money(out, bill, price.running_usd_per_hour)}/h ({basis})"
        if price.usd_per_hour != price.whole_usd_per_hour:
            said += f", of {_money(out, bill, price.whole_usd_per_hour)}/h for the whole card"
        if price.source:
            said += f"; {price.source}"
        out.flow(output.sentence(said, "dim"), first=first, rest="  ", gap=" ", whole=True)
