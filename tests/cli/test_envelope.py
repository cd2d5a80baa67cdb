"""The JSON contract: exact keys, and no number that JSON does not have."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import envelope, main
from gpuwatchd.core.model import EtaRange, Pattern, Tier
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.calls import Ctl

VERDICT = {
    "leak", "tier", "pattern", "severity", "confidence", "rate_bytes_per_s", "r_squared",
    "p_value", "detector", "onset_at", "eta", "levels_off_bytes", "reason",
    "advice",
}  # fmt: skip
DEVICE = {
    "device", "state", "used_bytes", "free_bytes", "reserved_bytes", "resident_bytes",
    "unattributed_bytes", "util_pct", "temp_c", "power_w", "memory_api", "throttle", "ecc_errors",
    "retired_pages",
    "ledger", "events", "faults", "verdict", "blame", "processes", "processes_age_s",
    "processes_reason", "others",
}  # fmt: skip
PROCESS = {
    "pid", "started_at", "name", "argv", "user", "uid", "state", "foreign", "parents",
    "framework", "framework_sure", "frameworks", "model", "container", "pod", "job", "unit",
    "group", "rank", "world", "kind", "used_bytes", "sm_pct", "host_bytes", "history", "verdict",
    "host_verdict",
}  # fmt: skip
HEAD = {"schema_version", "verb", "generated_at", "host", "version", "source", "stale_s",
        "warnings", "daemon", "data"}  # fmt: skip


def _ask(ctl: Ctl, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = ctl.json(*arguments, code=None)
    return answer


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
    verdict = envelope.verdict_json(making.finding(pattern=pattern, tier=tier))
    assert verdict["leak"] is leak
    assert set(verdict) == VERDICT


def test_an_open_end_and_an_unknown_are_null() -> None:
    eta = EtaRange(low_s=1.0, mid_s=2.0, high_s=math.inf)
    found = making.finding(eta=eta, r_squared=math.nan, p_value=None, rate_bytes_per_s=None)
    verdict = envelope.verdict_json(found)
    assert verdict["eta"] == {"low_s": 1.0, "mid_s": 2.0, "high_s": None}
    assert verdict["r_squared"] is verdict["p_value"] is verdict["rate_bytes_per_s"] is None
    assert envelope.verdict_json(making.calm())["eta"] is None


@pytest.mark.parametrize("verb", ["status", "predict"])
def test_devices_have_the_shape_of_the_contract(verb: str, ctl: Ctl) -> None:
    world.write()
    answer = _ask(ctl, verb)
    assert set(answer) == HEAD | {"holdings", "servers", "channels", "untold", "lost", "silences"}
    assert (answer["verb"], answer["source"]) == (verb, "state-file")
    assert set(answer["daemon"]) == {
        "running", "scope", "pid", "version", "started_at", "last_sample_at", "problems",
    }  # fmt: skip
    leaking, calm = answer["data"]
    assert set(leaking) == set(calm) == DEVICE
    assert leaking["device"] == {
        "uid": "GPU-1", "index": 0, "name": "NVIDIA A100", "memory_total_bytes": 80 * world.GIB,
        "vendor": "nvidia", "source": None, "memory_kind": "dedicated", "parent_uid": None,
        "pci_bus": None,
    }  # fmt: skip
    assert set(leaking["verdict"]) == VERDICT
    assert all(set(process) == PROCESS for process in leaking["processes"])
    assert leaking["processes"][0]["started_at"] == "1970-01-01T00:16:40.000Z"
    assert leaking["verdict"]["eta"] == {"low_s": 2340, "mid_s": 2820, "high_s": 3720}
    assert calm["processes"] is None
    assert calm["verdict"]["leak"] is False


def test_pid_and_gpu_choose(ctl: Ctl) -> None:
    world.write()
    answer = _ask(ctl, "--gpu", "gpu-1", "status", "--pid", "99")
    assert [item["device"]["uid"] for item in answer["data"]] == ["GPU-1"]
    assert [process["pid"] for process in answer["data"][0]["processes"]] == [99]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


@pytest.mark.parametrize(
    "verb",
    ["status", "predict", "explain", "alerts", "alerts show 4711", "doctor", "config path",
     "config print", "config validate", "notify list", "history", "completion zsh",
     "service print"],
)  # fmt: skip
def test_no_text_can_harm_and_no_key_is_odd(verb: str, ctl: Ctl) -> None:
    hostile = world.leak(
        reason=world.HOSTILE,
        framework=world.HOSTILE,
        detector="trend",
        advice=(world.HOSTILE,),
    )
    first, second = world.state().devices
    world.write(
        devices=(
            msgspec.structs.replace(
                first, finding=hostile, processes=(world.process(4711, world.HOSTILE),)
            ),
            second,
        ),
        alerts=(world.firing(title=world.HOSTILE, finding=hostile),),
        problems=(world.HOSTILE,),
    )
    answer = _ask(ctl, *verb.split())
    script = answer.get("data") if verb.startswith(("completion", "service")) else None
    for words in _texts({**answer, "data": None} if script else answer):
        assert words.isprintable(), words
    assert answer["schema_version"] == 1


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
