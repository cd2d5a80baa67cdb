"""What a period cost: entries that add up to the whole and never count twice, and their words.

Also what was freed in it. Pure; unknown is None, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from gpuwatchd.analysis.cost.sharing import (
    ChargedUsage,
    Part,
    Since,
    UsageProvider,
    charged_usage,
    total,
    worth,
)
from gpuwatchd.core.model import ProcessKey, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.analysis.cost.sharing import Price

What = Literal["at-risk", "lost", "held", "saved"]
WHATS: Final[tuple[What, ...]] = ("at-risk", "lost", "held", "saved")
MARGIN_S: Final = 600.0
"""An end is clearly before the crash that was foreseen when it is at least so long before it."""


class Entry(Value, frozen=True, kw_only=True):
    """One device's part of one incident."""

    what: What
    key: str
    """Of the alert; of idle memory, its id."""
    title: str
    device_uid: str
    gpu: str
    user: str = ""
    job: str = ""
    since_at_s: float | None = None
    since: Since = "first-seen"
    until_at_s: float
    gpu_hours: float | None
    usd: float | None
    """With the electricity that is known."""
    electricity_usd: float | None = None
    """Of that, electricity; None where it is not counted."""
    whole_gpu_hours: float | None = None
    """Hours for which it was on the device at all: more where others shared it."""
    whole_usd: float | None = None
    """What the whole device cost in these."""
    ahead_gpu_hours: float | None = None
    """Of what is at risk: from now until memory is full; None where nothing is foreseen."""
    ahead_usd: float | None = None
    basis: str = ""
    said: str = ""
    """Why it counts, in one sentence."""


class Sum(Value, frozen=True, kw_only=True):
    """Several entries as one. A sum of which a part is unknown is unknown."""

    incidents: int
    gpu_hours: float | None
    usd: float | None
    known_usd: float
    """What is known of it: at least so much."""
    electricity_usd: float | None
    ahead_gpu_hours: float | None
    ahead_usd: float | None
    known_ahead_usd: float


def summed(entries: Iterable[Entry]) -> Sum:
    """Return the sum of entries; what lies ahead counts where something is foreseen."""
    found = list(entries)
    ahead = [entry for entry in found if entry.ahead_gpu_hours is not None]
    current = [entry.electricity_usd for entry in found if entry.electricity_usd is not None]
    return Sum(
        incidents=len({entry.key for entry in found}),
        gpu_hours=total(entry.gpu_hours for entry in found),
        usd=total(entry.usd for entry in found),
        known_usd=sum((entry.usd for entry in found if entry.usd is not None), 0.0),
        electricity_usd=sum(current) if current else None,
        ahead_gpu_hours=total(entry.ahead_gpu_hours for entry in ahead) if ahead else None,
        ahead_usd=total(entry.ahead_usd for entry in ahead) if ahead else None,
        known_ahead_usd=sum(
            (entry.ahead_usd for entry in ahead if entry.ahead_usd is not None), 0.0
        ),
    )


def grouped(
    entries: Iterable[Entry], name: Callable[[Entry], str]
) -> list[tuple[str, list[Entry]]]:
    """Return entries by a name, the dearest group first."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(name(entry), []).append(entry)

    def weight(group: tuple[str, list[Entry]]) -> tuple[float, float, str]:
        own = [one for one in group[1] if one.what != "saved"]
        return (
            -sum(one.usd or 0.0 for one in own),
            -sum(one.gpu_hours or 0.0 for one in own),
            group[0],
        )

    return sorted(groups.items(), key=weight)


def entries_of(stint: ChargedUsage, like: Entry, *, left_s: float | None = None) -> list[Entry]:
    """Return an entry for each device of a stint.

    ``like`` has what all of them have in common; ``left_s`` is seconds until memory is full, None
    where nothing is foreseen.
    """
    left_h = None if left_s is None else max(0.0, left_s) / 3600.0
    return [
        _entry(
            like,
            uid,
            part,
            hours=part.hours,
            ahead=None if left_h is None or part.share is None else part.share * left_h,
            since=(stint.since_at_s, stint.since),
        )
        for uid, part in stint.parts
    ]


def saved(
    stint: ChargedUsage, like: Entry, *, told_at_s: Sequence[float], low_at_s: float
) -> list[Entry]:
    """Return what an early warning saved, counted conservatively; nothing where that is doubtful.

    Only where somebody was told before the end, and the end was clearly before the earliest crash
    that was foreseen; then only the hours from the end to that crash, which the job would have
    gone on for in vain, and nothing of what it had cost before.

    ``told_at_s`` is when messages about it had arrived, ``low_at_s`` the low end of the forecast:
    the earliest crash, epoch seconds.
    """
    end_s = stint.until_s
    if not any(at_s < end_s for at_s in told_at_s) or low_at_s - end_s < MARGIN_S:
        return []
    left_h = (low_at_s - end_s) / 3600.0
    return [
        _entry(
            like,
            uid,
            part,
            hours=None if part.share is None else part.share * left_h,
            ahead=None,
            since=(end_s, "first-seen"),
        )
        for uid, part in stint.parts
    ]


def _entry(
    like: Entry,
    uid: str,
    part: Part,
    *,
    hours: float | None,
    ahead: float | None,
    since: tuple[float | None, Since],
) -> Entry:
    price = part.price
    hourly = None if price is None else price.running_usd_per_hour
    current = None if price is None else price.electricity_usd_per_hour
    whole = part.whole_hours if like.what in {"at-risk", "lost"} else None
    return msgspec.structs.replace(
        like,
        device_uid=uid,
        since_at_s=since[0],
        since=since[1],
        gpu_hours=hours,
        usd=None if hours is None or hourly is None else hours * hourly,
        electricity_usd=None if hours is None or current is None else hours * current,
        whole_gpu_hours=whole,
        whole_usd=None if whole is None or hourly is None else whole * hourly,
        ahead_gpu_hours=ahead,
        ahead_usd=None if ahead is None or hourly is None else ahead * hourly,
        basis="" if price is None else price.basis,
    )


# What ending, restarting or requeueing processes freed, and what it cost in lost work.
#
# Nobody knows how long a process would have held its memory if it had been left alone. Of what has
# lasted for some time, and of which nothing else is known, half lasts as long again (J. R. Gott,
# "Implications of the Copernican principle for our future prospects", Nature 363, 1993). So
# GPU-hours freed are counted for as long as it had been idle, and never beyond the period. What is
# lost is counted up to the act where nobody knows since when it was idle.

NEXT_S: Final = 2 * 3600.0
"""A run that begins later is not counted as the one that went on."""
LIVED_S: Final = 600.0
"""It must have lived so long at least: loading a model is no work."""
GAP_S: Final = 180.0
"""A device that was not read for longer may have been at work meanwhile."""


class Held(NamedTuple):
    """What the process of an act had of one device before it."""

    device_uid: str
    held_bytes: float | None
    """The last level that was seen."""
    total_bytes: float | None
    idle_s: float | None
    """How long it had been idle; 0 where it was at work."""
    price: Price | None


class Freed(NamedTuple):
    """Memory, and its share of GPUs over time."""

    held_bytes: float | None
    gpu_hours: float | None
    usd: float | None


def freed(parts: Sequence[Held], at_s: float, until_s: float) -> Freed:
    """Return what an act freed; a sum of which a part is unknown is unknown.

    Examples
    --------
    >>> half = Held("GPU-1", 40.0, 80.0, 7200.0, None)
    >>> freed([half], 0.0, 36000.0), freed([half], 0.0, 3600.0).gpu_hours
    (Freed(held_bytes=40.0, gpu_hours=1.0, usd=None), 0.5)
    """
    if not parts:
        return Freed(None, None, None)
    pairs = [(part.price, _hours(part, at_s, until_s)) for part in parts]
    return Freed(
        total(_known(part.held_bytes) for part in parts),
        total(hours for _, hours in pairs),
        total(worth(hours, price) for price, hours in pairs),
    )


def _known(value: float | None) -> float | None:
    return None if value is None or value < 0.0 else value


def _hours(part: Held, at_s: float, until_s: float) -> float | None:
    held, total, idle_s = _known(part.held_bytes), part.total_bytes, _known(part.idle_s)
    if idle_s == 0.0:
        return 0.0
    if held is None or idle_s is None or not total or total < 0.0:
        return None
    return min(1.0, held / total) * min(idle_s, max(0.0, until_s - at_s)) / 3600.0


class Lost(NamedTuple):
    """Work that is to be done again."""

    gpu_hours: float | None
    usd: float | None


def lost(
    members: Sequence[tuple[str, ProcessKey]],
    ask: UsageProvider,
    *,
    started_at_s: float | None,
    saved_at_s: float | None,
    until_s: float,
) -> Lost:
    """Return what a process had of its devices since its last checkpoint, else its start.

    ``until_s`` is the act, or since when it was idle.
    """
    since_s = started_at_s if saved_at_s is None else saved_at_s
    if since_s is not None and since_s >= until_s:
        return Lost(0.0, 0.0)
    had = charged_usage(
        members,
        ask,
        started_at_s=started_at_s,
        saved_at_s=saved_at_s,
        until_s=until_s,
        lasts=False,
    )
    if not had.parts:
        return Lost(None, None)
    return Lost(
        total(part.hours for _, part in had.parts),
        total(worth(part.hours, part.price) for _, part in had.parts),
    )


def idle_since(rows: Iterable[tuple[float, float, float | None]], at_s: float) -> float | None:
    """Return since when a device had not been at work before an act; None where nobody knows.

    ``rows`` are (begin, length, utilisation in per cent), oldest first.

    Examples
    --------
    >>> idle_since([(0.0, 60.0, 80.0), (60.0, 60.0, 0.0), (120.0, 60.0, 0.0)], 190.0)
    60.0
    >>> idle_since([(0.0, 60.0, 0.0), (60.0, 60.0, None)], 130.0) is None
    True
    """
    since_s: float | None = None
    end_s = 0.0
    for begin_s, width_s, util_pct in rows:
        if begin_s + width_s > at_s:
            break
        if util_pct is None or util_pct > 0.0:
            since_s = None
        elif since_s is None or begin_s - end_s > GAP_S:
            since_s = begin_s
        end_s = begin_s + width_s
    return since_s if at_s - end_s <= GAP_S else None


class Run(NamedTuple):
    """A run of the same program or job."""

    process: ProcessKey
    begun_s: float
    last_s: float
    """When it was seen last."""


def went_on(
    at_s: float, saved_at_s: float | None, runs: Iterable[Run], *, seen_until_s: float
) -> tuple[bool | None, ProcessKey | None]:
    """Say whether a restart or requeue went on from a checkpoint, and as which process.

    Only where a checkpoint before it is known, and a run that began within :data:`NEXT_S` after it
    has lived for longer than what lies between the two: from the checkpoint, it is past the point
    where the earlier run was ended. None where it is too early to say.
    """
    if saved_at_s is None or saved_at_s > at_s:
        return False, None
    need_s = max(LIVED_S, at_s - saved_at_s)
    early = seen_until_s < at_s + NEXT_S
    for run in runs:
        if not at_s <= run.begun_s <= at_s + NEXT_S:
            continue
        if run.last_s - run.begun_s >= need_s:
            return True, run.process
        early |= seen_until_s - run.last_s <= GAP_S
    return (None if early else False), None


class Act(Value, frozen=True, kw_only=True):
    """One process that was ended, restarted or requeued, and what that was worth."""

    at_s: float
    step: str
    """reap, end, restart, requeue."""
    who: str
    kind: str
    """What for: kinds of idle memory, or leak."""
    process: ProcessKey | None
    title: str
    user: str = ""
    job: str = ""
    device_uids: tuple[str, ...] = ()
    freed_bytes: float | None = None
    freed_gpu_hours: float | None = None
    freed_usd: float | None = None
    lost_gpu_hours: float | None = None
    lost_usd: float | None = None
    went_on: bool | None = None
    """From a checkpoint; None: it is too early to say, or nothing was to begin again."""


AGAIN: Final = frozenset({"restart", "requeue"})
"""Steps after which a job begins again."""


class ActsSum(Value, frozen=True, kw_only=True):
    """Several acts as one. A sum of which a part is unknown is unknown."""

    acts: int
    by_step: dict[str, int]
    freed_bytes: float | None
    known_freed_bytes: float
    """What is known of it: at least so much."""
    freed_gpu_hours: float | None
    known_freed_gpu_hours: float
    freed_usd: float | None
    known_freed_usd: float
    lost_gpu_hours: float | None
    lost_usd: float | None
    begun_again: int
    """Restarts and requeues."""
    went_on: int
    """Those that went on from a checkpoint."""
    undecided: int
    """Those of which it is too early to say."""


def acts_summed(acts: Sequence[Act]) -> ActsSum:
    """Return the sum of acts."""
    again = [act.went_on for act in acts if act.step in AGAIN]
    steps = [act.step for act in acts]
    sums: dict[str, Any] = {}
    for name in ("freed_bytes", "freed_gpu_hours", "freed_usd", "lost_gpu_hours", "lost_usd"):
        values = [getattr(act, name) for act in acts]
        sums[name] = total(values)
        if name.startswith("freed"):
            sums[f"known_{name}"] = sum(value for value in values if value is not None)
    return ActsSum(
        acts=len(acts),
        by_step={step: steps.count(step) for step in dict.fromkeys(sorted(steps))},
        begun_again=len(again),
        went_on=again.count(True),
        undecided=again.count(None),
        **sums,
    )
