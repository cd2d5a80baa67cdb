"""The rendered unit before systemd's own judges."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.systemd import UNIT, Systemd
from tests.conftest import need

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real_systemd

# Ten times the exposure, on the scale of a root system service: a ratchet, not a mark.
MAX_EXPOSURE = 64


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    need(shutil.which("systemd-analyze"), "systemd-analyze is missing")
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path / "home with a space"),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    path = tmp_path / UNIT
    path.write_text(Systemd(environ=environ, executable=sys.executable).render())
    return path


def _analyze(unit: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words, str(unit)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "XDG_RUNTIME_DIR": str(unit.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def _verify(unit: Path) -> subprocess.CompletedProcess[str]:
    return _analyze(unit, "verify", "--user", "--man=no")


def test_the_unit_is_valid(unit: Path) -> None:
    done = _verify(unit)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("WatchdogSec=60s", "WatchdogSecs=60s", "WatchdogSecs"),
        ("Restart=on-failure", "Restart=sometimes", "sometimes"),
        ('ExecStart="', 'ExecStart="/nowhere', "/nowhere"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@no-such-set", "no-such-set"),
    ],
)
def test_the_judge_can_say_no(unit: Path, old: str, new: str, complaint: str) -> None:
    text = unit.read_text()
    assert old in text
    unit.write_text(text.replace(old, new))
    done = _verify(unit)
    assert complaint in done.stderr
    assert done.stderr.count("\n") >= 1


def test_exposure_does_not_grow(unit: Path) -> None:
    words = ("security", "--offline=yes", "--no-pager", f"--threshold={MAX_EXPOSURE}")
    done = _analyze(unit, *words)
    assert done.returncode == 0, done.stdout[-300:]
    text = unit.read_text()
    for directive in ("NoNewPrivileges=yes", "SystemCallFilter=@system-service"):
        unit.write_text(text.replace(directive, ""))
        assert _analyze(unit, *words).returncode != 0


def test_what_hides_gpus_is_off(unit: Path) -> None:
    done = _analyze(unit, "security", "--offline=yes", "--json=short", "--no-pager")
    checks = {row["name"] or row["json_field"]: row["set"] for row in json.loads(done.stdout)}
    assert not checks["PrivateDevices="]
    assert not checks["PrivateUsers="]
    assert checks["NoNewPrivileges="]
