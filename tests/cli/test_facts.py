"""What is known beside the curve: states, ledgers, lists that are unknown, who a process is."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.analysis.idle import signs
from gpuwatchd.core import config, units
from gpuwatchd.core.model import (
    DeviceState,
    Event,
    Ledger,
    LedgerState,
    ProcessInfo,
    ProcessKey,
    ServedModel,
    ServerReading,
    Subject,
)
from gpuwatchd.store import legacy_text, live
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.blocks import width_of
from gpuwatchd.view.text import status, subject_facts, verdict_text
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


GIB = making.GIB


def _device(**changes: Any) -> LiveDevice:
    values: dict[str, Any] = {
        "device": making.CARD, "reading": world.reading(making.CARD.uid, 10), "processes": (),
    }  # fmt: skip
    return LiveDevice(**{**values, **changes})


def _state(state: DeviceState, **changes: Any) -> LiveDevice:
    return _device(reading=world.unread(making.CARD.uid, state), processes=None, **changes)


def test_what_was_released_says_until_when(ctl: Ctl) -> None:
    world.write(devices=(_state("released"),), alerts=())
    request = live.ask_release(config.runtime_dir(), 600.0, time.time())
    at = time.strftime("%H:%M", time.localtime(request.until_at_s))
    for verb in ("status", "predict"):
        # With the day where midnight lies between.
        assert re.search(rf"released until (\S+ )?{at}, not read", ctl(verb, code=None))


def test_a_list_that_could_not_be_read_is_not_an_empty_one(ctl: Ctl) -> None:
    look = msgspec.structs.replace(world.reading("GPU-1", 5), uses_reason="no permission")
    for changes, unknown in (
        ({"reading": look, "processes": None}, True), ({"reading": look}, True), ({}, False),
    ):  # fmt: skip
        world.write(devices=(_device(**changes),), alerts=())
        assert ("processes unknown: no permission" in ctl("status")) is unknown


def _ledger(state: LedgerState, rest_gib: float, usual_gib: float | None = None) -> Ledger:
    return Ledger(
        state=state, total_bytes=80 * GIB, free_bytes=20 * GIB, reserved_bytes=GIB,
        owned_bytes=50 * GIB, unattributed_bytes=round(rest_gib * GIB),
        baseline_bytes=None if usual_gib is None else round(usual_gib * GIB),
    )  # fmt: skip


def test_a_driver_takes_as_little_as_zombies_has_it() -> None:
    mine = (subject_facts.DRIVER_BYTES, subject_facts.DRIVER_SHARE)
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
    assert subject_facts.unowned(_device(ledger=ledger)) == said


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
    known = legacy_text.process(msgspec.structs.replace(info, **changes))
    assert verdict_text.who(known) == said
    assert legacy_text.process(known) is known


def test_growth_on_the_host_is_a_finding_too(ctl: Ctl) -> None:
    hosts = making.finding(subject=Subject(device_uid="GPU-1", process=making.KEY, host=True))
    grows = msgspec.structs.replace(world.process(), host_finding=hosts)
    world.write(devices=(_device(processes=(grows,)),), alerts=())
    assert "host memory" in ctl("status --exit-code", code=3)
    calm = msgspec.structs.replace(world.process(), host_finding=making.calm(), host_bytes=5)
    assert subject_facts.host_growth(calm) == ""


def test_what_broke_lately_is_said_without_being_asked(ctl: Ctl) -> None:
    now_s = time.time()
    old = Event(at_s=now_s - 90000, kind="xid", text="XID 48: memory", hardware=True)
    new = Event(at_s=now_s - 60, kind="xid", text="XID 79: off the bus", hardware=True)
    ours = Event(at_s=now_s - 30, kind="xid", text="XID 31: a program", hardware=False)
    world.write(devices=(_device(events=(old, new, ours)),), alerts=())
    shown = ctl("status", code=None)
    assert "XID 79: off the bus  check the hardware first" in shown
    assert "XID 31" not in shown
    world.write(devices=(_device(events=(old, ours)),), alerts=())
    assert "XID" not in ctl("status", code=None)
    lost = Event(at_s=now_s - 50, kind="gpu-lost", text="does not answer any more", hardware=True)
    back = Event(at_s=now_s - 20, kind="gpu-back", text="the GPU answers again")
    world.write(devices=(_device(events=(lost,)),), alerts=())
    assert "does not answer any more" in ctl("status", code=None)
    world.write(devices=(_device(events=(lost, back)),), alerts=())
    shown = ctl("status", code=None)
    assert re.search(r"it was lost, back since \d\d:\d\d  check the hardware first", shown)
    assert "any more" not in shown


def test_a_gpu_that_is_lost_has_no_calm_verdict(ctl: Ctl) -> None:
    for finding, said in ((making.calm(), False), (world.leak(), True)):
        world.write(devices=(_state("lost", finding=finding),), alerts=())
        shown = ctl("status", code=None)
        assert ("gradual" in shown) is said
        assert "stable" not in shown


def test_instances_are_counted_on_their_card(ctl: Ctl) -> None:
    """They count from 0 on every card: GPU 0 could not be asked for beside them."""
    pieces = [
        msgspec.structs.replace(
            making.CARD, uid=f"MIG-{card}", index=0, parent_uid=uid, parent_index=card
        )
        for card, uid in enumerate((making.CARD.uid, world.SECOND.uid))
    ]
    cards = (making.CARD, world.SECOND, *pieces)
    world.write(devices=tuple(_device(device=one) for one in cards), alerts=())
    wanted = {"0": "GPU 0", "1": "GPU 1", "MIG-1": "MIG 1:0", "0:0": "MIG 0:0", "1:*": "MIG 1:0"}
    for target, said in wanted.items():
        assert ctl("explain", target, code=None).startswith(f"{said}  ")
    shown = ctl("status --gpu 1", code=None)
    assert ("GPU 1" in shown, "MIG 1:0" in shown, "MIG 0:0" in shown) == (True, True, False)
    here = "GPUs here: GPU 0, GPU 1, MIG 0:0, MIG 1:0"
    assert here in ctl.err("status --gpu 7")
    assert here in ctl.err("explain 7")
    eight = [msgspec.structs.replace(making.CARD, uid=f"GPU-{n}", index=n) for n in range(8)]
    world.write(devices=tuple(_device(device=card) for card in eight), alerts=())
    assert "GPUs here: GPU 0 to GPU 7" in ctl.err("status --gpu 9")


@pytest.mark.parametrize(
    ("days", "said"),
    [(365 * 290, r"llama3:8b \(until unloaded\)"), (0.5, r"llama3:8b \(until .*\d\d:\d\d\)")],
)
def test_a_model_that_stays_has_no_day_on_which_it_leaves(days: float, said: str) -> None:
    now_s = 1_790_000_000.0
    model = ServedModel(name="llama3:8b", expires_at_s=now_s + days * 86400.0)
    server = ServerReading(kind="Ollama", url="u", at_s=now_s, models=(model,))
    parts = [part for part in status.server_line(server, now_s=now_s) if isinstance(part, str)]
    assert any(re.fullmatch(said, part) for part in parts), parts


@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_a_terminal_gets_no_line_that_it_must_break_or_that_is_cut(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    rows = ["timestamp, index, name, memory.used [MiB], memory.total [MiB]"]
    rows += [f"2026/03/01 10:{k // 60:02}:{k % 60:02}.0, 0, A100, {9000 + 9 * k} MiB, 81920 MiB"
             for k in range(1800)]  # fmt: skip
    log = tmp_path / "gpu-of-a-node-with-a-long-name.csv"
    log.write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for arguments in (["doctor"], ["analyze", log.name]):
        shown = ctl(*arguments, code=None).splitlines()
        paths = [row for row in shown if "/" in row.split()[-1]]  # a path has no place to break
        assert max(map(width_of, [row for row in shown if row not in paths])) <= int(columns)
        assert not any(row.endswith("…") for row in shown if row not in paths), shown


@pytest.mark.parametrize(
    ("changes", "since_s"),
    [
        ({}, 9_900.0),
        ({"severity": "critical", "changed_at_s": 9_990.0}, 9_990.0),
        ({"state": "resolved", "changed_at_s": 9_999.0, "resolved_at_s": 9_999.0}, 9_900.0),
    ],
)
def test_an_alert_has_its_state_since_it_changed_not_since_it_grows(
    changes: dict[str, Any], since_s: float
) -> None:
    alert = making.alert(finding=making.finding(onset_at_s=8_000.0), **changes)
    assert verdict_text.since(alert, now_s=10_000.0) == units.clock(since_s, now_s=10_000.0)
    assert verdict_text.growth_since(alert, now_s=10_000.0)[1] == units.clock(
        8_000.0, now_s=10_000.0
    )
