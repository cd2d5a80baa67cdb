"""What the page says of each library, word by word, with the real one on CPU.

``GPUWATCHD_TEST_FRAMEWORKS`` names an interpreter that has them, and gpuwatchd.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.children import Child
from tests.cli import world
from tests.conftest import ROOT, not_here, ran
from tests.docs.test_recipes import blocks
from tests.integrations.test_training import alert_on, checkpoints, state_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PYTHONS = (sys.executable, os.environ.get("GPUWATCHD_TEST_FRAMEWORKS", sys.executable))
HAS = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
LIGHTNING = """
from torch.utils.data import DataLoader
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
model, data = BoringModel(), DataLoader(RandomDataset(32, 8), batch_size=4)
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
import pathlib
(file,) = pathlib.Path("wandb").glob("offline-run-*/*.wandb")
assert b"gpuwatchd/gpu0_left_s" in file.read_bytes()
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


def python_with(library: str) -> str:
    """Return an interpreter that has a library; skip where none has: CI has no minutes for all."""
    found = [one for one in PYTHONS if not ran([one, "-c", HAS, library, "msgspec"]).returncode]
    return found[0] if found else not_here(f"GPUWATCHD_TEST_FRAMEWORKS: a Python with {library}")


def trained(tmp_path: Path, text: str, library: str = "sys") -> tuple[int, str]:
    """Run a job that a daemon has an alert on; return its pid, and what it wrote."""
    (tmp_path / "train.py").write_text(f"import sys; sys.stdin.readline()\n{text}")
    with world.history():
        pass
    with Child[str](
        [python_with(library), "train.py"], cwd=tmp_path, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as job:  # fmt: skip
        state_of(job.pid, alert_on(job.pid))
        out, _ = job.communicate("\n", timeout=200)
    assert (job.returncode, "Traceback" in out) == (0, False), out
    return job.pid, out


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.library)
def test_what_the_page_says(recipe: Recipe, tmp_path: Path) -> None:
    (block,) = (text for text in blocks("in-your-training", "python") if recipe.sign in text)
    pid, out = trained(tmp_path, recipe.before + block + recipe.after, recipe.library)
    assert out.count(f"gpuwatchd: warning: python[{pid}]: gradual, +12.4 MB/min") == 1
    points = checkpoints()
    assert [point.process.pid for point in points] == [pid] * bool(recipe.saved)
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
    assert f"-m pip install {name} True" in trained(tmp_path, text)[1]


def test_the_magic_in_ipython(tmp_path: Path) -> None:
    text = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().run_cell("%load_ext gpuwatchd.integrations.jupyter\\n%gpuwatch")
"""
    assert "full in 47 min" in trained(tmp_path, text, "IPython")[1]
