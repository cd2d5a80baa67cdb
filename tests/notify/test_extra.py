"""The command that a hint names must work where it is read."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from gpuwatchd.notify import extra
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_an_environment_of_pip_is_enlarged_by_its_own_pip(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.13\n")
    for place in (tmp_path, tmp_path / "without"):
        said = shlex.split(extra.install("charts", str(place)))
        assert said == [sys.executable, "-m", "pip", "install", "gpuwatchd[charts]"]


def test_that_of_a_package_has_no_pip(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\ngpuwatchd = 0.1.0-1~deb13\n")
    assert extra.install("charts", str(tmp_path)) == extra.PACKAGED
    page, _, anchor = extra.PACKAGED.split()[-1].partition("#")
    text = (ROOT / f"docs/how-to/{page}.md").read_text("utf-8")
    assert f"\n## {anchor.replace('-', ' ').capitalize()}\n" in text
