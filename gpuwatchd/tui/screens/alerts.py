"""``a``: alerts, open and past, with who was told and what was held back, as ``alerts`` tells."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from textual.binding import Binding, BindingType

from gpuwatchd.core import design
from gpuwatchd.tui.base import LISTED, PagedScreen, ViewScreen
from gpuwatchd.tui.screens import snooze
from gpuwatchd.tui.screens.snooze import SnoozeScreen
from gpuwatchd.tui.widgets.texts import Choices, Paragraph, blank, sentence
from gpuwatchd.view.queries import (
    alert_changes,
    alert_query,
    current_state,
    state_location,
    user_filter,
)
from gpuwatchd.view.text import alert_details, delivery_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from textual import events

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.query import Query

__all__ = ["AlertDetailScreen", "AlertsScreen", "SnoozeScreen"]

_PAST_S: Final = 7 * 86_400.0
"""As ``alerts --all`` without ``--since``."""
_MOST: Final = 200
"""Alerts that are over and are listed; all of them: ``alerts --all``."""
Which = tuple[str, float]
"""An alert: its key, and when it was opened."""


class Listed(NamedTuple):
    """The alerts of the list, open ones first, and what else was found."""

    alerts: tuple[Alert, ...]
    found: Incidents
    left_out: int
    now_s: float


def read(query: Query) -> Listed:
    """Return what is open and what was within a week. Runs in a thread."""
    now_s = state_location.now_s()
    found = alert_query.gather(now_s - _PAST_S, only_open=False)
    if query.user:
        found.keep_of(user_filter.People(query.user))
    wanted = [alert for alert in found.alerts if found.wanted(query, alert)]
    is_open = [alert for alert in wanted if alert.state in alert_query.OPEN]
    over = [alert for alert in wanted if alert.state not in alert_query.OPEN]
    return Listed((*is_open, *over[:_MOST]), found, max(0, len(over) - _MOST), now_s)


def which(alert: Alert) -> Which:
    """Return what tells an alert from all others."""
    return alert.key, alert.opened_at_s


class AlertsScreen(ViewScreen):
    """The list: Enter tells the whole story of one, s snoozes it, u takes that back."""

    name_shown = "Alerts"
    is_changed_above = True
    page_id = "list"
    page_kind = Choices
    own_keys: ClassVar[Keys] = (
        ("↑↓", "choose"), ("Enter", "story"), ("s", "snooze"), ("u", "un-snooze"),
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        *LISTED,
        Binding("enter", "open('story')", show=False),
        Binding("s", "open('snooze')", show=False),
        Binding("u", "unsnooze", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._listed: Listed | None = None
        self._chosen: Which | None = None
        self._asked_twice = False
        self._soon = ""
        """What was asked for before there was anything to choose from."""

    def job(self) -> Callable[[], Listed]:
        """Return what reads the list."""
        return partial(read, self.shared.query)

    def subject(self) -> Iterable[Part]:
        """Return how many there are."""
        listed = self._listed
        if listed is None:
            return
        opened = [alert for alert in listed.alerts if alert.state in alert_query.OPEN]
        silent = sum(
            listed.found.silence(alert, listed.now_s) is not None for alert in listed.alerts
        )
        counted = current_state.counted(opened) or "nothing"
        yield f"{counted} open", "bold" if opened else "calm"
        if silent:
            yield f"{silent} snoozed", "held"
        yield f"{len(listed.alerts) + listed.left_out - len(opened)} resolved in 7 days", "faint"

    def answered(self, listed: Listed) -> None:
        """Show the list; what was chosen stays chosen."""
        self._listed = listed
        keys = [which(alert) for alert in listed.alerts]
        if self._chosen not in keys:
            # The alert about what was chosen on the screen before, else the first.
            about = snooze.about(self.shared, listed.alerts)
            self._chosen = which(about) if about is not None else next(iter(keys), None)
        chosen = keys.index(self._chosen) if self._chosen is not None else None
        self.list.put(_paragraphs(listed), chosen)
        soon, self._soon = self._soon, ""
        if soon:
            self.action_open(soon)

    @property
    def alert(self) -> Alert | None:
        """The chosen one."""
        alerts_ = () if self._listed is None else self._listed.alerts
        return next((alert for alert in alerts_ if which(alert) == self._chosen), None)

    def on_option_list_option_highlighted(self) -> None:
        """Take what is marked in the list as chosen."""
        at = self.list.chosen
        if self._listed is not None and at is not None:
            chosen = which(self._listed.alerts[at])
            self._asked_twice = self._asked_twice and chosen == self._chosen
            self._chosen = chosen

    def on_click(self, event: events.Click) -> None:
        """Tell the story of what was clicked twice."""
        if event.chain > 1 and self.list.clicked(event) is not None:
            self.action_open("story")

    def action_open(self, what: str) -> None:
        """Tell everything about the chosen one, or ask for how long it is snoozed, and why."""
        if self._listed is None:
            self._soon = what
        elif self.alert is not None:
            screen = AlertDetailScreen if what == "story" else SnoozeScreen
            self.app.push_screen(screen(self.alert))

    def action_unsnooze(self) -> None:
        """Take a silence back; of a rule that fits others as well only when asked twice."""
        alert, listed = self.alert, self._listed
        if alert is None or listed is None:
            return
        silence = listed.found.silence(alert, listed.now_s)
        if silence is None:
            self.program.show_message("it is not snoozed", "unknown")
            return
        if silence.matcher.key != alert.key and not self._asked_twice:
            self._asked_twice = True
            rule = delivery_text.conditions(silence.matcher, listed.found.alerts)
            self.program.show_message(
                f"this takes back a whole rule ({rule}): u again does it", "watch"
            )
            return
        self._asked_twice = False
        self.change(
            lambda: alert_changes.take_back([silence], state_location.now_s()),
            lambda _: self._taken_back(silence),
        )

    def _taken_back(self, silence: Silence) -> None:
        view = self.shared.view
        if view is not None:
            view.silences = tuple(other for other in view.silences if other.row != silence.row)
        self.program.show_message("removed: messages about it are sent again", "calm")
        self.request(anew=True)


def _paragraphs(listed: Listed) -> Iterator[Paragraph]:
    found = listed.found
    for _, text in found.warnings:
        yield Paragraph(sentence(f"! {text}", "yellow"))
    opened = [alert for alert in listed.alerts if alert.state in alert_query.OPEN]
    if not opened:
        yield Paragraph(sentence("no open alert", "green"))
    for at, alert in enumerate(listed.alerts):
        if at == len(opened):
            yield Paragraph(blank)
            yield Paragraph(sentence("resolved in the last 7 days", "bold"))
        yield Paragraph(partial(_entry, alert, found, listed.now_s), at)
    if listed.left_out:
        text = f"and {listed.left_out} more: gpuwatchctl alerts --all"
        yield Paragraph(sentence(text, "dim"))
    if found.silences:
        yield Paragraph(blank)
    for silence in found.silences:
        text = delivery_text.silence(silence, now_s=listed.now_s, alerts=found.alerts)
        yield Paragraph(sentence(f"silent: {text}", "dim"))


def _entry(alert: Alert, found: Incidents, now_s: float, out: Page) -> None:
    out.flow(alert_details.line(alert, found, now_s), rest=" " * 4)


class AlertDetailScreen(PagedScreen):
    """Everything about one alert, as ``alerts show`` tells it."""

    name_shown = "Alert"
    is_changed_above = True
    own_keys: ClassVar[Keys] = (("↑↓", "scroll"), ("s", "snooze"))
    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "snooze", show=False)]

    def __init__(self, alert: Alert) -> None:
        super().__init__()
        self._alert = alert

    def job(self) -> Callable[[], alert_details.AlertRecord]:
        """Return what reads the story."""
        return partial(_story, self.shared.query, self._alert)

    def subject(self) -> Iterable[Part]:
        """Return which it is."""
        alert = self._alert
        kind = design.SEVERITY_KINDS[alert.severity] if alert.state != "resolved" else "calm"
        yield alert.code, "held"
        yield f"{alert.state} {alert.severity}", f"{kind} bold"
        yield alert.title or alert.key, "bold"

    def answered(self, story: alert_details.AlertRecord) -> None:
        """Tell it."""
        self._alert = story.alert
        self.page.write(partial(alert_details.show, story=story))

    def action_snooze(self) -> None:
        """Ask for how long, and why."""
        self.app.push_screen(SnoozeScreen(self._alert))


def _story(query: Query, alert: Alert) -> alert_details.AlertRecord:
    """Return the newest that is known of this opening. Runs in a thread."""
    found = alert_query.gather(0.0, only_open=False)
    again = (one for one in found.alerts if one.key == alert.key
             and abs(one.opened_at_s - alert.opened_at_s) < 1.0)  # fmt: skip
    return alert_details.load(query, next(again, alert), found)
