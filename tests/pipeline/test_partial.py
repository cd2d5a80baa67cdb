"""A list of processes that lacks some, because their files may not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.collect.metal.calls import ACCELERATORS
from gpuwatchd.pipeline import Pipeline
from tests.making import GIB, LEAKER, MIB, present, sample
from tests.pipeline.play import EAGER, QUIET, Postbox, Script, run
from tests.sources.metal_case import FakeMac

if TYPE_CHECKING:
    from gpuwatchd.core.model import Sample

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
    pipeline = Pipeline(config=EAGER, sources=[script], courier=post)
    ticks = run(pipeline, 340)
    assert [told.partition(":")[0] for told in post.told] == ["firing"]
    assert [alert.subject.process for alert in ticks[-1].alerts] == [who]
    fired = [change for tick in ticks for change in tick.changes if change.state == "firing"]
    assert len(fired) == 1, "the device and the process do not take turns"


def test_a_listed_process_takes_over_from_the_device() -> None:
    post = Postbox()
    script = Script(lambda tick: lacking(tick, share=0.5))
    ticks = run(Pipeline(config=EAGER, sources=[script], courier=post), 340)
    fired = [change for tick in ticks for change in tick.changes if change.state == "firing"]
    assert [alert.subject.process for alert in fired] == [None, LEAKER.key]
    assert len(post.told) == 1


def test_the_ledger_says_that_it_is_not_whole() -> None:
    script = Script(lambda tick: lacking(tick, share=1.0))
    (tick,) = run(Pipeline(config=EAGER, sources=[script]), 1)
    ledger = present(tick.state.devices[0].ledger)
    assert ledger.state == "partial"
    assert tick.state.devices[0].unattributed_bytes is None


class Filling(FakeMac):
    """A Mac whose GPU memory fills by 40 MiB a look, held by a program that is not listed."""

    def run(self, argv: tuple[str, ...]) -> bytes:
        raw = super().run(argv)
        if argv != ACCELERATORS:
            return raw
        self.now_s += 5.0
        allocated = 6 * GIB + max(0, int(self.now_s) - 1300) // 5 * 40 * MIB
        return raw.replace(b"6442450944", str(allocated).encode())


def test_on_a_mac_what_is_allocated_is_judged_whoever_is_listed() -> None:
    post = Postbox()
    ticks = run(Pipeline(config=EAGER, sources=[Filling().source()], courier=post), 260)
    (alert,) = [alert for alert in ticks[-1].alerts if alert.state == "firing"]
    assert alert.subject.process is None
    assert "Apple M2" in post.told[0]
    assert len(post.told) == 1
    ledger = present(ticks[-1].state.devices[0].ledger)
    assert (ledger.state, ledger.unattributed_bytes) == ("partial", None)
