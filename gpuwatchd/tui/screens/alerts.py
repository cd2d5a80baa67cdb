"""``a``: alerts, open and past, with who was told and what was held back, as ``alerts`` tells."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from textual.binding import Binding, BindingType

from gpuwatchd.core import design
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.tui.base_screens import PagedScreen, ViewScreen
from gpuwatchd.tui.screens import snooze
from gpuwatchd.tui.screens.snooze import SnoozeScreen
from gpuwatchd.tui.widgets.command_output import Paragraph, blank, sentence
from gpuwatchd.view.queries import alert_order, incidents, silence_changes, user_filter
from gpuwatchd.view.text import alert_details, delivery_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual import events

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.view.blocks import Page
    from gpuwatchd.view.queries.incidents import Incidents
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
    now_s = time.time()
    found = incidents.gather(now_s - _PAST_S, only_open=False)
    if query.user:
        found.keep_of(user_filter.People(query.user))
    wanted = [alert for alert in found.alerts if found.wanted(query, alert)]
    is_open = [alert for alert in wanted if alert.state in incidents.OPEN]
    over = [alert for alert in wanted if alert.state not in incidents.OPEN]
    listed = (*is_open, *over[:_MOST])
    return Listed(listed, found, len(over) - len(over[:_MOST]), now_s)


def which(alert: Alert) -> Which:
    """Return what tells an alert from all others."""
    return alert.key, alert.opened_at_s


class AlertsScreen(ViewScreen):
    """The list: Enter tells the whole story of one, s snoozes it, u takes that back."""

    name_shown = "Alerts"
    is_changed_above = True
    own_keys: ClassVar[tuple[tuple[str, str], ...]] = (
        ("↑↓", "choose"), ("Enter", "story"), ("s", "snooze"), ("u", "un-snooze"),
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", show=False),
        Binding("down,j", "choose(1)", show=False),
        Binding("pageup", "choose(-8)", show=False),
        Binding("pagedown,space", "choose(8)", show=False),
        Binding("home", "choose(-9999)", show=False),
        Binding("end", "choose(9999)", show=False),
        Binding("enter", "story", show=False),
        Binding("s", "snooze", show=False),
        Binding("u", "unsnooze", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._listed: Listed | None = None
        self._chosen: Which | None = None
        self._asked_twice = False
        self._soon: Callable[[], None] | None = None
        """What was asked for before there was anything to choose from."""

    def job(self) -> Callable[[], Listed]:
        """Return what reads the list."""
        return partial(read, self.query_asked)

    def retitled(self) -> None:
        """Say how many there are."""
        listed = self._listed
        if listed is None:
            self.headline()
            return
        opened = [alert for alert in listed.alerts if alert.state in incidents.OPEN]
        over = len(listed.alerts) + listed.left_out - len(opened)
        silent = sum(
            listed.found.silence(alert, listed.now_s) is not None for alert in listed.alerts
        )
        pieces = [
            (f"{alert_order.counted(opened) or 'nothing'} open", "bold" if opened else "calm")
        ]
        pieces += [(f"{silent} snoozed", "held")] if silent else []
        self.headline(*pieces, (f"{over} resolved in 7 days", "faint"))

    def answered(self, listed: Listed) -> None:
        """Show the list; what was chosen stays chosen."""
        self._listed = listed
        keys = [which(alert) for alert in listed.alerts]
        if self._chosen not in keys:
            self._chosen = self._first(listed)
        self.page.put(list(_paragraphs(listed)))
        self.page.choose(keys.index(self._chosen) if self._chosen in keys else None)
        soon, self._soon = self._soon, None
        if soon is not None:
            soon()

    def _first(self, listed: Listed) -> Which | None:
        """Return the alert about what was chosen on the screen before, else the first."""
        about = snooze.about(self.top, listed.alerts)
        chosen = about or (listed.alerts[0] if listed.alerts else None)
        return None if chosen is None else which(chosen)

    @property
    def alert(self) -> Alert | None:
        """The chosen one."""
        alerts_ = () if self._listed is None else self._listed.alerts
        return next((one for one in alerts_ if which(one) == self._chosen), None)

    def action_choose(self, by: int) -> None:
        """Choose another one."""
        if self._listed is None or not self._listed.alerts:
            return
        keys = [which(alert) for alert in self._listed.alerts]
        at = keys.index(self._chosen) if self._chosen in keys else 0
        self._take(min(max(at + by, 0), len(keys) - 1))

    def _take(self, at: int) -> None:
        assert self._listed is not None  # noqa: S101 - asked before
        self._chosen = which(self._listed.alerts[at])
        self._asked_twice = False
        self.page.choose(at)

    def on_click(self, event: events.Click) -> None:
        """Choose the one that was clicked; a second click tells its story."""
        at = self.page.clicked(event)
        if self._listed is None or at is None:
            return
        again = which(self._listed.alerts[at]) == self._chosen
        self._take(at)
        if again and event.chain > 1:
            self.action_story()

    def action_story(self) -> None:
        """Tell everything about it."""
        if self._listed is None:
            self._soon = self.action_story
        elif self.alert is not None:
            self.app.push_screen(AlertDetailScreen(self.alert))

    def action_snooze(self) -> None:
        """Ask for how long, and why."""
        if self._listed is None:
            self._soon = self.action_snooze
        elif self.alert is not None:
            self.app.push_screen(SnoozeScreen(self.alert))

    def action_unsnooze(self) -> None:
        """Take a silence back; of a rule that fits others as well only when asked twice."""
        alert, listed = self.alert, self._listed
        if alert is None or listed is None:
            return
        silence = listed.found.silence(alert, listed.now_s)
        if silence is None:
            self.top.show_message("it is not snoozed", "unknown")
            return
        if silence.matcher.key != alert.key and not self._asked_twice:
            self._asked_twice = True
            rule = delivery_text.conditions(silence.matcher, listed.found.alerts)
            self.top.show_message(
                f"this takes back a whole rule ({rule}): u again does it", "watch"
            )
            return
        self._asked_twice = False
        self.run_worker(partial(self._take_back, silence), thread=True, exit_on_error=False)

    def _take_back(self, silence: Silence) -> None:
        """Run in a thread."""
        try:
            silence_changes.take_back([silence], time.time())
        except GpuwatchdError as error:
            text = f"{error.message} ({error.hint})" if error.hint else error.message
            self.app.call_from_thread(self.top.show_message, text, "trouble")
            return
        self.app.call_from_thread(self._taken_back, silence)

    def _taken_back(self, silence: Silence) -> None:
        view = self.top.view
        if view is not None:
            view.silences = tuple(one for one in view.silences if one.row != silence.row)
        self.top.show_message("removed: messages about it are sent again", "calm")
        self.request(anew=True)


def _paragraphs(listed: Listed) -> Iterable[Paragraph]:
    found = listed.found
    for _, text in found.warnings:
        yield Paragraph(sentence(f"! {text}", "yellow"))
    opened = [alert for alert in listed.alerts if alert.state in incidents.OPEN]
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
    own_keys: ClassVar[tuple[tuple[str, str], ...]] = (("↑↓", "scroll"), ("s", "snooze"))
    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "snooze", show=False)]

    def __init__(self, alert: Alert) -> None:
        super().__init__()
        self._alert = alert

    def job(self) -> Callable[[], alert_details.AlertRecord]:
        """Return what reads the story."""
        return partial(_story, self.query_asked, self._alert)

    def retitled(self) -> None:
        """Say which it is."""
        alert = self._alert
        kind = design.SEVERITY_KINDS[alert.severity] if alert.state != "resolved" else "calm"
        self.headline(
            (alert.code, "held"),
            (f"{alert.state} {alert.severity}", f"{kind} bold"),
            (alert.title or alert.key, "bold"),
        )

    def answered(self, story: alert_details.AlertRecord) -> None:
        """Tell it."""
        self._alert = story.alert
        self.page.write(partial(alert_details.show, story=story))

    def action_snooze(self) -> None:
        """Ask for how long, and why."""
        self.app.push_screen(SnoozeScreen(self._alert))


def _story(query: Query, alert: Alert) -> alert_details.AlertRecord:
    """Return the newest that is known of this opening. Runs in a thread."""
    found = incidents.gather(0.0, only_open=False)
    again = (one for one in found.alerts if one.key == alert.key
             and abs(one.opened_at_s - alert.opened_at_s) < 1.0)  # fmt: skip
    return alert_details.load(query, next(again, alert), found)
