"""The units before systemd's own judges."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.systemd import Systemd
from gpuwatchd.service.unit_files import UNIT, escape, render
from tests.conftest import ROOT, need, ran

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.real_systemd

# Ten times the exposure, on the scale of a root system service: a ratchet, not a mark.
MAX_EXPOSURE = {"user": 64, "system": 25, "fleet": 12}
FLEET = ROOT / "packaging" / "debian" / "gpuwatchd-fleet.service"


def _write(folder: Path, scope: str, packaged: str = "") -> Path:
    need(shutil.which("systemd-analyze"), "systemd-analyze is missing")
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder / "home with a space"),
        "XDG_RUNTIME_DIR": str(folder),
    }
    path = folder / UNIT
    if scope == "fleet":
        path.write_text(FLEET.read_text().replace("/usr/bin/gpuwatchd", packaged or "/bin/true"))
        return path
    manager = Systemd(environ=environ, executable=sys.executable, system=scope == "system")
    path.write_text(manager.render(packaged))
    return path


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return _write(tmp_path, "user")


def _analyze(unit: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ran(
        ["systemd-analyze", *words, str(unit)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "XDG_RUNTIME_DIR": str(unit.parent)},
    )


def _verify(unit: Path, scope: str = "user") -> subprocess.CompletedProcess[str]:
    return _analyze(unit, "verify", f"--{scope}", "--man=no")


# A package's daemon need not be on this machine: any program at an absolute path will do.
@pytest.mark.parametrize(
    ("scope", "packaged"),
    [("user", ""), ("user", "/bin/true"), ("system", ""), ("system", "/bin/true"), ("fleet", "")],
)
def test_every_unit_is_valid(scope: str, packaged: str, tmp_path: Path) -> None:
    done = _verify(_write(tmp_path, scope, packaged), "user" if scope == "user" else "system")
    ours = [line for line in done.stderr.splitlines() if UNIT in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize(
    "name",
    ["with space", "o'brien", 'q"uote', "back\\slash", "100%n", "$HOME", "a;b&c=@{d}", "größe"],
)
def test_a_program_may_lie_anywhere(name: str, tmp_path: Path) -> None:
    need(shutil.which("systemd-analyze"), "systemd-analyze is missing")
    program = tmp_path / name / "gpuwatchd"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    unit = tmp_path / UNIT
    unit.write_text(render([str(program)], {"GPUWATCHD_STATE_DIR": escape(str(program.parent))}))
    done = _verify(unit)
    ours = [line for line in done.stderr.splitlines() if UNIT in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("scope", MAX_EXPOSURE)
def test_exposure_does_not_grow(scope: str, tmp_path: Path) -> None:
    unit = _write(tmp_path, scope)
    words = ("security", "--offline=yes", "--no-pager", f"--threshold={MAX_EXPOSURE[scope]}")
    done = _analyze(unit, *words)
    assert done.returncode == 0, done.stdout[-300:]
    text = unit.read_text()
    for directive in ("RestrictNamespaces=yes", "SystemCallFilter=@system-service"):
        unit.write_text(text.replace(directive, ""))
        assert _analyze(unit, *words).returncode != 0
