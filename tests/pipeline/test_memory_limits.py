"""Limits below the device: of a control group, of MPS, of a framework's allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.analysis import declared
from gpuwatchd.collect import control_groups
from gpuwatchd.core.codes import Ending, LimitKind
from gpuwatchd.core.model import Device, MemoryLimit, ProcessInfo, ProcessKey, Sample, Subject
from gpuwatchd.pipeline.memory_limits import CONTEXT_BYTES, MemoryLimits, NearLimits
from tests.host.world import FakeProc, host_of
from tests.making import CARD, GIB, LEAKER, MIB, present, sample
from tests.pipeline.play import EAGER, Script
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.pipeline.track import Track

BUS = "0000:0a:00.0"
BIG = msgspec.structs.replace(CARD, pci_bus=BUS)
SMALL = msgspec.structs.replace(CARD, memory_total_bytes=20 * GIB)
OTHER = ProcessInfo(key=ProcessKey(pid=99, started_at_s=5.0), name="python", user="bob")
GROUP = "user.slice/job.scope"


class World:
    """A daemon on one card, and a tree of control groups that it reads."""

    def __init__(self, folder: Path, play: Callable[[int], Sample], device: Device = BIG) -> None:
        self.root = folder / "cgroup"
        control_groups._is_hybrid.cache_clear()  # another test may have had a folder of this name
        self.mono_s = 0.0
        proc = FakeProc(folder / "proc")
        for info in (LEAKER, OTHER):
            proc.put(f"{info.key.pid}/cgroup", f"0::/{GROUP}\n")
        script = Script(play, devices=(device,))
        self.pipeline = make_pipeline(config=EAGER, sources=[script])
        self.pipeline.context.limits = MemoryLimits(
            self.pipeline.state, host_of(proc), lambda: self.mono_s,
            proc=str(proc.folder), root=str(self.root),
        )  # fmt: skip

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def limit(self, text: str, group: str = GROUP, used: str = "") -> None:
        self.put("dmem.capacity", f"drm/{BUS}/vram0 {80 * GIB}\n")
        self.put(f"{group}/dmem.max", text)
        self.put(f"{group}/dmem.current", used)

    def run(self, ticks: int = 1) -> Track:
        for _ in range(ticks):
            self.pipeline.tick()
            self.mono_s += 5.0
        return self.track(LEAKER)

    def track(self, info: ProcessInfo) -> Track:
        subject = Subject(device_uid=CARD.uid, process=info.key)
        return self.pipeline.state.tracks[subject.id]


def leak(tick: int) -> Sample:
    return sample(1e9 + 5.0 * tick, [(LEAKER, 5 * GIB + 20 * MIB * tick)], device=BIG)


def two(tick: int) -> Sample:
    return sample(1e9 + 5.0 * tick, [(LEAKER, 5 * GIB), (OTHER, 3 * GIB)], device=BIG)


def line(size: int | str, *, bus: str = BUS, region: str = "drm", part: str = "vram0") -> str:
    return f"{region}/{bus}/{part} {size}\n"


def test_the_forecast_is_that_of_a_card_as_large_as_the_limit(tmp_path: Path) -> None:
    """A leak within 20 GiB of an 80 GiB card is judged as the same leak on a card of 20 GiB."""

    def smaller(tick: int) -> Sample:
        used = 5 * GIB + 20 * MIB * tick
        return sample(1e9 + 5.0 * tick, [(LEAKER, used)], device=SMALL)

    limited = World(tmp_path / "limited", leak)
    limited.limit(line(20 * GIB))
    card = World(tmp_path / "card", smaller, SMALL)
    ours, theirs = (present(world.run(300).finding) for world in (limited, card))
    eta, other = present(ours.eta), present(theirs.eta)
    assert ours.limit_bytes == 20 * GIB
    assert (ours.tier, ours.pattern) == (theirs.tier, theirs.pattern) == ("alert", "gradual")
    assert eta.mid_s == pytest.approx(other.mid_s, rel=0.02)
    assert eta.low_s == pytest.approx(other.low_s, rel=0.02)
    unlimited = present(World(tmp_path / "whole", leak).run(300).finding)
    assert present(unlimited.limit_bytes) > 70 * GIB
    state = limited.pipeline.tick().state
    shown = present(present(state.devices[0].processes)[0].limit)
    assert (shown.kind, shown.hard_bytes) == (LimitKind.DMEM, 20 * GIB)


@pytest.mark.parametrize(
    ("cgroup", "folder"),
    [
        (f"0::/{GROUP}\n", GROUP),
        (f"1:name=systemd:/x\n0::/{GROUP}\n", GROUP),
        (f"4:memory:/x\n3:cpu,dmem:/{GROUP}\n0::/y\n", f"dmem/{GROUP}"),
        (f"4:memory:/x\n0::/{GROUP}\n", f"unified/{GROUP}"),
    ],
)
@pytest.mark.parametrize(
    "text",
    [line(9 * GIB), line(9 * GIB, region="nvidia", part="vidmem"), line(9 * GIB, part="vram")],
)
def test_the_group_is_found_whatever_its_hierarchy(
    tmp_path: Path, cgroup: str, folder: str, text: str
) -> None:
    world = World(tmp_path, leak)
    world.limit(text, folder)
    if folder.startswith("dmem"):
        world.put("dmem/dmem.capacity", line(80 * GIB))
    (tmp_path / "proc" / "4711" / "cgroup").write_text(cgroup)
    limit = present(world.run().limit)
    assert (limit.name, limit.process_bytes) == (f"{world.root}/{folder}", 9 * GIB)


def test_the_least_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    world = World(tmp_path, leak)
    world.limit(line(30 * GIB) + line(GIB, bus="0000:0b:00.0"))
    world.limit(line(12 * GIB), "user.slice")
    assert present(world.run().limit).hard_bytes == 12 * GIB
    world.limit(line("max"), "user.slice")
    world.mono_s += 60.0
    assert present(world.run().limit).hard_bytes == 30 * GIB


def test_what_others_of_its_group_hold_is_not_left_to_it(tmp_path: Path) -> None:
    world = World(tmp_path, two)
    world.limit(line(20 * GIB), used=line(10 * GIB))
    track = world.run(2)
    # 3 GiB of the other process, 2 GiB of nobody who is listed.
    assert present(track.limit).process_bytes == 15 * GIB
    assert track.series().limit_bytes == 15 * GIB
    assert track.sharing == {world.track(one).subject.id for one in (LEAKER, OTHER)}
    track.headroom.growing = {world.track(OTHER).subject.id: 5.0, "elsewhere": 7.0}
    assert track.series().neighbours_bytes_per_s == (5.0,)


def test_a_process_that_ends_at_its_limit_ran_out_of_memory(tmp_path: Path) -> None:
    def gone(tick: int) -> Sample:
        if tick >= 300:
            return sample(1e9 + 5.0 * tick, [], device=BIG)
        return leak(tick)

    world = World(tmp_path, gone)
    world.limit(line(11 * GIB))
    world.run(300)
    changes = [change for _ in range(4) for change in world.pipeline.tick().changes]
    assert [change.ended_code for change in changes] == [Ending.ENDED_NEAR_LIMIT]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (line("max"), 0),
        (line(GIB, bus="0000:0b:00.0"), 0),
        ("cma/reserved 4096\n", 0),
        (line(GIB, part="stolen"), 0),
        ("", 0),
        (line("-1"), 1),
        (line("lots"), 1),
        (f"drm/{BUS}/vram0\n", 1),
        (line("9" * 40), 1),
        ("drm/" * 2_600_000, 1),
        ("\0\xff\n", 1),
    ],
)
def test_what_is_not_understood_is_no_limit_and_one_fault(
    tmp_path: Path, text: str, faults: int
) -> None:
    world = World(tmp_path, leak)
    world.limit(text)
    assert world.run(3).limit is None
    assert len(world.pipeline.context.limits.faults) == faults
    assert len(world.pipeline.problems()) == faults


@pytest.mark.parametrize(
    "cgroup", ["", "0::/../other\n", "0::relative\n", "nonsense\n", "0::/gone.scope (deleted)\n"]
)
def test_a_group_that_is_not_known_limits_nothing(tmp_path: Path, cgroup: str) -> None:
    world = World(tmp_path, leak)
    world.limit(line(9 * GIB))
    (tmp_path / "proc" / "4711" / "cgroup").write_text(cgroup)
    assert world.run().limit is None


MPS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
CONF = "PYTORCH_CUDA_ALLOC_CONF"
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@pytest.mark.parametrize(
    ("framework", "name", "value", "end"),
    [
        (None, MPS, "0=8G", 8 * GIB),
        (None, MPS, "3=8G", 8 * GIB),
        (None, MPS, "0=6G,1=512M", 6 * GIB),
        (None, MPS, "1=7G, 2=9G", 9 * GIB),
        (None, MPS, "0=,1=x,=", None),
        ("PyTorch", CONF, "a:b,per_process_memory_fraction:0.25", 20 * GIB + CONTEXT_BYTES),
        ("PyTorch", "PYTORCH_ALLOC_CONF", "per_process_memory_fraction:2", None),
        ("JAX", FRACTION, "0.5", 40 * GIB),
        ("PyTorch", FRACTION, "0.5", None),
        ("vLLM", "argv", "--gpu-memory-utilization=0.5", None),
    ],
)
def test_a_process_is_limited_by_what_it_was_started_with(
    tmp_path: Path, framework: str | None, name: str, value: str, end: float | None
) -> None:
    world = World(tmp_path, leak)
    track = world.run()
    settings = declared.of_variables([(name, value)])
    if name == "argv":
        settings = declared.of_argv(("vllm", "serve", value))
    track.framework = framework
    track.declare(declared.Declared(settings=settings))
    world.pipeline.context.limits.step(new_sizes=True)
    assert (None if track.limit is None else track.limit.process_bytes) == end


def test_what_holds_more_than_its_allocator_may_take_is_not_limited_by_it() -> None:
    limit = MemoryLimit(kind=LimitKind.FRAMEWORK, name=FRACTION, process_bytes=40.0)
    shared = msgspec.structs.replace(limit, kind=LimitKind.DMEM)
    assert [limit.ends_at(held) for held in (39.0, 40.0, None)] == [40.0, None, None]
    assert [shared.ends_at(held) for held in (39.0, 41.0)] == [40.0, 41.0]


class Near(World):
    """A process that holds what it is told to, of 10 GiB that its control group may hold."""

    def __init__(self, folder: Path) -> None:
        self.gib, self.processes = 5.0, (LEAKER,)
        super().__init__(folder, self.look)
        self.limit(line(10 * GIB))

    def look(self, tick: int) -> Sample:
        uses = [(info, round(self.gib * GIB) if info is LEAKER else 0) for info in self.processes]
        return sample(1e9 + 5.0 * tick, uses, device=BIG)

    def for_s(self, seconds: float, *, gib: float) -> list[str]:
        """Hold so much for so long; return what became of alerts on limits."""
        self.gib, changes = gib, list[str]()
        for _ in range(round(seconds / 5.0)):
            found = [one for one in self.pipeline.tick().changes if one.kind == "limit"]
            changes += [one.ended_code or one.state for one in found]
            self.mono_s += 5.0
        return changes


def test_a_group_near_its_limit_is_told_once_and_does_not_flap(tmp_path: Path) -> None:
    world = Near(tmp_path)
    assert world.for_s(300.0, gib=9.4) == []
    assert world.for_s(30.0, gib=9.6) + world.for_s(20.0, gib=8.9) == []
    assert world.for_s(90.0, gib=9.6) == ["firing"]
    for gib in (9.4, 9.6, 9.1, 9.8):
        assert world.for_s(90.0, gib=gib) == []
    for _ in range(3):
        assert world.for_s(30.0, gib=8.9) + world.for_s(30.0, gib=9.2) == []
    assert world.for_s(90.0, gib=8.9) == [Ending.BELOW_LIMIT]


def test_the_alert_on_a_limit_ends_with_the_limit_or_its_process(tmp_path: Path) -> None:
    world = Near(tmp_path / "limit")
    assert world.for_s(90.0, gib=9.6) == ["firing"]
    world.limit(line("max"))
    assert world.for_s(180.0, gib=9.6) == [Ending.BELOW_LIMIT]
    world = Near(tmp_path / "process")
    assert world.for_s(90.0, gib=9.6) == ["firing"]
    world.processes = (OTHER,)
    assert world.for_s(180.0, gib=0.0) == [Ending.MEMORY_RELEASED]


def test_whoever_wants_no_alert_on_limits_gets_none(tmp_path: Path) -> None:
    world = Near(tmp_path)
    assert world.for_s(90.0, gib=9.6) == ["firing"]
    policy = msgspec.structs.replace(EAGER.policy, tell_limit=False)
    world.pipeline.reconfigure(msgspec.structs.replace(EAGER, policy=policy))
    assert world.for_s(90.0, gib=9.6) == [Ending.TURNED_OFF]


def test_a_soft_limit_that_is_passed_is_no_alert() -> None:
    """It is shown with the process; memory beyond it may be evicted, and nothing fails."""
    intake = make_pipeline(config=EAGER, sources=[Script(leak, devices=(BIG,))])
    intake.tick()
    track = next(one for one in intake.state.tracks.values() if one.subject.process)
    track.limit = MemoryLimit(
        kind=LimitKind.DRIVER, name="/sys/fs/cgroup/a", soft_bytes=GIB, used_bytes=5 * GIB
    )
    intake.state.tracks.limited[track.subject.id] = track
    assert NearLimits(intake.state).conditions(0.0, ()) == []
    assert present(track.series().limit_bytes) > 70 * GIB
