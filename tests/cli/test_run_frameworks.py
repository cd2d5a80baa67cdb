"""The real PyTorch and JAX on CPU, from `run` to the name: ranks with loaders, arrays in a list.

``GPUWATCHD_TEST_FRAMEWORKS`` names an interpreter that has both, where this one has not.
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
from tests.cli.test_inspect import _mailbox_of
from tests.conftest import need

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

PYTHON = sys.executable if find_spec("torch") else os.environ.get("GPUWATCHD_TEST_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.slow,
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


@pytest.fixture(autouse=True)
def frameworks() -> None:
    need(PYTHON, "GPUWATCHD_TEST_FRAMEWORKS: an interpreter with PyTorch and JAX")


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
    assert out.count("ended") == 2
    assert "Traceback" not in err


JAX = """
import sys, time, jax.numpy as jnp
def serve():
    kept, scratch = [], []
    while True:
        kept.append(jnp.ones(8) * len(kept))
        scratch = [jnp.zeros(4) for _ in range(5)]
        time.sleep(0.02)
print("ready", flush=True)
serve()
"""


def test_arrays_of_jax(tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "_WARM_UP_S", 0.0)
    (tmp_path / "job.py").write_text(JAX)
    command = [str(world.PROGRAM), "run", "--", PYTHON, str(tmp_path / "job.py")]
    with Child[str](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        assert _mailbox_of(job.pid).framework.name == "jax"
        data = ctl.data("inspect", str(job.pid), "--every", "1s")
        assert job.poll() is None
    assert data["error"] is None
    assert {group["holder"]["name"] for group in data["growing"]} == {"kept in serve()"}
