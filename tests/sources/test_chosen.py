"""What ``[sources] enabled`` and ``--source`` may say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect import SOURCES, selection
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.config import ReplaySection, SimulateSection, SourcesSection
from gpuwatchd.core.errors import GpuwatchdError, SourceUnavailable
from gpuwatchd.core.model import Fault

if TYPE_CHECKING:
    from pathlib import Path

SECTION = SourcesSection(
    simulate=SimulateSection(scenario="quiet", seed=3, speed=2.0),
    replay=ReplaySection(file="/nowhere.csv"),
)


def test_a_word_takes_its_settings_from_its_section() -> None:
    source = selection.make("simulate", SECTION)
    again = selection.make("simulate:quiet", SECTION)
    assert source.name == "simulate"
    assert [d.uid for d in source.devices()] == [d.uid for d in again.devices()]


def test_what_follows_the_colon_goes_before_the_section() -> None:
    one = selection.make("simulate:mixed-8x8", SECTION)
    assert len(one.devices()) == 8
    assert len(selection.make("simulate", SECTION).devices()) < 8


def test_an_unknown_word_names_the_known_ones() -> None:
    with pytest.raises(GpuwatchdError, match="'cuda' is not known here") as caught:
        selection.make("cuda", SECTION)
    assert "nvml" in caught.value.hint


def test_a_missing_library_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "metal", "gpuwatchd.collect.no_such_module:Metal")
    with pytest.raises(SourceUnavailable, match="metal: cannot be loaded"):
        selection.make("metal", SECTION)


def pci(root: Path, address: str, vendor: str, kind: str) -> None:
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_auto_is_what_the_system_can_have(tmp_path: Path) -> None:
    linux = selection.choices(SourcesSection(), platform="linux", sys_root=str(tmp_path))
    assert [choice.word for choice in linux] == ["nvml", "drm"]
    assert all(choice.optional for choice in linux)
    mac = selection.choices(SourcesSection(), platform="darwin")
    assert [choice.word for choice in mac] == ["metal"]


def test_a_driver_is_missed_where_its_card_is(tmp_path: Path) -> None:
    pci(tmp_path, "0000:01:00.0", "0x10de", "0x030000")
    nvml, drm = selection.choices(SourcesSection(), platform="linux", sys_root=str(tmp_path))
    assert (nvml.optional, drm.optional) == (False, True)


def test_an_audio_device_of_nvidia_is_no_card(tmp_path: Path) -> None:
    pci(tmp_path, "0000:01:00.1", "0x10de", "0x040300")
    nvml, _ = selection.choices(SourcesSection(), platform="linux", sys_root=str(tmp_path))
    assert nvml.optional


def test_what_was_named_is_missed_and_read_once(tmp_path: Path) -> None:
    section = SourcesSection(enabled=("simulate:quiet", "auto", "drm", "nvml"))
    found = selection.choices(section, platform="linux", sys_root=str(tmp_path))
    assert found == [("simulate:quiet", False), ("nvml", False), ("drm", False)]


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ((None, None), []),
        (("a", None), []),
        ((None, "b"), []),
        (("a", "b"), ["no GPU found: a; b"]),
    ],
)
def test_absent_sources_are_told_together_and_only_when_none_works(
    reasons: tuple[str | None, ...], told: list[str]
) -> None:
    both = [selection.Choice("nvml", optional=True), selection.Choice("drm", optional=True)]
    faults = [None if why is None else Fault(where="", why=why) for why in reasons]
    found = selection.absences(zip(both, faults, strict=True))
    assert found == [(text, ProblemCode.NO_GPU) for text in told]


def test_what_was_named_is_told_whatever_else_works() -> None:
    named, tried = selection.Choice("nvml", optional=False), selection.Choice("drm", optional=True)
    hangs, none = Fault(where="nvml", why="hangs"), Fault(where="drm", why="no card")
    assert selection.absences([(named, hangs), (tried, None)]) == [
        ("nvml: hangs", ProblemCode.OTHER)
    ]
    assert selection.absences([(named, None), (tried, none)]) == []
