"""What the page says of each library, word by word, with the real one on CPU.

``GPUWATCHD_TEST_FRAMEWORKS`` names an interpreter that has them, and gpuwatchd.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import psutil
import pytest

from gpuwatchd.core import config
from gpuwatchd.core.model import ProcessInfo, ProcessKey, Subject
from gpuwatchd.store.live import LiveDevice, LiveProcess
from gpuwatchd.store.reader import Reader
from tests import making
from tests.children import Child
from tests.cli import world
from tests.conftest import ROOT, need
from tests.docs.test_recipes import blocks

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = (
    sys.executable if find_spec("lightning") else os.environ.get("GPUWATCHD_TEST_FRAMEWORKS", "")
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WAIT = "import sys; sys.stdin.readline()\n"
"""The state that names this process is written meanwhile."""
LIGHTNING = """
import lightning.pytorch as pl, torch
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
model, data = Model(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
"""
HUGGINGFACE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": self.layer(x).mean()}
model, data = Model(), [{"x": torch.ones(4)}] * 8
"""
KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
model = keras.Sequential([keras.layers.Dense(1)], name="small")
model.compile("sgd", "mse")
x, y = numpy.ones((8, 4)), numpy.ones((8, 1))
"""
LOOP = """
def train(step): return 1.0 / (step + 1)
def save(step): pass
"""
TENSORBOARD = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("runs/7")
events.Reload()
tags = events.Tags()["scalars"]
assert "loss" in tags and "gpuwatchd/gpu0_used_bytes" in tags, tags
"""
WANDB = """
import json, pathlib
(file,) = pathlib.Path("wandb").glob("offline-run-*/*.wandb")
content = file.read_bytes()
assert b"gpuwatchd/gpu0_left_s" in content and b"gpuwatchd/alerts" in content
"""


class Recipe(NamedTuple):
    """What stands around a block of the page."""

    names: str
    """What tells the block from the others."""
    before: str
    after: str = ""
    saved: tuple[str, ...] = ()
    """What is reported: of several within ten seconds the first."""
    shows: bool = True


RECIPES = {
    "lightning": Recipe("integrations.lightning", LIGHTNING, saved=("step 2 of ",)),
    "huggingface": Recipe("integrations.huggingface", HUGGINGFACE, saved=("step 10 of run-7",)),
    "keras": Recipe("integrations.keras", KERAS, saved=("epoch 1 of small",)),
    "loop": Recipe("watch.saved", LOOP, saved=("step 49 of run-7",)),
    "tensorboard": Recipe("SummaryWriter", LOOP, TENSORBOARD),
    "wandb": Recipe("wandb.init", LOOP, WANDB),
}


@pytest.fixture(autouse=True)
def _libraries() -> None:
    need(PYTHON, "GPUWATCHD_TEST_FRAMEWORKS: an interpreter with Lightning and others")


def started(tmp_path: Path, text: str, *words: str) -> Child[str]:
    """Start a job that waits for a line on its standard input, and then does this."""
    (tmp_path / "train.py").write_text(WAIT + text)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    return Child[str](
        [PYTHON, *words, "train.py"], cwd=tmp_path, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def watched(pid: int) -> None:
    """Write the state of a daemon that has an alert on a process."""
    key = ProcessKey(pid=pid, started_at_s=psutil.Process(pid).create_time())
    info = ProcessInfo(key=key, name="python", user="alice", argv=("python", "train.py"))
    subject = Subject(device_uid=making.CARD.uid, process=key)
    finding = world.leak(subject=subject)
    process = LiveProcess(info=info, used_bytes=50 * world.GIB, finding=finding)
    device = LiveDevice(
        device=making.CARD, reading=world.reading(making.CARD.uid, 52), processes=(process,)
    )
    alert = world.firing(key="leak:1", subject=subject, finding=finding, title=f"python[{pid}]")
    world.write(devices=(device,), alerts=(alert,))


def ended(job: Child[str]) -> str:
    """Let a job go on, and return what it wrote."""
    out, err = job.communicate("\n", timeout=200)
    assert job.returncode == 0, err
    assert "Traceback" not in err
    return out + err


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_page_says(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    (block,) = (text for text in blocks("in-your-training", "python") if recipe.names in text)
    with world.history():
        pass
    with started(tmp_path, recipe.before + block + recipe.after) as job:
        watched(job.pid)
        written = ended(job)
    assert written.count(f"gpuwatchd: warning: python[{job.pid}]: gradual, +12.4 MB/min") == 1
    with Reader.open(config.state_dir()) as reader:
        points = reader.checkpoints()
    assert [point.process.pid for point in points] == [job.pid] * len(recipe.saved)
    assert all(point.detail.startswith(x) for point, x in zip(points, recipe.saved, strict=True))
