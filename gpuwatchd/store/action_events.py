"""What was asked of jobs and when they saved their work, as things that happened: for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core.model import ProcessKey, Value
from gpuwatchd.store import actions, checkpoints, records

if TYPE_CHECKING:
    import sqlite3

    from gpuwatchd.store.actions import Phase

ASK: Final = "ask-to-save"
SAVED: Final = "saved"
_KINDS: Final[dict[Phase, str]] = {
    "asked": ASK,
    "done": "asked-to-save",
    "refused": "not-asked-to-save",
}

# One look at each device: of one that runs for a month every minute has a row.
_ON: Final = (
    """SELECT uuid FROM gpu g WHERE EXISTS
  (SELECT 1 FROM process_1m WHERE process = ? AND gpu = g.id) ORDER BY id""",
    """SELECT uuid FROM gpu WHERE id IN (SELECT gpu FROM process_raw WHERE process = ?)
ORDER BY id""",
)


class ActionEvent(Value, frozen=True, kw_only=True):
    """One thing that was done to a job, or that it did."""

    at_s: float
    kind: str
    """ask-to-save, asked-to-save, not-asked-to-save or saved."""
    process: ProcessKey | None
    name: str = ""
    """Of the process, where it was seen."""
    who: str = ""
    """The user who did or said it; "" for a file that was seen."""
    result: str = ""
    device_uids: tuple[str, ...] = ()
    """Devices that the process was seen on; () where nobody knows."""


def load(connection: sqlite3.Connection, since_s: float) -> list[ActionEvent]:
    """Return what was done since then, oldest first."""
    since_ms = records.to_ms(since_s)
    events = [
        ActionEvent(
            at_s=action.at_s, kind=_KINDS[action.phase], process=action.process, who=action.who,
            result=action.result,
        )
        for action in actions.load(connection, "a.ts_ms >= ? AND NOT a.dry_run", (since_ms,))
        if action.phase in _KINDS  # damage may make anything of a word
        and not action.saved  # which the checkpoint itself says
    ]  # fmt: skip
    for saved in checkpoints.load(connection, "saved_ts_ms >= ?", (since_ms,)):
        who = "" if saved.said_by == "file" else saved.said_by
        events.append(
            ActionEvent(
                at_s=saved.saved_at_s, kind=SAVED, process=saved.process, who=who,
                result=saved.detail,
            )
        )  # fmt: skip
    pairs = {
        event.process: _process_row(connection, event.process)
        for event in events
        if event.process is not None
    }
    whole = [
        ActionEvent(
            at_s=event.at_s, kind=event.kind, process=event.process, who=event.who,
            result=event.result, name=pairs[event.process][0], device_uids=pairs[event.process][1],
        )
        if event.process is not None
        else event
        for event in events
    ]  # fmt: skip
    return sorted(whole, key=lambda event: event.at_s)


def _process_row(connection: sqlite3.Connection, key: ProcessKey) -> tuple[str, tuple[str, ...]]:
    """Return the name of a process and the devices that it was seen on."""
    known = connection.execute(
        "SELECT id, name FROM process WHERE pid = ? AND abs(ifnull(started_at_s, 0) - ?) < ?"
        " ORDER BY id DESC LIMIT 1",
        (key.pid, key.started_at_s or 0.0, checkpoints.SAME_S),
    ).fetchone()
    if known is None:
        return "", ()
    for query in _ON:
        on = connection.execute(query, (known[0],)).fetchall()
        if on:
            return known[1], tuple(uid for (uid,) in on)
    return known[1], ()
