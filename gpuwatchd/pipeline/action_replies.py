"""What is said to somebody who has pressed a button, where it was pressed."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Message
from gpuwatchd.core.registry import load
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.store import legacy_text

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("gpuwatchd")

_CLOSE_S: Final = 0.2
"""What a desktop that answers has to let go."""


class ActionReply:
    """Says what came of a press.

    Parameters
    ----------
    say
        Shows an answer; None shows it as a pop-up, over a connection that is kept: some servers
        take down what a program has shown when it disconnects.
    """

    def __init__(self, say: Callable[[Message], object] | None) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._close: Callable[[], None] | None = None

    def send(self, message: Message) -> None:
        """Show an answer; a desktop that has gone away meanwhile is no reason to fail."""
        with self._lock:
            if self._say is None:
                notifier = load(NOTIFIERS, "desktop")(timeout=10.0, buttons=False)
                self._say, self._close = notifier.send, notifier.close
            say = self._say
        try:
            say(message)
        except GpuwatchdError as error:
            log.warning("an answer could not be shown: %s", error.message)

    def close(self, wait_s: float = _CLOSE_S) -> None:
        """Let go of the desktop; one that hangs is left behind: the end waits for nobody."""
        with self._lock:
            close, self._close = self._close, None
        if close is not None:
            thread = threading.Thread(target=_guarded, args=(close,), name="pressed", daemon=True)
            thread.start()
            thread.join(wait_s)


def _guarded(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:
        # On the way out; there is nobody left to tell.
        log.debug("the desktop cannot be let go of", exc_info=True)


def reply(message: Message, head: str, text: str, command: str = "") -> Message:
    """Return an answer: what was done stands above, whom it is about below."""
    incident = message.thread or message.id
    lead = legacy_text.severity(message) if message.lead is UNSET else message.lead
    about = message.subject[len(lead) :]
    return Message(
        id=f"answer-{incident}",
        notice="test",
        severity="info",
        subject=head,
        body=f"{about}\n{text}",
        command=command,
        alert_key=message.alert_key,
    )


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
