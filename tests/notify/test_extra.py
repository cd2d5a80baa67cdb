"""The command that a hint names must work where it is read."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core import extras
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_an_environment_of_pip_is_enlarged_by_its_own_pip(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.13\n")
    for place in (tmp_path, tmp_path / "without"):
        said = shlex.split(extras.install("charts", str(place)))
        assert said == [sys.executable, "-m", "pip", "install", "gpuwatchd[charts]"]


def test_that_of_a_package_has_no_pip(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\ngpuwatchd = 0.1.0-1~deb13\n")
    assert extras.install("charts", str(tmp_path)) == extras.PACKAGED
    page, _, anchor = extras.PACKAGED.split()[-1].partition("#")
    text = (ROOT / f"docs/how-to/{page}.md").read_text("utf-8")
    assert f"\n## {anchor.replace('-', ' ').capitalize()}\n" in text


def test_what_pip_would_add_to_homebrews_is_gone_with_the_next_upgrade(tmp_path: Path) -> None:
    keg = tmp_path / "Cellar/gpuwatchd/0.1.0/libexec"
    keg.mkdir(parents=True)
    (tmp_path / "opt").symlink_to(keg.parent)
    for prefix in (keg, tmp_path / "opt/libexec"):
        assert extras.install("charts", str(prefix)) == extras.BREWED
    page, _, anchor = extras.BREWED.split()[-1].partition("#")
    text = (ROOT / f"docs/how-to/{page}.md").read_text("utf-8")
    section = text.partition(f"\n### {anchor.capitalize()}\n")[2]
    assert "gone with the next `brew upgrade`" in section


@pytest.mark.parametrize(
    ("note", "tool"), [("uv-receipt.toml", "uv tool"), ("pipx_metadata.json", "pipx")]
)
def test_a_tool_adds_to_its_own_environment(note: str, tool: str, tmp_path: Path) -> None:
    (tmp_path / note).touch()
    said = extras.install("charts", str(tmp_path))
    assert said == f"{tool} install --force 'gpuwatchd[full]'"
    assert f"`{said}`" in (ROOT / "docs/how-to/install.md").read_text("utf-8")
