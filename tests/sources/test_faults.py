"""Faults in the driver: what gpuwatchd shows, asserted; that the others can be read, checked.

The same worlds and rules as ``python -m tests.bench.faults``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.bench import faults, faults_views
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


NVITOP = """\
|===============================+======================+======================+==============+
|   0  ERROR: GPU is Lost   N/A | N/A              N/A |     N/A          N/A | MEM: |||| N/A |
| N/A   N/A  N/A      N/A / N/A |            N/A / N/A |     N/A          N/A | UTL: |||| N/A |
|-------------------------------+----------------------+----------------------+--------------|
|   1  A100                 Off | 00000000:02:00.0 Off |  Enabled         N/A | MEM: || 11.2% |
| N/A   40C   P8     60W / 300W |   9216MiB / 80.00GiB |      0%      Default | UTL: | 0%     |
|-------------------------------+----------------------+----------------------+--------------|
| 1:0          MIG @ GI/CI: 1/0 |   9216MiB / 20.00GiB | BAR1:  4.00MiB /  2% | MEM: ||||    |
+===============================+======================+======================+==============+
| GPU     PID      USER  GPU-MEM %SM %GMBW  %CPU  %MEM  TIME  COMMAND                          |
|============================================================================================|
| 1:0   15126 C    root  9216MiB   0     0   0.0   0.0  0:03  python train.py                  |
|   1   15127 C     N/A      N/A   0     0   N/A   N/A   N/A  No Such Process                  |
"""


def test_a_screen_of_nvitop_is_read() -> None:
    gpus = faults_views.of_nvitop(NVITOP)
    assert list(gpus) == ["0", "1", "1:0"]
    assert (gpus["0"].state, gpus["0"].used_bytes, gpus["0"].processes) == (
        "GPU is Lost",
        None,
        None,
    )
    assert (gpus["1"].used_bytes, gpus["1"].total_bytes) == (9 * GIB, 80 * GIB)
    assert gpus["1"].processes == (faults_views.Held(15127, None, "No Such Process"),)
    assert gpus["1:0"].processes == (faults_views.Held(15126, 9 * GIB, "python train.py"),)
    assert gpus["1:0"].total_bytes == 20 * GIB
