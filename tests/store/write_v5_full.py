"""Write ``histories/v5-full.sql``: a history of version 5 with everything that it may hold.

``python -m tests.store.write_v5_full`` ran once, at commit dcd1649, which is what users have. The
rows were written by the program as it was then: samples by the history's writer, ends, notices
and reasons by policy, messages by their composer, the rest by the functions that other programs
write with. It refuses to write the file again: what users have on their disks does not change.

In it are every way in which an alert can end, every reason for which a notice is held back, every
state of a delivery, runs, words, silences, checkpoints and actions; and in some row every field is
away from its default (:mod:`tests.store.test_v5_full` counts).
With "answers" it records what the program says of it now, and prints what it said otherwise before.

Not in it, since that version never writes them: alerts of state "pending", so also "told as one"
as a reason to hold a notice back.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.alerts.rules import Override
from gpuwatchd.analysis import program_key
from gpuwatchd.core.config import Seconds, StoreSection, hours
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import (
    Alert,
    Button,
    Decision,
    Delivery,
    Matcher,
    ProcessKey,
    Sample,
    Silence,
    Subject,
)
from gpuwatchd.notify import backlog, dispatcher
from gpuwatchd.pipeline import alert_notifier, end_reasons, resolved_alerts
from gpuwatchd.pipeline import digests as digest_chore
from gpuwatchd.pipeline.messages import compose, message_id
from gpuwatchd.pipeline.rule_settings import local
from gpuwatchd.store import actions, checkpoints, labels, meta, schema, silences
from gpuwatchd.store.idle_levels import Norm
from gpuwatchd.store.profiles import Run
from gpuwatchd.store.writer import History
from tests.store import asking, released
from tests.store.full_world import (
    BOOT,
    BRIEF,
    CARD,
    CARDS,
    END_S,
    ENDINGS,
    GIB,
    GONE,
    IDLE,
    LEAKER,
    MIB,
    ON_PART,
    PART,
    T0,
    UNDATED,
    WHOLE,
    Ending,
    chart_of,
    cost_of,
    ending_alert,
    gone_s,
    held_by,
    leak_of,
    lost_card,
    people,
    profile_of,
    reading_of,
    rest_on,
)
from tests.store.world import Time

RULES: Final = policy.Rules(channels=("desktop", "email"), group_interval_s=0.0, cooldown_s=0.0)
ONE_CHANNEL: Final = msgspec.structs.replace(RULES, channels=("desktop",))


class Writer:
    """Writes the history; its clock goes on from sample to sample."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.time = Time(T0)
        self.history = self._open(BOOT)

    def _open(self, boot_id: str) -> History:
        # Roll-ups as they are after four hours, samples of the last minutes only.
        settings = StoreSection(
            min_free_mib=0, flush=Seconds(1e9), raw=Seconds(600), process_raw=Seconds(600)
        )
        return History.open(
            self.directory,
            settings,
            clock=self.time.clock,
            monotonic=self.time.monotonic,
            boot_id=boot_id,
        )

    def at(self, at_s: float) -> None:
        """Let time go by until an instant."""
        self.time.pass_s(at_s - self.time.now_s)

    # ---- samples --------------------------------------------------------------------------------

    def samples(self) -> None:
        """Write four hours: every three minutes, and every half in the last ten."""
        at_s, known = T0, {info.key: info for info in (*people(), UNDATED)}
        while at_s <= END_S:
            self.at(at_s)
            taken = Sample(
                taken_at_s=at_s,
                taken_mono_s=self.time.mono_s,
                boot_id=BOOT,
                readings=tuple(reading_of(card, at_s) for card in CARDS),
            )
            rest = {card.uid: rest_on(card, at_s) for card in CARDS}
            self.history.record(taken, (*CARDS, *GONE.values()), known, rest)
            self.history.flush(at_s)
            for _ in range(3):
                self.history.chores(at_s)
            at_s += 30.0 if at_s >= END_S - 600.0 else 180.0

    # ---- alerts ---------------------------------------------------------------------------------

    def tell(
        self,
        alerts: list[Alert],
        now_s: float,
        rules: policy.Rules = RULES,
        *,
        sent_at_s: tuple[float, ...] = (),
        around: policy.Around | None = None,
    ) -> tuple[list[Alert], list[Delivery]]:
        """Ask policy what is to be told, as the daemon does, and write all of it."""
        around = around or policy.Around(local=local(now_s))
        found = policy.announce(alerts, rules, now_s=now_s, sent_at_s=sent_at_s, around=around)
        threads = {
            one.key: notice.alert.first_message or message_id(notice.alert, "firing", 1)
            for notice in found.notices
            for one in (notice.alert, *notice.also)
        }
        booked = [
            msgspec.structs.replace(one, first_message=threads.get(one.key, one.first_message))
            for one in found.alerts
        ]
        out = []
        for notice in found.notices:
            first = msgspec.structs.replace(notice.alert, first_message=threads[notice.alert.key])
            message = compose(
                first,
                notice.kind,
                now_s=now_s,
                also=notice.also,
                host=asking.HOST,
                chart=chart_of(notice.alert) if notice.kind != "resolved" else None,
                buttons=(Button(name="snooze", label="Snooze 1 h", command="gpuwatchctl snooze"),),
            )
            if notice.kind == "resolved":
                message = msgspec.structs.replace(message, others_open=True)
            for route in notice.routes:
                waits = route.kind != "send"
                out.append(
                    Delivery(
                        alert_key=notice.alert.key,
                        channel=route.channel,
                        message=message,
                        state="pending",
                        attempts=0,
                        created_at_s=now_s,
                        next_try_at_s=route.until_at_s if waits else now_s,
                        held=route.reason if waits else "",
                    )
                )
        self.history.decide(found.decisions)
        now = {(one.key, one.opened_at_s): one for one in [*alerts, *booked]}
        return list(now.values()), self.history.apply(list(now.values()), out)

    def ended(self) -> None:
        """Write an alert for each way in which one ends, and for each reason to tell nobody."""
        holds = _holds()
        for number, ending in enumerate(ENDINGS):
            alert = ending_alert(number, ending)
            now_s = alert.changed_at_s + 60.0
            self.at(now_s)
            if number < 4:
                self._told_and_over(alert, ending, now_s)
                continue
            hold = holds.pop(0) if holds else None
            if hold is not None:
                alert = msgspec.structs.replace(alert, **hold.changes)
                around = msgspec.structs.replace(
                    policy.Around(local=local(now_s)), **hold.around(alert, now_s)
                )
                (alert, *_), _ = self.tell(
                    [alert], now_s, hold.rules, sent_at_s=hold.sent_at_s(now_s), around=around
                )
            over = policy.ended(alert, ending.why, RULES, now_s=now_s + 300.0, quietly=True).alert
            assert over is not None
            if hold is None and number % 2:
                over = self._why_untold(over, number, now_s)
            self.history.apply([over], [])
        assert not holds, "there are too few endings to go with"

    def _told_and_over(self, alert: Alert, ending: Ending, now_s: float) -> None:
        """Write one of which people are told that it began and that it is over."""
        if ending.why == end_reasons.CRASHED:
            alert = msgspec.structs.replace(alert, cost=cost_of(alert.subject))
        (alert, *_), sent = self.tell([alert], now_s, ONE_CHANNEL)
        for one in sent:
            self.history.update_delivery(
                dispatcher._sent(one, now_s + 2.0, "accepted by the server")
            )
        over_s = gone_s(BRIEF[[one.why for one in ENDINGS].index(ending.why)])
        alert = msgspec.structs.replace(
            alert, clears=3, clear_since_s=over_s - 300.0, milder_since_s=over_s - 400.0
        )
        over = policy.ended(alert, ending.why, RULES, now_s=over_s).alert
        assert over is not None
        _, sent = self.tell([over], over_s, ONE_CHANNEL)
        for one in sent:
            self.history.update_delivery(dispatcher._sent(one, over_s + 2.0, "shown"))

    def _why_untold(self, over: Alert, number: int, now_s: float) -> Alert:
        """Return one whose end is told to nobody, for a reason that the herald knows."""
        why = alert_notifier.UNHEARD if number % 4 == 1 else resolved_alerts.BACK
        self.history.decide(
            [
                Decision(
                    finding_id="f",
                    alert_key=over.key,
                    kind="hold",
                    target="",
                    notice="resolved",
                    reason=why,
                    at_s=now_s,
                )
            ]
        )
        return msgspec.structs.replace(over, held_back=why)

    def open(self) -> None:
        """Write alerts that are open, with messages in every state."""
        now_s = END_S - 900.0
        self.at(now_s)
        leak = leak_of(LEAKER, CARD, opened_at_s=now_s - 3600.0, severity="critical")
        members = (leak.subject, Subject(device_uid=PART.uid, process=ON_PART.key))
        leak = msgspec.structs.replace(
            leak,
            cost=cost_of(*members),
            flaps=2,
            milder_since_s=now_s - 30.0,
            group="job:slurm 4711",
            confirmations=9,
            held_since_s=now_s - 3700.0,
            alert_confirmations=7,
            alert_since_s=now_s - 3650.0,
            clears=1,
            clear_since_s=now_s - 20.0,
        )
        on_host = leak_of(LEAKER, CARD, opened_at_s=now_s - 3000.0, host=True)
        on_host = msgspec.structs.replace(on_host, group="job:slurm 4711")
        (leak, on_host, *_), sent = self.tell([leak, on_host], now_s)
        self._on_their_way(sent, now_s)
        held = held_by(IDLE, opened_at_s=now_s - 1800.0)
        watch = msgspec.structs.replace(
            leak_of(None, PART, opened_at_s=now_s - 600.0, unattributed=True),
            state="watch",
            firing_at_s=None,
            next_notice_at_s=None,
            told_over=True,
            inhibited_by=leak.key,
        )
        lost = lost_card(WHOLE, opened_at_s=now_s - 400.0)
        stale = leak_of(ON_PART, PART, opened_at_s=now_s - 5000.0)
        beside = leak_of(UNDATED, PART, opened_at_s=now_s - 5000.0)
        both = [msgspec.structs.replace(one, group="job:both") for one in (stale, beside)]
        (stale, beside), _ = self.tell(both, now_s - 4000.0)
        stale = msgspec.structs.replace(stale, held_back=alert_notifier.STALE)
        night = msgspec.structs.replace(RULES, quiet={"all": (hours.parse("14:00-07:00"),)})
        (held, *_), _ = self.tell([held], now_s, night)
        self.history.apply([watch, lost, stale], [])
        self._reminded(leak, now_s)

    def _reminded(self, leak: Alert, now_s: float) -> None:
        """Tell of one again, and that it got worse; and send a digest."""
        milder = msgspec.structs.replace(leak, told_severity="warning", next_notice_at_s=now_s)
        (told, *_), sent = self.tell([milder], now_s + 120.0)
        self.history.update_delivery(
            dispatcher._failed(
                sent[0], NotifyError("no route to host", permanent=False), now_s + 121.0
            )
        )
        again = msgspec.structs.replace(told, next_notice_at_s=now_s + 200.0, told_flapping=True)
        (_, *_), sent = self.tell([again], now_s + 240.0)
        self.history.update_delivery(backlog.dropped(sent[0], "told by email instead"))
        self.history.decide(
            [
                Decision(
                    finding_id="f",
                    alert_key=leak.key,
                    kind="act",
                    target="checkpoint",
                    notice="firing",
                    reason="it was asked to save its work",
                    at_s=now_s + 241.0,
                )
            ]
        )
        news = digest_chore.news([told], [], [], from_s=T0)
        message = digest_chore.compose(
            news, number="daily|2026-11-18", why="of the day", from_s=T0, now_s=END_S
        )
        self.history.apply([], digest_chore.letters(message, ("email",), END_S))
        self.history.shelf.write_now(lambda it: meta.save(it, digest_chore.LAST, END_S))

    def _on_their_way(self, sent: list[Delivery], now_s: float) -> None:
        """Write what may become of a message: those two, and copies by other channels."""
        desktop, email = sent
        gone = NotifyError("no such address", permanent=True, hint="gpuwatchctl notify test")
        busy = NotifyError("the server is busy", permanent=False)
        old = msgspec.structs.replace(email, created_at_s=now_s - 3 * 86400.0)
        found = {
            "chat": dispatcher._failed(email, gone, now_s + 1.0),
            "late": dispatcher._failed(old, busy, now_s + 1.0),
            "slack": backlog.dropped(email, backlog._OVERTAKEN),
            "teams": backlog.dropped(email, backlog._OVER),
            "matrix": backlog.dropped(email, "told by desktop after all"),
            "removed": dispatcher._failed(
                email, NotifyError(f"channel removed {backlog.TAKEN_OUT}", permanent=True), now_s
            ),
            "command": msgspec.structs.replace(email, lease_until_s=now_s + 120.0),
            "try": dispatcher._sent(msgspec.structs.replace(email, dry_run=True), now_s, "dry run"),
            "push": msgspec.structs.replace(
                email, fallback_of="chat", held="quiet hours until 07:00"
            ),
        }
        copies = [
            msgspec.structs.replace(one, channel=channel, row=None)
            for channel, one in found.items()
        ]
        self.history.apply([], copies)
        self.history.update_delivery(dispatcher._sent(desktop, now_s + 1.0, "shown as 7"))
        self.history.update_delivery(dispatcher._failed(email, busy, now_s + 1.0))

    # ---- the rest -------------------------------------------------------------------------------

    def knowledge(self) -> None:
        """Write events, breaks in time, what is normal, and runs of programs."""
        history = self.history
        for kind, text, uid in (
            ("xid", "XID 79: GPU has fallen off the bus", WHOLE.uid),
            ("process-peak", "python[5002] ended, and held at most 78.4 GiB", CARD.uid),
            ("throttle", "clocks are held down: it is hot", CARD.uid),
            ("driver-changed", "the driver is 570.12 now, was 565.77", None),
        ):
            self.at(self.time.now_s + 1.0)
            history.event(kind, text, uid)
        history.segment("clock-step", wall_step_s=-1.5)
        history.segment("gap", gap_s=312.5)
        history.shelf.learn(CARD.uid, Norm(512 * MIB, BOOT), END_S)
        key = program_key.key_on(LEAKER.program, CARD)
        assert key is not None
        for number, plain in enumerate((profile_of(0), profile_of(1), profile_of(2))):
            history.shelf.keep(
                Run(
                    key=key,
                    device_uid=CARD.uid,
                    label="python train.py",
                    process=ProcessKey(pid=4600 + number, started_at_s=T0 - 86400.0 * (3 - number)),
                    begun_at_s=T0 - 86400.0 * (3 - number),
                    profile=plain,
                )
            )
        history.flush(self.time.now_s)

    def people(self) -> None:
        """Write what users said, asked and silenced, as the programs that they ran did."""
        at_s, directory = END_S - 600.0, self.directory
        said = labels.Word(
            alert_key="leak:x",
            opened_at_s=T0,
            title="GPU 0: python[4711] of alice",
            subject=Subject(device_uid=CARD.uid, process=LEAKER.key),
            word="normal",
            given_at_s=at_s,
            why="a cache that fills up",
            who="alice",
        )
        leak = leak_of(LEAKER, CARD, opened_at_s=END_S - 900.0 - 3600.0)
        labels.say(directory, msgspec.structs.replace(said, alert_key=leak.key, word="leak"))
        labels.say(
            directory,
            msgspec.structs.replace(
                said, alert_key=leak.key, opened_at_s=leak.opened_at_s, given_at_s=at_s + 60.0
            ),
        )
        of_host = Subject(device_uid=CARD.uid, process=LEAKER.key, host=True)
        labels.say(directory, msgspec.structs.replace(said, alert_key="leak:h", subject=of_host))
        rest = Subject(device_uid=PART.uid, unattributed=True)
        labels.say(directory, msgspec.structs.replace(said, alert_key="leak:u", subject=rest))
        labels.unsay(directory, "leak:u", at_s + 120.0)
        self._learned_of(leak)
        self._silenced(leak, at_s)
        for process, by, detail in (
            (BRIEF[2].key, "file", "/home/user2/checkpoints/epoch-3.pt"),
            (LEAKER.key, "alice", "step 12000"),
            (UNDATED.key, "carol", ""),
        ):
            saved = checkpoints.Checkpoint(
                process=process, saved_at_s=T0 + 3600.0, said_by=by, detail=detail
            )
            checkpoints.say(directory, saved)
        steps: tuple[tuple[actions.Phase, str], ...] = (
            ("asked", ""),
            ("done", "SIGUSR1 was sent"),
            ("refused", "it is not yours"),
            ("done", f"{actions.SAVED} after 12 s"),
        )
        for phase, result in steps:
            action = actions.Action(
                at_s=at_s,
                verb="checkpoint",
                process=LEAKER.key,
                phase=phase,
                result=result,
                who="alice",
            )
            actions.add(directory, action)
        actions.add(
            directory,
            actions.Action(at_s=at_s, verb="checkpoint", process=None, phase="asked", dry_run=True),
        )

    def _learned_of(self, leak: Alert) -> None:
        """Write what the run had done when the user spoke of it."""
        self.history.shelf.spoken()
        said = next(one for one in self.history.shelf.words() or () if one.alert_key == leak.key)
        self.history.shelf.keep(
            Run(
                key=program_key.key_on(LEAKER.program, CARD) or "",
                device_uid=CARD.uid,
                process=LEAKER.key,
                label="python train.py",
                begun_at_s=T0 - 5 * 3600.0,
                word=said.row,
                profile=msgspec.structs.replace(profile_of(3), word="normal"),
            )
        )
        self.history.flush(self.time.now_s)

    def _silenced(self, leak: Alert, at_s: float) -> None:
        """Write silences: standing, over, taken back, replaced, and by a rule of every key."""
        every = Matcher(
            key="leak:*",
            kind="leak",
            gpu="0",
            user="alice",
            process="py*",
            framework="PyTorch",
            command="*train*",
            job="slurm *",
            container="docker *",
            pattern="gradual",
            severity="warning",
        )
        hour = Silence(
            matcher=every,
            from_at_s=at_s,
            until_at_s=at_s + 7200.0,
            who="alice",
            why="I know",
            even_critical=True,
        )
        silences.add(self.directory, hour)
        on_host = f"{leak.key}/host"
        over = silences.of_alert(
            msgspec.structs.replace(leak, key=on_host),
            now_s=at_s,
            for_s=86400.0,
            until_resolved=True,
            who="bob",
            why="until it is over",
        )
        silences.add(self.directory, over)
        silences.add(self.directory, msgspec.structs.replace(over, from_at_s=at_s + 5.0))
        past = msgspec.structs.replace(
            hour, matcher=Matcher(user="carol"), from_at_s=T0, until_at_s=T0 + 600.0
        )
        silences.add(self.directory, past)
        taken = silences.add(
            self.directory, msgspec.structs.replace(hour, matcher=Matcher(gpu="1"))
        )
        assert taken.row is not None
        silences.clear(self.directory, (taken.row,), at_s + 30.0)

    def close(self) -> None:
        """Let go of the file, after a second boot that saw a little."""
        self.history.close()
        self.history = self._open("boot-after")
        self.history.segment("start")
        self.history.close()


# ---- what is held back, and why -----------------------------------------------------------------


class Hold(NamedTuple):
    """What has policy hold a notice back."""

    rules: policy.Rules = RULES
    changes: dict[str, Any] = {}  # noqa: RUF012 - never changed
    beside: str = ""

    def sent_at_s(self, now_s: float) -> tuple[float, ...]:
        """Return when messages went out within the hour."""
        return tuple(now_s - 10.0 * k for k in range(20)) if self.beside == "limit" else ()

    def around(self, alert: Alert, now_s: float) -> dict[str, Any]:
        """Return what counts beside the alert."""
        silence = silences.of_alert(alert, now_s=now_s, for_s=3600.0, who="alice", why="later")
        above = lost_card(CARD, opened_at_s=now_s - 100.0)
        other = leak_of(LEAKER, CARD, opened_at_s=now_s - 100.0, severity="critical")
        told = msgspec.structs.replace(
            other, notices=1, last_notice_at_s=now_s - 10.0, group=policy.group_of(alert)
        )
        found: dict[str, dict[str, Any]] = {
            "silence": {"silences": (silence,)},
            "until-over": {"silences": (msgspec.structs.replace(silence, until_resolved=True),)},
            "lost": {"others": (above,)},
            "group": {"past": (told,)},
        }
        return found.get(self.beside, {})


def _holds() -> list[Hold]:
    def rules(**changes: Any) -> policy.Rules:
        return msgspec.structs.replace(RULES, **changes)

    def override(**values: Any) -> policy.Rules:
        matcher = Matcher(kind="*")
        return rules(overrides=(Override(matcher=matcher, name="override 1", **values),))

    endless = {"all": (hours.parse("00:00-24:00"),)}
    return [
        Hold(override(mute=True, why="a test machine")),
        Hold(override(grows=True, why="a cache")),
        Hold(override(grows_to_bytes=78.0 * GIB)),
        Hold(beside="silence"),
        Hold(beside="until-over"),
        Hold(beside="lost"),
        Hold(beside="group", rules=rules(group_interval_s=300.0)),
        Hold(beside="limit"),
        Hold(rules(severity={"desktop": "critical", "email": "critical"})),
        Hold(rules(severity={"desktop": "warning", "email": "warning"}), {"severity": "info"}),
        Hold(rules(quiet=endless)),
        Hold(
            changes={
                "state": "resolved",
                "resolved_at_s": T0 + 9000.0,
                "told_on": ("chat",),
                "notices": 1,
                "told_severity": "warning",
            },
        ),
    ]


def write(directory: Path) -> None:
    """Write the history into a directory."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    writer = Writer(directory)
    writer.samples()
    writer.ended()
    writer.open()
    writer.knowledge()
    writer.people()
    writer.close()


def main() -> int:
    """Write the file, once; or with "answers", what the program of today answers on it."""
    if sys.argv[1:] == ["answers"]:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            asking.record(asking.answers(asking.loaded(directory)))
        return 0
    if released.FULL.exists():
        print(f"{released.FULL} is there; it is never written again", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        released.FULL.write_text(released.dump(Path(scratch) / schema.FILE_NAME), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
