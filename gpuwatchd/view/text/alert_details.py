"""Alerts: one a line, and everything about one: when, why, what was decided, what arrived."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.alerts import wording
from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import StoreError
from gpuwatchd.view.queries import alert_query
from gpuwatchd.view.text import delivery_text, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuwatchd.core.model import Alert, Decision, Delivery
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import Action
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.query import Query

_MOST = 30
"""Decisions that are told; the newest."""
_STYLE = {"critical": "red-bold", "warning": "yellow-bold", "info": ""}
Line = tuple[str, str, str]
"""Label, sentence, style."""


class Label(StrEnum):
    """Labels of what other pages say elsewhere, or in other words."""

    GROWTH = "growth"
    FULL_IN = "full in"
    JUDGEMENT = "judgement"
    COST = "cost"
    FEEDBACK = "feedback"
    ID = "id"
    STATE = "state"
    NOTICED = "noticed"
    WATCHED = "watched"
    RESOLVED = "resolved"
    ENDED = "ended"
    BECAUSE = "because"


class AlertRecord(NamedTuple):
    """One alert with what is on record of it."""

    alert: Alert
    found: Incidents
    deliveries: Sequence[Delivery] | None
    """Of this opening, oldest first; None where the history cannot be read."""
    decisions: Sequence[Decision] | None
    actions: Sequence[Action] | None = None
    """What was done to its processes, or proposed, oldest first."""


def record(
    alert: Alert, found: Incidents, history: Reader, decisions: Iterable[Decision]
) -> AlertRecord:
    """Return an alert with what is recorded of this opening of its key."""
    mine = found.opening(alert)
    return AlertRecord(
        alert,
        found,
        [delivery for delivery in history.deliveries(alert.key) if mine(delivery.created_at_s)],
        [decision for decision in decisions if mine(decision.at_s)],
        alert_query.actions_near(history, alert, found.now_s),
    )


def suppression_reasons(alert: Alert, found: Incidents, now_s: float) -> list[Part]:
    """Return why nobody is told of it now; [] where somebody is."""
    parts: list[Part] = []
    silence = found.silence(alert, now_s)
    if silence is not None:
        parts.append((delivery_text.silent(silence, now_s=now_s), "dim"))
    if alert.inhibited_by:
        parts.append((f"inhibited by {_named(alert.inhibited_by, found)}", "dim"))
    if alert.held_back:
        parts.append((f"held: {alert.held_back}", "yellow"))
    return parts


def _named(key: str, found: Incidents) -> str:
    """Return the alert that makes another one no news: its code and whom it is about."""
    other = next((alert for alert in found.alerts if alert.key == key), None)
    return key if other is None else f"{other.code} ({other.title or other.key})"


def load(query: Query, alert: Alert, found: Incidents) -> AlertRecord:
    """Return an alert with its cost until now, and what was decided and delivered of it."""
    from gpuwatchd.view.queries import cost_entries, history_query  # noqa: PLC0415 - 70 ms: SQLite comes with it

    (alert,) = cost_entries.up_to_now(query, [alert])
    try:
        with history_query.reader() as history:
            return record(alert, found, history, history.decisions(alert.key))
    except StoreError:  # already said by gather
        return AlertRecord(alert, found, None, None)


def show(out: Page, story: AlertRecord) -> None:
    """Write the whole story of an alert."""
    alert = story.alert
    out.line((text.clean(alert.title or alert.key), "bold"))
    for label, value, style in lines(story):
        out.prose(value, style, first=f"  {label:<13}", rest=" " * 15)


def lines(story: AlertRecord) -> Iterator[Line]:
    """Yield label, sentence and style of each line, in order; a label that repeats is ""."""
    alert, found, now_s = story.alert, story.found, story.found.now_s
    before = ""
    for label, value, style in (
        *_facts(story, now_s),
        *_decided(story, now_s),
        *_acted(story, now_s),
        *_notification_lines(story, now_s),
    ):
        if value:
            yield "" if label == before else label, value, style
            before = label
    if alert.key in found.untold:
        yield "", f"{delivery_text.UNDELIVERED}: gpuwatchctl notify test", "red-bold"


def _facts(story: AlertRecord, now_s: float) -> list[Line]:
    alert, found, finding = story.alert, story.found, story.alert.finding
    calm = verdict_text.calmed(alert, now_s=now_s)
    leak, over = alert.kind == "leak", alert.state == "resolved"
    facts: list[tuple[str, str]] = [
        (Label.ID, f"{alert.code}  {alert.key}"),
        (Label.STATE, f"{alert.state}, {alert.severity}"),
        verdict_text.growth_since(alert, now_s=now_s),
    ]
    facts += [(name, units.clock(at_s, now_s=now_s)) for name, at_s in steps(alert)]
    facts += [
        (Label.JUDGEMENT, verdict_text.verdict(finding)[0] if leak else ""),
        (Label.GROWTH, (calm or verdict_text.rate(finding)) if leak else ""),
        (Label.FULL_IN, "" if calm or over or not leak else verdict_text.eta(finding.eta) or "?"),
        (Label.BECAUSE, verdict_text.because(alert) or "?"),
        *((label.lower(), line) for label, line in wording.inside(finding).items()),
        (Label.COST, cost.line(alert.cost)),
        ("group", _group(alert, found)),
        (
            "came again",
            f"{verdict_text.times(alert.flaps)} within the hour before" if alert.flaps else "",
        ),
        (Label.ENDED, alert.ended),
        (Label.FEEDBACK, verdict_text.user_label(found.user_label(alert))),
        ("silent", _silent(alert, found, now_s)),
        ("inhibited", f"by {_named(alert.inhibited_by, found)}" if alert.inhibited_by else ""),
        ("held", alert.held_back or _why_quiet(alert)),
    ]
    return [(label, value, "") for label, value in facts]


def steps(alert: Alert) -> list[tuple[str, float]]:
    """Return what became of an alert so far, and when (epoch seconds)."""
    every = (
        (Label.NOTICED, alert.opened_at_s),
        (Label.WATCHED, alert.watch_at_s),
        ("raised", alert.firing_at_s),
        (Label.RESOLVED, alert.resolved_at_s),
    )
    return [(name, at_s) for name, at_s in every if at_s is not None]


def _group(alert: Alert, found: Incidents) -> str:
    """Return what its notices leave together with, and which open alerts are of it."""
    if not alert.group:
        return ""
    others = [
        one.code
        for one in found.alerts
        if one.group == alert.group and one.key != alert.key and one.state in alert_query.OPEN
    ]
    of = alert.group.replace(":", " ", 1)
    return f"{of}, with {', '.join(others)}" if others else of


def _silent(alert: Alert, found: Incidents, now_s: float) -> str:
    silence = found.silence(alert, now_s)
    if silence is None:
        return ""
    if silence.matcher.key == alert.key:
        return delivery_text.silence_end(silence, now_s=now_s)
    return delivery_text.silence(silence, now_s=now_s, alerts=found.alerts)


def _why_quiet(alert: Alert) -> str:
    """Return why nothing was sent although something was seen; "" when something was."""
    if alert.notices or alert.state == "resolved":
        return "" if alert.notices else "it was resolved before a message was due"
    if alert.state in {"pending", "watch"}:
        return "the evidence is not strong enough for an alert yet; a watch is shown, not sent"
    return "the first message waits, in case it resolves quickly"


def _decided(story: AlertRecord, now_s: float) -> list[Line]:
    made = story.decisions or ()
    kept = [("decided", *pair) for pair in delivery_text.decisions(made, now_s=now_s)]
    more = len(kept) - _MOST
    earlier = [("decided", f"{more} earlier ones are left out (--json has all)", "dim")]
    return [*(earlier if more > 0 else []), *kept[-_MOST:]]


def _acted(story: AlertRecord, now_s: float) -> list[Line]:
    """Return what was done or proposed, by whom, why, and what came of it."""
    made = []
    for action in story.actions or ():
        phase = "proposed" if action.dry_run else "done, saved" if action.saved else action.phase
        head = f"{units.clock(action.at_s, now_s=now_s)} {action.verb} {phase}"
        head += f" by {action.who}" if action.who else ""
        parts = [text.clean(part) for part in (head, action.code, action.result) if part]
        made.append(("action", ": ".join(parts), ""))
    return made[-_MOST:]


def _notification_lines(story: AlertRecord, now_s: float) -> list[Line]:
    if story.deliveries is None:
        return [("delivered", "? (the history cannot be read)", "")]
    if not story.deliveries:
        return [("delivered", "nowhere", "")]
    found = [
        ("delivered", delivery_text.dated(delivery, now_s=now_s), delivery_text.style(delivery))
        for delivery in story.deliveries
    ]
    also = {
        key for delivery in story.deliveries for key in (delivery.alert_key, *delivery.message.also)
    }
    also -= {story.alert.key, ""}
    if also:
        found.append(("sent with", "; ".join(sorted(_named(key, story.found) for key in also)), ""))
    return found


# Alerts, one line each.


def table(out: Page, alerts: Sequence[Alert], found: Incidents, *, only_open: bool) -> None:
    """Write alerts, one line each, and what is silent."""
    for _, sentence in found.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    now_s = found.now_s
    for alert in alerts:
        out.flow(line(alert, found, now_s), rest=" " * 8)
        if out.verbose:
            out.flow([(alert.key, "dim")], first=" " * 8, rest=" " * 8)
    for silence in found.silences:
        text = delivery_text.silence(silence, now_s=now_s, alerts=found.alerts)
        out.prose(f"silent: {text}", "dim", rest="  ")
    if not alerts:
        out.line(
            "no open alert; alerts --all lists the resolved ones"
            if only_open
            else "no alert in this period"
        )
    elif not out.quiet:
        out.flow([(f"gpuwatchctl alerts show {alerts[0].code} shows the first in full", "dim")])


def line(alert: Alert, found: Incidents, now_s: float) -> list[Part]:
    """Return one alert in a line: what it is, then what became of it."""
    ended = alert.resolved_at_s
    begun = verdict_text.since(alert, now_s=now_s)
    calm = verdict_text.calmed(alert, now_s=now_s)
    shape = verdict_text.shape(alert.finding)
    shape = f"{alert.finding.pattern}, {calm}" if calm else shape
    return [
        (alert.code, "cyan"),
        (f"{alert.state} {alert.severity}", _STYLE[alert.severity]),
        f"since {begun}" if ended is None else f"{begun} - {units.clock(ended, now_s=now_s)}",
        alert.title or alert.subject.id,
        shape if alert.kind == "leak" else alert.finding.reason,
        units.count(alert.notices, "notice"),
        (delivery_text.UNDELIVERED, "red-bold") if alert.key in found.untold else "",
        *suppression_reasons(alert, found, now_s),
        f"came and went {verdict_text.times(alert.flaps)}" if alert.flaps else "",
        (f"resolved: {alert.ended}", "dim") if alert.ended else "",
        verdict_text.user_label(found.user_label(alert)),
    ]
