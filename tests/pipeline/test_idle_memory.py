"""Idle memory, as the daemon sees it: the pace, who is asked, whom nobody asks."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from gpuwatchd.collect.host.procfs import ProcessStat
from gpuwatchd.core.config import Config
from gpuwatchd.core.config.schema import CostSection, Seconds, ZombiesSection
from gpuwatchd.core.model import (
    Device,
    DeviceReading,
    Holding,
    Ledger,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    ServerReading,
)
from gpuwatchd.pipeline.idle_memory import EVERY_TICKS, GLANCES, IdleMemory
from gpuwatchd.pipeline.state import State
from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 2**30
BOOTED_S = 1_000.0


def key(pid: int, started_s: float | None = 50.0) -> ProcessKey:
    return ProcessKey(pid=pid, started_at_s=None if started_s is None else BOOTED_S + started_s)


def info(pid: int, **changes: Any) -> ProcessInfo:
    values: dict[str, Any] = {
        "key": key(pid), "name": "python", "user": "alice", "argv": ("python", "train.py"),
        "parent_pid": 40,
    }  # fmt: skip
    return ProcessInfo(**{**values, **changes})


class Said:
    """What serving engines have said."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @property
    def readings(self) -> tuple[ServerReading, ...]:
        return tuple(past[-1] for past in self._machine.answers.values())

    def recent(self, url: str) -> tuple[ServerReading, ...]:
        return tuple(self._machine.answers[url])

    def members(self, url: str) -> tuple[ProcessKey, ...]:
        return self._machine.members.get(url, ())


class Machine:
    """Devices with processes, a host, and what the kernel says of each pid."""

    def __init__(self, **settings: Any) -> None:
        self.kernel: dict[int, ProcessStat] = {}
        self.dead: set[int] = set()
        self.asked: list[int] = []
        self.told: list[int] = []
        self.buried: dict[int, ProcessInfo] = {}
        self.now_s = 10_000.0
        self.readings: tuple[Any, ...] = ()
        host = SimpleNamespace(
            booted_at_s=BOOTED_S,
            is_contained=settings.pop("contained", False),
            gone=self.buried.get,
            recall=lambda infos: self.buried.update({one.key.pid: one for one in infos}),
            states=self.told.extend,
        )
        self.answers: dict[str, list[ServerReading]] = {}
        self.members: dict[str, tuple[ProcessKey, ...]] = {}
        self.state = State(Config(**{"zombies": ZombiesSection(), **settings}))
        self.state.engines = Said(self)  # type: ignore[assignment]
        self.devices: dict[str, Any] = self.state.devices
        self.holdings = IdleMemory(
            self.state,
            host,  # type: ignore[arg-type]
            look=self._look,
            is_absent=self.dead.__contains__,
        )

    def _look(self, pid: int) -> ProcessStat | None:
        self.asked.append(pid)
        return self.kernel.get(pid)

    def card(
        self,
        uses: Iterable[ProcessInfo] | None,
        *,
        gib: float = 9.0,
        util: float | None = 80.0,
        source: str = "nvml",
        uid: str = "GPU-1",
        ledger: Ledger | None = None,
    ) -> None:
        """Put these processes on a device."""
        listed = None
        if uses is not None:
            listed = tuple(ProcessUse(key=one.key, used_bytes=int(gib * GIB)) for one in uses)
            self.state.infos.update({one.key: one for one in uses})
        reading = DeviceReading(
            device_uid=uid, used_bytes=60 * GIB, free_bytes=20 * GIB, total_bytes=80 * GIB,
            util_pct=util, uses=listed,
        )  # fmt: skip
        device = Device(
            uid=uid, vendor="nvidia", index=0, name="A100", memory_total_bytes=80 * GIB,
            source=source,
        )  # fmt: skip
        self.devices[uid] = SimpleNamespace(device=device, reading=reading, ledger=ledger)

    def run(
        self,
        pid: int,
        state: str = "S",
        *,
        parent: int = 40,
        started_s: float = 50.0,
        cpu_s: float = 1.0,
    ) -> None:
        self.kernel[pid] = ProcessStat("python", state, parent, started_s, cpu_s)

    def ticks(self, count: int, *, every_s: float = 5.0) -> tuple[Holding, ...]:
        for _ in range(count):
            self.holdings.update(self.now_s)
            self.now_s += every_s
        return self.state.holdings


@pytest.fixture
def machine() -> Machine:
    return Machine()


THREE_LOOKS = 2 * EVERY_TICKS + 1


def test_most_ticks_ask_nobody_but_at_least_each_half_minute_one_does(machine: Machine) -> None:
    machine.card([info(7)])
    machine.run(7)
    machine.ticks(6 * EVERY_TICKS)
    assert len(machine.asked) == 6
    machine.ticks(5, every_s=60.0)
    assert len(machine.asked) == 6 + 5


def test_many_processes_are_asked_in_turn(machine: Machine) -> None:
    people = [info(pid) for pid in range(100, 140)]
    machine.card(people)
    for one in people:
        machine.run(one.key.pid)
    machine.ticks(1)
    assert machine.asked == list(range(100, 100 + GLANCES))
    machine.ticks(9 * EVERY_TICKS)
    assert sorted(machine.asked) == list(range(100, 140))


def test_a_pid_that_is_gone_is_named_from_what_was_known(machine: Machine) -> None:
    gone = ProcessInfo(key=key(7, None), name="gone")
    machine.card([gone])
    machine.dead.add(7)
    machine.buried[7] = info(7)
    (found,) = machine.ticks(THREE_LOOKS)
    assert (found.kind, found.since_s) == ("gone", 10_000.0)
    assert found.process is not None
    assert (found.process.label, found.process.state) == ("python train.py", "gone")
    assert found.gib_hours == pytest.approx(9.0 * 60 / 3600)
    assert found.cost_usd is None


def test_who_it_was_is_known_after_a_restart_and_since_when(machine: Machine) -> None:
    machine.holdings.resume(
        LiveState(
            pid=1, version="1", started_at_s=0.0, taken_at_s=9_990.0, interval_s=5.0,
            devices=(
                LiveDevice(
                    device=Device(
                        uid="GPU-1", vendor="nvidia", index=0, name="A", memory_total_bytes=None
                    ),
                    reading=None,
                    processes=(LiveProcess(info=info(7), used_bytes=1),),
                ),
            ),
            holdings=(
                Holding(kind="gone", device_uid="GPU-1", process=info(7), since_s=4_000.0),
            ),
        )
    )  # fmt: skip
    machine.card([ProcessInfo(key=key(7, None), name="gone")])
    machine.dead.add(7)
    (found,) = machine.ticks(THREE_LOOKS)
    assert found.since_s == 4_000.0
    assert found.process is not None
    assert found.process.user == "alice"


def test_a_zombie_is_told_with_its_parent_and_to_the_host(machine: Machine) -> None:
    machine.card([info(7, state="Z", parents=("python launch.py[40]",))])
    machine.run(7, "Z")
    machine.run(40)
    (found,) = machine.ticks(THREE_LOOKS)
    assert found.kind == "defunct"
    assert 7 in machine.told


def test_waiting_in_the_driver_is_seen_at_every_look_once_suspected(machine: Machine) -> None:
    people = [info(pid) for pid in range(100, 140)]
    machine.card(people)
    for one in people:
        machine.run(one.key.pid)
    machine.run(103, "D")
    (found,) = machine.ticks(6 * EVERY_TICKS)
    assert (found.kind, found.process and found.process.key.pid) == ("driver-wait", 103)
    machine.run(103, "S")
    assert machine.ticks(EVERY_TICKS) == ()


def test_who_is_known_to_be_at_work_is_not_asked(machine: Machine) -> None:
    machine.card([info(7)])
    seen = machine.devices["GPU-1"]
    (use,) = seen.reading.uses
    seen.reading = structs.replace(seen.reading, uses=(structs.replace(use, sm_pct=40.0),))
    assert machine.ticks(THREE_LOOKS) == ()
    assert machine.asked == []


def test_a_pid_that_is_another_process_by_now_is_not_believed(machine: Machine) -> None:
    machine.card([info(7)])
    machine.run(7, "D", started_s=9_000.0)
    assert machine.ticks(10 * EVERY_TICKS) == ()


@pytest.mark.parametrize("source", ["replay", "simulate"])
def test_recorded_pids_are_never_looked_up_here(machine: Machine, source: str) -> None:
    machine.card([info(7), ProcessInfo(key=key(8, None), name="x")], source=source)
    machine.run(7, "Z")
    machine.dead.add(8)
    assert machine.ticks(THREE_LOOKS) == ()
    assert machine.asked == []


def test_in_a_container_nobody_is_looked_up(machine: Machine) -> None:
    machine.card([ProcessInfo(key=key(7, None), name="?", foreign=True)], util=None)
    machine.dead.add(7)
    assert machine.ticks(THREE_LOOKS) == ()
    assert machine.asked == []


IDLE = ZombiesSection(idle_after=Seconds(120))


def test_idle_for_long_with_its_price() -> None:
    machine = Machine(zombies=IDLE, cost=CostSection(usd_per_gpu_hour=8.0))
    machine.card([info(7)], util=0.0, gib=20.0)
    machine.run(7)
    (found,) = machine.ticks(4 * EVERY_TICKS + 1)
    assert found.kind == "idle"
    assert found.gib_hours == pytest.approx(20.0 * 120 / 3600)
    assert found.cost_usd == pytest.approx(0.25 * 120 / 3600 * 8.0)


def test_a_second_look_in_the_same_tick_sees_the_same() -> None:
    machine = Machine(zombies=IDLE)
    machine.card([info(7)], util=0.0)
    (found,) = machine.ticks(4 * EVERY_TICKS + 1)
    machine.holdings.refresh(machine.now_s - 5.0)
    assert machine.state.holdings == (found,)


def test_work_between_two_looks_counts() -> None:
    machine = Machine(zombies=IDLE)
    machine.run(7)
    for turn in range(10 * EVERY_TICKS):
        machine.card([info(7)], util=4.0 if turn % EVERY_TICKS == 3 else 0.0)
        assert machine.ticks(1) == ()


def test_a_burst_of_one_process_between_two_looks_counts() -> None:
    machine = Machine(zombies=IDLE)
    machine.run(7)
    machine.run(8)
    for turn in range(10 * EVERY_TICKS):
        machine.card([info(7), info(8)], util=50.0)
        seen = machine.devices["GPU-1"]
        first, second = seen.reading.uses
        burst = 30.0 if turn % EVERY_TICKS == 3 else 0.0
        uses = (
            structs.replace(first, sm_pct=burst),
            structs.replace(second, sm_pct=0.0),
        )
        seen.reading = structs.replace(seen.reading, uses=uses)
        machine.ticks(1)
    assert [one.process and one.process.key.pid for one in machine.state.holdings] == [8]


def test_where_the_use_is_unknown_the_cpu_decides() -> None:
    machine = Machine(zombies=IDLE)
    people = [info(7), info(8)]
    machine.card(people, util=None)
    for turn in range(8 * EVERY_TICKS):
        machine.run(7, cpu_s=1.0)
        machine.run(8, cpu_s=1.0 + turn)
        machine.ticks(1)
    assert [one.process and one.process.key.pid for one in machine.state.holdings] == [7]


def test_a_child_of_init_is_an_orphan_only_in_a_session() -> None:
    machine = Machine(zombies=IDLE)
    machine.card(
        [
            info(7, parent_pid=1, unit="trainer.service"),
            info(8, parent_pid=1, unit="session-3.scope"),
        ],
        util=0.0,
    )
    machine.run(7, parent=1)
    machine.run(8, parent=1)
    found = machine.ticks(5 * EVERY_TICKS)
    said = {one.process.key.pid: "has ended" in one.evidence for one in found if one.process}
    assert said == {7: False, 8: True}


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "display"},
        {"framework": "browser"},
        {"name": "nvidia-cuda-mps-server"},
        {"name": "nvidia-persistenced"},
        {"key": key(os.getpid())},
    ],
)
def test_some_are_never_listed(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    machine = Machine(zombies=IDLE)
    one = info(7, **changes)
    machine.card([one], util=0.0)
    machine.run(one.key.pid)
    assert machine.ticks(9 * EVERY_TICKS) == ()


def test_an_unknown_list_resets_and_what_nobody_owns_needs_a_ledger(machine: Machine) -> None:
    ledger = Ledger(state="whole", total_bytes=80 * GIB, owned_bytes=0, unattributed_bytes=9 * GIB)
    machine.card([], ledger=ledger, util=0.0)
    (found,) = machine.ticks(THREE_LOOKS)
    assert (found.kind, found.held_bytes) == ("ghost", 9 * GIB)
    machine.card(None, ledger=ledger)
    assert machine.ticks(EVERY_TICKS) == ()
    machine.card([], ledger=ledger, util=0.0)
    assert machine.ticks(2 * EVERY_TICKS) == ()
    (again,) = machine.ticks(EVERY_TICKS)
    assert again.since_s == found.since_s


def test_in_a_container_memory_of_others_is_no_ghost() -> None:
    machine = Machine(contained=True)
    ledger = Ledger(state="whole", total_bytes=80 * GIB, owned_bytes=0, unattributed_bytes=9 * GIB)
    machine.card([], ledger=ledger, util=0.0)
    assert machine.ticks(9 * EVERY_TICKS) == ()


def answer(kind: str, at_s: float, **changes: Any) -> ServerReading:
    return ServerReading(kind=kind, url="http://127.0.0.1:8000", at_s=at_s, **changes)


def test_a_runner_of_a_server_with_nothing_loaded(machine: Machine) -> None:
    machine.card([info(7, framework="Ollama")])
    machine.run(7)
    machine.answers["http://127.0.0.1:8000"] = [answer("Ollama", 1.0, models=())]
    assert machine.ticks(60) == ()
    machine.members["http://127.0.0.1:8000"] = (key(7),)
    (found,) = machine.ticks(60)
    assert found.kind == "orphaned-runner"


def test_a_cache_that_stays_in_use_of_a_server_at_rest(machine: Machine) -> None:
    machine.card([info(7, framework="vLLM")])
    machine.run(7)
    url = "http://127.0.0.1:8000"
    machine.members[url] = (key(7),)
    machine.answers[url] = [
        answer("vLLM", 9_000.0 + 15 * turn, kv_share=0.2, running=0, waiting=0)
        for turn in range(60)
    ]
    (found,) = machine.ticks(THREE_LOOKS)
    assert (found.kind, found.since_s) == ("leaked-kv", 9_000.0)
    machine.answers[url].append(answer("vLLM", 9_900.0, kv_share=0.2, running=1, waiting=0))
    assert machine.ticks(EVERY_TICKS) == ()


def test_what_a_card_in_parts_holds_is_listed_with_its_parts() -> None:
    machine = Machine(zombies=IDLE)
    machine.card([info(7)], util=0.0)
    machine.card([info(7)], util=0.0, uid="MIG-1")
    machine.devices["MIG-1"].device = structs.replace(
        machine.devices["MIG-1"].device, parent_uid="GPU-1"
    )
    machine.run(7)
    found = machine.ticks(9 * EVERY_TICKS)
    assert [one.device_uid for one in found] == ["MIG-1"]
