"""Faults in the driver: what gpuwatchd shows, asserted; that the others can be read, checked.

The same worlds and rules as ``python -m tests.bench.faults``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.bench import faults
from tests.bench.faults_worlds import FAULTS, GIB, MIB
from tests.conftest import need
from tests.fakenvml import FakeNvml

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _stand_in() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("the stand-in library is for Linux")
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


@pytest.mark.parametrize("tool", ["nvitop", "gpustat"])
def test_what_another_tool_shows_is_read_from_its_output(tool: str, tmp_path: Path) -> None:
    if tool not in faults.peers():
        pytest.skip(f"{tool} is not installed (make bench installs it)")
    command, reader = faults.peers()[tool]
    fake = FakeNvml(tmp_path)
    fault = next(fault for fault in FAULTS if fault.name == "healthy")
    with faults.children() as (_, cast):
        fake.write(*fault.lines(cast))
        view = faults.look_peer(fake, command, reader)
        assert faults.judge(view, fault, cast, ours=False).broken == ()
        assert view.gpus["1"].used_bytes == 9 * GIB + 500 * MIB
        assert "sleep" in (view.gpus["1"].processes or ())[0].name
        # The rules can fail: nothing of this is true of an empty screen.
        blank = view._replace(gpus={})
        assert len(faults.judge(blank, fault, cast, ours=False).broken) == len(fault.rules)
