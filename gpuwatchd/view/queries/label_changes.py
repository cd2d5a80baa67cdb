"""Labelling an alert as normal or as a leak, and taking it back.

A label is one row that this program writes into the history itself (see :mod:`store.tables`); a
running daemon notices it within a tick, one that is stopped when it starts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import structs

from gpuwatchd.core import text
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.queries import alert_query, current_state, silence_changes, state_location
from gpuwatchd.view.queries.user_filter import user

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.tables import UserLabel


class Labelled(NamedTuple):
    """A label that was just set."""

    label: UserLabel
    alert: Alert
    learned: bool
    """Whether the program's next runs are judged by it."""
    running: bool
    """Whether a daemon runs."""


def label(named: str, word: Literal["normal", "leak"], why: str | None) -> Labelled:
    """Set the label of an alert, over an older one.

    Raises
    ------
    GpuwatchdError
        When there is no such alert, it is not about growth, or the history cannot be written.
    """
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - SQLite comes with it

    found = alert_query.kept("said")
    alert = alert_query.pick(found.alerts, named)
    if alert.kind != "leak":
        raise GpuwatchdError(
            "this alert cannot be labelled: it is not about growth",
            hint=f"to silence it: gpuwatchctl snooze {alert.key} 8h",
            page="errors#nothing-to-learn",
        )
    given = tables.UserLabel(
        alert_key=alert.key,
        opened_at_s=alert.opened_at_s,
        subject=alert.subject,
        title=text.clean(alert.title or alert.key),
        word=word,
        given_at_s=time.time(),
        why=silence_changes.because(why) or None,
        who=user(),
    )
    because = [f"--why={given.why}"] if given.why else []
    with state_location.writing("feedback", alert.key, word, *because) as place:
        kept = checked_connection.transaction(place.state_dir, tables.write_label, given)
    learned = alert.subject.process is not None and alert.subject.process in found.known
    return Labelled(kept, alert, learned, current_state.running())


def unlabel(named: str) -> UserLabel:
    """Take the label of an alert back, and return it.

    Raises
    ------
    GpuwatchdError
        When there is no such alert, it has none, or the history cannot be written.
    """
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - SQLite comes with it

    found = alert_query.kept("said")
    none = GpuwatchdError(
        f"no label for {named}", hint="gpuwatchctl feedback list", page="errors#nothing-said"
    )
    if named == "latest" and found.words:
        key = found.words[-1].alert_key
    elif any(label.alert_key == named for label in found.words):
        key = named  # as `feedback list` prints it; the alert itself may be forgotten by now
    else:
        try:
            labelled = [alert for alert in found.alerts if found.user_label(alert) is not None]
            key = alert_query.pick(labelled, named).key
        except GpuwatchdError as error:
            alert_query.pick(found.alerts, named)  # says so when there is no such alert at all
            raise none from error
    last = next(label for label in reversed(found.words) if label.alert_key == key)
    now_s = time.time()
    with state_location.writing("feedback", "undo", key) as place:
        undone = checked_connection.transaction(place.state_dir, tables.remove_label, key, now_s)
    if not undone:
        raise none
    return structs.replace(last, undone_at_s=now_s)


def labels(*, every: bool = False) -> list[UserLabel]:
    """Return the labels, newest first; ``every``: also those that were taken back.

    Raises
    ------
    StoreError
        When there is no usable history.
    """
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - SQLite comes with it

    with history_query.reader() as history:
        return history.user_labels(all_of_them=every)[::-1]
