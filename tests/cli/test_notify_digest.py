"""``notify digest``: shown, or sent now by the digest's channels."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config
from tests.cli import world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Leave a history with one alert that fired an hour ago and one of last week."""
    now_s = time.time()
    old = world.firing(
        key="leak:old", state="resolved", opened_at_s=now_s - 5 * 86_400, firing_at_s=now_s - 4e5,
        resolved_at_s=now_s - 3.9e5, title="an old one",
    )  # fmt: skip
    world.remember(world.firing(firing_at_s=now_s - 3600), old)


def hooked(tmp_path: Path, channels: str = '["command"]', code: int = 0) -> Path:
    file = tmp_path / "c.toml"
    script = f"cat > '{tmp_path / 'heard'}'; exit {code}"
    file.write_text(
        f"[policy]\ndigest-channels = {channels}\n"
        f"[notify.command]\nargv = {json.dumps(['sh', '-c', script])}\n"
    )
    return file


def test_shown_it_sends_nothing(tmp_path: Path, ctl: Ctl) -> None:
    file = hooked(tmp_path)
    out = ctl("--config", str(file), "notify", "digest", "--dry-run")
    assert out.startswith("1 alert since")
    assert "an old one" not in out
    out = ctl("--config", str(file), "notify", "digest", "--dry-run", "--since", "7d")
    assert out.startswith("2 alerts since")
    assert "an old one" in out
    assert not (tmp_path / "heard").exists()


def test_sent_it_goes_by_the_channels_of_the_digest(tmp_path: Path, ctl: Ctl) -> None:
    (row,) = ctl.data("--config", str(hooked(tmp_path)), "notify", "digest")
    assert (row["channel"], row["result"]) == ("command", "arrived")
    heard = json.loads((tmp_path / "heard").read_text())["message"]
    assert heard["notice"] == "digest"
    assert heard["subject"].startswith("1 alert since")


def test_what_is_held_now_is_in_it_while_the_daemon_runs(ctl: Ctl) -> None:
    world.write(holdings=world.odd().holdings)
    assert "Held without work" in ctl.data("notify digest --dry-run")["facts"]


def test_what_fails_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], ctl: Ctl) -> None:
    assert "failed" in ctl("--config", str(hooked(tmp_path, code=3)), "notify", "digest", code=1)
    nobody = hooked(tmp_path, channels="[]")
    assert "no channel is in use" in ctl.err("--config", str(nobody), "notify", "digest")
    assert main(["notify", "digest", "nope"]) == 2
    assert main(["notify", "digest", "--since", "soon"]) == 2
    capsys.readouterr()
    (config.state_dir() / "history.db").unlink()
    assert "no history" in ctl.err("notify digest --dry-run")
