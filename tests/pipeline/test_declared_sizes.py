"""Declared sizes on their way to what is judged: read once, beside the tick, for each process."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import psutil
import pytest

from gpuwatchd.collect.host import Host, declarations
from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model import GrowthFact, ProcessInfo, ProcessKey, ServerReading, Subject
from gpuwatchd.pipeline import replay
from gpuwatchd.pipeline.engine_readings import DEADLINE_S, MOST_STUCK, DeclaredSizes
from gpuwatchd.pipeline.state import State
from gpuwatchd.pipeline.track_evaluation import Evaluator
from tests.children import Child
from tests.making import CARD, GIB, LEAKER, present, sample
from tests.pipeline.play import EAGER, Script
from tests.pipelines import make_pipeline
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HELD = 3 * GIB


class World:
    """A daemon, and a process on its card."""

    def __init__(self, info: ProcessInfo, *, host: Host | None = None) -> None:
        self.info = info
        self.pipeline = make_pipeline(
            config=EAGER,
            sources=[Script(lambda tick: sample(1e9 + 5.0 * tick, [(self.info, HELD)]))],
            host=host,
        )
        self.pipeline.tick()

    def facts(self, *, host: bool = False) -> tuple[GrowthFact, ...]:
        subject = Subject(device_uid=CARD.uid, process=self.info.key, host=host)
        return self.pipeline.state.tracks[subject.id].series().facts

    def sizes(self) -> list[float | None]:
        self.pipeline.tick()
        return [fact.part_bytes for fact in self.facts()]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ProcessInfo]:
    """A process of ours that names a configuration."""
    (tmp_path / "run.toml").write_text("pool-gb = 2\n")
    code = "import time\nprint('up', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "job.py").write_text(code)
    words = [sys.executable, "job.py", "--cache-gb", "1", "--config", "run.toml"]
    with Child(words, stdout=subprocess.PIPE, cwd=tmp_path) as child:
        present(child.stdout).readline()
        process = psutil.Process(child.pid)
        key = ProcessKey(pid=child.pid, started_at_s=process.create_time())
        yield ProcessInfo(key=key, name="python", uid=process.uids().real)


def test_what_a_process_was_told_reaches_its_series_and_is_read_once(
    job: ProcessInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = declarations.read_as

    def noted(process: str, path: str, uid: int | None) -> bytes:
        read.append(path)
        assert threading.current_thread() is not threading.main_thread()
        return whole(process, path, uid)

    monkeypatch.setattr(declarations, "read_as", noted)
    world = World(job, host=Host())
    wait_for(lambda: world.sizes() == [1.0 * GIB, 2.0 * GIB])
    for _ in range(5):
        world.sizes()
    assert read == ["run.toml"]
    whole_card = world.pipeline.state.tracks[Subject(device_uid=CARD.uid).id]
    assert whole_card.series().facts == ()
    world.pipeline.close()


def test_the_shown_command_line_stands_in_where_nothing_can_be_read() -> None:
    info = msgspec.structs.replace(
        LEAKER, argv=("python", "t.py", "--cache-gb", "4"), framework="PyTorch"
    )
    world = World(info)
    assert [fact.part_bytes for fact in world.facts()] == [4.0 * GIB]


def test_a_recorded_process_was_told_what_its_log_says() -> None:
    info = msgspec.structs.replace(LEAKER, argv=("python", "t.py", "--cache-gb", "4"))
    subject = Subject(device_uid=CARD.uid, process=info.key)
    t_s = np.arange(100.0) * 5.0 + 2000.0
    recorded = LogSeries(
        device=CARD,
        subject=subject,
        t_s=t_s,
        used_bytes=np.full(100, float(HELD)),
        limit_bytes=80.0 * GIB,
        process=info,
    )
    evaluator = Evaluator(State(EAGER))
    log = LogFile(path="log", format="csv", series=[recorded], devices=[CARD])
    replay.analyze(log, EAGER, evaluator=evaluator)
    (fact,) = evaluator.state.tracks[subject.id].series().facts
    assert (fact.name, fact.part_bytes) == (FactName.DECLARED_SIZE, 4.0 * GIB)


def test_a_look_that_fails_or_never_ends_costs_no_tick(
    job: ProcessInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun = threading.Event(), threading.Event()

    def never(*_: object) -> bytes:
        begun.set()
        held.wait(30.0)
        raise RuntimeError

    monkeypatch.setattr(declarations, "read_as", never)
    world = World(job, host=Host())
    assert begun.wait(10.0)
    assert world.sizes() == []
    held.set()
    assert [world.sizes() for _ in range(3)] == [[]] * 3
    assert not world.pipeline.problems()
    world.pipeline.close()


def test_a_look_without_an_answer_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held, read = threading.Event(), list[int]()

    def settings(info: ProcessInfo, _: object) -> tuple[()]:
        read.append(info.key.pid)
        held.wait(30.0 if info.key.pid < 0 else 0.0)
        return ()

    monkeypatch.setattr(declarations, "settings", settings)
    now_s = [0.0]
    pipeline = make_pipeline(config=EAGER, sources=[])
    sizes = DeclaredSizes(pipeline.state, Host(), lambda: now_s[0])

    def step(*pids: int) -> None:
        keys = [ProcessKey(pid=pid, started_at_s=1.0) for pid in pids]
        sizes.step((tuple(ProcessInfo(key=key, name="x") for key in keys), (), 0))

    try:
        step(-1, 1)
        wait_for(lambda: read == [-1])
        now_s[0] = DEADLINE_S + 1.0
        step(-1, 1)
        wait_for(lambda: read == [-1, 1])
        pids = [-1, 1]
        for k in range(MOST_STUCK + 2):
            pids.append(-2 - k)
            step(*pids)
            now_s[0] += DEADLINE_S + 1.0
            step(*pids)
        assert not sizes.waiting
        assert len([pid for pid in read if pid < 0]) <= MOST_STUCK
    finally:
        held.set()
        sizes.close()


def test_what_a_server_says_reaches_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(msgspec.structs.replace(LEAKER, framework="vLLM"))
    reading = ServerReading(kind="vLLM", url="http://127.0.0.1:8000", at_s=1.0, pool_share=0.5)
    engines = world.pipeline.state.engines
    monkeypatch.setattr(engines, "members", lambda _: (LEAKER.key,))
    sizes = DeclaredSizes(world.pipeline.state, None)
    sizes.step(((world.info,), (reading,), 0))
    (fact,) = [fact for fact in world.facts() if fact.name is FactName.ENGINE_POOL]
    assert fact.level_bytes == 0.5 * present(CARD.memory_total_bytes)
    monkeypatch.setattr(engines, "recent", lambda _: (reading,))
    for pid, facts in ((reading.pid, [FactName.ENGINE_POOL]), (4711, [])):  # busy, another one
        failed = msgspec.structs.replace(reading, ok=False, pid=pid)
        sizes.step(((world.info,), (failed,), 0))
        assert [fact.name for fact in world.facts() if fact.level_bytes] == facts


def test_those_who_left_are_forgotten(job: ProcessInfo) -> None:
    world = World(job, host=Host())
    wait_for(lambda: len(world.sizes()) == 2)
    world.info = LEAKER
    for _ in range(3):
        world.pipeline.tick()
    assert job.key not in world.pipeline.context.declared._settings
    world.pipeline.close()
