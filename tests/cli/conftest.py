"""Whatever the command line answers in JSON in a test is of the shape written down for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import output
from tests.cli import shaped
from tests.cli.calls import Ctl
from tests.cli.sick import Machine

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
