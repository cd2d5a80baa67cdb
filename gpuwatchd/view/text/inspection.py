"""What a prepared process says from inside, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis.frameworks.advice import of_holder
from gpuwatchd.core import units
from gpuwatchd.core.codes import CensusError, MailboxFault, OutsideFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.view.answers import inspection as answers

FAULTS: Final = {
    MailboxFault.NONE: "was not prepared for it, or uses no framework yet, or for less than 10 s",
    MailboxFault.NOT_TRUSTED: "has a mailbox that is not its user's alone: it is not read",
    MailboxFault.NO_MAILBOX: "has a file in place of its mailbox that no probe has written",
    MailboxFault.OTHER_PROCESS: "has only the mailbox of an earlier process with this number",
    MailboxFault.GONE: "has ended meanwhile",
    MailboxFault.NO_ANSWER: "does not answer: its threads get no time, or it is stopped",
}
OUTSIDE: Final = {
    OutsideFault.NO_TOOL: "pip install py-spy",
    OutsideFault.TIMEOUT: "no answer within 10 s; its main thread may be in native code",
    OutsideFault.REFUSED: "this system lets only root look into it",
    OutsideFault.FAILED: "not seen: no Python, it has ended, or its version is not known",
    OutsideFault.OLD_PYTHON: "that needs Python 3.14 or later",
    OutsideFault.ELSEWHERE: "gpuwatchd is not installed where it runs, in a container",
}
_NOW: Final = "where it is now; that says nothing of who allocated its memory:"
_FAR_OFF: Final = 100
"""A bound of so many times what is held may as well be none."""
_MOST_THREADS, _MOST_FRAMES = 8, 12
ERRORS: Final[dict[str, str]] = {
    CensusError.COUNTERS_ONLY: "its heap is not looked into: it was started with --counters-only",
    CensusError.TIMEOUT: "its heap is too large to be read in time",
    CensusError.MEMORY: "its heap is not looked into: a copy of its pages might not fit in memory",
    CensusError.FREE_THREADED: "its heap cannot be read: a free-threaded Python",
    CensusError.NO_FORK: "its heap cannot be read: this system refuses the copy",
    CensusError.DIED: "its heap could not be read: the copy ended early",
    CensusError.PAUSE: "its heap is not looked into: that would stop it for longer than --pause",
    CensusError.STOPPED: "its heap was not read to the end: the job forked or ended meanwhile",
    CensusError.TOO_LONG: "what grows is too much to be listed",
    CensusError.UNKNOWN_VERB: "its probe is of an earlier version, which cannot say that",
    CensusError.TOO_SOON: "its heap was looked into less than a minute ago: ask again in a minute",
    CensusError.RUNNING: "its heap is being looked into just now: ask again when that is over",
    CensusError.DEVICE_MEMORY: "its heap is not looked into: its device's memory is almost full",
    CensusError.COMPILING: "its heap is not looked into while PyTorch compiles",
}
_VERDICTS: Final = {
    "leak": "leaks",
    "watch": "may leak",
    "elsewhere": "no leak of its own",
    "none": "no leak",
    "unknown": "too early to say",
}


def advice(
    holder: answers.HolderShape | None, bounded_at_bytes: int | None, *, graph: bool
) -> str | None:
    """Return what to change, where the kind of a holder says so."""
    if holder is None:
        return of_holder(None, graph=graph)
    amount = "" if bounded_at_bytes is None else f": {units.size(bounded_at_bytes)}"
    bound = "" if holder.bound is None else f"{holder.bound:,} entries{amount}"
    words = [of_holder(holder.kind, bound, graph=graph)]
    if holder.bound is not None and holder.bound > _FAR_OFF * (holder.length or 1) and not graph:
        words.append(of_holder(holder.kind, graph=False))
    return " ".join(filter(None, words)) or None


def _functions(data: answers.FunctionsData) -> Iterator[str]:
    if not data.functions:
        yield "the program marks no function: from gpuwatchd import probe; @probe.watch"
    if data.score is not None:
        yield f"score {data.score} of 100 ({data.grade})"
    for finding in data.findings:
        kind = finding.kind.replace("_", " ")
        yield f"{finding.severity}: {kind}, {', '.join(finding.functions)}: {finding.text}"
        yield f"  {finding.suggestion}"
    for insight in data.insights:
        yield f"{insight.impact} impact: {', '.join(insight.functions)}: {insight.text}"
    for one in data.functions:
        facts = ["no figures: it uses no device"]
        if one.total_memory_growth is not None:
            facts = [
                _VERDICTS[one.verdict],
                f"{units.size(one.total_memory_growth)} in all",
                f"{units.size(one.average_growth_per_call)} each",
                f"added in {units.percent(one.positive_growth_ratio)} of them",
                f"peak {units.size(one.peak_bytes)}",
            ]
        over = " (above memory-leak-ratio)" if one.above_leak_ratio else ""
        yield f"{one.name}: {one.call_count:,} calls, {', '.join(facts)}{over}"


def lines(data: answers.InspectionData) -> Iterator[str]:
    """Return what is shown of a process: its allocator, then each variable and what it keeps."""
    if data.framework:
        version = f" {data.framework_version}" if data.framework_version else ""
        yield f"{data.framework}{version}, Python {data.python}"
    if data.ended:
        yield f"ended by {data.failure}" if data.failure else "it has ended"
    yield from _devices(data.devices)
    if data.stack:
        yield _NOW
        yield from _threads(data.stack)
    if data.oom is not None:
        yield from _oom(data.oom)
    if data.error is not None:
        yield ERRORS.get(data.error, data.error)
    elif data.functions is not None:
        yield from _functions(data.functions)
    elif data.censuses and not data.growing:
        yield f"no tensors became steadily more in {data.censuses} censuses (try a longer --every)"
    holders: dict[str, list[answers.GrowingGroup]] = {}
    for group in data.growing:
        holders.setdefault("" if group.holder is None else _place(group.holder), []).append(group)
    for place, groups in holders.items():
        yield from _holder(place, groups)


def _threads(threads: Sequence[answers.ThreadStack]) -> Iterator[str]:
    for thread in threads[:_MOST_THREADS]:
        yield f"{thread.name or 'a thread'}:"
        for frame in thread.frames[:_MOST_FRAMES]:
            yield f"  {frame.function} ({frame.file}:{frame.line})"
        if (more := len(thread.frames) - _MOST_FRAMES) > 0:
            yield f"  and {more} more"
    if (more := len(threads) - _MOST_THREADS) > 0:
        yield f"and {more} more threads"


def _oom(oom: answers.OomRecord) -> Iterator[str]:
    requested, free = units.size(oom.requested_bytes), units.size(oom.free_bytes)
    limit = units.size(oom.limit_bytes)
    yield f"{oom.at}: no {requested} on device {oom.index}; {free} free, at most {limit}"
    yield from _devices(oom.devices)
    yield from _threads(oom.stack[:1])
    for group in oom.largest:
        held = "" if group.holder is None else f", kept by {_place(group.holder)}"
        yield f"  {group.group}: {group.counts[-1]:,}, {units.size(group.size_bytes)}{held}"


def _devices(devices: Sequence[answers.AllocatorCounters]) -> Iterator[str]:
    for device in devices:
        where = device.device_uid or ("?" if device.index is None else f"device {device.index}")
        parts = [
            f"{units.size(amount)} {what}"
            for amount, what in (
                (device.allocated_bytes, "in tensors"),
                (device.reserved_bytes, "reserved"),
                (device.inactive_split_bytes, "of it split"),
            )
            if amount is not None
        ]
        yield f"{where}: {', '.join(parts)}"


def _place(holder: answers.HolderShape) -> str:
    where = holder.file if holder.line is None else f"{holder.file}:{holder.line}"
    return f"{holder.name} ({where})" if holder.file else holder.name


def _holder(place: str, groups: list[answers.GrowingGroup]) -> Iterator[str]:
    """Return a variable and what it keeps; a graph that it keeps alive is no kind of its own."""
    own = [group for group in groups if group.sure != "graph"] or groups
    holder = own[0].holder
    if holder is None:
        yield "not found what keeps:"
    else:
        length = f" of {holder.length:,}" if holder.length is not None else ""
        article = "an" if holder.kind[:1] in "aeiouAEIOU" else "a"
        keeps = "becomes larger" if holder.kind == "tensor" else "keeps"
        yield f"{place}: {article} {holder.kind}{length} {keeps}"
    for group in groups:
        yield f"  {group.group}: {' → '.join(f'{count:,}' for count in group.counts)}"
        if (line := group.line) is not None:
            yield f"  allocated in {line.function} ({line.file}:{line.line})"
    advised = [group.advice for group in sorted(groups, key=lambda g: g.sure != "graph")]
    if words := next(filter(None, advised), None):
        yield f"  {words}"
