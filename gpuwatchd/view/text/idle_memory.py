"""Idle memory: who holds it since when, what it costs, what would free it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import units
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import current_state, user_filter
from gpuwatchd.view.text import cost_text, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.core.model import Holding, IdleJob, ProcessInfo
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners
    from gpuwatchd.view.query import Query


_HEAD: Final = ("GPU", "what", "held", "since", "for", "GiB hours", "cost")
_WHAT, _SINCE, _HOURS, _COST = 1, 3, 5, 6
_SURE: Final = frozenset({"gone", "defunct", "driver-wait"})
_MOST_NODES: Final = 4


def show(out: Page, query: Query, view: View, loose: UnlistedOpeners) -> None:
    """Write idle memory, and who has device files open."""
    out.warn(view.warnings)
    unknown = _unknown(view)
    if unknown:
        out.prose(f"! {unknown_lists(view)}", "yellow", rest="  ")
    if view.holdings:
        _table(out, query, view)
    elif len(unknown) == len(view.devices):
        out.prose("whether there is idle memory is unknown", "yellow")
    else:
        by = f" by {user_filter.People(query.user).named}" if query.user else ""
        nothing = blocks.sentence(f"there is no idle memory{by}:", "green")
        out.flow([*nothing, *blocks.sentence(checked(view), "")], rest="  ", gap=" ")
    if view.jobs is not None:
        _jobs(out, view, view.jobs)
    openers_told(out, loose, wide=out.wide or out.verbose, quiet=out.quiet, sure=not unknown)


def _unknown(view: View) -> dict[str, str]:
    """Return UUID and label of the GPUs whose process list is not of now."""
    return {
        item.device.uid: item.device.label
        for item in view.devices
        if not current_state.list_is_known(item)
    }


def unknown_lists(view: View) -> str:
    """Return which process lists are unknown now, and what that means; "" where all are known."""
    unknown = _unknown(view)
    if not unknown:
        return ""
    one = len(unknown) == 1
    lists = "its process list is" if one else "their process lists are"
    tail = f"no statement about {'it' if one else 'them'}"
    if any(holding.device_uid in unknown for holding in view.holdings):
        tail = "what is listed there was seen before"
    return f"{', '.join(unknown.values())}: {lists} unknown now, {tail}"


def checked(view: View) -> str:
    """Return how many processes on how many GPUs were looked at, and since when."""
    items = [item for item in view.devices if current_state.list_is_known(item)]
    if not items:
        return "no process list can be read now"
    count = sum(len(item.processes or ()) for item in items)
    checked = f"{units.count(count, 'process')} on {units.count(len(items), 'GPU')} checked"
    if view.source == "direct" or view.since_s is None:
        return f"{checked}, once"
    return f"{checked}, since {units.clock(view.since_s, now_s=view.taken_at_s)}"


def _table(out: Page, query: Query, view: View) -> None:
    """Write one row and some lines for each; a column goes where the width does not suffice."""
    labels = {item.device.uid: item.device.label for item in view.devices}
    every = [item.device for item in view.devices]
    book = cost_text.Book(query.load_config().config, every, now_s=view.taken_at_s)
    rows = [
        _row(
            holding,
            labels,
            view.taken_at_s,
            cost_text.money(book, holding.cost_usd, ascii_only=out.ascii),
        )
        for holding in view.holdings
    ]
    widths = [max(blocks.width_of(row[at]) for row in [_HEAD, *rows]) for at in range(len(_HEAD))]
    shown = [at for at, _ in enumerate(_HEAD) if at != _COST or any(row[at] != "?" for row in rows)]
    for at in (_SINCE, _HOURS):
        if sum(widths[one] + 2 for one in shown) - 2 > out.width and at in shown:
            shown.remove(at)

    def cells(row: Sequence[str], where: Iterable[int]) -> str:
        return "".join(
            f"{row[at]:<{widths[at]}}" if at <= _WHAT else f"  {row[at]:>{widths[at]}}"
            for at in where
        )

    out.line((f"{_HEAD[0]:<{widths[0]}}  {cells(_HEAD, shown[1:])}", "bold"))
    for holding, row in zip(view.holdings, rows, strict=True):
        style = "red-bold" if holding.kind in _SURE else "yellow-bold"
        kind = (f"{row[_WHAT]:<{widths[_WHAT]}}", style)
        out.line(f"{row[0]:<{widths[0]}}  ", kind, cells(row, shown[2:]))
        _below(out, holding)
    held = [one.held_bytes for one in view.holdings]
    amount = units.size(sum(one for one in held if one is not None))
    least = "at least " if None in held else ""
    line = f"{len(held)} in all, {least}{amount}; {checked(view)}"
    out.prose(line, "dim", rest="  ")
    priced = [one.device_uid for one in view.holdings if one.cost_usd is not None]
    for line in () if out.quiet else book.lines(priced, ascii_only=out.ascii):
        out.prose(f"cost: its share of {line}", "dim", rest="  ")


def _row(holding: Holding, labels: Mapping[str, str], now_s: float, cost: str) -> list[str]:
    since_s = holding.since_s
    hours = holding.gib_hours
    return [
        labels.get(holding.device_uid, "?"),
        holding.kind,
        units.size(holding.held_bytes),
        "?" if since_s is None else units.clock(since_s, now_s=now_s),
        "?" if since_s is None else units.duration(max(0.0, now_s - since_s)),
        "?" if hours is None else f"{hours:,.1f}",
        cost,
    ]


def _below(out: Page, holding: Holding) -> None:
    """Write who it is, how that is known, and what would free it."""
    process = holding.process
    who = "nobody" if process is None else verdict_text.who(process)
    out.flow([who, *(context(process) if process is not None else [])], first="  ", rest="    ")
    if out.quiet:
        return
    out.prose(holding.evidence, "dim", first="  ", rest="    ")
    for line in holding.advice if out.wide or out.verbose else holding.advice[:1]:
        out.prose(f"-> {line}", "cyan", first="  ", rest="     ")


def _jobs(out: Page, view: View, jobs: Sequence[IdleJob]) -> None:
    """Write the jobs of Slurm that hold GPUs without a process on them."""
    if not jobs:
        out.prose("no job of Slurm on this node is known to hold a GPU without a process", "green")
        return
    labels = {item.device.uid: item.device.label for item in view.devices}
    out.line(("jobs of Slurm that hold GPUs without a process on them:", "bold"))
    for job in jobs:
        named = "" if job.device_uids is None else ", ".join(labels[uid] for uid in job.device_uids)
        held = f"{named} of {job.gpu_count}" if named else f"all of {job.gpu_count}"
        ran = f"running for {units.duration(job.running_s)}"
        out.flow([f"slurm {job.number} of {job.user}", held, (ran, "dim")], first="  ", rest="    ")
        if not out.quiet:
            line = f"-> ask {job.user}; scancel {job.number} ends it"
            out.prose(line, "cyan", first="  ", rest="     ")


def context(info: ProcessInfo) -> list[tuple[str, str]]:
    """Return where a process belongs and what it runs."""
    places = (info.group, info.job, info.container, info.unit, info.framework, info.model)
    rank = f"rank {info.rank}" if info.rank is not None else None
    return [(place, "dim") for place in dict.fromkeys((rank, *places)) if place]


def openers_told(
    out: Page, loose: UnlistedOpeners, *, wide: bool = False, quiet: bool = False, sure: bool
) -> None:
    """Write who has device files open although the driver does not list it."""
    if not loose.seen.possible:
        return
    if loose.found:
        doubt = "" if sure else " (a list is unknown: they may hold memory)"
        title = f"device files of GPUs are open in processes that the driver does not list{doubt}:"
        out.line("")
        out.prose(title, "bold", rest="  ")
    for info, holder in loose.found:
        nodes = holder.nodes if wide else holder.nodes[:_MOST_NODES]
        more = len(holder.nodes) - len(nodes)
        parts: list[Part] = [
            verdict_text.who(info),
            "may compute" if holder.computes else "watches at most",
        ]
        parts += [(node, "dim") for node in nodes]
        out.flow([*parts, (f"and {more} more" if more else "", "dim")], first="  ", rest="    ")
    if quiet:
        return
    if loose.seen.unreadable:
        why = "could not be inspected" if os.geteuid() == 0 else "not visible without root"
        line = f"(open files of {units.count(loose.seen.unreadable, 'process')} of others: {why})"
        out.prose(line, "dim", rest="  ")
    if not loose.seen.whole:
        line = "(not every process was checked: there are too many)"
        out.prose(line, "dim", rest="  ")
