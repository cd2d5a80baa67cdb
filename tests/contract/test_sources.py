"""What every source owes: laws over the table, so that a new one is held to them by its line."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.collect import SOURCES, selection
from gpuwatchd.collect.replay import ReplaySource
from gpuwatchd.collect.simulate import SimulateSource
from gpuwatchd.core import config
from gpuwatchd.core.errors import SourceError
from gpuwatchd.core.registry import load
from tests.conftest import need
from tests.contract.source_laws import broken, states
from tests.fakenvml import FakeNvml
from tests.sources.drm_case import ARC, GIB, Tree, amd_fdinfo, xe_fdinfo
from tests.sources.metal_case import FakeMac

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.ports import Source

SECTION = config.SourcesSection(
    replay=config.ReplaySection(file="/nowhere.csv"),
    simulate=config.SimulateSection(scenario="quiet"),
)
LOGS = Path(__file__).resolve().parent.parent / "data/logs"
NVML = """
import json, sys
from gpuwatchd.collect.nvml.source import NvmlSource
from tests.contract.source_laws import broken, states
now = [1000.0]
source = NvmlSource(monotonic=lambda: now[0], clock=lambda: 5e8 + now[0], sys_root="/nowhere")
print(json.dumps({"broken": broken, "states": states}[sys.argv[1]](source)))
"""


@pytest.fixture(params=SOURCES)
def name(request: pytest.FixtureRequest) -> str:
    """Return one source's name."""
    return str(request.param)


def drm(folder: Path) -> Source:
    tree = Tree(folder)
    tree.navi()
    tree.card(2, ARC, "xe", tile0__physical_vram_size_bytes=8 * GIB)
    tree.open(500, 7, amd_fdinfo(3, 1024))
    tree.open(501, 7, xe_fdinfo(4, 2048))
    tree.kfd(500, GIB)
    return tree.source()


def drm_broken(folder: Path) -> Source:
    tree = Tree(folder)
    tree.navi("\x1b[2Jgarbage", product_name="\x1b]0;evil\x07")
    tree.card(2, "0000:0a:00.0", "amdgpu", gpu_busy_percent="900")
    tree.open(500, 7, amd_fdinfo(3, 1024).replace("KiB", "pounds"))
    return tree.source()


def metal_broken(_: Path) -> Source:
    mac = FakeMac()
    for asked in list(mac.output)[2:]:
        mac.output[asked] = SourceError("it failed with exit code 1")
    return mac.source()


WHOLE: dict[str, Callable[[Path], Source]] = {
    "drm": drm,
    "metal": lambda _: FakeMac().source(),
    "replay": lambda _: ReplaySource(file=str(LOGS / "nvidia_two_gpus.csv")),
    "simulate": lambda _: SimulateSource(scenario="mixed-8x8"),
}
BROKEN: dict[str, tuple[Callable[[Path], Source], list[str]]] = {
    "drm": (drm_broken, ["ok", "lost"]),
    "metal": (metal_broken, ["ok"]),
}


def test_every_source_is_tried_here() -> None:
    assert {*WHOLE, "nvml"} == set(SOURCES), "a new source needs a stage in this file"


def test_its_section_is_its_call(name: str) -> None:
    own = getattr(SECTION, name, None)
    if not isinstance(own, msgspec.Struct):
        assert name in {"nvml", "metal"}, "a source with settings has a section"
        return
    default = getattr(config.SourcesSection(), name)
    parameters = inspect.signature(load(SOURCES, name)).parameters
    for field in own.__struct_fields__:
        given = parameters[field].default
        assert given is inspect.Parameter.empty or given == getattr(default, field)


def test_it_knows_its_name_and_starts_nothing(name: str) -> None:
    before = threading.active_count()
    source = selection.make(name, SECTION)
    assert source.name == name
    assert threading.active_count() == before
    source.close()
    source.close()


def test_probing_never_raises_and_says_what_is_missing(name: str) -> None:
    source = selection.make(name, SECTION)
    found = source.probe()
    assert found.reason
    assert "\n" not in found.reason + found.hint
    if not found.ok:
        with pytest.raises(SourceError):
            source.read()
    source.close()


def test_a_whole_machine_keeps_every_law(name: str, tmp_path: Path) -> None:
    assert answer(name, "broken", tmp_path) == []


@pytest.mark.parametrize("faulty", [*BROKEN, "nvml"])
def test_a_machine_of_faults_keeps_every_law(faulty: str, tmp_path: Path) -> None:
    hurt = ("gpu 0 total=24G", "gpu 1 total=24G", "fail nvmlDeviceGetMemoryInfo* 0 999",
            "fail nvmlDeviceGetComputeRunningProcesses* 0 4")  # fmt: skip
    if faulty == "nvml":
        assert on_nvml("broken", tmp_path, *hurt) == []
        assert "ok" in on_nvml("states", tmp_path, *hurt)
        return
    build, want = BROKEN[faulty]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    assert broken(build(tmp_path / "one")) == []
    assert states(build(tmp_path / "two")) == want


def answer(name: str, question: str, folder: Path) -> Any:
    if name == "nvml":
        return on_nvml(question, folder, "gpu 0 total=24G", "gpu 1 mig=1 total=80G",
                       "mig 1 gi=1 ci=0 total=20G used=1G")  # fmt: skip
    return {"broken": broken, "states": states}[question](WHOLE[name](folder))


def on_nvml(question: str, folder: Path, *lines: str) -> Any:
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    fake = FakeNvml(folder)
    fake.write(*lines)
    return fake.run(NVML, question)
