"""A small history in which every table has rows, and all that is done with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.core.model import Decision, Matcher, ProcessKey, Silence, Subject
from gpuwatchd.store import curves, occupancy, schema, tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.profiles import IdleLevel, Run
from gpuwatchd.store.tables import Action, Checkpoint
from tests.making import alert, finding
from tests.store.runs import profile, run, word
from tests.store.world import BOOT, CARDS, INFOS, KNOWN, T0, Time, delivery, opened, sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.writer import History

PAGE_BYTES = schema.PAGE_BYTES
SPAN_S = 3 * 3600.0
UID = CARDS[0].uid
KEY = INFOS[0].key
PROGRAM = run().key


def build(directory: Path, end_s: float = T0 + SPAN_S) -> None:
    """Leave a history of three hours behind: every table has rows."""
    begun_s = end_s - SPAN_S
    time = Time(end_s)
    history = opened(directory, time, flush=1e9)
    for tick in range(int(SPAN_S) // 60):
        at_s = begun_s + 60 * tick
        uses = (2**30 + tick * 2**22, 2**20, 5)
        history.record(sample(at_s, 2**31 + tick * 2**22, uses=uses, cards=CARDS), CARDS, KNOWN)
    ended = alert(
        key="leak:y", state="resolved", opened_at_s=end_s - 900, changed_at_s=end_s - 600,
        firing_at_s=end_s - 880, resolved_at_s=end_s - 600,
        subject=Subject(device_uid=UID, process=KEY), finding=_finding(end_s),
    )  # fmt: skip
    history.decide([
        Decision(finding_id="f", alert_key="leak:x", kind="notify", target="email",
                 notice="firing", reason="firing", at_s=end_s - 500),
    ])  # fmt: skip
    history.apply(
        [ended, open_alert(end_s)],
        [
            delivery("leak:x", 1, created_at_s=end_s - 500),
            delivery("leak:y", 2, created_at_s=end_s - 880, state="sent", sent_at_s=end_s - 870),
        ],
    )
    history.event("gpu-lost", "gone", UID)
    history.segment("gap", gap_s=60.0)
    history.shelf.learn(UID, IdleLevel(2**20, BOOT), end_s)
    history.shelf.keep(_run(end_s - 7000))
    history.shelf.keep_checkpoint(
        Checkpoint(process=KEY, saved_at_s=end_s - 300, said_by="file", detail="a.pt")
    )
    assert history.flush(end_s)
    history.shelf.keep(_run(end_s - 3000))
    assert history.flush(end_s)
    history.shelf.write_now(lambda it: tables.save_meta(it, "digest", end_s - 3600))
    for _ in range(3):
        time.pass_s(1)
        history.chores(time.now_s)
    assert history.problems == ()
    history.close()
    silence = Silence(
        matcher=Matcher(key="leak:x"), from_at_s=end_s - 100, until_at_s=end_s + 1e5, who="alice"
    )
    transaction(directory, tables.write_silence, silence)
    transaction(
        directory,
        tables.write_label,
        word(run(process=KEY), alert_key="leak:y", opened_at_s=end_s - 900, given_at_s=end_s - 500),
    )
    act: dict[str, Any] = {"verb": "checkpoint", "process": KEY, "who": "alice"}
    transaction(directory, tables.write_action, Action(at_s=end_s - 400, phase="asked", **act))
    transaction(directory, tables.write_action, Action(at_s=end_s - 390, phase="done", **act))
    transaction(
        directory,
        tables.write_checkpoint,
        Checkpoint(process=KEY, saved_at_s=end_s - 200, said_by="alice"),
    )


def open_alert(end_s: float) -> Any:
    """Return the alert that is open at the end."""
    return alert(
        opened_at_s=end_s - 600, changed_at_s=end_s - 500, firing_at_s=end_s - 500,
        subject=Subject(device_uid=UID, process=KEY), finding=_finding(end_s),
    )  # fmt: skip


def _finding(end_s: float) -> Any:
    return finding(
        subject=Subject(device_uid=UID, process=KEY), judged_at_s=end_s - 500,
        onset_at_s=end_s - 4000,
    )  # fmt: skip


def _run(ended_at_s: float) -> Run:
    begun_s = ended_at_s - 3600
    process = ProcessKey(pid=99, started_at_s=begun_s)
    return run(process=process, begun_at_s=begun_s, profile=profile(ended_at_s))


def use(history: History, time: Time) -> None:
    """Do what the daemon does with a history, from its start to its end."""
    now_s = time.now_s
    history.open_alerts()
    history.pending_deliveries()
    history.deliveries_of_open()
    history.recent_notices(now_s - 3600)
    history.over_since(now_s - 3600)
    history.undelivered_since(now_s - 3600)
    history.last_delivered()
    list(history.recent_series(now_s - SPAN_S))
    list(history.recent_allocators(now_s - SPAN_S))
    shelf = history.shelf
    shelf.idle_levels()
    shelf.changed_elsewhere()
    shelf.user_labels()
    shelf.silences(now_s)
    shelf.runs(PROGRAM)
    shelf.checkpoints()
    for process in (None, KEY):
        shelf.minutes(UID, process, now_s - SPAN_S, now_s)
    shelf.occupancy(UID, now_s - SPAN_S, now_s)
    shelf.load_pct(UID, now_s - SPAN_S, now_s)
    shelf.program_of(KEY)
    shelf.read(lambda it: tables.load_instant(it, "digest"))
    history.record(sample(now_s, 1000, uses=(1, 2, 3), cards=CARDS), CARDS, KNOWN)
    history.apply([open_alert(now_s)], [])
    shelf.keep(_run(now_s))
    history.flush(now_s)
    history.chores(now_s)
    time.pass_s(200)
    history.record(sample(time.now_s, 1001, uses=(2, 3, 4), cards=CARDS), CARDS, KNOWN)
    history.flush(time.now_s)
    history.chores(time.now_s)
    history.flush(time.now_s)


def questions(now_s: float) -> dict[str, Callable[[Reader], Any]]:
    """Return every question to a reader, by name."""
    since_s, until_s = now_s - SPAN_S, now_s + 60.0
    span = (since_s, until_s)
    return {
        "devices": lambda it: it.devices(),
        "processes": lambda it: it.processes(),
        "device_rows": lambda it: it.device_rows(UID, *span),
        "device_rows of minutes": lambda it: it.device_rows(UID, now_s - 86400, until_s),
        "device_rows of hours": lambda it: it.device_rows(UID, now_s - 30 * 86400, until_s, 7200),
        "process_rows": lambda it: it.process_rows(UID, *span),
        "process_rows of minutes": lambda it: it.process_rows(UID, now_s - 86400, until_s),
        "oldest_s": lambda it: it.oldest_s(UID),
        "alerts": lambda it: it.alerts(),
        "open alerts": lambda it: it.alerts(since_s, open_only=True),
        "deliveries": lambda it: it.deliveries("leak:x"),
        "decisions": lambda it: it.decisions(),
        "silences": lambda it: it.silences(all_of_them=True),
        "runs": lambda it: it.runs(),
        "words": lambda it: it.user_labels(all_of_them=True),
        "checkpoints": lambda it: it.checkpoints(),
        "deeds": lambda it: it.action_events(),
        "occupied": lambda it: it.occupancy(UID, *span),
        "power_w": lambda it: it.power_w(UID, *span),
        "events": lambda it: it.events(),
        "segments": lambda it: it.segments(),
        "by_hour": lambda it: it.ask(lambda c: occupancy.by_hour(c, UID, *span)),
        "holders": lambda it: it.ask(lambda c: occupancy.holders(c, *span)),
        "stretches": lambda it: it.ask(lambda c: occupancy.stretches(c, UID, *span)),
        "lived": lambda it: it.ask(lambda c: curves.lived(c, KEY)),
        "present": lambda it: it.ask(lambda c: curves.present(c, UID, span)),
        "who": lambda it: it.ask(lambda c: curves.who(c, {KEY})),
        "curve": lambda it: it.ask(lambda c: curves.of_device(c, UID, span, 50)),
        "curve of a process": lambda it: it.ask(lambda c: curves.of_process(c, UID, KEY, span, 50)),
        "until": lambda it: it.ask(tables.rolled_s, "process_1h"),
    }
