"""The pins: all that is needed, on every Python and system that is promised, by its hash."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pins
import project
from project import Failed
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

WORLDS = [(python, system) for python in pins.PYTHONS for system in ("linux", "darwin")]


def shipped(*, extras: bool) -> Iterator[Requirement]:
    """Yield what pyproject.toml asks for."""
    project_table = project.pyproject()["project"]
    words = list(project_table["dependencies"])
    for name, more in project_table["optional-dependencies"].items():
        if extras and name not in pins.EXTRAS_NOT_SHIPPED:
            words += [word for word in more if not word.startswith("gpuwatchd")]
    for word in words:
        yield Requirement(word)


def chosen(name: str, python: str, system: str) -> dict[str, pins.Pin]:
    """Return the pin of each package for one Python and system."""
    found: dict[str, pins.Pin] = {}
    for pin in pins.read(ROOT / name):
        if pin.holds(python, system):
            assert pin.name not in found, f"{pin.name} twice for {python} on {system}"
            found[pin.name] = pin
    return found


@pytest.mark.parametrize(("python", "system"), WORLDS)
@pytest.mark.parametrize("name", [project.PINS, project.PINS_FULL])
def test_every_requirement_is_pinned_within_its_range(name: str, python: str, system: str) -> None:
    found = chosen(name, python, system)
    for wanted in shipped(extras=name == project.PINS_FULL):
        pin = found[canonicalize_name(wanted.name)]
        assert pin.version in wanted.specifier, f"{pin.name} {pin.version} is not {wanted}"


def test_what_only_one_system_needs_is_pinned_for_that_one() -> None:
    assert "dbus-fast" in chosen(project.PINS, "3.11", "linux")
    assert "dbus-fast" not in chosen(project.PINS, "3.11", "darwin")
    assert "rubicon-objc" in chosen(project.PINS, "3.13", "darwin")
    assert "rubicon-objc" not in chosen(project.PINS, "3.13", "linux")


def test_what_the_program_needs_is_the_same_with_and_without_extras() -> None:
    for python, system in WORLDS:
        full = chosen(project.PINS_FULL, python, system)
        for name, pin in chosen(project.PINS, python, system).items():
            assert (full[name].version, full[name].hashes) == (pin.version, pin.hashes)


def test_what_builds_is_pinned() -> None:
    found = chosen(project.PINS_BUILD, "3.11", "linux")
    for word in project.pyproject()["build-system"]["requires"]:
        assert (
            found[canonicalize_name(Requirement(word).name)].version in Requirement(word).specifier
        )


@pytest.mark.parametrize("name", [project.PINS, project.PINS_FULL, project.PINS_BUILD])
def test_no_address_is_in_them(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"https?:|index-url|find-links| @ |\bfile:", text)


@pytest.mark.parametrize(
    "line", ["rich>=13.7", "rich==15.0.0", "rich @ file:///tmp/rich.whl", "--index-url nowhere"]
)
def test_a_line_that_is_no_pin_is_refused(line: str) -> None:
    with pytest.raises(Failed, match="not a pinned version"):
        pins.parse(line + "\n")
