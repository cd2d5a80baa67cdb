"""AMD, Intel and Apple GPUs at the command line, and the daemon that chooses its sources."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.collect.drm.source import DrmSource
from gpuwatchd.collect.metal.source import MetalSource
from gpuwatchd.core import config
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import Availability, Device, Sample
from gpuwatchd.daemon.main import main as daemon_main
from gpuwatchd.store import live
from tests.conftest import ON_LINUX
from tests.sources.drm_case import Tree, amd_fdinfo
from tests.sources.metal_case import FakeMac

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


pytestmark = ON_LINUX


class Amd(DrmSource):
    """A card in a tree of plain files, held by this very process."""

    def __init__(self, *, integrated: bool = False) -> None:
        tree = Tree(Path(tempfile.mkdtemp(dir=os.environ["GPUWATCHD_TREE"])))
        tree.navi()
        tree.open(os.getpid(), 7, amd_fdinfo(3, 1024 * 1024))
        super().__init__(integrated=integrated, proc_root=str(tree.proc), sys_root=str(tree.sys))


class Mac(MetalSource):
    """A Mac of recorded texts."""

    def __init__(self) -> None:
        super().__init__(calls=FakeMac(), platform="darwin")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Let this machine have an AMD card and, for those who name it, the GPU of a Mac."""
    (tmp_path / "trees").mkdir()
    monkeypatch.setenv("GPUWATCHD_TREE", str(tmp_path / "trees"))
    monkeypatch.setitem(sys.modules["gpuwatchd.collect"].SOURCES, "drm", f"{__name__}:Amd")
    monkeypatch.setitem(sys.modules["gpuwatchd.collect"].SOURCES, "metal", f"{__name__}:Mac")
    monkeypatch.setitem(sys.modules["gpuwatchd.collect"].SOURCES, "nvml", f"{__name__}:Absent")
    monkeypatch.setattr("gpuwatchd.collect.selection.nvidia_cards", lambda _: [])
    return monkeypatch


def doctor(ctl: Ctl) -> dict[str, Any]:
    found = ctl.data("doctor", code=None)
    return {check["name"]: check for check in found}


def test_doctor_names_every_source_and_asks_for_nothing_that_is_not_needed(
    gpus: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    found = doctor(ctl)
    assert found["source drm"]["text"].startswith("1 GPU;")
    assert found["source metal"]["text"] == "not for this system"
    assert "libnvidia-ml" in found["source nvml"]["text"]
    assert {found[f"source {kind}"]["level"] for kind in ("nvml", "drm", "metal")} == {"ok"}
    assert "gpu" not in found


def test_doctor_misses_what_was_named(gpus: pytest.MonkeyPatch, ctl: Ctl) -> None:
    gpus.setenv("GPUWATCHD_SOURCES_ENABLED", "nvml,drm")
    found = doctor(ctl)
    assert found["source nvml"]["level"] == "warning"
    gpus.setenv("GPUWATCHD_SOURCES_ENABLED", "nvml")
    assert doctor(ctl)["source drm"]["text"] == "not enabled"


def test_a_direct_look_shows_the_card_and_no_word_of_the_absent(
    gpus: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    shown = ctl.both("status --json")
    (device,) = json.loads(shown.out)["data"]
    assert device["device"]["name"] == "AMD GPU 0x73bf"
    assert device["used_bytes"] == 2 * 1024**3
    assert "libnvidia-ml" not in shown.out + shown.err


def test_a_mac_is_shown_with_its_room(gpus: pytest.MonkeyPatch, ctl: Ctl) -> None:
    gpus.setenv("GPUWATCHD_SOURCES_ENABLED", "metal")
    shown = ctl("status")
    assert "Apple M2" in shown
    assert "6.0" in shown


def test_the_daemon_is_quiet_about_what_it_merely_tried(
    gpus: pytest.MonkeyPatch,
) -> None:
    assert daemon_main(["--once"]) == 0
    state = live.read(config.runtime_dir())
    assert state is not None
    assert [device.device.vendor for device in state.devices] == ["amd"]
    assert [one for one in state.problems if "nvml" in one or "NVIDIA" in one] == []
    (process,) = state.devices[0].processes or ()
    assert process.info.key.pid == os.getpid()
    assert process.used_bytes == 1024**3


def test_the_daemon_names_all_in_one_short_sentence_when_none_works(
    gpus: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    gpus.setattr("gpuwatchd.collect.SOURCES", {
        "nvml": f"{__name__}:Absent", "drm": f"{__name__}:Nothing",
    })  # fmt: skip
    assert daemon_main(["--once"]) == 1
    state = live.read(config.runtime_dir())
    assert state is not None
    (told,) = [one for one in state.problems if "no GPU" in one]
    assert told == (
        "no GPU found: no NVIDIA driver is installed here; "
        "no AMD GPU, no Intel GPU with its own memory"
    )
    assert len(told) <= 100
    said = ctl.err("status").splitlines()
    assert said[:2] == [f"gpuwatchctl: {told}", "hint: gpuwatchctl doctor"]


BRIEF = "no NVIDIA driver is installed here"
WHY = f"{BRIEF}: libnvidia-ml.so.1 was not found"


class Absent:
    """NVIDIA's library, missing."""

    name = "nvml"

    def probe(self) -> Availability:
        return Availability(ok=False, reason=WHY, hint="install it", brief=BRIEF)

    def devices(self) -> tuple[Device, ...]:
        return ()

    def read(self) -> Sample:
        raise SourceUnavailable(WHY, hint="install it", brief=BRIEF)

    def close(self) -> None:
        pass


class Nothing(DrmSource):
    """No card at all."""

    def __init__(self, *, integrated: bool = False) -> None:
        super().__init__(integrated=integrated, sys_root="/nowhere", proc_root="/nowhere")
