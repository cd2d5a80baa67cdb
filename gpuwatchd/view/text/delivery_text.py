"""Who was told, by what, and why not, in the words that every verb uses."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.design import FLAGS
from gpuwatchd.view import blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Alert, ChannelHealth, Decision, Delivery, Matcher, Silence
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_view import View

_STYLES = {"sent": "green", "failed": "red", "pending": "yellow"}
_CONDITIONS = ("kind", "gpu", "user", "process", "framework", "command", "job", "container",
               "pattern", "severity")  # fmt: skip
_AT_ONCE_S = 2.0
_NAMED = 3
UNDELIVERED = "not delivered"
"""What an alert is that has reached nobody."""
MARK, ALARM = "! ", "red-bold"
"""Begins what must be seen, and its style."""


def style(delivery: Delivery) -> str:
    """Return the style of a delivery's state, which is a word as well."""
    if _dropped(delivery):
        return "dim"
    # A later version may know of more states than this one.
    return _STYLES.get(delivery.state, "")


def delivery(one: Delivery, *, now_s: float) -> str:
    """Return what became of one message on one channel: "email: delivered (accepted by mx)".

    ``now_s`` is for clock times and for what is under way.
    """
    value = f"{one.channel}{f' in place of {one.fallback_of}' if one.fallback_of else ''}: "
    tries = "1 try" if one.attempts == 1 else f"{one.attempts} tries"
    if one.state == "sent":
        value += "delivered"
        value += f" ({one.known})" if one.known else ""
        value += f" at try {one.attempts}" if one.attempts > 1 else ""
    elif _dropped(one):
        value += one.error or "not sent"
    elif one.state == "failed":
        value += f"given up after {tries}: {one.error or 'no reason is known'}"
    else:
        value += _pending(one, tries, now_s)
    return text.clean(value + (" (dry run: not sent)" if one.dry_run else ""), limit=400)


def _dropped(one: Delivery) -> bool:
    from gpuwatchd.notify.outbox import states  # noqa: PLC0415 - 59 ms: status needs no deliveries

    return states.state_of(one) is states.State.EXPIRED


def _pending(one: Delivery, tries: str, now_s: float) -> str:
    if one.lease_until_s is not None and one.lease_until_s > now_s:
        return "is being sent now"
    if one.held:
        return f"waits: {one.held}"
    due_s = one.next_try_at_s
    soon = due_s is None or due_s <= now_s + _AT_ONCE_S
    when = "immediately" if soon or due_s is None else f"at {units.moment(due_s, now_s=now_s)}"
    if not one.attempts and one.error is None:
        return f"leaves {when}"
    return f"not delivered after {tries}: {one.error or 'no reason is known'}; next try {when}"


def notice(one: Delivery) -> str:
    """Return which notice a delivery carries: "firing", "firing with 2 others"."""
    count = len(one.message.also)
    more = f" with {units.count(count, 'other')}" if count else ""
    return f"{one.message.notice}{more}"


def dated(one: Delivery, *, now_s: float) -> str:
    """Return what became of one message, after when and which it was."""
    at = units.moment(one.sent_at_s or one.created_at_s, now_s=now_s)
    return f"{at} {notice(one)}: {delivery(one, now_s=now_s)}"


def decisions(made: Iterable[Decision], *, now_s: float) -> list[tuple[str, str]]:
    """Return what policy decided, one line and its style each; of several channels it is one."""
    lines: list[tuple[str, tuple[str, str], list[str], int]] = []
    for decision in made:
        value = _decided(decision)
        at = units.moment(decision.at_s, now_s=now_s)
        if (
            lines
            and lines[-1][1] == value
            and (not decision.target or decision.target not in lines[-1][2])
        ):
            before = lines.pop()
            targets = [*before[2], *([decision.target] if decision.target else [])]
            lines.append((before[0], value, targets, before[3] + (0 if decision.target else 1)))
        else:
            lines.append((at, value, [decision.target] if decision.target else [], 1))
    return [
        (
            text.clean(
                f"{at} {value}{f' ({targets})' if targets else ''}"
                f"{f', {times} times' if times > 1 else ''}",
                limit=400,
            ),
            style,
        )
        for at, (value, style), names, times in lines
        for targets in [", ".join(names)]
    ]


def _decided(decision: Decision) -> tuple[str, str]:
    if decision.kind == "hold":
        return f"{decision.notice} held: {decision.reason}", "yellow"
    if decision.kind == "act":
        return f"asked to act: {decision.reason}", ""
    if decision.reason in {decision.notice, ""}:
        return f"{decision.notice} will be sent", ""
    return f"{decision.notice} waits: {decision.reason}", "yellow"


def conditions(matcher: Matcher, alerts: Iterable[Alert] = ()) -> str:
    """Return what a silence is about: whom an alert of these names, else its conditions.

    Examples
    --------
    >>> from gpuwatchd.core.model import Matcher
    >>> conditions(Matcher(user="bob", gpu="0"))
    'gpu 0, user bob'
    >>> conditions(Matcher())
    'everything'
    """
    parts = []
    if matcher.key:
        alert = next((one for one in alerts if one.key == matcher.key), None)
        parts.append(alert.title or alert.key if alert is not None else _absent(matcher.key))
    parts += [f"{name} {value}" for name in _CONDITIONS if (value := getattr(matcher, name))]
    return text.clean(", ".join(parts)) or "everything"


def _absent(key: str) -> str:
    """Return an alert that is not among those that are open; a glob stays as it is."""
    return key if any(sign in key for sign in "*?[") else f"{key.partition('@')[0]} (over)"


def silent(one: Silence, *, now_s: float) -> str:
    """Return in a word or two that an alert is silent, and until when."""
    until = "it is resolved" if one.until_resolved else units.moment(one.until_at_s, now_s=now_s)
    return f"silent until {until}"


def silence(one: Silence, *, now_s: float, alerts: Iterable[Alert] = ()) -> str:
    """Return a silence in a line: what, until when, by whom, why."""
    return f"{conditions(one.matcher, alerts)} {silence_end(one, now_s=now_s)}"


def silence_end(one: Silence, *, now_s: float) -> str:
    """Return until when a silence lasts, who wants it and why."""
    until = units.moment(one.until_at_s, now_s=now_s)
    end = f"until it is resolved, {until} at the latest" if one.until_resolved else f"until {until}"
    who = f", by {one.who}" if one.who else ""
    why = f" ({one.why})" if one.why else ""
    return text.clean(f"{end}{who}{why}", limit=400)


def in_force(silences: Iterable[Silence], now_s: float) -> tuple[Silence, ...]:
    """Return the silences that hold now.

    One that begins later was set before the clock was set back: for the daemon it holds.
    """
    return tuple(one for one in silences if one.cleared_at_s is None and now_s < one.until_at_s)


def failing(channels: Iterable[ChannelHealth], *, now_s: float) -> list[str]:
    """Return one sentence per channel that does not deliver: since when, why, how much waits."""
    lines = []
    for channel in (channel for channel in channels if channel.ok is False):
        since = ""
        if channel.failing_since_s is not None:
            since = f" since {units.moment(channel.failing_since_s, now_s=now_s)}"
        waits = f"; {channel.waiting} waiting" if channel.waiting else ""
        why = text.clean(channel.why, limit=300) or "no reason is known"
        lines.append(f"{channel.name} fails{since}: {why}{waits}")
    return lines


# Alerts that nobody has heard of, and what is silent on purpose.


def undelivered(view: View, *, mark: str = MARK) -> list[Part]:
    """Return which alerts have reached nobody, why, and what to do; [] when all is well.

    ``mark`` stands before it.
    """
    codes = [alert.code for alert in view.alerts if alert.key in view.untold]
    codes += [alert.code for alert in view.lost[::-1]]
    count = len(view.untold) + len(view.lost)
    if not count:
        return []
    named = ", ".join(codes[:_NAMED]) + (", ..." if count > min(len(codes), _NAMED) else "")
    over = f"; {len(view.lost)} resolved since" if view.lost else ""
    head = f"{mark}{units.count(count, 'alert')} {UNDELIVERED} ({named}{over}):"
    why = "; ".join(failing(view.channels, now_s=view.now_s))
    why = f"{why or 'no channel has delivered so far'};"
    command = ("gpuwatchctl notify test", "cyan")
    return [*blocks.sentence(head, ALARM), *blocks.sentence(why, "yellow"), command]


def write_undelivered(out: Page, view: View) -> None:
    """Write :func:`undelivered`; nothing when all is well."""
    if parts := undelivered(view):
        out.flow(parts, rest="  ", gap=" ")


def other_problems(view: View) -> Sequence[str]:
    """Return what is missing or broken, without what :func:`undelivered` says: that of channels."""
    daemon = view.daemon
    if not (view.untold or view.lost):
        return daemon.problems
    pairs = zip_longest(daemon.problems, daemon.problem_codes)
    return [problem for problem, code in pairs if problem and code is not ProblemCode.CHANNEL]


def silences(out: Page, view: View) -> None:
    """Write the silences in force in one line; nothing without one."""
    now_s = view.now_s
    held = in_force(view.silences, now_s)
    if not held:
        return
    first = silence(held[0], now_s=now_s, alerts=view.alerts)
    more = f"; and {len(held) - 1} more: gpuwatchctl snooze list" if len(held) > 1 else ""
    out.prose(f"silent: {first}{more}", "dim", rest="  ")


def delivery_marks(alert: Alert, view: View) -> list[Part]:
    """Return why nobody hears of an alert: it could not be told, is silent or no news."""
    found: list[Part] = []
    if alert.key in view.untold:
        found.append((UNDELIVERED, "red-bold"))
    if alert.inhibited_by:
        other = next((one for one in view.alerts if one.key == alert.inhibited_by), None)
        beside = alert.inhibited_by if other is None else other.title or other.code
        found.append((f"inhibited by {beside}", "dim"))
    if view.silences:
        from gpuwatchd import alerts  # noqa: PLC0415 - 44 ms: only where something is silent

        now_s = view.now_s
        held = alerts.silenced(alert, in_force(view.silences, now_s), now_s)
        if held is not None:
            found.append((silent(held, now_s=now_s), "dim"))
    return found


_NAMED = 3


def write_deaths(out: Page, view: View) -> None:
    """Write the deaths of the last day, newest first; nothing without one."""
    now_s = view.now_s
    for alert in view.deaths[:_NAMED]:
        out.flow(death_line(alert, now_s=now_s), rest="  ", gap=" ")
    if len(view.deaths) > _NAMED:
        more = f"and {len(view.deaths) - _NAMED} more that ran out of memory:"
        out.flow([(more, ""), ("gpuwatchctl alerts --all", "cyan")], first="  ", gap=" ")


def death_line(alert: Alert, *, now_s: float) -> list[Part]:
    """Return one death: when, who, after how long, what was lost, and what to type."""
    who = alert.program or alert.title or alert.subject.id
    kind = "host memory" if alert.subject.host else "memory"
    fact = f"{who} ran out of {kind} after {units.duration(ran_s(alert))}"
    if amount := lost(alert):
        fact += f", {amount} lost"
    return [
        (f"{FLAGS['died'].mark} {units.clock(alert.ended_at_s, now_s=now_s)}", "red-bold"),
        *text.clean(f"{fact};", limit=400).split(" "),
        (f"explain {alert.code}", "cyan"),
    ]


def ran_s(alert: Alert) -> float:
    """Return for how long the process had run; where that is unknown, how long it had grown."""
    process, onset_s = alert.subject.process, alert.finding.onset_at_s
    begun_s = None if process is None else process.started_at_s
    if begun_s is None:
        begun_s = alert.opened_at_s if onset_s is None else onset_s
    return max(0.0, alert.ended_at_s - begun_s)


def lost(alert: Alert) -> str:
    """Return what its run has cost: money, else GPU-hours; "" where nothing is known."""
    cost = alert.cost
    if cost is None:
        return ""
    from gpuwatchd.analysis import cost as money  # noqa: PLC0415 - 4 ms, only after a death

    if cost.spent_usd is not None:
        return money.in_currency(cost.spent_usd, cost)
    return "" if cost.gpu_hours is None else f"{money.in_hours(cost.gpu_hours)} GPU-hours"
