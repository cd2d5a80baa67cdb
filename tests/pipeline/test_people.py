"""Who the processes are, and who they were that do not exist any more."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from gpuwatchd.config import Config
from gpuwatchd.model import ProcessInfo, ProcessKey
from gpuwatchd.pipeline.intake import Intake
from gpuwatchd.pipeline.people import People
from gpuwatchd.pipeline.tracks import Watcher
from tests.making import CARD, GIB, LEAKER, sample
from tests.pipeline.play import QUIET

LISTED = ProcessInfo(key=ProcessKey(pid=4711, started_at_s=None), name="")


@pytest.mark.parametrize(
    ("before", "name", "user"),
    [(LEAKER, "gone, was python train.py", "alice"), (None, "gone", None)],
)
def test_one_that_is_gone_keeps_its_name(
    before: ProcessInfo | None, name: str, user: str | None
) -> None:
    host = SimpleNamespace(look=lambda _: {}, gone=lambda _: before)
    people = People(host)  # type: ignore[arg-type]
    reading = sample(1.0, [(LISTED, 7)]).readings[0]
    people.resolve(reading, {})
    assert (people.infos[LISTED.key].name, people.infos[LISTED.key].user) == (name, user)


def test_who_is_present_is_the_same_tuple_until_somebody_changes() -> None:
    intake = Intake(Watcher(Config()), None)

    def take(at_s: float, *who: ProcessInfo) -> tuple[ProcessInfo, ...]:
        intake.take("script", sample(at_s, [(one, GIB) for one in who]), (CARD,), at_s)
        return intake.people.present(intake.devices.values())

    first = take(1.0, LEAKER, QUIET)
    assert first == (LEAKER, QUIET)
    assert take(2.0, LEAKER, QUIET) is first
    renamed = msgspec.structs.replace(LEAKER, framework="vLLM")
    assert take(3.0, renamed, QUIET) == (renamed, QUIET)
    assert take(4.0, QUIET) == (QUIET,)
    assert LEAKER.key in intake.infos
    intake.silent("script", "no answer")
    assert intake.people.present(intake.devices.values()) == ()
