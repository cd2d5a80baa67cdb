"""``backtest --act``: which steps on leaks the bar allows in a history, and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpuwatchd.core.codes import ActHold
from gpuwatchd.core.config import Config, OverrideSection
from gpuwatchd.core.model import Matcher, Silence
from gpuwatchd.pipeline import act_replay, history_log
from gpuwatchd.pipeline.act_replay import ActCase, Circumstances
from gpuwatchd.pipeline.proposals import rule_names
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from tests.making import present
from tests.pipeline import recorded
from tests.pipeline.play import EAGER
from tests.pipeline.recorded import Run, ramp
from tests.store import runs

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import ActMode, ActStep

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
BEGIN_S = 1_700_000_040.0
END_S = BEGIN_S + 6 * HOUR_S
DIES = Run(pid=1, begin_s=BEGIN_S + 600, used=ramp(75, 19.3))
RETURNS = Run(
    pid=3, begin_s=BEGIN_S + 3 * HOUR_S, used=np.concatenate((ramp(60, 9), ramp(25, 0.0)))
)


def acting(*steps: ActStep, mode: ActMode = "propose") -> Config:
    act = msgspec.structs.replace(EAGER.act, mode=mode, leak_steps=steps)
    return msgspec.structs.replace(EAGER, act=act)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("history")
    recorded.write(where, [DIES, RETURNS], BEGIN_S, END_S)
    return where


def cases(where: Path, config: Config, **known: object) -> dict[int, list[ActCase]]:
    """Return by pid what would have been done, given what is known of the circumstances."""
    out: dict[int, list[ActCase]] = {}
    with Reader.open(where) as history:
        (device,) = history.devices()
        log = history_log.load(history, device, BEGIN_S - 60, END_S)
        beside = Circumstances(**known)  # type: ignore[arg-type]
        _, found = act_replay.play_log(log, device, config, beside)
    for it in act_replay.budgeted(found):
        if it.case.subject.process is not None:
            out.setdefault(it.case.subject.process.pid, []).append(it)
    return out


def test_a_step_comes_two_gaps_after_the_alert_and_is_judged_by_what_followed(
    directory: Path,
) -> None:
    (step,) = cases(directory, acting("end"))[1]
    assert (step.step, step.hold, step.outcome, step.right) == ("end", None, "died", True)
    waited_s = present(step.at_s) - present(step.case.alert_at_s)
    # Half of what was left, or a quarter of an hour, twice; and on to the whole minute.
    assert 60.0 < waited_s <= 2 * 900.0 + 120.0
    assert present(step.at_s) % 60.0 == 0.0
    assert present(step.left_s) == present(step.case.lead_s) - waited_s


def test_a_run_that_gives_back_makes_its_step_wrong(directory: Path) -> None:
    found = cases(directory, acting("end"))[3]
    steps = [it for it in found if it.at_s is not None]
    assert {(it.outcome, it.right) for it in found} == {("released", False)}
    with Reader.open(directory) as history:
        (device,) = history.devices()
        span = (BEGIN_S - 60, END_S)
        report, played = act_replay.play(history, device, span, acting("end"))
    tally = act_replay.tally([report], act_replay.budgeted(played))
    assert (tally.right, tally.wrong, tally.unknown) == (1, len(steps), 0)
    assert tally.taken == 1 + len(steps)
    assert present(tally.taken_per_day) == pytest.approx(tally.taken / 0.25, rel=0.01)


@pytest.mark.parametrize(
    ("hold", "known"),
    [
        (ActHold.SILENCED, {
            "silences": (Silence(
                matcher=Matcher(), from_at_s=BEGIN_S, until_at_s=END_S, even_critical=True,
            ),),
        }),
        (ActHold.NOTICES, {"cuts_at_s": tuple(BEGIN_S + k * 240.0 for k in range(90))}),
        (ActHold.NO_CHECKPOINT, {"saved": ()}),
    ],
)  # fmt: skip
def test_what_the_history_tells_holds_it_back(
    directory: Path, hold: ActHold, known: dict[str, object]
) -> None:
    found = cases(directory, acting("restart"), **known)[1]
    assert {it.hold for it in found} == {hold}


def test_a_label_given_before_holds_it_and_one_given_later_decides_who_was_right(
    directory: Path,
) -> None:
    (plain,) = cases(directory, acting("end"))[1]
    subject, at_s = plain.case.subject, present(plain.at_s)
    said = runs.word(runs.run(), "normal", subject=subject, opened_at_s=BEGIN_S)
    early = msgspec.structs.replace(said, given_at_s=BEGIN_S)
    late = msgspec.structs.replace(said, given_at_s=at_s + 1.0)
    assert {it.hold for it in cases(directory, acting("end"), labels=(early,))[1]} == {
        ActHold.NORMAL
    }
    assert [it.at_s for it in cases(directory, acting("end"), labels=(late,))[1]] == [at_s]
    labelled = msgspec.structs.replace(
        plain, case=msgspec.structs.replace(plain.case, word="normal")
    )
    assert labelled.right is False


def test_one_step_a_target_in_six_hours_and_three_a_day(directory: Path) -> None:
    (step,) = cases(directory, acting("end"))[1]
    at_s = present(step.at_s)
    again = msgspec.structs.replace(step, at_s=at_s + 60.0)
    assert [it.hold for it in act_replay.budgeted([again, step])] == [None, ActHold.BUDGET_TARGET]
    key = present(step.case.subject.process)
    others = [
        msgspec.structs.replace(
            step,
            at_s=at_s + number,
            case=msgspec.structs.replace(
                step.case,
                subject=msgspec.structs.replace(
                    step.case.subject, process=msgspec.structs.replace(key, pid=100 + number)
                ),
            ),
        )
        for number in range(4)
    ]
    holds = [it.hold for it in act_replay.budgeted(others)]
    assert holds == [None, None, None, ActHold.BUDGET_HOST]


def test_settings_under_which_nothing_would_be_done() -> None:
    assert act_replay.nothing_to_do(acting("end")) is None
    assert act_replay.nothing_to_do(acting()) is ActHold.NO_STEP
    observing = acting("end", mode="observe")
    assert act_replay.nothing_to_do(observing) is ActHold.OBSERVE
    some = msgspec.structs.replace(
        observing, override=(OverrideSection(user="alice", act="propose"),)
    )
    assert act_replay.nothing_to_do(some) is None


def test_how_long_a_rule_has_been_in_force(directory: Path, tmp_path: Path) -> None:
    recorded.write(tmp_path, [], BEGIN_S, BEGIN_S + 60)
    config = acting("end", mode="auto")
    with Reader.open(tmp_path) as history:
        (rule,) = act_replay.rules(history, config)
        assert (rule.by_override, rule.since_at_s, rule.acts_from_at_s) == (False, None, None)
    transaction(tmp_path, tables.save_meta, rule_names(config)[False], BEGIN_S)
    with Reader.open(tmp_path) as history:
        (rule,) = act_replay.rules(history, config)
        assert rule.acts_from_at_s == BEGIN_S + 7 * 86_400.0
        assert act_replay.rules(history, acting("end")) == ()
