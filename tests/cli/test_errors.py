"""Every error names the page of the documentation, to people, programs and monitoring systems."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core.errors import ConfigError, GpuwatchdError
from gpuwatchd.core.model import EtaRange, Pattern, Tier
from gpuwatchd.daemon import main as daemon
from gpuwatchd.view.answers import base
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


@pytest.mark.parametrize(
    "line",
    ["history", "backtest", "hold", "hold {pid}", "hold clear {pid}", "checkpointed {pid}",
     "snooze 4711 1h", "snooze list", "feedback 4711 normal", "feedback list",
     "export --anonymous --yes {folder}/x"],
)  # fmt: skip
def test_what_needs_a_history_names_the_page_of_there_being_none(
    line: str, tmp_path: Path, ctl: Ctl
) -> None:
    world.write()
    line, page = line.format(pid=os.getpid(), folder=tmp_path), "errors#no-history"
    assert ctl.err(line).splitlines()[-1] == f"see: gpuwatchctl docs {page}"
    assert ctl.json(line, code=1)["error"]["page"] == page


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ConfigError("f.toml", "[daemon] x", "unknown key", page="errors#configuration-key"),
            78,
            ["gpuwatchd: f.toml: [daemon] x: unknown key",
             "see: gpuwatchctl docs errors#configuration-key"],
        ),
        (
            GpuwatchdError("already running", hint="gpuwatchctl status"),
            1,
            ["gpuwatchd: already running", "hint: gpuwatchctl status",
             "see: gpuwatchctl docs errors#other"],
        ),
        (
            RuntimeError("wires crossed"),
            1,
            ["gpuwatchd: internal error: RuntimeError: wires crossed",
             "hint: run again with --log-level debug", "see: gpuwatchctl docs errors#internal"],
        ),
    ],
    ids=["configuration", "other", "internal"],
)  # fmt: skip
def test_the_daemon_says_it_too(
    error: Exception,
    code: int,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(daemon.command, "main", broken)
    assert daemon.main(["--once"]) == code
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize(
    ("pattern", "tier", "leak"),
    [
        ("gradual", "alert", True),
        ("step", "watch", True),
        ("cyclic", "alert", True),
        ("gradual", "none", False),
        ("spike", "alert", False),
        ("stable", "none", False),
    ],
)
def test_a_leak_is_a_leaking_pattern_that_policy_opened(
    pattern: Pattern, tier: Tier, leak: bool
) -> None:
    assert base.fill(base.Verdict, making.finding(pattern=pattern, tier=tier)).leak is leak


def test_an_open_end_and_an_unknown_are_null() -> None:
    eta = EtaRange(low_s=1.0, mid_s=2.0, high_s=math.inf)
    found = making.finding(eta=eta, r_squared=math.nan, p_value=None, rate_bytes_per_s=None)
    verdict = base.fill(base.Verdict, found)
    assert verdict.eta == base.Eta(low_s=1.0, mid_s=2.0, high_s=None)
    assert verdict.r_squared is verdict.p_value is verdict.rate_bytes_per_s is None
    assert base.fill(base.Verdict, making.calm()).eta is None


def test_an_internal_error_is_one_line_and_json(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("wires\x1b[2J crossed")

    monkeypatch.setattr("gpuwatchd.view.queries.current_state.load_view", broken)
    shown = ctl.both("status --json", code=1)
    error = json.loads(shown.out)["error"]
    assert error["kind"] == "RuntimeError"
    assert error["hint"] == "run again with --debug"
    assert shown.err.splitlines() == [
        "gpuwatchctl: internal error: RuntimeError: wires crossed",
        "hint: run again with --debug",
        "see: gpuwatchctl docs errors#internal",
    ]
    assert error["page"] == "errors#internal"
    assert main(["predict", "--debug"]) == 1 or main(["status", "--debug"]) == 1
    assert "Traceback" in ctl.err("status --debug", code=None)
