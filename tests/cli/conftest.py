"""Whatever the command line answers in JSON in a test is of the shape written down for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import output
from tests.cli import reported, shaped
from tests.cli.calls import Ctl
from tests.cli.sick import Machine, Well

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _every_answer_is_of_its_shape(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    emit = output.emit_json
    wrong: list[str] = []

    def emit_and_check(said: Any) -> None:
        emit(said)
        try:
            shaped.must_fit(said)
        except AssertionError as error:
            wrong.append(str(error))

    monkeypatch.setattr(output, "emit_json", emit_and_check)
    yield
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Return the command line."""
    return Ctl(capsys)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine of files."""
    return Machine(tmp_path)


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> Iterator[reported.Truth]:
    """Return the world of the reports, with a price of $2 an hour and a daemon that runs."""
    monkeypatch.setenv("GPUWATCHD_COST_USD_PER_GPU_HOUR", str(reported.PRICE))
    monkeypatch.setenv("COLUMNS", "80")
    found = reported.Truth()
    found.live()
    yield found
    found.close()


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the source nvml have a GPU."""
    monkeypatch.setattr("gpuwatchd.collect.SOURCES", {"nvml": "tests.cli.sick:Card"})


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch) -> type[Well]:
    """Let every service manager be one that answers."""
    table = dict.fromkeys(("systemd", "launchd"), "tests.cli.sick:Well")
    monkeypatch.setattr("gpuwatchd.service.MANAGERS", table)
    return Well
