"""What leaks and idle memory cost: the sums, by whom, every incident."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import cost_entries
from gpuwatchd.view.text import cost_text

if TYPE_CHECKING:
    from gpuwatchd.analysis.cost import Sum
    from gpuwatchd.view.blocks import Page
    from gpuwatchd.view.queries.cost_entries import Bill


_NAME, _CELL = 24, 11


def show(out: Page, bill: Bill, by: str) -> None:
    """Write the sums, then whose they are."""
    for _, sentence in [*bill.warnings, *bill.old_prices()]:
        out.flow(blocks.sentence(f"! {sentence}", "yellow"), rest="  ", gap=" ")
    since = units.clock(bill.since_s, now_s=bill.now_s)
    out.line((f"What leaks and idle memory cost since {since}", "bold"))
    out.line((f"{'':<42}{'incidents':>10}{'GPU-hours':>12}{'money':>15}", "bold"))
    for what in cost.WHATS:
        entries = bill.of(what)
        found = cost.summed(entries)
        _sum_line(out, bill, cost_text.TITLES[what], found, found.incidents)
        if what == "at-risk" and found.ahead_gpu_hours is not None:
            _ahead_line(out, bill, found)
        if found.electricity_usd is not None:
            money = cost_text.money(bill, found.electricity_usd, ascii_only=out.ascii)
            out.line((f"{'  of that, electricity':<64}{money:>15}", "dim"))
        if what == "lost" and (people := _people(out, bill)):
            out.line(people)
    if not bill.entries:
        out.line(("none in this period", "green"))
    elif by == "incident":
        incidents(out, bill)
    else:
        _groups(out, bill, by)
    if not out.quiet:
        _prices(out, bill)


def _sum_line(out: Page, bill: Bill, title: str, found: Sum, count: int) -> None:
    hours = cost.in_hours(found.gpu_hours)
    out.line(f"{title:<42}{count:>10}{hours:>12}{_total(out, bill, found):>15}")


def _ahead_line(out: Page, bill: Bill, found: Sum) -> None:
    hours = cost.in_hours(found.ahead_gpu_hours)
    money = _partly(out, bill, found.ahead_usd, found.known_ahead_usd)
    out.line(f"{'  and until memory is full':<42}{'':>10}{hours:>12}{money:>15}")


def _people(out: Page, bill: Bill) -> str:
    hours, amount = bill.engineer()
    if not hours:
        return ""
    money = units.money(amount, currency=bill.prices.currency, ascii_only=out.ascii)
    title = f"  and people, an hour for each of {hours} lost runs"
    return f"{title:<64}{money:>15}"


def _total(out: Page, bill: Bill, found: Sum) -> str:
    return _partly(out, bill, found.usd, found.known_usd)


def _partly(out: Page, bill: Bill, usd: float | None, known_usd: float) -> str:
    return cost_text.partly(bill, usd, known_usd, ascii_only=out.ascii)


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
        return cost_text.money(bill, usd, ascii_only=out.ascii)
    return "?" if hours is None else f"{cost.in_hours(hours)} h"


def incidents(out: Page, bill: Bill) -> None:
    """Write every incident of a bill: what it cost, since when, and what it may cost yet."""
    for name, entries in cost.grouped(bill.entries, lambda entry: f"{entry.what}\0{entry.key}"):
        what, entry = name.partition("\0")[0], entries[0]
        found = cost.summed(entries)
        hours = f"{cost.in_hours(found.gpu_hours)} GPU-hours"
        since = cost_text.SINCE[entry.since] if what in {"at-risk", "lost"} else ""
        parts: list[blocks.Part] = [
            (cost_text.SHORT[what], "bold"),
            entry.title,
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
        if entry.said:
            out.flow(blocks.sentence(entry.said, "dim"), first="  ", rest="  ", gap=" ")


def _prices(out: Page, bill: Bill) -> None:
    if not bill.used:
        return
    out.line("")
    for labels, value in cost_text.prices(bill, ascii_only=out.ascii):
        first = f"{labels}: "
        out.flow(blocks.sentence(value, "dim"), first=first, rest="  ", gap=" ", whole=True)
