"""``check`` of what somebody has silenced: it does not page, and it is not denied."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from gpuwatchd.cli import program
from gpuwatchd.core.model import ChannelHealth, Matcher, Silence
from tests.cli import world


def _silence() -> Silence:
    now_s = time.time()
    return Silence(
        matcher=Matcher(key="leak:*4711*"),
        from_at_s=now_s - 60,
        until_at_s=now_s + 600,
        who="alice",
        even_critical=True,
    )


def _check(capsys: pytest.CaptureFixture[str], mode: str) -> dict[str, Any]:
    code = program.call(["check", "--mode", mode, "--json"])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    assert code == said["exit_code"]
    return said


def test_the_time_left_of_what_is_silenced_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    world.write(silences=(_silence(),))
    said = _check(capsys, "eta")
    assert said["state"] == "OK"
    assert re.fullmatch(r"GPU 0 full in 0h 4[67]m \(silenced\)", said["text"])
    perf = {one["label"]: one["value"] for one in said["perfdata"]}
    assert 2700 < perf["gpu0_eta"] <= 2820


@pytest.mark.parametrize("mode", ["all", "leak"])
def test_a_silenced_leak_is_not_denied(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    world.write(silences=(_silence(),))
    said = _check(capsys, mode)
    assert said["state"] == "OK"
    assert said["text"] == "no other leak on 2 GPUs, 1 silenced"


def test_a_channel_that_fails_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    why = "channel email does not deliver: refused"
    health = ChannelHealth(name="email", ok=False, why="refused")
    world.write(channels=(health,), problems=(why,))
    assert _check(capsys, "daemon")["details"] == [why]
