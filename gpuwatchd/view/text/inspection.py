"""What a prepared process says from inside, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import units
from gpuwatchd.core.codes import CensusError, MailboxFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.view.answers.inspection import GrowingGroup, HolderShape, InspectionData

FAULTS: Final = {
    MailboxFault.NONE: "was not prepared for it, or uses no framework yet",
    MailboxFault.NOT_TRUSTED: "has a mailbox that is not its user's alone: it is not read",
    MailboxFault.NO_MAILBOX: "has a file in place of its mailbox that no probe has written",
    MailboxFault.OTHER_PROCESS: "has only the mailbox of an earlier process with this number",
    MailboxFault.GONE: "has ended meanwhile",
    MailboxFault.NO_ANSWER: "does not answer: its threads get no time, or it is stopped",
}
ERRORS: Final = {
    CensusError.COUNTERS_ONLY: "its heap is not looked into: it was started with --counters-only",
    CensusError.TIMEOUT: "its heap is too large to be read in time",
    CensusError.MEMORY: "its heap is not looked into: a copy of its pages might not fit in memory",
    CensusError.FREE_THREADED: "its heap cannot be read: a free-threaded Python",
    CensusError.NO_FORK: "its heap cannot be read: this system refuses the copy",
    CensusError.DIED: "its heap could not be read: the copy ended early",
    CensusError.PAUSE: "its heap is not looked into: that would stop it for longer than --pause",
    CensusError.STOPPED: "its heap was not read to the end: the job forked or ended meanwhile",
    CensusError.TOO_LONG: "what grows is too much to be listed",
}
_GRAPH: Final = "keep loss.item() or loss.detach(), not the tensor with its graph"
_ADVICE: Final = {
    "list": "clear it once it is used, or bound it: collections.deque(maxlen=N)",
    "deque": "give it a maxlen",
    "set": "remove what is no longer needed",
    "dict": "bound it: remove the oldest entry, or functools.lru_cache(maxsize=N)",
    "defaultdict": "remove entries once they are used",
    "OrderedDict": "remove the oldest entry when a new one comes",
    "lru_cache": "give lru_cache a maxsize that fits the memory",
    "Queue": "give it a maxsize: what fills it is faster than what empties it",
}


def advice(holder: HolderShape | None, bounded_at_bytes: int | None, *, graph: bool) -> str | None:
    """Return what to change, where the kind of a holder says so."""
    if graph:
        return _GRAPH
    if holder is None:
        return None
    if holder.bound is not None:
        amount = "" if bounded_at_bytes is None else f": {units.size(bounded_at_bytes)}"
        return f"it fills up to {holder.bound:,} entries, then stops{amount}"
    return _ADVICE.get(holder.kind)


def lines(data: InspectionData) -> Iterator[str]:
    """Return what is shown of a process: its allocator, then each variable and what it keeps."""
    version = f" {data.framework_version}" if data.framework_version else ""
    yield f"{data.framework}{version}, Python {data.python}"
    for device in data.devices:
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
    if data.error is not None:
        yield ERRORS.get(CensusError(data.error), data.error)
    elif not data.growing:
        yield f"no tensors became steadily more in {data.censuses} censuses (try a longer --every)"
    holders: dict[str, list[GrowingGroup]] = {}
    for group in data.growing:
        holders.setdefault("" if group.holder is None else _place(group.holder), []).append(group)
    for place, groups in holders.items():
        yield from _holder(place, groups)


def _place(holder: HolderShape) -> str:
    where = f" ({holder.file}:{holder.line})" if holder.file else ""
    return f"{holder.name}{where}"


def _holder(place: str, groups: list[GrowingGroup]) -> Iterator[str]:
    """Return a variable and what it keeps; a graph that it keeps alive is no kind of its own."""
    own = [group for group in groups if group.sure != "graph"] or groups
    holder = own[0].holder
    if holder is None:
        yield "not found what keeps:"
    else:
        length = f" of {holder.length:,}" if holder.length is not None else ""
        yield f"{place}: a {holder.kind}{length} keeps"
    for group in groups:
        yield f"  {group.group}: {' → '.join(f'{count:,}' for count in group.counts)}"
    advised = [group.advice for group in sorted(groups, key=lambda g: g.sure != "graph")]
    if words := next(filter(None, advised), None):
        yield f"  {words}"
