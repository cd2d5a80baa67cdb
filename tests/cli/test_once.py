"""What stands on the screen stands there once, is of now, and fits."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import servers, verdict_text
from gpuwatchd.cli.output import width_of
from gpuwatchd.core.model import DeviceReading, Holding, ServedModel, ServerReading
from gpuwatchd.store.live import KnownRuns, LiveDevice
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

GIB = making.GIB


def _shown(ctl: Ctl, *arguments: str) -> str:
    return ctl(*arguments, code=None)


def _device(**changes: Any) -> LiveDevice:
    values: dict[str, Any] = {
        "device": making.CARD, "reading": world.reading(making.CARD.uid, 10), "processes": (),
    }  # fmt: skip
    return LiveDevice(**{**values, **changes})


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
        assert _shown(ctl, "explain", target).startswith(f"{said}  ")
    shown = _shown(ctl, "status", "--gpu", "1")
    assert ("GPU 1" in shown, "MIG 1:0" in shown, "MIG 0:0" in shown) == (True, True, False)
    assert "GPUs here: 0, 1, 0:0, 1:0" in ctl.err("status --gpu 7")


def test_what_is_held_on_a_released_gpu_was_seen_before(ctl: Ctl) -> None:
    held = Holding(kind="gone", device_uid=making.CARD.uid, held_bytes=GIB, since_s=time.time())
    silent = DeviceReading(
        device_uid=making.CARD.uid, used_bytes=None, free_bytes=None, total_bytes=None,
        state="released",
    )  # fmt: skip
    world.write(devices=(_device(reading=silent, processes=None),), holdings=(held,), alerts=())
    shown = " ".join(_shown(ctl, "zombies").split())
    assert "GPU 0: its process list is unknown now, what is listed there was seen before" in shown
    assert "1 in all, 1.0 GiB; no process list can be read now" in shown
    world.write(devices=(_device(reading=silent, processes=None),), alerts=())
    shown = " ".join(_shown(ctl, "zombies").split())
    assert "nothing is said of it" in shown
    assert "whether memory is held without work is unknown" in shown
    assert "nothing is held" not in shown


@pytest.mark.parametrize(
    ("days", "said"),
    [(365 * 290, r"llama3:8b \(until unloaded\)"), (0.5, r"llama3:8b \(until .*\d\d:\d\d\)")],
)
def test_a_model_that_stays_has_no_day_on_which_it_leaves(days: float, said: str) -> None:
    now_s = 1_790_000_000.0
    model = ServedModel(name="llama3:8b", expires_at_s=now_s + days * 86400.0)
    server = ServerReading(kind="Ollama", url="u", at_s=now_s, models=(model,))
    parts = [part for part in servers.line(server, now_s=now_s) if isinstance(part, str)]
    assert any(re.fullmatch(said, part) for part in parts), parts


def test_no_line_repeats_the_one_above_it(ctl: Ctl) -> None:
    world.write()
    shown = _shown(ctl, "status")
    alarm, _ = verdict_text.verdict(world.leak())
    assert shown.count(alarm) == 1
    assert alarm in _shown(ctl, "status", "--pid", "4711")
    runs = KnownRuns(runs=2, siblings=3)
    one = msgspec.structs.replace(world.process(finding=world.leak()), history=runs)
    for size, known in ((None, "2 earlier runs, 3 siblings"), (4, "2 earlier runs")):
        rank = msgspec.structs.replace(
            one, info=msgspec.structs.replace(one.info, rank=0, world=size)
        )
        world.write(devices=(_device(processes=(rank,)),), alerts=())
        rows = [row.strip() for row in _shown(ctl, "status").splitlines()]
        assert any(row.endswith(known) for row in rows), rows
    world.write(world.odd())
    wide = _shown(ctl, "status", "--wide")
    assert wide.count("nobody owns") == 1
    assert "unattributed" not in wide


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
