"""The JSON contract: exact keys, and no number that JSON does not have."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import envelope, main
from gpuwatchd.core.model import EtaRange, Pattern, Tier
from tests import making

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


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
    assert envelope.verdict_json(making.finding(pattern=pattern, tier=tier))["leak"] is leak


def test_an_open_end_and_an_unknown_are_null() -> None:
    eta = EtaRange(low_s=1.0, mid_s=2.0, high_s=math.inf)
    found = making.finding(eta=eta, r_squared=math.nan, p_value=None, rate_bytes_per_s=None)
    verdict = envelope.verdict_json(found)
    assert verdict["eta"] == {"low_s": 1.0, "mid_s": 2.0, "high_s": None}
    assert verdict["r_squared"] is verdict["p_value"] is verdict["rate_bytes_per_s"] is None
    assert envelope.verdict_json(making.calm())["eta"] is None


def test_an_internal_error_is_one_line_and_json(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("wires\x1b[2J crossed")

    monkeypatch.setattr("gpuwatchd.cli.current_state.see", broken)
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
