"""Who processes were that do not exist any more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuwatchd.model import ProcessInfo, ProcessKey
from gpuwatchd.pipeline.people import People
from tests.making import LEAKER, sample

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
