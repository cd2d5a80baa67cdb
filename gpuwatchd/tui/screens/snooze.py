"""``s``: for how long nobody is to be told of an alert, and why; kept as ``snooze`` keeps it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.tui.base_screens import ViewScreen
from gpuwatchd.tui.widgets.command_output import Paragraph, blank, sentence
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import incidents, silence_changes
from gpuwatchd.view.text import delivery_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.tui.app import TopApp
    from gpuwatchd.view.blocks import Page

_SAID: Final = {
    "1h": "an hour",
    "8h": "8 hours",
    "2d": "2 days",
    silence_changes.UNTIL_RESOLVED: "until it is resolved",
}


def about(top: TopApp, alerts: Sequence[Alert]) -> Alert | None:
    """Return the alert about the chosen process, else about the chosen GPU, else None."""
    opened = [alert for alert in alerts if alert.state in incidents.OPEN]
    key, uid = top.selected_process, top.selected_device_uid
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
    own_keys: ClassVar[tuple[tuple[str, str], ...]] = (
        ("Enter", "snooze"),
        ("↑↓", "how long"),
        ("Tab", "why"),
    )
    keys: ClassVar[tuple[tuple[str, str], ...]] = (("Esc", "back"),)

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
        alert, top = self._alert, self.top

        def read() -> tuple[Alert | None, Silence | None]:
            found = incidents.gather(0.0, only_open=alert is None)
            alerts = found.alerts
            meant = alert or about(top, alerts) or (alerts[0] if alerts else None)
            silence = None if meant is None else found.silence(meant, time.time())
            return meant, silence

        return read

    def answered(self, pair: tuple[Alert | None, Silence | None]) -> None:
        """Show the form."""
        self._alert, self._silence = pair
        self._answered = True
        self._form()

    def redrawn(self) -> None:
        """Show the form for the hour that it is now."""
        self._form()

    def retitled(self) -> None:
        """Say of which alert."""
        alert = self._alert
        if alert is None:
            self.headline(*([("no alert is open", "calm")] if self._answered else []))
        else:
            self.headline((alert.code, "held"), (alert.title or alert.key, "bold"))

    def _form(self) -> None:
        alert = self._alert
        if alert is None and not self._answered:
            return
        if alert is None:
            self.page.write(sentence("there is no open alert that could be snoozed", "green"))
            return
        now_s = time.time()
        form = [Paragraph(sentence("How long shall it be silenced?", "bold"))]
        form += [
            Paragraph(partial(_term, term, now_s, at + 1), at)
            for at, term in enumerate(silence_changes.TERMS)
        ]
        form += [Paragraph(blank), Paragraph(partial(_reason, self._why, self._typing))]
        form.append(Paragraph(blank))
        if self._silence is not None:
            value = delivery_text.silence_end(self._silence, now_s=now_s)
            form.append(Paragraph(sentence(f"silent already {value}", "yellow")))
        critical = alert.severity == "critical"
        told = (
            "it is critical now: no message about it is sent until then"
            if critical
            else "a message is still sent when it becomes critical"
        )
        for words in (told, "it is still watched, and shown here, by status and by alerts"):
            form.append(Paragraph(sentence(words, "dim")))
        self.page.put(form)
        self.page.choose(self._chosen)

    # ---- keys

    def action_choose(self, by: int) -> None:
        """Choose another term."""
        self._chosen = min(max(self._chosen + by, 0), len(silence_changes.TERMS) - 1)
        self._form()

    def action_why(self) -> None:
        """Go from one question to the other."""
        self._typing = not self._typing
        self._form()

    def on_key(self, event: events.Key) -> None:
        """Answer every key here, one after the other: bindings would come before what is typed."""
        if event.key in _DOES:
            _DOES[event.key](self)
        elif self._typing and self._typed(event):
            pass
        elif not self._typing and event.character and event.character in _NUMBERS:
            self._chosen = _NUMBERS.index(event.character)
        else:
            return
        event.stop()
        event.prevent_default()
        if self.is_current:
            self._form()

    def _typed(self, event: events.Key) -> bool:
        """Take a key as part of the reason, if it is one."""
        if event.key in {"backspace", "ctrl+h"}:
            self._why = self._why[:-1]
        elif event.key == "ctrl+u":
            self._why = ""
        elif event.is_printable and event.character is not None:
            self._take(event.character)
        else:
            return False
        return True

    def _take(self, typed: str) -> None:
        limit = silence_changes.WHY_CHARS
        self._why = text.clean(self._why + typed, limit=limit).lstrip()

    def on_paste(self, event: events.Paste) -> None:
        """Take what is pasted as the reason."""
        self._typing = True
        self._take(event.text)
        event.stop()
        self._form()

    def on_click(self, event: events.Click) -> None:
        """Choose the term that was clicked; a double click sets it."""
        at = self.page.clicked(event)
        if at is not None:
            self._chosen = at
            self._form()
            if event.chain > 1:
                self.action_keep()

    # ---- writing it

    def action_keep(self) -> None:
        """Write the silence, in a thread."""
        if self._alert is None or self._writing:
            return
        self._writing = True
        write = partial(self._write, self._alert, silence_changes.TERMS[self._chosen], self._why)
        self.run_worker(write, thread=True, exit_on_error=False)

    def _write(self, alert: Alert, term: str, why: str) -> None:
        """Run in the thread."""
        try:
            silence = silence_changes.of_alert(alert, term, now_s=time.time(), why=why)
            kept = silence_changes.keep(silence)
        except GpuwatchdError as error:
            value = f"{error.message} ({error.hint})" if error.hint else error.message
            self.app.call_from_thread(self._refused, value)
            return
        self.app.call_from_thread(self._kept, kept)

    def _refused(self, value: str) -> None:
        self._writing = False
        self.trouble = value
        self.top.show_message(value, "trouble")
        self.retitled()

    def _kept(self, silence: Silence) -> None:
        self._writing = False
        view, now_s = self.top.view, time.time()
        if view is not None:  # shown at once; the daemon says the same a tick later
            others = (one for one in view.silences if one.matcher != silence.matcher)
            view.silences = (*others, silence)
        self.top.show_message(
            f"{delivery_text.silent(silence, now_s=now_s)}; u in alerts takes it back", "held"
        )
        self.action_back()


def _term(term: str, now_s: float, number: int, out: Page) -> None:
    if term == silence_changes.UNTIL_RESOLVED:
        end = "at the latest 30 days"
    else:
        end = f"until {units.moment(now_s + silence_changes.seconds(term), now_s=now_s)}"
    out.line((f" {number}  {_SAID[term]:<18}", ""), (end, "dim"))


def _reason(why: str, typing: bool, out: Page) -> None:  # noqa: FBT001
    cursor = ("_", "bold") if typing else ("", "")
    if not why and not typing:
        out.line(("Why? ", "bold"), ("(Tab, then type; may be left out)", "dim"))
        return
    room = out.width - 8
    value = why if blocks.width_of(why) <= room else why[-room:]
    out.line(("Why? ", "bold"), (value, ""), cursor)


_DOES: Final[dict[str, Callable[[SnoozeScreen], None]]] = {
    "up": lambda form: form.action_choose(-1),
    "down": lambda form: form.action_choose(1),
    "tab": SnoozeScreen.action_why,
    "shift+tab": SnoozeScreen.action_why,
    "enter": SnoozeScreen.action_keep,
}
_NUMBERS: Final = "1234"
