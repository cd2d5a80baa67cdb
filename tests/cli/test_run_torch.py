"""Two ranks of torchrun with loader processes, from `run` to the name; skips without PyTorch.

``GPUWATCHD_TEST_TORCH`` names an interpreter that has it, where this one has not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli.verbs import inspect
from gpuwatchd.collect import mailboxes
from tests.children import Child
from tests.cli import world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

PYTHON = sys.executable if find_spec("torch") else os.environ.get("GPUWATCHD_TEST_TORCH", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="no PyTorch: GPUWATCHD_TEST_TORCH=/path/to/its/python"),
    pytest.mark.timeout(400),
]
JOB = """
import os, sys, torch
import torch.distributed as dist
from torch.utils.data import DataLoader

def train():
    dist.init_process_group("gloo")
    model, losses, ended = torch.nn.Linear(8, 1), [], torch.zeros(1)
    while not ended:
        for batch in DataLoader(torch.randn(64, 8), batch_size=4, num_workers=2):
            loss = model(batch).mean()
            loss.backward()
            losses.append(loss)
        ended += os.path.exists(sys.argv[1])
        dist.all_reduce(ended)

if __name__ == "__main__":
    train()
    print("ended")
"""


def test_two_ranks_and_their_loaders(
    tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "_WARM_UP_S", 0.0)
    (tmp_path / "job.py").write_text(JOB)
    end = tmp_path / "end"
    command: list[Any] = [
        world.PROGRAM,
        "run",
        "--",
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
    ]
    command += ["--nproc-per-node", "2", tmp_path / "job.py", end]
    place = mailboxes.folder(os.getuid())
    with Child[str](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        ranks: dict[int | None, int] = {}
        until_s = time.monotonic() + 200
        while not {0, 1} <= ranks.keys():
            assert time.monotonic() < until_s, list(place.iterdir())
            assert job.poll() is None, job.communicate()
            time.sleep(0.5)
            for file in place.glob("[0-9]*.json"):
                box = mailboxes.read(place, int(file.stem), os.getuid())
                if isinstance(box, mailboxes.Mailbox):
                    ranks[box.rank] = box.pid
        data = ctl.data("inspect", str(ranks[1]), "--every", "3s")
        end.touch()
        out, err = job.communicate(timeout=100)
    assert data["error"] is None
    names = {group["holder"]["name"] for group in data["growing"] if group["holder"]}
    assert names == {"losses in train()"}
    assert out == "ended\nended\n"
    assert "Traceback" not in err
