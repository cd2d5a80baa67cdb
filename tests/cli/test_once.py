"""What stands on the screen stands there once, is of now, and fits."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import servers
from gpuwatchd.cli.output import width_of
from gpuwatchd.core.model import ServedModel, ServerReading
from gpuwatchd.store.live import LiveDevice
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
