"""Who the processes are, and who they were that do not exist any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import verdict_text
from gpuwatchd.collect.host import Host
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Fault, ProcessInfo, ProcessKey
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.pipeline.process_names import ProcessNames
from gpuwatchd.pipeline.tracker import Intake
from gpuwatchd.pipeline.watcher import Watcher
from gpuwatchd.store import live
from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState
from tests.making import CARD, GIB, LEAKER, sample
from tests.pipeline.play import QUIET, Script, run

if TYPE_CHECKING:
    from pathlib import Path

LISTED = ProcessInfo(key=ProcessKey(pid=4711, started_at_s=None), name="")


@pytest.mark.parametrize(
    ("before", "name", "user"),
    [(LEAKER, "gone, was python train.py", "alice"), (None, "gone", None)],
)
def test_one_that_is_gone_keeps_its_name(
    before: ProcessInfo | None, name: str, user: str | None
) -> None:
    host = SimpleNamespace(look=lambda _: {}, gone=lambda _: before)
    people = ProcessNames(host)  # type: ignore[arg-type]
    reading = sample(1.0, [(LISTED, 7)]).readings[0]
    people.resolve(reading, {})
    assert (people.infos[LISTED.key].name, people.infos[LISTED.key].user) == (name, user)


@pytest.mark.parametrize("restarts", [1, 2])
def test_one_that_ended_while_nobody_watched_is_named_everywhere(
    restarts: int, tmp_path: Path
) -> None:
    """What is listed as held and what is shown of the device give the same name."""
    pid = 2**22 + 5  # No kernel gives it out.
    listed = ProcessInfo(key=ProcessKey(pid=pid, started_at_s=None), name="")
    was = msgspec.structs.replace(LEAKER, key=ProcessKey(pid=pid, started_at_s=1.0))
    device = LiveDevice(
        device=CARD, reading=None, processes=(LiveProcess(info=was, used_bytes=GIB),)
    )
    live.write(
        tmp_path,
        LiveState(
            pid=1, version="1", started_at_s=0.0, taken_at_s=990.0, interval_s=5.0,
            devices=(device,),
        ),
    )  # fmt: skip
    for _ in range(restarts):
        source = Script(
            lambda i: msgspec.structs.replace(
                sample(1000.0 + 60.0 * i, [(listed, 9 * GIB)]), processes=()
            )
        )
        host = Host(contained=False)
        pipeline = Pipeline(config=Config(), sources=[source], host=host, runtime_dir=tmp_path)
        pipeline.resume()
        state = run(pipeline, 25)[-1].state
        pipeline.close()
        host.close()
        (process,) = state.devices[0].processes or ()
        assert verdict_text.who(process.info) == f"pid {pid} (gone, was python train.py of alice)"
        (held,) = [one.process for one in state.holdings if one.process is not None]
        assert verdict_text.who(held) == verdict_text.who(process.info)


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
    intake.silent("script", Fault(where="", why="no answer"))
    assert intake.people.present(intake.devices.values()) == ()
