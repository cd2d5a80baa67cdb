"""The demo's pop-ups on a real bus, a real screen and a real notification server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import need, ran
from tests.real.stage import Stage, missing

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real_dbus

RUN = "import sys; from gpuwatchd.cli import main; sys.exit(main(sys.argv[1:]))"


def test_the_demo_shows_its_first_alerts_and_no_more(tmp_path: Path) -> None:
    need(not missing(), f"tools are missing: {', '.join(missing())}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    stage = Stage(tmp_path)
    try:
        stage.start_screen()
        stage.start_bus()
        stage.start_server()
        done = ran(
            [sys.executable, "-c", RUN, "demo", "--speed", "1500", "--plain"],
            timeout=100,
            env={**os.environ, **stage.environ, "TMPDIR": str(scratch)},
        )
        shown = stage.take()
    finally:
        stage.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("shown on your desktop: Demo: ") == 2
    # Two were told; the recovery that followed was not a third.
    assert "recovered" in done.stdout
    assert len(shown) == 2
    for popup in shown:
        assert popup["summary"].startswith("Demo: GPU ")
        assert "Simulated by gpuwatchctl demo" in popup["body"]
    assert list(scratch.iterdir()) == []
