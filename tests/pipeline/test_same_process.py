"""An alert goes on as the same alert when the clock was set while the daemon was down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.collect.host import Host
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.pipeline import Pipeline
from tests.host.world import FakeProc
from tests.making import GIB, alert, sample
from tests.pipeline.play import EAGER, Script

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.pipeline import Tick

PID = 4711
NUMBER = ProcessInfo(key=ProcessKey(pid=PID, started_at_s=None), name="")
"""What the driver says of a process."""


def tick_after_restart(tmp_path: Path, *, kept: bool, step_s: int) -> Tick:
    """Return the first tick of a daemon that adopts an alert of one that ran before the step."""
    anchor = tmp_path / "boot.json" if kept else None
    proc = FakeProc(tmp_path / "proc")
    proc.process(PID)
    first = Host(proc.folder, contained=False, anchor=anchor).processes([PID])[PID]
    proc.put("stat", f"btime {1_700_000_000 + step_s}\n")
    host = Host(proc.folder, contained=False, anchor=anchor)
    source = Script(lambda tick: sample(1000.0 + 5.0 * tick, [(NUMBER, GIB)]))
    pipeline = Pipeline(config=EAGER, sources=[source], host=host)
    subject = msgspec.structs.replace(alert().subject, process=first.key)
    pipeline.intake.adopt(alert(subject=subject, key=f"leak:{subject.id}", notices=1))
    return pipeline.tick()


@pytest.mark.parametrize("step_s", [-90, 0, 3600])
def test_it_goes_on(tmp_path: Path, step_s: int) -> None:
    tick = tick_after_restart(tmp_path, kept=True, step_s=step_s)
    assert [a.state for a in tick.alerts] == ["firing"]
    assert tick.changes == ()


def test_without_the_time_of_boot_it_would_end(tmp_path: Path) -> None:
    tick = tick_after_restart(tmp_path, kept=False, step_s=-90)
    assert [a.ended_code for a in tick.changes] == [Ending.ENDED_UNOBSERVED]
