"""What ``[sources] enabled`` and ``--source`` may say."""

from __future__ import annotations

import pytest

from gpuwatchd.config import ReplaySection, SimulateSection, SourcesSection
from gpuwatchd.errors import GpuwatchdError, SourceUnavailable
from gpuwatchd.sources import SOURCES, chosen

SECTION = SourcesSection(
    simulate=SimulateSection(scenario="quiet", seed=3, speed=2.0),
    replay=ReplaySection(file="/nowhere.csv"),
)


def test_a_word_takes_its_settings_from_its_section() -> None:
    source = chosen.make("simulate", SECTION)
    again = chosen.make("simulate:quiet", SECTION)
    assert source.name == "simulate"
    assert [d.uid for d in source.devices()] == [d.uid for d in again.devices()]


def test_what_follows_the_colon_goes_before_the_section() -> None:
    one = chosen.make("simulate:mixed-8x8", SECTION)
    assert len(one.devices()) == 8
    assert len(chosen.make("simulate", SECTION).devices()) < 8


def test_an_unknown_word_names_the_known_ones() -> None:
    with pytest.raises(GpuwatchdError, match="'cuda' is not known here") as caught:
        chosen.make("cuda", SECTION)
    assert "nvml" in caught.value.hint


def test_a_missing_library_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "metal", "gpuwatchd.sources.no_such_module:Metal")
    with pytest.raises(SourceUnavailable, match="metal: cannot be loaded"):
        chosen.make("metal", SECTION)
