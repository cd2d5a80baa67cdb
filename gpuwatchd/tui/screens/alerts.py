"""``a``: alerts, open and past, as ``alerts`` tells; ``s``: for how long nobody is told of one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from textual.binding import Binding, BindingType

from gpuwatchd.core import design, text, units
from gpuwatchd.tui.base import LISTED, PagedScreen, ViewScreen, typed
from gpuwatchd.tui.widgets.texts import Choices, Paragraph, blank, sentence
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import (
    alert_changes,
    alert_query,
    current_state,
    state_location,
    user_filter,
)
from gpuwatchd.view.text import alert_details, delivery_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from textual import events

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.tui.base import Keys, SharedState
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.query import Query

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
            about = chosen_of(self.shared, listed.alerts)
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
    for _, words in found.warnings:
        yield Paragraph(sentence(f"! {words}", "yellow"))
    opened = [alert for alert in listed.alerts if alert.state in alert_query.OPEN]
    if not opened:
        yield Paragraph(sentence("no open alert", "green"))
    for at, alert in enumerate(listed.alerts):
        if at == len(opened):
            yield Paragraph(blank)
            yield Paragraph(sentence("resolved in the last 7 days", "bold"))
        yield Paragraph(partial(_entry, alert, found, listed.now_s), at)
    if listed.left_out:
        words = f"and {listed.left_out} more: gpuwatchctl alerts --all"
        yield Paragraph(sentence(words, "dim"))
    if found.silences:
        yield Paragraph(blank)
    for silence in found.silences:
        words = delivery_text.silence(silence, now_s=listed.now_s, alerts=found.alerts)
        yield Paragraph(sentence(f"silent: {words}", "dim"))


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


_SAID: Final = {
    "1h": "an hour",
    "8h": "8 hours",
    "2d": "2 days",
    alert_changes.UNTIL_RESOLVED: "until it is resolved",
}


def chosen_of(shared: SharedState, alerts: Sequence[Alert]) -> Alert | None:
    """Return the alert about the chosen process, else about the chosen GPU, else None."""
    opened = [alert for alert in alerts if alert.state in alert_query.OPEN]
    key, uid = shared.selected_process, shared.selected_device_uid
    of_process = [alert for alert in opened if key is not None and alert.subject.process == key]
    of_device = [alert for alert in opened if uid is not None and alert.subject.device_uid == uid]
    return next(iter(of_process or of_device), None)


class SnoozeScreen(ViewScreen):
    """A form with two questions.

    Parameters
    ----------
    alert
        Of which alert; without one it is that of the chosen process or GPU, else the worst.
    """

    name_shown = "Snooze"
    page_kind = Choices
    own_keys: ClassVar[Keys] = (
        ("Enter", "snooze"),
        ("↑↓", "how long"),
        ("Tab", "why"),
    )
    keys: ClassVar[Keys] = (("Esc", "back"),)

    def __init__(self, alert: Alert | None = None) -> None:
        super().__init__()
        self._alert = alert
        self._chosen = 0
        self._why = ""
        self._typing = False
        self._silence: Silence | None = None
        self._answered = self._writing = False

    def job(self) -> Callable[[], tuple[Alert | None, Silence | None]]:
        """Return what looks the alert up, and whether it is silent already."""
        alert, shared = self._alert, self.shared

        def read() -> tuple[Alert | None, Silence | None]:
            found = alert_query.gather(0.0, only_open=alert is None)
            alerts = found.alerts
            meant = alert or chosen_of(shared, alerts) or (alerts[0] if alerts else None)
            silence = None if meant is None else found.silence(meant, found.now_s)
            return meant, silence

        return read

    def answered(self, pair: tuple[Alert | None, Silence | None]) -> None:
        """Show the form."""
        self._alert, self._silence = pair
        self._answered = True
        self.redrawn()

    def subject(self) -> Iterable[Part]:
        """Return which alert it is about."""
        alert = self._alert
        if alert is not None:
            yield alert.code, "held"
            yield alert.title or alert.key, "bold"
        elif self._answered:
            yield "no alert is open", "calm"

    def redrawn(self) -> None:
        """Show the form for the hour that it is now."""
        alert = self._alert
        if alert is not None:
            self.list.put(self._form(alert, state_location.now_s()), self._chosen)
        elif self._answered:
            none = sentence("there is no open alert that could be snoozed", "green")
            self.list.put([Paragraph(none)])

    def _form(self, alert: Alert, now_s: float) -> Iterator[Paragraph]:
        yield Paragraph(sentence("How long shall it be silenced?", "bold"))
        for at, term in enumerate(alert_changes.TERMS):
            yield Paragraph(partial(_term, term, now_s, at + 1), at)
        yield Paragraph(blank)
        yield Paragraph(partial(_reason, self._why, self._typing))
        yield Paragraph(blank)
        if self._silence is not None:
            end = delivery_text.silence_end(self._silence, now_s=now_s)
            yield Paragraph(sentence(f"silent already {end}", "yellow"))
        words = "a message is still sent when it becomes critical"
        if alert.severity == "critical":
            words = "it is critical now: no message about it is sent until then"
        yield Paragraph(sentence(words, "dim"))
        words = "it is still watched, and shown here, by status and by alerts"
        yield Paragraph(sentence(words, "dim"))

    def on_key(self, event: events.Key) -> None:
        """Answer every key here, one after the other: bindings would come before what is typed."""
        why = typed(self._why, event) if self._typing else None
        if event.key in {"up", "down"}:
            self._chosen += 1 if event.key == "down" else -1
            self._chosen = min(max(self._chosen, 0), len(alert_changes.TERMS) - 1)
        elif event.key in {"tab", "shift+tab"}:
            self._typing = not self._typing
        elif event.key == "enter":
            self._keep()
        elif why is not None:
            self._take(why)
        elif not self._typing and event.character and event.character in _NUMBERS:
            self._chosen = _NUMBERS.index(event.character)
        else:
            return
        event.stop()
        event.prevent_default()
        if self.is_current:
            self.redrawn()

    def _take(self, why: str) -> None:
        self._why = text.clean(why, limit=alert_changes.WHY_CHARS).lstrip()

    def on_paste(self, event: events.Paste) -> None:
        """Take what is pasted as the reason."""
        self._typing = True
        self._take(self._why + event.text)
        event.stop()
        self.redrawn()

    def on_click(self, event: events.Click) -> None:
        """Choose the term that was clicked; a double click sets it."""
        term = self.list.clicked(event)
        if term is not None:
            self._chosen = term
            if event.chain > 1:
                self._keep()

    def _keep(self) -> None:
        if self._alert is None or self._writing:
            return
        self._writing = True
        alert, term, why = self._alert, alert_changes.TERMS[self._chosen], self._why

        def write() -> Silence:
            silence = alert_changes.of_alert(alert, term, now_s=state_location.now_s(), why=why)
            return alert_changes.keep(silence)

        self.change(write, self._kept)

    def refused(self, trouble: str) -> None:
        """Say why it was not written."""
        self._writing = False
        self.trouble = trouble
        super().refused(trouble)
        self.headline()

    def _kept(self, silence: Silence) -> None:
        self._writing = False
        view, now_s = self.shared.view, state_location.now_s()
        if view is not None:  # shown at once; the daemon says the same a tick later
            others = (other for other in view.silences if other.matcher != silence.matcher)
            view.silences = (*others, silence)
        self.program.show_message(
            f"{delivery_text.silent(silence, now_s=now_s)}; u in alerts takes it back", "held"
        )
        self.action_back()


def _term(term: str, now_s: float, number: int, out: Page) -> None:
    if term == alert_changes.UNTIL_RESOLVED:
        end = "at the latest 30 days"
    else:
        end = f"until {units.moment(now_s + alert_changes.seconds(term), now_s=now_s)}"
    out.line((f" {number}  {_SAID[term]:<18}", ""), (end, "dim"))


def _reason(why: str, typing: bool, out: Page) -> None:  # noqa: FBT001
    cursor = ("_", "bold") if typing else ("", "")
    if not why and not typing:
        out.line(("Why? ", "bold"), ("(Tab, then type; may be left out)", "dim"))
        return
    room = out.width - 8
    value = why if blocks.width_of(why) <= room else why[-room:]
    out.line(("Why? ", "bold"), (value, ""), cursor)


_NUMBERS: Final = "1234"
