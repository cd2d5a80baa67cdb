"""What is known beside the curve: states, ledgers, lists that are unknown, who a process is."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatchd.analysis.idle import signs
from gpuwatchd.cli import device_facts, main, process_facts, verdict_text
from gpuwatchd.cli.output import width_of
from gpuwatchd.core import config
from gpuwatchd.core.model import (
    DeviceReading,
    DeviceState,
    Event,
    EventKind,
    Ledger,
    LedgerState,
    ProcessInfo,
    ProcessKey,
    Subject,
)
from gpuwatchd.store import driver_release, legacy_findings
from gpuwatchd.store.live import LiveDevice
from tests import making
from tests.cli import world

GIB = making.GIB


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(list(arguments))
    return capsys.readouterr().out


def _device(**changes: Any) -> LiveDevice:
    values: dict[str, Any] = {
        "device": making.CARD, "reading": world.reading(making.CARD.uid, 10), "processes": (),
    }  # fmt: skip
    return LiveDevice(**{**values, **changes})


def _state(state: DeviceState, **changes: Any) -> LiveDevice:
    found = DeviceReading(
        device_uid=making.CARD.uid, used_bytes=None, free_bytes=None, total_bytes=None, state=state
    )
    return _device(reading=found, processes=None, **changes)


@pytest.mark.parametrize(
    ("state", "kind", "said", "todo"),
    [
        ("asleep", None, "asleep, and left so", "a program wakes it"),
        ("lost", "gpu-lost", "lost since", "reboot"),
        ("hung", "gpu-hung", "hung since", "dmesg"),
        ("reset-required", "reset-required", "needs a reset since", "--gpu-reset"),
        ("released", None, "released, nothing is read", "gpuwatchctl release --end"),
        ("no-permission", None, "no permission", "gpuwatchctl doctor"),
        ("unsupported", None, "cannot be read", "gpuwatchctl doctor"),
    ],
)
def test_a_state_is_said_in_few_words_with_what_to_do(
    state: DeviceState,
    kind: EventKind | None,
    said: str,
    todo: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = () if kind is None else (Event(at_s=time.time() - 60, kind=kind, text="it says why"),)
    world.write(devices=(_state(state, events=events),), alerts=())
    for verb in ("status", "predict"):
        shown = _shown(capsys, verb)
        assert said in shown
        assert todo in shown
        assert ("it says why" in shown) == (kind is not None)
        assert "processes unknown" not in shown
        assert "no verdict" not in shown
        assert max(map(width_of, shown.splitlines())) <= 80


def test_what_was_released_says_until_when(capsys: pytest.CaptureFixture[str]) -> None:
    world.write(devices=(_state("released"),), alerts=())
    request = driver_release.ask(config.runtime_dir(), 600.0, time.time())
    at = time.strftime("%H:%M", time.localtime(request.until_at_s))
    for verb in ("status", "predict"):
        assert f"released until {at}, nothing is read" in _shown(capsys, verb)


def test_a_list_that_could_not_be_read_is_not_an_empty_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = msgspec.structs.replace(world.reading("GPU-1", 5), uses_reason="no permission")
    old = _device(reading=look, processes=(world.process(),), processes_age_s=40.0)
    none = _device(reading=look, processes=None)
    world.write(devices=(old,), alerts=())
    assert "processes unknown: no permission; last known 40s ago" in _shown(capsys, "status")
    world.write(devices=(none,), alerts=())
    shown = _shown(capsys, "status")
    assert "processes unknown: no permission\n" in shown
    assert "last known" not in shown
    world.write(devices=(_device(),), alerts=())
    assert "processes" not in _shown(capsys, "status")
    world.write(devices=(_device(reading=look),), alerts=())
    assert "some processes unknown: no permission\n" in _shown(capsys, "status")


def _ledger(state: LedgerState, rest_gib: float, usual_gib: float | None = None) -> Ledger:
    return Ledger(
        state=state, total_bytes=80 * GIB, free_bytes=20 * GIB, reserved_bytes=GIB,
        owned_bytes=50 * GIB, unattributed_bytes=round(rest_gib * GIB),
        baseline_bytes=None if usual_gib is None else round(usual_gib * GIB),
    )  # fmt: skip


def test_a_driver_takes_as_little_as_zombies_has_it() -> None:
    mine = (device_facts.DRIVER_BYTES, device_facts.DRIVER_SHARE)
    assert mine == (signs.BASELINE_BYTES, signs.BASELINE_SHARE)


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        (_ledger("whole", 1.2), "1.2 GiB that no process owns"),
        (_ledger("whole", 2.0, 0.5), "2.0 GiB that no process owns (512 MiB is usual)"),
        (_ledger("partial", 1.2), "<= 1.2 GiB that no process owns"),
        (_ledger("whole", 0.3), ""),
        (_ledger("whole", 1.2, 0.9), ""),
        # It was there from the beginning, and is more than a driver takes.
        (_ledger("whole", 12.0, 12.0), "12.0 GiB that no process owns (1.6 GiB is usual)"),
        (_ledger("overlap", -3.0), ""),
        (_ledger("none", 9.0), ""),
    ],
)
def test_what_nobody_owns_is_said_when_it_matters(ledger: Ledger, said: str) -> None:
    assert device_facts.unowned(_device(ledger=ledger)) == said


def test_the_account_explains_what_does_not_add_up() -> None:
    assert "3.0 GiB more than is used" in device_facts.balance(_ledger("overlap", -3.0))
    assert "<= 1.0 GiB nobody owns" in device_facts.balance(_ledger("partial", 1.0))
    assert "the process list is unknown" in device_facts.balance(_ledger("none", 0.0))
    shared = Ledger(state="whole", total_bytes=100 * GIB, owned_bytes=9 * GIB)
    assert device_facts.balance(shared) == "9.0 GiB in processes, of 100.0 GiB"
    parts = device_facts.balance(_ledger("whole", 9.0)).partition(" = ")[2].split(" + ")
    assert [part.split(" GiB")[0] for part in parts] == ["20.0", "1.0", "50.0", "9.0"]


def test_a_card_with_instances_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    piece = msgspec.structs.replace(
        making.CARD, uid="MIG-1", parent_uid=making.CARD.uid, name="1g.10gb"
    )
    world.write(devices=(_device(), _device(device=piece, samples=3)), alerts=())
    shown = _shown(capsys, "status")
    assert "its MIG instances are judged, not the card" in shown
    assert "MIG 0" in shown
    assert "collecting, 3 of 20 samples" in shown


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "gone"}, "pid 7 (gone, was python train.py of bob)"),
        ({"state": "gone", "name": "?"}, "pid 7 (gone)"),
        ({"name": "gone, was ollama", "argv": ()}, "pid 7 (gone, was ollama of bob)"),
        ({"name": "gone", "user": None}, "pid 7 (gone)"),
        ({"name": "pid 7 (hidden by system policy)"}, "pid 7 (hidden by system policy) of bob"),
        ({"state": "Z"}, "python train.py[7] of bob (defunct)"),
        ({"state": "D"}, "python train.py[7] of bob"),
        ({"foreign": True}, "pid 7 (outside this container)"),
        ({"name": "?"}, "pid 7 of bob"),
    ],
)
def test_who_holds_it_is_named_as_far_as_is_true(changes: dict[str, Any], said: str) -> None:
    key = ProcessKey(pid=7, started_at_s=1.0)
    info = ProcessInfo(key=key, name="python", user="bob", argv=("python", "train.py"))
    known = legacy_findings.process(msgspec.structs.replace(info, **changes))
    assert verdict_text.who(known) == said


def test_growth_on_the_host_is_shown_with_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    world.write(world.odd())
    assert "host memory +12.4 MB/min (12.0 GiB)" in _shown(capsys, "status")
    assert "host memory  LEAK" in _shown(capsys, "predict")
    hosts = making.finding(subject=Subject(device_uid="GPU-1", process=making.KEY, host=True))
    grows = msgspec.structs.replace(world.process(), host_finding=hosts)
    world.write(devices=(_device(processes=(grows,)),), alerts=())
    assert main(["status", "--exit-code"]) == 3
    capsys.readouterr()
    calm = msgspec.structs.replace(world.process(), host_finding=making.calm(), host_bytes=5)
    assert process_facts.host_growth(calm) == ""


def test_wide_leaves_nothing_out(capsys: pytest.CaptureFixture[str]) -> None:
    world.write(world.odd())
    told = {
        "0000:65:00.0", "memory by v2", "clocks held by train", "ECC errors: 2",
        "retired pages: 1", "XID 79: train", "look at the hardware first", "slurm train", "rank 3",
        "docker train", "unit train", "loaded: TensorFlow, train", "sm 41%", "host 12.0 GiB",
        "from train < bash[1]", "command: python train.py", "unified memory", "KV cache 40%",
        "3 running", "does not answer: train", "80.0 GiB = 18.0 GiB free",
    }  # fmt: skip
    shown = _shown(capsys, "status", "--wide")
    assert {words_ for words_ in told if words_ not in shown} == set()
    plain = _shown(capsys, "status")
    assert not {"unit train", "sm 41%", "KV cache 40%"} & set(plain.split("  "))
    assert len(plain.splitlines()) < len(shown.splitlines()) / 1.5
    assert "command: python train.py" in " ".join(_shown(capsys, "predict", "--wide").split())


def test_holdings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    state = world.odd()
    world.write(state)
    shown = _shown(capsys, "status")
    assert "2 holdings without work, 18.0 GiB: gpuwatchctl zombies" in shown
    unknown = msgspec.structs.replace(state.holdings[0], held_bytes=None)
    world.write(msgspec.structs.replace(state, holdings=(unknown,)))
    assert "1 holding without work: gpuwatchctl zombies" in _shown(capsys, "status")
    assert "without work" not in _shown(capsys, "status", "--gpu", "1")


@pytest.mark.parametrize("verb", ["status", "status --wide", "predict --wide"])
@pytest.mark.parametrize("columns", ["80", "100"])
def test_it_fits_the_width(
    verb: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    world.write(world.odd())
    shown = _shown(capsys, *verb.split())
    assert max(map(width_of, shown.splitlines())) <= int(columns)


@pytest.mark.parametrize("verb", ["status", "predict", "watch -n 1"])
def test_programs_get_all_of_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    world.write(world.odd())
    answer = json.loads(_shown(capsys, *verb.split(), "--json"))
    first, lost = answer["data"]
    assert first["ledger"]["state"] == "partial"
    assert first["ledger"]["unattributed_bytes"] == 2 * GIB
    assert [event["code"] for event in first["events"]] == [None, 79]
    assert (first["processes_age_s"], first["throttle"], first["ecc_errors"]) == (40, ["train"], 2)
    owner, gone, foreign = first["processes"]
    assert owner["host_verdict"]["leak"] is True
    assert (owner["rank"], owner["sm_pct"], owner["host_bytes"]) == (3, 41, 12 * GIB)
    assert (gone["state"], foreign["foreign"], foreign["used_bytes"]) == ("gone", True, None)
    assert (lost["state"], lost["used_bytes"], lost["processes"]) == ("lost", None, None)
    assert lost["device"]["memory_kind"] == "unified"
    assert [holding["kind"] for holding in answer["holdings"]] == ["gone", "gone"]
    assert [server["kind"] for server in answer["servers"]] == ["Ollama", "vLLM", "SGLang"]
    assert answer["servers"][0]["models"][0]["vram_bytes"] == 4 * GIB
    assert answer["servers"][1]["models"] is None


def test_every_verb_says_the_same_since(capsys: pytest.CaptureFixture[str]) -> None:
    onset_s = time.time() - 5000
    found = world.leak(onset_at_s=onset_s)
    first, second = world.state().devices
    process = world.process(finding=found)
    world.write(
        devices=(msgspec.structs.replace(first, finding=found, processes=(process,)), second),
        alerts=(world.firing(finding=found),),
    )
    at = time.strftime("%H:%M", time.localtime(onset_s))
    for verb in ("status", "alerts", "alerts show 4711", "predict", "explain"):
        shown = " ".join(_shown(capsys, *verb.split()).split())
        assert f"since {at}" in shown or re.search(rf"since \d{{4}}-\d\d-\d\d {at}", shown), verb


@pytest.mark.parametrize(
    ("changes", "said"),
    [({}, ""), ({"stopped": True}, "the daemon is not running; alerts are as it left them at")],
)
def test_alerts_say_where_they_come_from(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write(**changes)
    for verb in ("alerts", "alerts show 4711"):
        shown = _shown(capsys, *verb.split())
        assert said in shown
        assert ("not running" in shown) == bool(said)


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in _keys(inner)}
    return {key for inner in value for key in _keys(inner)} if isinstance(value, list) else set()


@pytest.mark.parametrize("verb", ["status", "explain"])
def test_every_key_is_in_the_manual(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    world.write(world.odd())
    answer = json.loads(_shown(capsys, verb, "--json"))
    for signal in answer["data"]["signals"] if verb == "explain" else ():
        signal["facts"] = {}  # each detector's own
    page = (Path(__file__).parents[2] / "docs/reference/json.md").read_text(encoding="utf-8")
    assert {key for key in _keys(answer) if f"`{key}`" not in page} == set()


def test_what_broke_lately_is_said_without_being_asked(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = time.time()
    old = Event(at_s=now_s - 90000, kind="xid", text="XID 48: memory", hardware=True)
    new = Event(at_s=now_s - 60, kind="xid", text="XID 79: off the bus", hardware=True)
    ours = Event(at_s=now_s - 30, kind="xid", text="XID 31: a program", hardware=False)
    world.write(devices=(_device(events=(old, new, ours)),), alerts=())
    shown = _shown(capsys, "status")
    assert "XID 79: off the bus  look at the hardware first" in shown
    assert "XID 31" not in shown
    world.write(devices=(_device(events=(old, ours)),), alerts=())
    assert "XID" not in _shown(capsys, "status")
    lost = Event(at_s=now_s - 50, kind="gpu-lost", text="does not answer any more", hardware=True)
    back = Event(at_s=now_s - 20, kind="gpu-back", text="the GPU answers again")
    world.write(devices=(_device(events=(lost,)),), alerts=())
    assert "does not answer any more" in _shown(capsys, "status")
    world.write(devices=(_device(events=(lost, back)),), alerts=())
    shown = _shown(capsys, "status")
    assert re.search(r"it was lost, back since \d\d:\d\d  look at the hardware first", shown)
    assert "any more" not in shown


def test_a_gpu_that_is_lost_has_no_calm_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    for finding, said in ((making.calm(), False), (world.leak(), True)):
        world.write(devices=(_state("lost", finding=finding),), alerts=())
        shown = _shown(capsys, "status")
        assert ("gradual" in shown) is said
        assert "stable" not in shown


def test_too_few_samples_are_called_so() -> None:
    few = making.calm(pattern="unknown", samples=3, reason="too little data for a verdict")
    assert verdict_text.verdict(few)[0] == "collecting, 3 samples so far"
    enough = msgspec.structs.replace(few, samples=30)
    assert verdict_text.verdict(enough)[0] == "unknown"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("xid", "XID 79: off the bus", "XID 79: off the bus"),
        ("released", "the driver is used again", "the driver is used again"),
        ("throttle", "clocks held down for 30 s", "throttle: clocks held down for 30 s"),
    ],
)
def test_an_event_is_a_sentence(kind: EventKind, text: str, said: str) -> None:
    event = Event(at_s=0.0, kind=kind, text=text)
    _, shown, _ = device_facts.happened(event, now_s=60.0)
    assert shown[0] == said
