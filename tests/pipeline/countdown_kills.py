"""Daemons that are killed in a countdown, and steps that were not to be taken.

Whether a step was right is told by what was delivered and by what was done, not by the ladder.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuwatchd.act import steps
from gpuwatchd.core.codes import ActResult
from gpuwatchd.core.model import Matcher, Silence, Subject
from gpuwatchd.pipeline.act_ladder import CLOCK_STEP_S
from gpuwatchd.store import tables
from tests.pipeline.idle_machine import GAP_S, IdleMachine, config
from tests.pipeline.play import LatePost
from tests.pipeline.restarts import DOWN_S

if TYPE_CHECKING:
    from gpuwatchd.core.model import Delivery, ProcessKey, Proposal, Sample

NOTICES = 2
TARGET_S = 6 * 3600.0
WRONGS = ("untold", "too_soon", "unnamed", "disturbed", "doubled")
STAGES = (
    "any tick",
    "first notice made", "first notice handed over", "after the first notice",
    "last notice made", "last notice handed over", "after the last notice",
    "step not written down", "step written down", "step taken", "result not written down",
)  # fmt: skip
EVENTS = ("jump", "nudge", "suspend", "stall", "reload", "gone", "work", "hold", "snooze")
TICKS = 150
"""A daemon that has not come to where it is to be killed is killed after so many."""
LIVES = 8
"""Daemons of one machine."""


class Killed(BaseException):
    """The daemon ends here, in the middle of a tick."""


class Notice(NamedTuple):
    """A message that proposes a step, as the channel got it."""

    made_mono_s: float
    made_at_s: float
    alert_key: str
    proposal: Proposal
    message_id: str


class KilledMachine(IdleMachine):
    """One whose daemon is killed at a stage, and that is disturbed now and then."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.chance = chance
        self.stage, self.ticks = STAGES[0], 0
        self.notices: list[Notice] = []
        """Of this daemon."""
        self.disturbed_mono_s = 0.0
        """When something last came between that ends a countdown."""
        self.barred: list[tuple[ProcessKey | None, float]] = []
        """Whom nothing may be done to until when; None is anybody."""
        self.gone_ticks = self.work_ticks = 0
        self.last_step_s: dict[ProcessKey, float] = {}
        self.figures: Counter[str] = Counter()
        ladder = chance.choice([("end",), ("checkpoint", "end")])
        super().__init__(directory, config(checkpoint="signal", idle_steps=ladder))
        self.outcome = self._outcome

    def make_post(self) -> LatePost:
        """Return a channel by which notices arrive, arrive late, are tried again, or fail."""
        return _Channel(self)

    def start(self) -> None:
        """Start a daemon; what an earlier one has left to be sent is no notice of this one."""
        super().start()
        self.notices.clear()
        self.disturbed_mono_s = self.time.mono_s
        self.left = {one.message.id for one in self.history.pending_deliveries()}
        ladder: Any = self.pipeline.ladder
        write = ladder._runner.write

        def written(*row: Any, dry_run: bool = False, **more: Any) -> bool:
            phase = None if dry_run else row[2]
            self.die_at("step not written down", phase == "asked")
            self.die_at("result not written down", phase == "done")
            done: bool = write(*row, dry_run=dry_run, **more)
            self.die_at("step written down", phase == "asked")
            return done

        ladder._runner.write = written

    def fate(self) -> tuple[str, float]:
        """Return what becomes of a delivery, and how many seconds later."""
        kind = self.chance.choices(("sent", "late", "pending", "failed"), (14, 3, 2, 1))[0]
        return ("sent" if kind == "late" else kind), (
            self.chance.uniform(0.0, 1.2 * GAP_S) if kind == "late" else 0.0
        )

    def die_at(self, stage: str, is_there: bool = True) -> None:
        """End the daemon if this is where it is to end."""
        if is_there and stage == self.stage:
            raise Killed

    def handed_over(self, delivery: Delivery, proposal: Proposal) -> None:
        """Take in that a notice has come to the channel."""
        self.notices.append(
            Notice(
                self.time.mono_s, self.time.now_s, delivery.alert_key, proposal,
                delivery.message.id,
            )
        )  # fmt: skip
        self.figures["notices"] += 1

    def _look(self) -> Sample:
        if self.gone_ticks:
            raise OSError("the driver is gone")
        return super()._look()

    def _outcome(self) -> steps.Outcome:
        result = self.chance.choice([ActResult.ENDED, ActResult.UNCONFIRMED])
        return steps.Outcome(result, str(result))

    def _take(self, request: steps.Request, **more: Any) -> steps.Outcome:
        self.figures["steps"] += 1
        self.figures.update(self.wrongs(request))
        self.last_step_s[request.key] = self.time.now_s
        outcome = super()._take(request, **more)
        self.die_at("step taken")
        return outcome

    def wrongs(self, request: steps.Request) -> set[str]:
        """Return what is wrong with a step that is being taken now."""
        mono_s, now_s = self.time.mono_s, self.time.now_s
        subject = Subject(device_uid=self.device.uid, process=request.key)
        assert isinstance(self.post, LatePost)
        arrived: dict[str, float] = {}
        for at_s, delivery in self.post.arrived:
            arrived.setdefault(delivery.message.id, at_s)
        told = [
            one
            for one in self.notices
            if one.alert_key == f"held:{subject.id}" and one.message_id in arrived
            and one.proposal.hold is None and one.proposal.step == request.step
            and one.made_mono_s >= self.disturbed_mono_s
        ]  # fmt: skip
        named = [one for one in told if one.proposal.at_s is not None]
        wrong = set()
        if not named or named[-1].proposal.command != request.command:
            return {"unnamed"}
        last = named[-1]
        before = [
            one for one in told if last.made_mono_s - arrived[one.message_id] >= GAP_S
        ]  # fmt: skip
        if len(before) < NOTICES - 1:
            wrong.add("untold")
        at_s = last.proposal.at_s or 0.0
        # Who hears of it later than half-way can do nothing about it.
        if (
            now_s < at_s
            or mono_s - last.made_mono_s < GAP_S
            or mono_s - arrived[last.message_id] < GAP_S / 2.0
            or at_s - last.made_at_s < GAP_S - CLOCK_STEP_S
        ):
            wrong.add("too_soon")
        bars = [until_s for key, until_s in self.barred if key in {None, request.key}]
        if self.gone_ticks or self.busy_pct or any(now_s < until_s for until_s in bars):
            wrong.add("disturbed")
        if now_s - self.last_step_s.get(request.key, -TARGET_S) < TARGET_S:
            wrong.add("doubled")
        return wrong

    def disturb(self, event: str) -> None:
        """Let something happen."""
        time, chance = self.time, self.chance
        self.figures["disturbances"] += 1
        if event == "nudge":  # so little that it ends nothing
            time.now_s += chance.uniform(-0.9, 0.9) * CLOCK_STEP_S
            return
        if event == "stall":  # nobody looks, and that is all
            time.pass_s(chance.uniform(10.0, 900.0))
            return
        self.disturbed_mono_s = time.mono_s
        until_s = time.now_s + chance.uniform(60.0, 200.0)
        if event == "jump":
            time.now_s += chance.choice([-1.0, 1.0]) * chance.uniform(10.0, 3600.0)
        elif event == "suspend":
            time.now_s += chance.uniform(10.0, 8 * 3600.0)
        elif event == "reload":
            self.pipeline.reconfigure(self.config)
        elif event == "gone":
            self.gone_ticks = chance.randint(1, 6)
        elif event == "work":
            self.work_ticks, self.busy_pct = chance.randint(1, 3), 60.0
        elif event == "hold":
            self.history.shelf.write_now(tables.save_hold, self.info.key, until_s)
            self.barred.append((self.info.key, until_s))
        else:
            made = Silence(
                matcher=Matcher(process="python"), from_at_s=time.now_s, until_at_s=until_s,
                who="alice",
            )  # fmt: skip
            self.pipeline.state.silences.add(made, time.now_s)
            self.barred.append((None, until_s))

    def until_killed(self) -> None:
        """Let a daemon live until it comes to its stage."""
        chance = self.chance
        self.stage = chance.choice(STAGES)
        often = chance.choice([0.0, 0.0, 0.02])
        left = chance.randint(0, 90) if self.stage == "any tick" else TICKS
        marks = {"after the first notice": 1, "after the last notice": NOTICES}
        while left > 0:
            left -= 1
            if chance.random() < often:
                self.disturb(chance.choice(EVENTS))
            count = len(self.taken)
            self.run(1.0)  # one tick
            self.gone_ticks = max(0, self.gone_ticks - 1)
            self.work_ticks = max(0, self.work_ticks - 1)
            self.busy_pct = 60.0 if self.work_ticks else 0.0
            if len(self.taken) > count and self._has_ended():
                self.begin(self.info.key.pid + 1)
            if len(self.notices) >= marks.get(self.stage, TICKS):
                left, self.stage = min(left, chance.randint(0, 25)), f"{self.stage} "

    def _has_ended(self) -> bool:
        return any(code == ActResult.ENDED for _, code, _ in self.rows[-1:])


class _Channel(LatePost):
    def __init__(self, machine: KilledMachine) -> None:
        super().__init__(machine.fate, machine.time.monotonic)
        self._machine = machine

    def submit(self, delivery: Delivery) -> bool:
        machine, proposal = self._machine, delivery.message.proposal
        is_notice = (
            proposal is not None and proposal.hold is None
            and delivery.message.id not in machine.left
        )  # fmt: skip
        which = "first" if len(machine.notices) < NOTICES - 1 else "last"
        machine.die_at(f"{which} notice made", is_notice)
        if is_notice and proposal is not None:
            machine.handed_over(delivery, proposal)
        done = super().submit(delivery)
        machine.die_at(f"{which} notice handed over", is_notice)
        return done


def kills(count: int, seed: int) -> dict[str, float]:
    """Kill so many daemons in a countdown; return what was seen, and what was wrong.

    Those that are killed while nothing counts down come on top.
    """
    chance, figures = random.Random(seed), Counter[str](dict.fromkeys(("kills", *WRONGS), 0))
    while figures["kills"] < count:
        with tempfile.TemporaryDirectory() as folder:
            machine = KilledMachine(Path(folder, "machine"), chance)
            for _ in range(LIVES):
                try:
                    machine.until_killed()
                    counts_down = bool(machine.pipeline.ladder._countdowns)
                except Killed:
                    counts_down = True
                    figures["in_a_tick"] += 1
                figures["kills" if counts_down else "others"] += 1
                if figures["kills"] >= count:
                    break
                machine.stage = STAGES[0]
                if machine.info.key in machine.last_step_s and chance.random() < 0.7:
                    machine.begin(machine.info.key.pid + 1)
                down_s = chance.choices((DOWN_S, TARGET_S + 600.0, 25 * 3600.0), (8, 1, 1))[0]
                machine.restart(down_s)
            machine.kill()
            figures.update(machine.figures)
    return dict(figures)
