"""The short form of the campaign, and that it says so where something must not be."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests import campaign
from tests.campaign import __main__ as command
from tests.campaign import acts
from tests.conftest import ON_LINUX, not_here

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.collect.logs.log_types import LogFile

pytestmark = ON_LINUX


_NEEDS = {
    "kills": (pytest.mark.laboratory, pytest.mark.slow, pytest.mark.timeout(400)),
    "fleet": (pytest.mark.real_prometheus, pytest.mark.slow, pytest.mark.timeout(400)),
}


@pytest.mark.requirement("W22")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_NEEDS.get(name, ())) for name in command.PARTS],
)
def test_the_short_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = command.main([name, "--short"])
    out = capsys.readouterr().out
    assert (code, out.count("\n")) == (0, 1), out
    if "not_for_this_machine" in out:
        not_here("this machine does not allow private mounts")


def test_a_violation_is_told_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(count: int, _: int) -> campaign.Figures:
        return campaign.require({"tried": count, "wrong": 1}, wrong=0)

    monkeypatch.setitem(command.PARTS, "wrong", campaign.Part(wrong, 10_000, 7))
    assert command.main(["wrong", "reuse", "--short"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "tried 7, wrong 1" in first
    assert second.startswith("reuse")


def test_what_there_is_no_part_of_is_refused() -> None:
    with pytest.raises(SystemExit) as error:
        command.main(["reuse", "nothing"])
    assert error.value.code == 2


@pytest.mark.shared_data
def test_every_harmless_series_is_a_log(shared_data: Path) -> None:
    made = acts.harmless(1, shared_data)
    origins = Counter(origin for origin, _ in made)
    assert set(origins) == {"laboratory", "once-blind", "documented", "recorded"}
    for name in origins:
        log = next(make for origin, make in made if origin == name)()
        assert log.error is None
        assert log.series


def test_series_are_replayed_once_before_any_is_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = acts.harmless(1)[-3:]
    monkeypatch.setattr(acts, "harmless", lambda _: made)
    seen: list[str] = []

    def acts_of(log: LogFile) -> int:
        seen.append(log.path)
        return 1

    figures = acts.replayed(5, 1, acts_of)
    assert (len(seen), figures["acts"], figures["logs"]) == (5, 5, 5)
    assert set(seen[:3]) == {make().path for _, make in made}
