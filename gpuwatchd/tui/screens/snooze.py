"""``s``: for how long nobody is to be told of an alert, and why; kept as ``snooze`` keeps it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from gpuwatchd.core import text, units
from gpuwatchd.tui.base import ViewScreen, typed
from gpuwatchd.tui.widgets.texts import Choices, Paragraph, blank, sentence
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import alert_changes, alert_query, state_location
from gpuwatchd.view.text import delivery_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from textual import events

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.tui.base import Keys, SharedState
    from gpuwatchd.view.blocks import Page, Part

_SAID: Final = {
    "1h": "an hour",
    "8h": "8 hours",
    "2d": "2 days",
    alert_changes.UNTIL_RESOLVED: "until it is resolved",
}


def about(shared: SharedState, alerts: Sequence[Alert]) -> Alert | None:
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
            meant = alert or about(shared, alerts) or (alerts[0] if alerts else None)
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
