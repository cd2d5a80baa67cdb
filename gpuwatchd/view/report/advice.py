"""What to do first, and how well it went: both by rules that are printed beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.codes import AllocatorVerdict
from gpuwatchd.view.queries.alert_query import OPEN
from gpuwatchd.view.report import incident
from gpuwatchd.view.report.incident import Stake, ranked
from gpuwatchd.view.report.period import percent
from gpuwatchd.view.text import cost_text
from gpuwatchd.view.text import verdict_text as words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.report.incident import Incident
    from gpuwatchd.view.report.period import Period

FORMULA: Final = (
    "100, less up to 40 for the share of all GPU-hours watched that leaks put at risk or lost or "
    "that idle memory held, less 10 for each end near the limit (up to 50), less 5 for each leak "
    "that is open and 10 for each that is critical (up to 30); no score where less than a tenth of "
    "the period, and less than a day, was watched"
)
_LEAST_SAMPLES_S: Final = 600.0
"""Shorter than this nothing can have been judged: a verdict takes 20 samples."""
_LEAST_SHARE: Final = 0.1
_LEAST_WATCHED_S: Final = 86_400.0
"""Of a period of which less is known, on both counts, nothing is known well enough to be rated."""
_WELL_WATCHED: Final = 0.9
_GRADES: Final = ((90, "A"), (75, "B"), (60, "C"), (40, "D"), (0, "E"))
NOT_ENOUGH: Final = "not enough data"
ORDER: Final = (
    "By severity; then by money at stake, or by the time that is left where a price is unknown. "
    "What is resolved or idle comes after what is open; the monitoring itself comes last."
)
_OPEN_LEVELS: Final = {"critical": 0, "warning": 1, "info": 2}
_WASTE: Final = 3
_CARE: Final = 4


class Score(NamedTuple):
    """How well a period went."""

    value: int | None
    """0-100; None where too little was watched."""
    grade: str | None
    waste_share: float | None
    """Of the GPU-hours watched; None where one of the two is unknown."""
    less_waste: float
    less_ends: float
    less_open: float

    @property
    def words(self) -> str:
        """Return it for people: "82/100 (B)"."""
        return NOT_ENOUGH if self.value is None else f"{self.value}/100 ({self.grade})"

    @property
    def account(self) -> str:
        """Return the formula with its numbers."""
        if self.value is None:
            return f"{NOT_ENOUGH}: too little of this period was watched. Formula: {FORMULA}."
        return (
            f"100 - {self.less_waste:.0f} - {self.less_ends:.0f} - {self.less_open:.0f} = "
            f"{self.value}. Formula: {FORMULA}."
        )


class Item(NamedTuple):
    """One thing to do."""

    text: str
    why: str
    command: str
    level: int
    """What is compared with each other: :data:`_OPEN_LEVELS`, :data:`_WASTE`, :data:`_CARE`."""
    urgent: int
    """Breaks ties: 0 is first."""
    usd: float | None = None
    """At stake; None is unknown."""
    eta_s: float | None = None


def ends(alerts: Sequence[Alert]) -> int:
    """Return how many ended near the limit, probably out of memory."""
    return sum(alert.ran_out for alert in alerts)


def by_allocator(alerts: Sequence[Alert]) -> dict[str, int]:
    """Return how many leaks are of what, as the allocators of their frameworks say."""
    verdicts = [alert.finding.allocator.verdict for alert in alerts if alert.finding.allocator]
    causes = AllocatorVerdict.TENSORS, AllocatorVerdict.FRAGMENTATION, AllocatorVerdict.OUTSIDE
    return {cause.value: count for cause in causes if (count := verdicts.count(cause))}


def watched_hours(period: Period) -> float:
    """Return for how many GPU-hours devices were read; instances count as their cards do."""
    return sum(use.watched_s for use in period.usage.devices) / 3600.0


def score(period: Period) -> Score:
    """Return how well a period went."""
    hours = watched_hours(period)
    known = period.usage.quality.watched_share or 0.0
    is_little = known < _LEAST_SHARE and known * period.asked.span_s < _LEAST_WATCHED_S
    if hours * 3600.0 < _LEAST_SAMPLES_S or is_little:
        return Score(None, None, None, 0.0, 0.0, 0.0)
    wasted = cost.total(
        entry.gpu_hours
        for entry in period.bill.entries
        if entry.what in {"at-risk", "lost", "held"}
    )
    share = None if wasted is None else min(1.0, wasted / hours)
    still = [alert for alert in period.alerts if alert.state in OPEN and alert.kind == "leak"]
    critical = sum(alert.severity == "critical" for alert in still)
    less_waste = round(40.0 * (share or 0.0))
    less_ends = min(50.0, 10.0 * ends(period.alerts))
    less_open = min(30.0, 5.0 * len(still) + 5.0 * critical)
    value = max(0, round(100.0 - less_waste - less_ends - less_open))
    grade = next(letter for least, letter in _GRADES if value >= least)
    return Score(value, grade, share, less_waste, less_ends, less_open)


def items(period: Period) -> list[Item]:
    """Return what to do first: see :data:`ORDER`."""
    found = [*_of_incidents(period), *_of_holdings(period), *_of_channels(period)]
    found += _of_watching(period)
    return ranked(
        found, lambda item: Stake((item.level,), item.usd, item.eta_s, (item.urgent, item.text))
    )


def _of_incidents(period: Period) -> Iterator[Item]:
    """Yield the first advice on each subject; what is over and ended well needs none."""
    money = incident.worth(period.bill.entries)
    names: set[str] = set()
    for alert in period.alerts:
        still = alert.state in OPEN
        word = period.found.user_label(alert)
        is_normal = word is not None and word.word == "normal"
        if alert.key in names or not (still or alert.ran_out) or is_normal:
            continue
        names.add(alert.key)
        usd = money.get(alert.key)
        eta = alert.finding.eta if still else None
        advice = alert.finding.advice
        yield Item(
            text=advice[0] if advice else "See what it rests on, and who it is.",
            why=_why(period, alert, usd, still=still),
            command=f"gpuwatchctl explain {alert.code}",
            usd=usd,
            eta_s=None if eta is None else eta.mid_s,
            level=_OPEN_LEVELS[alert.severity] if still else _WASTE,
            urgent=0 if still else 2,
        )


def _why(period: Period, alert: Alert, usd: float | None, *, still: bool) -> str:
    parts = [alert.title or alert.key]
    if still and alert.kind == "leak":
        parts += words.pace(alert.finding)
        if incident.is_old(alert.finding, now_s=period.now_s):
            parts.append(f"as of {units.moment(alert.finding.judged_at_s, now_s=period.now_s)}")
    elif alert.ended:
        parts.append(alert.ended)
    if usd:
        stake = "at risk by when it is full" if still else "probably lost"
        parts.append(f"{cost_text.money(period.bill, usd)} {stake}")
    return ", ".join(part for part in parts if part)


def _of_holdings(period: Period) -> Iterator[Item]:
    for holding in period.holdings:
        held = units.size(holding.held_bytes)
        who = "no known process" if holding.process is None else words.who(holding.process)
        text = f"{who} holds {held} of idle memory"
        if holding.cost_usd:
            text += f", {cost_text.money(period.bill, holding.cost_usd)} so far"
        yield Item(
            text=holding.advice[0] if holding.advice else f"Free the {held} that {who} holds.",
            why=text,
            command="gpuwatchctl zombies",
            usd=holding.cost_usd,
            level=_WASTE,
            urgent=1,
        )


def _of_channels(period: Period) -> Iterator[Item]:
    for channel in period.channels.values():
        if channel.failed and not channel.sent:
            given_up = f"{units.count(channel.failed, 'message')} given up"
            yield Item(
                text=f"Repair the channel {channel.name}: it has delivered no message.",
                why=f"{given_up}: {channel.why or 'no reason is known'}",
                command=f"gpuwatchctl notify test {channel.name}",
                level=_CARE,
                urgent=1,
            )


def _of_watching(period: Period) -> Iterator[Item]:
    view, share = period.view, period.usage.quality.watched_share
    if period.present and (view is None or not view.daemon.running):
        yield Item(
            text="Start the daemon: the GPUs are not monitored now.",
            why="what happens from now on is in no report",
            command="gpuwatchctl service start",
            level=_CARE,
            urgent=0,
        )
    begun = period.usage.quality.begun_s is not None
    if share is not None and share < _WELL_WATCHED and period.usage.quality.missing and not begun:
        yield Item(
            text="Run the daemon all the time: much of this period is unknown.",
            why=f"{percent(share)} of it was watched",
            command="gpuwatchctl doctor",
            level=_CARE,
            urgent=3,
        )


def true_of(incidents: Sequence[Incident]) -> tuple[int, int]:
    """Return how many forecasts held the time that memory ran out, of how many that it did."""
    known = [held for one in incidents if (held := incident.held_true(one)) is not None]
    return sum(known), len(known)
