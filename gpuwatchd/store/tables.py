"""The small tables: what was decided, silenced, labelled, saved and done, and a few instants.

Every program may write them, one row in a transaction of its own: it is kept whether the daemon
runs or not, and survives a power cut once it is acknowledged (see
:func:`gpuwatchd.store.checked_connection.transaction`). The daemon notices it by the file's
``data_version``, which costs microseconds to ask; what comes while it is stopped is found when it
starts. A label is never copied into a profile: who reads joins the two, so that taking it back is
one row.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from gpuwatchd.core import decoding
from gpuwatchd.core.codes import ActResult, Hold
from gpuwatchd.core.model import Decision, Matcher, ProcessKey, Silence, Subject, Value
from gpuwatchd.store import legacy_text, records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpuwatchd.core.model import Alert


_T = TypeVar("_T")


def load_instant(connection: sqlite3.Connection, name: str) -> float | None:
    """Return an instant (epoch seconds); None where none was kept, or nobody understands it."""
    return _kept(connection, name, float)


def _kept(connection: sqlite3.Connection, name: str, kind: Callable[[str], _T]) -> _T | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
    try:
        return None if row is None else kind(row[0])
    except (TypeError, ValueError):
        return None


def whole(connection: sqlite3.Connection, name: str) -> int:
    """Return a whole number, such as up to when a roll-up is complete; 0 where none is kept.

    Also where nobody understands it: then the roll-up is made again from what is there.
    """
    return _kept(connection, name, int) or 0


def rolled_s(connection: sqlite3.Connection, table: str) -> int:
    """Return the instant, in seconds, up to which a roll-up is complete."""
    return whole(connection, f"{table}.until")


def save_meta(connection: sqlite3.Connection, name: str, value: float) -> None:
    """Keep an instant, or a whole number, inside the caller's transaction."""
    text = str(value) if isinstance(value, int) else f"{value:.3f}"
    connection.execute("INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)", (name, text))


class UserLabel(Value, frozen=True, kw_only=True):
    """What the user said of one alert."""

    alert_key: str
    opened_at_s: float
    subject: Subject
    title: str
    word: Literal["normal", "leak"]
    given_at_s: float
    why: str | None = None
    who: str | None = None
    undone_at_s: float | None = None
    row: int | None = None

    def is_about(self, alert: Alert) -> bool:
        """Say whether it is of this alert; the history keeps milliseconds."""
        return self.alert_key == alert.key and abs(self.opened_at_s - alert.opened_at_s) < 1.0


LABELS: Final = records.Table("feedback", UserLabel, order="given_ts_ms, id")
NOT_UNDONE: Final = "undone_ts_ms IS NULL"


def write_label(connection: sqlite3.Connection, label: UserLabel) -> UserLabel:
    """Write the user's label of an alert, over what was said of it before; return it with its row.

    Inside the caller's transaction.
    """
    remove_label(connection, label.alert_key, label.given_at_s)
    return msgspec.structs.replace(label, row=LABELS.insert(connection, label))


def remove_label(connection: sqlite3.Connection, alert_key: str, now_s: float) -> int:
    """Take back what was said of an alert; return how many labels that were."""
    return connection.execute(
        f"UPDATE feedback SET undone_ts_ms = ? WHERE alert_key = ? AND {NOT_UNDONE}",  # noqa: S608
        (records.to_ms(now_s), alert_key),
    ).rowcount


LONGEST_S: Final = 30 * 86_400.0
"""No silence lasts longer: what is forgotten must be heard of again."""
STANDING: Final = "cleared_ts_ms IS NULL"
"""Those that were not taken back; their time may be over."""
SILENCES: Final = records.Table(
    "silence",
    Silence,
    json=decoding.decoder(Matcher),
    skipped=(msgspec.MsgspecError,),
    order="from_ts_ms, id",
)


def silence_of(
    alert: Alert,
    *,
    now_s: float,
    for_s: float,
    until_resolved: bool = False,
    even_critical: bool = False,
    who: str = "",
    why: str = "",
) -> Silence:
    """Return a silence of one alert, as the verb "snooze" and the button set it.

    It is told again when it becomes critical, unless that is what it is already: whoever silences
    it then has seen it at its worst. It lasts :data:`LONGEST_S` at most.
    """
    return Silence(
        matcher=Matcher(key=alert.key),
        from_at_s=now_s,
        until_at_s=now_s + min(for_s, LONGEST_S),
        until_resolved=until_resolved,
        even_critical=even_critical or alert.severity == "critical",
        who=who,
        why=why,
    )


def silences_in_force(connection: sqlite3.Connection, now_s: float) -> list[Silence]:
    """Return those whose time is not over, and whose alert is not, where that ends them."""
    open_keys = "SELECT 1 FROM alert WHERE key = ? AND resolved_ts_ms IS NULL"
    where = f"{STANDING} AND until_ts_ms > ?"
    return [
        silence
        for silence in SILENCES.load(connection, where, (records.to_ms(now_s),))
        if not silence.until_resolved
        or connection.execute(open_keys, (silence.matcher.key,)).fetchone() is not None
    ]


def write_silence(connection: sqlite3.Connection, silence: Silence) -> Silence:
    """Write a silence inside the caller's transaction; return it with its row.

    One on the very same alerts takes the place of what was said of them before.
    """
    from_ms = records.to_ms(silence.from_at_s)
    connection.execute(
        f"UPDATE silence SET cleared_ts_ms = ? WHERE matcher = ? AND {STANDING}"  # noqa: S608
        " AND until_ts_ms > ?",
        (from_ms, records.json_text(silence.matcher), from_ms),
    )
    return msgspec.structs.replace(silence, row=SILENCES.insert(connection, silence))


def end_silences(connection: sqlite3.Connection, rows: Iterable[int], now_s: float) -> int:
    """End silences before their time; return how many were in force."""
    return connection.executemany(
        f"UPDATE silence SET cleared_ts_ms = ? WHERE id = ? AND {STANDING}",  # noqa: S608
        [(records.to_ms(now_s), row) for row in rows],
    ).rowcount


def move_silences(connection: sqlite3.Connection, silences: Iterable[Silence]) -> int:
    """Write when silences end now: the clock was set, and they must last no longer for that."""
    return connection.executemany(
        "UPDATE silence SET from_ts_ms = ?, until_ts_ms = ? WHERE id = ?",
        [
            (records.to_ms(silence.from_at_s), records.to_ms(silence.until_at_s), silence.row)
            for silence in silences
        ],
    ).rowcount


# ---- what policy decided, message by message: told by what, held back and why
# Written in the same transaction as the alert that it is about, so that what people find here is
# what was done.

KEPT_PER_ALERT: Final = 200
"""Decisions that are kept of one alert key; the newest stay."""
DECISIONS: Final = records.Table("decision", Decision, finding_id="")


def save_decisions(connection: sqlite3.Connection, decisions: Collection[Decision]) -> int:
    """Write decisions inside the caller's transaction; return how many were refused."""
    refused = records.refused(functools.partial(DECISIONS.insert, connection), decisions)
    connection.executemany(
        "DELETE FROM decision WHERE alert_key = :key AND id NOT IN"
        " (SELECT id FROM decision WHERE alert_key = :key ORDER BY id DESC LIMIT :most)",
        [{"key": key, "most": KEPT_PER_ALERT} for key in {it.alert_key for it in decisions}],
    )
    return refused


def load_decisions(
    connection: sqlite3.Connection, alert_key: str | None = None, since_s: float = 0.0
) -> list[Decision]:
    """Return decisions of an alert key (None: of all) since an instant, oldest first."""
    where, values = ("TRUE", ()) if alert_key is None else ("alert_key = ?", (alert_key,))
    decisions = DECISIONS.load(
        connection, f"{where} AND ts_ms >= ?", (*values, records.to_ms(since_s))
    )
    return [decision if decision.code else _with_code(decision) for decision in decisions]


def _with_code(decision: Decision) -> Decision:
    """Return one that was written without a code; what left at once has none."""
    code = legacy_text.hold(decision.reason)
    if decision.kind != "hold" and code is Hold.LEGACY:
        return decision
    return msgspec.structs.replace(decision, code=code)


# ---- when jobs saved their work
# A process is its pid and its start time, so that a later one with the same pid never inherits a
# checkpoint.

SAME_S: Final = 2.0
"""Start times of one process, told by different programs, differ by less."""
KEPT_PER_PROCESS: Final = 100
NEWEST: Final = 1000
"""Those that the daemon reads, in the thread that samples: jobs may tell of thousands."""


class Checkpoint(Value, frozen=True, kw_only=True):
    """One time at which a process had saved its work."""

    process: ProcessKey
    saved_at_s: float
    said_by: str
    """"file", or the user who said it."""
    detail: str = ""
    """The file, where it was one; else which work, as the job says: "step 1200 of my-run"."""
    row: int | None = None


CHECKPOINTS: Final = records.Table("checkpoint", Checkpoint, order="saved_ts_ms, id")


def same_process(key: ProcessKey, other: ProcessKey, within_s: float = SAME_S) -> bool:
    """Say whether two identities, perhaps from different programs, are of one process."""
    if key.pid != other.pid:
        return False
    if key.started_at_s is None or other.started_at_s is None:
        return key.started_at_s is other.started_at_s
    return abs(key.started_at_s - other.started_at_s) < within_s


def last_saved_s(
    checkpoints: Iterable[Checkpoint], keys: Collection[ProcessKey], until_s: float
) -> float | None:
    """Return the newest checkpoint of a process, or of any rank of a job, before an end."""
    saved = (
        one.saved_at_s
        for one in checkpoints
        if one.saved_at_s <= until_s and any(same_process(one.process, key) for key in keys)
    )
    return max(saved, default=None)


def newest_checkpoints(connection: sqlite3.Connection) -> list[Checkpoint]:
    """Return those that were noted last, oldest first; how many there are costs nothing."""
    where = "id IN (SELECT id FROM checkpoint ORDER BY id DESC LIMIT ?)"
    return CHECKPOINTS.load(connection, where, (NEWEST,))


def write_checkpoint(connection: sqlite3.Connection, checkpoint: Checkpoint) -> Checkpoint:
    """Write a checkpoint inside the caller's transaction, unless it is known; add its row.

    Of one process only the newest are kept.
    """
    values = CHECKPOINTS.row(checkpoint) | {"most": KEPT_PER_PROCESS}
    own = "pid = :pid AND started_at_s IS :started_at_s"
    query = f"SELECT id FROM checkpoint WHERE {own} AND saved_ts_ms = :saved_ts_ms"  # noqa: S608
    known = connection.execute(query, values).fetchone()
    row = known[0] if known else CHECKPOINTS.insert(connection, checkpoint)
    if known is None:
        connection.execute(
            f"DELETE FROM checkpoint WHERE {own} AND id NOT IN (SELECT id FROM checkpoint"  # noqa: S608
            f" WHERE {own} ORDER BY saved_ts_ms DESC, id DESC LIMIT :most)",
            values,
        )
    return msgspec.structs.replace(checkpoint, row=row)


# ---- processes on which the daemon takes no step by itself, and until when

LONGEST_HOLD_S: Final = 7 * 86_400.0
_HOLD: Final = re.compile(r"act\.hold\.([0-9]{1,10})\.([0-9]{1,12}\.[0-9]{3})")
_HOLD_SAME_S: Final = 1.0


def save_hold(connection: sqlite3.Connection, key: ProcessKey, until_s: float) -> None:
    """Keep until when no automatic step is taken on a process; inside the caller's transaction.

    ``key`` has a start time, and ``until_s`` is at most :data:`LONGEST_HOLD_S` ahead: what ended
    so long before it is over by any clock, and is removed.
    """
    clear_hold(connection, key)
    for name, _, other_until_s in _all_holds(connection):
        if other_until_s <= until_s - LONGEST_HOLD_S:
            connection.execute("DELETE FROM meta WHERE key = ?", (name,))
    save_meta(connection, f"act.hold.{key.pid}.{key.started_at_s:.3f}", until_s)


def load_holds(connection: sqlite3.Connection, now_s: float) -> dict[ProcessKey, float]:
    """Return the holds in force: process -> until when; what nobody understands is left out."""
    return {key: until_s for _, key, until_s in _all_holds(connection) if until_s > now_s}


def held_until_s(holds: Mapping[ProcessKey, float], key: ProcessKey) -> float | None:
    """Return until when a process is held; None where it is not."""
    return max(
        (until_s for other, until_s in holds.items() if same_process(key, other, _HOLD_SAME_S)),
        default=None,
    )


def clear_hold(connection: sqlite3.Connection, key: ProcessKey) -> int:
    """End the hold of a process inside the caller's transaction; return how many there were."""
    names = [
        (name,)
        for name, other, _ in _all_holds(connection)
        if same_process(key, other, _HOLD_SAME_S)
    ]
    return connection.executemany("DELETE FROM meta WHERE key = ?", names).rowcount if names else 0


def _all_holds(connection: sqlite3.Connection) -> list[tuple[str, ProcessKey, float]]:
    """Return name, process and end of all that are kept, whether over or not."""
    holds = []
    names = connection.execute("SELECT key FROM meta WHERE key GLOB 'act.hold.*' ORDER BY key")
    for (name,) in names.fetchall():
        match, until_s = _HOLD.fullmatch(name), load_instant(connection, name)
        if match is not None and until_s is not None and math.isfinite(until_s):
            key = ProcessKey(pid=int(match[1]), started_at_s=float(match[2]))
            holds.append((name, key, until_s))
    return holds


def forget_meta(connection: sqlite3.Connection, prefix: str, kept: Iterable[str]) -> int:
    """Forget what is kept under names that begin so, but for some; return how much that was."""
    names = tuple(kept)
    marks = ", ".join("?" * len(names))
    return connection.execute(
        f"DELETE FROM meta WHERE substr(key, 1, ?) = ? AND key NOT IN ({marks})",  # noqa: S608
        (len(prefix), prefix, *names),
    ).rowcount


# ---- what was done to processes, by whom, and what came of it: a row before and a row after
# One that was asked for and has no row after it was cut off in the middle.

Phase = Literal["asked", "done", "refused"]
_CODE: Final = "saved"


class Action(Value, frozen=True, kw_only=True):
    """One step of something that was done to a process."""

    at_s: float
    verb: str
    """Name of the action: checkpoint, attach, reap, hold, clear-hold; of a step of [act]
    act-checkpoint, act-restart, act-requeue, act-end."""
    process: ProcessKey | None
    phase: Phase
    dry_run: bool = False
    """It was proposed, and nothing was sent."""
    code: str = ""
    """What it is done for, what came of it (``ReapResult``, ``ActResult``), or why it was refused
    (``ActHold``)."""
    result: str = ""
    """What came of it, in a line."""
    saved: bool = False
    """A further row "done": the checkpoint that was asked for has been seen."""
    who: str = ""
    row: int | None = None


ACTIONS: Final = records.Table(
    "action",
    Action,
    rows="(SELECT a.id, ts_ms, verb, pid, started_at_s, phase, dry_run, result, who,"  # noqa: S608
    f" nullif(code, '{_CODE}') AS code, code IS '{_CODE}' AS saved"
    " FROM action a LEFT JOIN process p ON p.id = a.process)",
)


def write_action(connection: sqlite3.Connection, action: Action) -> int:
    """Write a row inside the caller's transaction; return its number."""
    row = ACTIONS.row(action)
    if row.pop("saved"):
        row["code"] = _CODE
    # The newest row of the process; NULL for one that no device was seen to be used by.
    process = seen_process(connection, (row.pop("pid"), row.pop("started_at_s")), 1.0)
    return records.insert(connection, "action", row | {"process": process and process[0]})


def seen_process(
    connection: sqlite3.Connection, key: tuple[int | None, float | None], within_s: float
) -> Any:
    """Return the newest row and the name of a process; None of one that was not seen."""
    return connection.execute(
        "SELECT id, name FROM process WHERE pid = ? AND abs(ifnull(started_at_s, 0) - ?) < ?"
        " ORDER BY id DESC LIMIT 1",
        (key[0], key[1] or 0.0, within_s),
    ).fetchone()


def load_actions(
    connection: sqlite3.Connection, where: str = "TRUE", values: tuple[object, ...] = ()
) -> list[Action]:
    """Return rows, oldest first."""
    return [
        msgspec.structs.replace(action, saved=True)
        if not action.saved and legacy_text.is_saved(action.result)
        else action
        for action in ACTIONS.load(connection, where, values)
    ]


_STEP: Final = "act.step."
"""Before the name of a job or unit: when a step was last begun on it."""


def write_step(connection: sqlite3.Connection, action: Action, target: str, kept_s: float) -> int:
    """Write a row; a job or unit is remembered for so long, whatever process it has by then."""
    if target:
        save_meta(connection, f"{_STEP}{target}", action.at_s)
        names = connection.execute("SELECT key FROM meta WHERE key GLOB ?", (f"{_STEP}*",))
        recent = [
            name
            for (name,) in names.fetchall()
            if action.at_s - (load_instant(connection, name) or 0.0) < kept_s
        ]
        forget_meta(connection, _STEP, recent)
    return write_action(connection, action)


def last_step_s(connection: sqlite3.Connection, target: str) -> float | None:
    """Return when a step was last begun on a job or unit; None where none is remembered."""
    return load_instant(connection, f"{_STEP}{target}")


ACT: Final = "act-"
"""How the verbs of steps begin that gpuwatchd proposes or takes."""


def load_steps(connection: sqlite3.Connection, since_s: float) -> list[Action]:
    """Return what was begun or done of steps since then, oldest first; no proposals."""
    where = "substr(verb, 1, 4) = ? AND phase IN ('asked', 'done') AND NOT dry_run AND ts_ms >= ?"
    return load_actions(connection, where, (ACT, records.to_ms(since_s)))


ASK: Final = "ask-to-save"
SAVED: Final = "saved"
_TO_SAVE: Final = (ASK, "asked-to-save")
TO_SAVE: Final = frozenset({*_TO_SAVE, "not-asked-to-save"})
_KINDS: Final = {
    "checkpoint": _TO_SAVE,
    "attach": ("attaching", "attached"),
    "reap": ("reaping", "reaped"),
    "hold": (None, "held"),
    "clear-hold": (None, "hold-cleared"),
    "act-checkpoint": _TO_SAVE,
    "act-restart": ("restarting", "restarted"),
    "act-requeue": ("requeueing", "requeued"),
    "act-end": ("ending", "ended"),
}
"""Verb -> kind of what is asked for, and of what is done."""
_NOT_DONE: Final = {ActResult.UNCONFIRMED, ActResult.FAILED}
"""Of a step: it is over, and the process runs, or may run."""

# One look at each device: of one that runs for a month every minute has a row.
_ON: Final = """SELECT uuid FROM gpu g
WHERE EXISTS (SELECT 1 FROM process_1m WHERE process = :process AND gpu = g.id)
  OR id IN (SELECT gpu FROM process_raw WHERE process = :process AND ts_ms >= :rolled_s * 1000)
ORDER BY id"""


class ActionEvent(Value, frozen=True, kw_only=True):
    """One thing that was done to a job, or that it did."""

    at_s: float
    kind: str
    """ask-to-save, asked-to-save, not-asked-to-save, saved; attaching, attached, not-attached;
    reaping, reaped, not-reaped; held, hold-cleared; restarting, restarted, not-restarted;
    requeueing, requeued, not-requeued; ending, ended, not-ended; handed-over."""
    process: ProcessKey | None
    name: str = ""
    """Of the process, where it was seen."""
    who: str = ""
    """The user who did or said it; "" for a file that was seen."""
    result: str = ""
    device_uids: tuple[str, ...] = ()
    """Devices that the process was seen on; () where nobody knows."""


def load_action_events(connection: sqlite3.Connection, since_s: float) -> list[ActionEvent]:
    """Return what was done since then, oldest first."""
    since = (records.to_ms(since_s),)
    title = functools.cache(lambda key: name_and_devices(connection, key))

    def event(at_s: float, kind: str, key: ProcessKey | None, who: str, what: str) -> ActionEvent:
        name, uids = ("", ()) if key is None else title(key)
        return ActionEvent(
            at_s=at_s, kind=kind, process=key, name=name, who=who, result=what, device_uids=uids
        )

    events = [
        event(action.at_s, kind, action.process, action.who, action.result)
        for action in load_actions(connection, "ts_ms >= ? AND NOT dry_run", since)
        # damage may make anything of a word
        if (kind := _kind(action)) is not None
        and not action.saved  # which the checkpoint itself says
    ]
    events += [
        event(
            saved.saved_at_s,
            SAVED,
            saved.process,
            "" if saved.said_by == "file" else saved.said_by,
            saved.detail,
        )
        for saved in CHECKPOINTS.load(connection, "saved_ts_ms >= ?", since)
    ]
    return sorted(events, key=lambda event: event.at_s)


def _kind(action: Action) -> str | None:
    asked, done = _KINDS.get(action.verb, (None, None))
    is_step, phase = action.verb.startswith(ACT), action.phase
    if is_step and (phase, action.code) == ("done", ActResult.HANDED_OVER):
        return "handed-over"
    is_refused = phase == "refused" or (is_step and phase == "done" and action.code in _NOT_DONE)
    if is_refused:
        return done and f"not-{done}"
    return {"asked": asked, "done": done}.get(phase)


def name_and_devices(
    connection: sqlite3.Connection, key: ProcessKey
) -> tuple[str, tuple[str, ...]]:
    """Return the name of a process and the devices that it was seen on."""
    process = seen_process(connection, (key.pid, key.started_at_s), SAME_S)
    if process is None:
        return "", ()
    values = {"process": process[0], "rolled_s": rolled_s(connection, "gpu_1m")}
    return process[1], tuple(uid for (uid,) in connection.execute(_ON, values))
