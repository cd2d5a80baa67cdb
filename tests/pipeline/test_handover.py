"""One growth is told once, whoever it is known to belong to at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.codes import Ending
from tests.making import CARD, GIB, KEY, LEAKER, MIB, sample
from tests.pipeline.play import EAGER, QUIET, Postbox, Script, leaking, run
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Sample

DEVICE = "GPU 0 (A100)"
PROCESS = "GPU 0 (A100): python train.py[4711] of alice"


def hidden(tick: int, play: Callable[[int], Sample] = leaking) -> Sample:
    """Return a tick at which the driver does not say who holds the memory."""
    full = play(tick)
    reading = msgspec.structs.replace(full.readings[0], uses=None, uses_reason="no permission")
    return msgspec.structs.replace(full, readings=(reading,), processes=())


def slow(tick: int) -> Sample:
    return leaking(tick, mib_per_tick=100)


@pytest.mark.slow
def test_an_alert_on_the_device_is_taken_over_by_the_process_once_it_is_known() -> None:
    def play(tick: int) -> Sample:
        if tick >= 440:
            return sample(1000.0 + 5 * tick, [(QUIET, 100 * MIB)])
        return slow(tick) if tick < 40 or tick >= 280 else hidden(tick, slow)

    post = Postbox()
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)], message_dispatcher=post)
    run(pipeline, 270)
    assert post.told == [f"firing: {DEVICE}"]
    ticks = run(pipeline, 170)
    assert [a.subject.process for a in ticks[-1].alerts] == [KEY]
    assert post.told == [f"firing: {DEVICE}"]
    over = [a for t in ticks for a in t.changes if a.state == "resolved"]
    assert [(a.subject.process, a.ended_code) for a in over] == [(None, Ending.HOLDER_KNOWN)]
    ticks = run(pipeline, 20)
    assert post.told == [f"firing: {DEVICE}", f"resolved: {PROCESS}"]
    assert ticks[-1].alerts == ()


def test_an_alert_on_a_process_is_taken_over_by_the_device_once_it_is_unknown() -> None:
    def play(tick: int) -> Sample:
        return slow(tick) if tick < 285 else hidden(tick, slow)

    post = Postbox()
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)], message_dispatcher=post)
    run(pipeline, 285)
    assert post.told == [f"firing: {PROCESS}"]
    ticks = run(pipeline, 160)
    assert post.told == [f"firing: {PROCESS}"]
    (left,) = [a for a in ticks[-1].alerts if a.state == "firing"]
    assert left.subject.process is None
    assert left.notices == 1


def test_a_mere_suspicion_of_the_device_ends_when_its_processes_are_known() -> None:
    def play(tick: int) -> Sample:
        if tick < 95:
            return hidden(tick)
        return sample(1000.0 + 5 * tick, [(QUIET, 30 * GIB)])

    post = Postbox()
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)], message_dispatcher=post)
    ticks = run(pipeline, 95)
    assert [a.state for a in ticks[-1].alerts] == ["watch"]
    ticks = run(pipeline, 1)
    assert ticks[-1].alerts == ()
    assert post.told == []


def test_a_card_that_is_cut_into_instances_is_judged_no_more() -> None:
    part = msgspec.structs.replace(CARD, uid="MIG-1", parent_uid=CARD.uid, index=0)

    def play(tick: int) -> Sample:
        if tick < 180:
            return hidden(tick)
        whole = hidden(tick)
        return msgspec.structs.replace(
            whole,
            readings=(
                *whole.readings,
                msgspec.structs.replace(whole.readings[0], device_uid="MIG-1", used_bytes=GIB),
            ),
        )

    source = Script(play)
    pipeline = make_pipeline(config=EAGER, sources=[source])
    ticks = run(pipeline, 180)
    assert [a.state for a in ticks[-1].alerts] == ["firing"]
    source.known = (CARD, part)
    ticks = run(pipeline, 1)
    assert ticks[-1].alerts == ()
    assert [a.ended_code for a in ticks[-1].changes] == [Ending.INSTANCES_JUDGED]
    source.known, source.play = (CARD,), hidden
    ticks = run(pipeline, 60)
    assert [d.device.uid for d in ticks[-1].state.devices] == [CARD.uid]
    assert [a.subject.device_uid for a in ticks[-1].alerts] == [CARD.uid]


HIDDEN = "the open files of 3 processes of other users cannot be read"


def lacking(tick: int, *, share: float) -> Sample:
    """A card that fills by 200 MiB a tick, of which a listed process holds a share."""
    grown = max(0, tick - 60) * 200 * MIB
    one = sample(1000.0 + 5 * tick, [(LEAKER, 4 * GIB + int(share * grown)), (QUIET, 100 * MIB)])
    reading = msgspec.structs.replace(
        one.readings[0],
        used_bytes=6 * GIB + grown,
        free_bytes=74 * GIB - grown,
        uses_reason=HIDDEN,
    )
    return msgspec.structs.replace(one, readings=(reading,))


@pytest.mark.parametrize(("share", "who"), [(0.0, None), (1.0, LEAKER.key)])
def test_one_growth_is_told_once_and_of_whom_it_is(share: float, who: object) -> None:
    post = Postbox()
    script = Script(lambda tick: lacking(tick, share=share))
    pipeline = make_pipeline(config=EAGER, sources=[script], message_dispatcher=post)
    ticks = run(pipeline, 340)
    assert [told.partition(":")[0] for told in post.told] == ["firing"]
    assert [alert.subject.process for alert in ticks[-1].alerts] == [who]
    fired = [change for tick in ticks for change in tick.changes if change.state == "firing"]
    assert len(fired) == 1, "the device and the process do not take turns"


def test_a_listed_process_takes_over_from_the_device() -> None:
    post = Postbox()
    script = Script(lambda tick: lacking(tick, share=0.5))
    ticks = run(make_pipeline(config=EAGER, sources=[script], message_dispatcher=post), 340)
    fired = [change for tick in ticks for change in tick.changes if change.state == "firing"]
    assert [alert.subject.process for alert in fired] == [None, LEAKER.key]
    assert len(post.told) == 1
