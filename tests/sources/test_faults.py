"""Faults in the driver: what gpuwatchd shows, asserted; that the others can be read, checked.

The same worlds and rules as ``python -m tests.bench.faults``.
"""

from __future__ import annotations

import sys

import pytest

from tests.bench import faults
from tests.bench.faults_worlds import FAULTS
from tests.conftest import need, not_here
from tests.fakenvml import FakeNvml


@pytest.fixture(autouse=True)
def _stand_in() -> None:
    if not sys.platform.startswith("linux"):
        not_here("the stand-in library is for Linux")
    need(FakeNvml.available(), "a C compiler builds the stand-in library")


@pytest.mark.slow
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS])
def test_nothing_is_hidden_invented_or_shown_idle(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name == "dead-owner":
        request.getfixturevalue("own_pids")  # that it is dead can be seen on the host only
    result = faults.run([name], with_peers=False)[name]["gpuwatchd"]
    assert result.broken == (), faults.shown(result.view)
