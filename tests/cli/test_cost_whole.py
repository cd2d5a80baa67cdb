"""From a simulated leak to money: the alert's line, what is told, ``cost`` and ``alerts``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli import world
from tests.test_daemon import daemon, environ, state_of, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

CONFIG = """
[policy]
channels = ["command"]
flap-hold = "1s"
[notify.command]
argv = ["{keeper}", "{told}"]
[store]
flush = "1s"
[cost.prices]
"NVIDIA GeForce*" = 1.8
[cost]
currency = "EUR"
per-usd = 0.9
"""


def test_a_leak_has_its_price_everywhere(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    keeper = tmp_path / "keep"
    keeper.write_text('#!/bin/sh\ncat >> "$1"\n')
    keeper.chmod(0o755)
    config = tmp_path / "c.toml"
    config.write_text(CONFIG.format(keeper=keeper, told=told))
    settings = ["--config", str(config)]
    env = {"GPUWATCHD_SOURCES_SIMULATE_SPEED": "150"}

    def asked(*arguments: str) -> dict[str, Any]:
        found = world.run(*arguments, "--json", *settings, env=environ(tmp_path))
        assert found.returncode == 0, found.stderr
        parsed: dict[str, Any] = json.loads(found.stdout)
        return parsed

    words = ["--source", "simulate:one-leak", "--interval", "0.1", *settings]
    with daemon(tmp_path, *words, **env):
        wait_for(lambda: told.exists() and told.read_text(), 60.0)
        wait_for(lambda: any(one.cost for one in state_of(tmp_path).alerts))
        (alert,) = [one for one in state_of(tmp_path).alerts if one.cost is not None]
        money = alert.cost
        assert money is not None
        assert money.whole_usd_per_hour == pytest.approx(2.0)
        assert money.spent_usd is not None
        assert money.gpu_hours is not None
        assert money.spent_usd == pytest.approx(money.gpu_hours * 2.0)
        assert money.at_risk_usd is not None
        (listed,) = [one for one in asked("alerts")["data"] if one["cost"] is not None]
        assert listed["cost"]["spent_usd"] == pytest.approx(money.spent_usd, rel=0.5)
        assert "€" in listed["cost"]["line"]
        bill = asked("cost")
        risk = bill["sums"]["at_risk"]
        assert risk["incidents"] == 1
        assert risk["gpu_hours"] >= money.gpu_hours * 0.8
        assert risk["cost"] == pytest.approx(risk["cost_usd"] * 0.9)
        assert bill["prices"][0]["per_hour_usd"] == pytest.approx(2.0)
        screen = world.run("cost", "--by", "incident", *settings, env=environ(tmp_path))
        assert "more until memory is full" in screen.stdout
    assert "€" in told.read_text() or "\\u20ac" in told.read_text()
    # And without it.
    after = asked("cost")
    assert [one["code"] for one in after["warnings"]] == ["daemon-absent"]
    assert after["sums"]["at_risk"]["gpu_hours"] >= money.gpu_hours * 0.8
