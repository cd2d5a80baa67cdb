"""What ``doctor`` says of completion and manual pages: what shells and man find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.sick import Machine

if TYPE_CHECKING:
    from pathlib import Path

TAB = "share/bash-completion/completions/gpuwatchctl"
PAGE = "share/man/man1/gpuwatchctl.1"


@pytest.mark.parametrize(
    ("prefix", "completion", "pages"),
    [
        ("root/usr", True, True),
        ("home/.local", True, True),
        ("brew", True, True),
        ("venv", False, True),
        ("elsewhere", False, False),
    ],
)
def test_only_what_is_found_is_called_installed(
    prefix: str, completion: bool, pages: bool, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    for name in (TAB, PAGE):
        (tmp_path / prefix / name).parent.mkdir(parents=True)
        (tmp_path / prefix / name).touch()
    for name in ("home/.local", "brew", "venv"):
        (tmp_path / name / "bin").mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").touch()
    machine.environ["PATH"] = f":{tmp_path}/home/.local/bin:{tmp_path}/brew/bin:{tmp_path}/venv/bin"
    (said,) = (check.text for check in machine.ask("program") if check.name == "shell")
    assert ("no completion" not in said, "no man pages" not in said) == (completion, pages)
