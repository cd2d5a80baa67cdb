"""Whether the next step of ``[act]`` may be taken for a target, and when. Pure.

Idleness is a fact, a leak is a forecast: steps for idle memory may be taken, those for a leak are
proposed in every mode. What the bar for a leak would be is here all the same: ``backtest --act``
says what it would have come to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpuwatchd.core.codes import ActHold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import ActMode, ActStep, Finding

JUDGEMENTS: Final = 3
"""So many judgements in a row that are an alert."""
STALE_INTERVALS: Final = 3.0
"""A sample that is older decides nothing."""
TARGET_S: Final = 6 * 3600.0
"""One step on a target within so long."""
HOST_S: Final = 86_400.0
HOST_STEPS: Final = 3
"""So many on a host within :data:`HOST_S`."""
NEW_RULE_S: Final = 7 * 86_400.0
"""A rule that would act only proposes for so long."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Who a step would be taken for, and what is known of it."""

    mode: ActMode
    opted_in: bool
    rule_age_s: float
    """For how long the rule that acts has been in force."""
    is_machine: bool = False
    """The daemon runs as root."""
    is_own: bool = False
    has_runner: bool = False
    is_managed: bool = False
    """By something that we give no orders to."""
    is_one: bool = True
    """One decision is the whole job's: its only process, or rank 0 of one whose others are idle."""


def target_hold(target: Target) -> ActHold | None:
    """Return why nothing is done to this target; None where it may be."""
    checks = {
        ActHold.OBSERVE: target.mode == "observe",
        ActHold.PROPOSE: target.mode == "propose",
        ActHold.NOT_OPTED_IN: not target.opted_in,
        ActHold.NEW_RULE: not target.rule_age_s >= NEW_RULE_S,
        ActHold.MACHINE: target.is_machine and not target.has_runner,
        ActHold.NOT_OWN: not (target.is_own or target.has_runner),
        ActHold.MANAGED: target.is_managed and not target.has_runner,
        ActHold.RANK: not target.is_one,
    }
    return _first(checks)


def _first(checks: dict[ActHold, bool]) -> ActHold | None:
    return next((code for code, applies in checks.items() if applies), None)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What may keep a step from being taken now, whoever it is for."""

    sample_age_s: float
    interval_s: float
    is_listed: bool = True
    """Idle memory: it is listed now."""
    is_use_known: bool = True
    """How busy its GPUs are, or what it does on them, is told."""
    has_fault: bool = False
    """An alert on the hardware of its card is open, or the card is not read."""
    is_silenced: bool = False
    is_normal: bool = False
    """By the user's word."""
    is_held: bool = False


def moment_hold(moment: Moment) -> ActHold | None:
    """Return why nothing is done at this moment; None where it may be."""
    checks = {
        ActHold.NOT_LISTED: not moment.is_listed,
        ActHold.USE_UNKNOWN: not moment.is_use_known,
        ActHold.STALE: not 0.0 <= moment.sample_age_s < STALE_INTERVALS * moment.interval_s,
        ActHold.HARDWARE: moment.has_fault,
        ActHold.SILENCED: moment.is_silenced,
        ActHold.NORMAL: moment.is_normal,
        ActHold.HELD: moment.is_held,
    }
    return _first(checks)


def leak_hold(finding: Finding, judgements: int, horizon_s: float) -> ActHold | None:
    """Return why the evidence of a leak is not enough for a step; None where it is.

    ``judgements`` in a row, the newest included, were an alert.
    """
    if finding.tier != "alert" or judgements < JUDGEMENTS:
        return ActHold.FEW_JUDGEMENTS
    if finding.limit_bytes is None:
        return ActHold.LIMIT_UNKNOWN
    eta = finding.eta
    if eta is None or eta.high_s is None or eta.high_s >= horizon_s:
        return ActHold.BEYOND_HORIZON
    return None


def budget_hold(
    target_at_s: Iterable[float], host_at_s: Iterable[float], now_s: float
) -> ActHold | None:
    """Return which budget is spent; None where there is one left.

    The instants are those of steps taken on this target, and on any target of this host. One that
    seems to come yet (the clock was set back) counts as just taken.
    """
    if any(now_s - at_s < TARGET_S for at_s in target_at_s):
        return ActHold.BUDGET_TARGET
    if sum(now_s - at_s < HOST_S for at_s in host_at_s) >= HOST_STEPS:
        return ActHold.BUDGET_HOST
    return None


def next_step(steps: Sequence[ActStep], taken: int) -> ActStep | None:
    """Return the step that follows those that were taken; None where there is none."""
    return steps[taken] if taken < len(steps) else None


class _Notice(msgspec.Struct):
    """A message that names the step."""

    message_id: str
    named_mono_s: float
    due_mono_s: float | None
    """The minute that it names, of the last one."""
    sent_mono_s: float | None = None


class Countdown(msgspec.Struct, kw_only=True):
    """The notices before one step, on a clock that is never set.

    Lives in memory alone: a daemon that ends takes its countdowns with it.
    """

    step: ActStep
    wanted: int
    gap_s: float
    offset_s: float = 0.0
    """The wall clock minus that clock, as it began."""
    notices: list[_Notice] = []
    asked_mono_s: float | None = None
    """When a notice was asked for that has not been made."""

    @property
    def due_mono_s(self) -> float | None:
        """When the step is taken, once the last notice has named that."""
        return self.notices[-1].due_mono_s if self.notices else None

    @property
    def left(self) -> int:
        """How many notices are to be delivered yet."""
        return max(0, self.wanted - sum(one.sent_mono_s is not None for one in self.notices))

    def named(self, message_id: str, mono_s: float, until_minute_s: float = 0.0) -> None:
        """Take in that a message names the step.

        The last notice names its minute as well, ``until_minute_s`` after the gap. One that comes
        before the gap is over is no notice.
        """
        self.asked_mono_s = None
        if self.notices:
            last = self.notices[-1]
            if last.sent_mono_s is None or mono_s - last.sent_mono_s < self.gap_s:
                return
        due_s = mono_s + self.gap_s + until_minute_s if self.left <= 1 else None
        self.notices.append(_Notice(message_id, mono_s, due_s))

    def move(self, mono_s: float) -> Literal["wait", "notify", "act", "give-up"]:
        """Return what comes next."""
        if not self.notices:
            if self.asked_mono_s is None:
                return "notify"
            return "give-up" if mono_s - self.asked_mono_s >= self.gap_s else "wait"
        last = self.notices[-1]
        if last.sent_mono_s is None:
            # Of what arrives later than half-way nobody can do anything in time.
            return "give-up" if mono_s - last.named_mono_s >= self.gap_s / 2.0 else "wait"
        if last.due_mono_s is not None:
            return "act" if self.left == 0 and mono_s >= last.due_mono_s else "wait"
        if mono_s - last.sent_mono_s < self.gap_s:
            return "wait"
        if self.asked_mono_s is None:
            return "notify"
        return "give-up" if mono_s - self.asked_mono_s >= self.gap_s else "wait"
