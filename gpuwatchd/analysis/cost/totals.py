"""What a period cost: entries that add up to the whole and never count twice, and their words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpuwatchd.analysis.cost.sharing import ChargedUsage, Part, Since, total
from gpuwatchd.core import units
from gpuwatchd.core.model import Cost, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


_SINCE: Final = {
    "start": "since start",
    "checkpoint": "since the last checkpoint",
    "first-seen": "since it was first seen",
}


def line(cost: Cost | None) -> str:
    """Return the one line of an alert's money; "" where neither time nor money is known.

    Examples
    --------
    >>> from gpuwatchd.core.model import Cost
    >>> line(Cost(spent_usd=25.28, at_risk_usd=3.21, basis="A100 40GB, on-demand, as of 2024-06"))
    '$25.28 since start, $3.21 more until it is full (A100 40GB, on-demand, as of 2024-06)'
    >>> line(Cost(gpu_hours=6.17, at_risk_gpu_hours=0.783, since="checkpoint"))
    '6.2 GPU-hours since the last checkpoint, 0.8 more until it is full (no price known)'
    """
    if cost is None:
        return ""
    since = _SINCE[cost.since]
    if cost.spent_usd is not None:
        text = f"{in_currency(cost.spent_usd, cost)} {since}"
        if cost.at_risk_usd is not None:
            text += f", {in_currency(cost.at_risk_usd, cost)} more until it is full"
        return f"{text} ({cost.basis})" if cost.basis else text
    if cost.gpu_hours is None:
        return ""
    text = f"{in_hours(cost.gpu_hours)} GPU-hours {since}"
    if cost.at_risk_gpu_hours is not None:
        text += f", {in_hours(cost.at_risk_gpu_hours)} more until it is full"
    return f"{text} (no price known)"


def in_hours(value: float | None) -> str:
    """Return GPU-hours, as fine as it takes to see them.

    Examples
    --------
    >>> in_hours(6.17), in_hours(0.034), in_hours(0.0), in_hours(None), in_hours(1234.5)
    ('6.2', '0.03', '0.0', '?', '1,234.5')
    """
    if value is None:
        return "?"
    return f"{value:,.2f}" if 0.0 < value < 0.1 else f"{value:,.1f}"


def in_currency(value_usd: float | None, cost: Cost) -> str:
    """Return an amount in US dollars as the user wants to see it."""
    return units.money(
        None if value_usd is None else value_usd * cost.per_usd, currency=cost.currency
    )
