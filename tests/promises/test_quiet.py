"""The whole daemon kept quiet, and a GPU that is lost: told once each, across kill -9."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.codes import Ending
from gpuwatchd.store.reader import Reader
from tests.cli.world import PROGRAM
from tests.promises.test_delivery_daemon import World
from tests.test_daemon import environ, said, state_of, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Alert


class Quiet(World):
    """A machine with the commands that are typed there."""

    def ctl(self, *words: str) -> Any:
        """Run a verb; return what it answers."""
        done = subprocess.run(
            [PROGRAM, *words, "--json"], env=environ(self.folder), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["data"]

    def open(self, kind: str) -> list[Alert]:
        return [one for one in state_of(self.folder).alerts if one.kind == kind]


class Losing(Quiet):
    scenario = "lost-gpu"
    pace = "100 1e9 100"


@pytest.mark.timeout(180)
def test_a_snooze_holds_within_a_tick_survives_kill_9_and_can_be_taken_back(
    tmp_path: Path,
) -> None:
    world = Quiet(tmp_path)
    with world.daemon() as process:
        (entry,) = world.ctl("snooze", "--kind", "leak", "1h", "--even-critical", "--why", "test")
        set_at_tick = state_of(tmp_path).ticks
        wait_for(lambda: state_of(tmp_path).ticks >= set_at_tick + 2)
        assert state_of(tmp_path).silences
        process.kill()
        process.wait(10)
    with world.daemon() as process:
        wait_for(lambda: state_of(tmp_path).silences)
        wait_for(lambda: any(one.state == "firing" for one in world.open("leak")), 40)
        world.ticks(10)
        (alert,) = (one for one in world.open("leak") if one.state == "firing")
        with Reader.open(tmp_path / "state") as reader:
            held = [one for one in reader.decisions(alert.key) if one.kind == "hold"]
        assert held
        assert "silenced by" in held[0].reason
        assert "test" in held[0].reason
        assert world.heard() == []
        (gone,) = world.ctl("snooze", "clear", "--all")
        assert gone["id"] == entry["id"]
        wait_for(world.heard, 20)
        assert not state_of(tmp_path).silences
        world.stop(process)
    assert world.heard()[0]["alert_key"] == alert.key
    assert "Traceback" not in said(tmp_path)


@pytest.mark.timeout(180)
def test_a_lost_gpu_is_told_once_across_kill_9_and_so_is_its_return(tmp_path: Path) -> None:
    world = Losing(tmp_path)
    with world.daemon() as process:
        wait_for(lambda: world.open("gpu"), 40)
        wait_for(lambda: [one for one in world.heard() if "gpu:" in one["alert_key"]], 20)
        process.kill()
        process.wait(10)
    with world.daemon() as process:
        wait_for(lambda: world.open("gpu") or len(_of_gpu(world)) > 1, 20)
        wait_for(lambda: any(one["notice"] == "resolved" for one in _of_gpu(world)), 40)
        world.stop(process)
    told = _of_gpu(world)
    openings = [one for one in told if one["notice"] == "firing"]
    # Twice at most if it died before it knew that the first had arrived; the id then says so.
    assert len({one["id"] for one in openings}) == 1
    assert [one["notice"] for one in told if one["notice"] != "firing"] == ["resolved"]
    assert "no longer answers" in openings[0]["subject"]
    assert openings[0]["severity"] == "critical"
    with Reader.open(tmp_path / "state") as reader:
        (kept,) = (one for one in reader.alerts() if one.kind == "gpu")
    assert (kept.state, kept.ended_code) == ("resolved", Ending.DEVICE_ANSWERS)
    assert kept.subject.device_uid.endswith("lost-gpu-1")
    assert "Traceback" not in said(tmp_path)


def _of_gpu(world: Quiet) -> list[dict[str, Any]]:
    return [one for one in world.heard() if one["alert_key"].startswith("gpu:")]


@pytest.mark.timeout(120)
def test_a_digest_on_request_tells_of_the_open_leak(tmp_path: Path) -> None:
    world = Quiet(tmp_path)
    with world.daemon() as process:
        wait_for(world.heard, 40)
        begun_s = time.monotonic()
        shown = world.ctl("notify", "digest", "--dry-run", "--since", "7d")
        assert time.monotonic() - begun_s < 20
        world.stop(process)
    assert shown["subject"].startswith("1 alert since")
    assert "1 still open" in shown["subject"]
    assert any("lora" in line for line in shown["facts"].values()), shown
