"""What the page says of each library, word by word, with the real one on CPU.

``GPUWATCHD_TEST_FRAMEWORKS`` names an interpreter that has them, and gpuwatchd.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.children import Child
from tests.cli import world
from tests.conftest import ROOT, not_here, ran
from tests.docs.test_recipes import blocks
from tests.integrations.test_training import alert_on, checkpoints, state_of

if TYPE_CHECKING:
    from pathlib import Path

OTHER = os.environ.get("GPUWATCHD_TEST_FRAMEWORKS", "")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
INSTALLED = "import sys; from importlib.util import find_spec as f; print(*filter(f, sys.argv[1:]))"
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
COPIED = """
import pickle
pickle.loads(pickle.dumps(GpuwatchdCallback()))
"""
"""As a launcher of ranks does it."""
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

    library: str
    """What it needs."""
    sign: str
    """What tells the block from the others."""
    before: str
    after: str = ""
    saved: str = ""
    """What is reported: of several checkpoints within ten seconds the first."""


RECIPES = [
    Recipe("lightning", "integrations.lightning", LIGHTNING, COPIED, saved="step 2 of "),
    Recipe(
        "transformers", "integrations.huggingface", HUGGINGFACE, COPIED, saved="step 10 of run-7"
    ),
    Recipe("keras", "integrations.keras", KERAS, COPIED, saved="epoch 1 of small"),
    Recipe("sys", "watch.saved", LOOP, saved="step 49 of run-7"),
    Recipe("tensorboard", "SummaryWriter", LOOP, TENSORBOARD),
    Recipe("wandb", "wandb.init", LOOP, WANDB),
]


@functools.cache
def installed() -> frozenset[str]:
    """Return what the other interpreter has of what these tests need."""
    names = ["msgspec", "IPython", *(recipe.library for recipe in RECIPES)]
    done = ran([OTHER, "-c", INSTALLED, *names], check=True) if OTHER else None
    return frozenset(done.stdout.split() if done else ())


def python_with(library: str) -> str:
    """Return an interpreter that has a library; skip where none has: CI has no minutes for all."""
    if find_spec(library):
        return sys.executable
    if not installed() >= {library, "msgspec"}:
        not_here(f"{library} and what gpuwatchd needs: GPUWATCHD_TEST_FRAMEWORKS names who has it")
    return OTHER


def started(tmp_path: Path, text: str, library: str = "sys") -> Child[str]:
    """Start a job that waits for a line on its standard input, and then does this."""
    (tmp_path / "train.py").write_text(WAIT + text)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    return Child[str](
        [python_with(library), "train.py"], cwd=tmp_path, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(job: Child[str]) -> str:
    """Let a job go on, and return what it wrote."""
    out, err = job.communicate("\n", timeout=200)
    assert job.returncode == 0, err
    assert "Traceback" not in err
    return out + err


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.library)
def test_what_the_page_says(recipe: Recipe, tmp_path: Path) -> None:
    (block,) = (text for text in blocks("in-your-training", "python") if recipe.sign in text)
    with world.history():
        pass
    with started(tmp_path, recipe.before + block + recipe.after, recipe.library) as job:
        state_of(job.pid, alert_on(job.pid))
        written = ended(job)
    assert written.count(f"gpuwatchd: warning: python[{job.pid}]: gradual, +12.4 MB/min") == 1
    points = checkpoints()
    assert [point.process.pid for point in points] == [job.pid] * bool(recipe.saved)
    assert all(point.detail.startswith(recipe.saved) for point in points)


@pytest.mark.parametrize("module", ["lightning", "huggingface", "keras"])
def test_without_its_library_a_callback_says_what_to_install(module: str, tmp_path: Path) -> None:
    name = "transformers" if module == "huggingface" else module
    text = f"""
import sys
class Missing:
    def find_spec(self, name, *_):
        if name == {name!r}: raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Missing())
try:
    import gpuwatchd.integrations.{module}
except ModuleNotFoundError as error:
    print(error, error.__suppress_context__)
"""
    with started(tmp_path, text) as job:
        assert f"-m pip install {name} True" in ended(job)


def test_the_magic_in_ipython(tmp_path: Path) -> None:
    text = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext gpuwatchd.integrations.jupyter\\n%gpuwatch")
"""
    with started(tmp_path, text, "IPython") as job:
        state_of(job.pid, alert_on(job.pid))
        written = ended(job)
    assert "50.0 GiB" in written
    assert "full in 47 min" in written
