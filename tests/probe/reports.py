"""Leaks that people reported in public, re-made small: each a job for ``tests.probe.planted``.

``python reports.py NAME --kit torch --every S``; what has to be named is in ``leaks.REPORTED``,
which was written before the walker was run on any of them.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import leaks  # type: ignore[import-not-found,unused-ignore]
import torch
from leaks import CLEAN_TORCH, REPORTED
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

SIDE = 32
PROGRAMS = {*REPORTED, *CLEAN_TORCH}


def running_total(kit: Any) -> Any:
    """BatsResearch/labelmodels#4: the loss of an epoch is a sum of tensors with their graphs."""
    model = nn.Linear(SIDE, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    running_loss = 0.0
    for _ in leaks.steps():
        optimizer.zero_grad()
        loss = model(torch.randn(8, SIDE)).pow(2).mean()
        loss.backward()
        optimizer.step()
        running_loss += loss
    return running_loss


class RetrievalMetric(nn.Module):  # type: ignore[misc,unused-ignore]
    """Lightning-AI/torchmetrics#2481: list states of a metric that nobody resets."""

    def __init__(self) -> None:
        super().__init__()
        self.indexes: list[int] = []
        self.preds: list[Any] = []

    def update(self, preds: Any) -> Any:
        self.preds.append(preds.detach())
        self.indexes.append(0)


def metric_states(kit: Any) -> Any:
    metrics = nn.ModuleDict({"mrr": RetrievalMetric()})
    model = nn.Linear(SIDE, SIDE)
    for _ in leaks.steps():
        for metric in metrics.values():
            metric.update(model(torch.randn(SIDE, SIDE)))


class EvaluationLoop:
    """Lightning-AI/pytorch-lightning#8453: what validation_step returns is kept."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []

    def advance(self, module: Any, batch: Any) -> Any:
        self.outputs.append({"loss": module(batch).mean(), "batch": batch})


class Trainer:
    def __init__(self) -> None:
        self.evaluation_loop = EvaluationLoop()

    def validate(self, module: Any) -> Any:
        for _ in leaks.steps():
            with torch.no_grad():
                self.evaluation_loop.advance(module, torch.randn(SIDE, SIDE))


def step_outputs(kit: Any) -> Any:
    Trainer().validate(nn.Linear(SIDE, SIDE))


def log_metrics(logs: Any, z: Any, loss: Any) -> Any:
    """KempnerInstitute/overcomplete#5: some activations of each step go to the log."""
    logs["z"].append(z.detach()[::2])
    logs["loss"].append(loss.item())


def training_log(kit: Any) -> Any:
    logs: dict[str, list[Any]] = {"z": [], "loss": []}
    encoder = nn.Linear(SIDE, SIDE)
    for _ in leaks.steps():
        z = encoder(torch.randn(SIDE, SIDE))
        log_metrics(logs, z, z.pow(2).mean())


class CodesDataset(Dataset):  # type: ignore[misc,unused-ignore]
    """MoonshotAI/Kimi-Audio#117: lru_cache(maxsize=None) around __getitem__."""

    def __len__(self) -> Any:
        return 1 << 20

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def __getitem__(self, index: Any) -> Any:
        return {"codes": torch.full((SIDE, SIDE), float(index))}


def cached_items(kit: Any) -> Any:
    dataset = CodesDataset()
    model = nn.Linear(SIDE, SIDE)
    for index in leaks.steps():
        model(dataset[index]["codes"])


def prediction_loop(kit: Any) -> Any:
    """huggingface/transformers#7232: predictions are concatenated on the device, step by step."""
    model = nn.Linear(SIDE, SIDE)
    preds = None
    for _ in leaks.steps():
        with torch.no_grad():
            logits = model(torch.randn(SIDE, SIDE))
        preds = logits if preds is None else torch.cat((preds, logits), dim=0)
    return preds


def hidden_state(kit: Any) -> Any:
    """pytorch/pytorch#2198: the hidden state of a network is fed back and never detached."""
    cell = nn.RNNCell(SIDE, SIDE)
    hidden = torch.zeros(4, SIDE)
    for _ in leaks.steps():
        hidden = cell(torch.randn(4, SIDE), hidden)
    return hidden


def kept_errors(kit: Any) -> Any:
    """pytorch/pytorch#18853: the exception of a batch that did not fit is kept."""
    failures: list[Exception] = []

    def forward(batch: Any) -> Any:
        activations = batch @ batch.T
        raise RuntimeError(f"out of memory, {activations.numel()}")

    for _ in leaks.steps():
        try:
            forward(torch.randn(SIDE, SIDE))
        except RuntimeError as error:
            failures.append(error)


class Plots:
    """cdtools-developers/cdtools#87: callbacks that close over stale tensors are never released."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def inspect(self, probe: Any) -> Any:
        def redraw() -> Any:
            return probe.abs().sum()

        self.callbacks.append(redraw)
        return redraw()


def stale_callbacks(kit: Any) -> Any:
    plots = Plots()
    for _ in leaks.steps():
        plots.inspect(torch.randn(SIDE, SIDE))


class PrivacyEngine:
    """meta-pytorch/opacus#176: activations of a hook that only a backward pass takes away."""

    def __init__(self, model: Any) -> None:
        for layer in model:
            layer.activations = []
            layer.register_forward_hook(self.capture)

    @staticmethod
    def capture(layer: Any, inputs: Any, output: Any) -> Any:
        layer.activations.append(inputs[0].detach())


def saved_activations(kit: Any) -> Any:
    model = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE))
    PrivacyEngine(model)
    for _ in leaks.steps():
        with torch.no_grad():
            model(torch.randn(SIDE, SIDE))


@functools.lru_cache(maxsize=None)  # noqa: UP033 - as reported
def adapter_params(model: Any) -> Any:
    """meta-pytorch/torchtune#904: a cached function has models for keys, one a fold."""
    return {name: parameter for name, parameter in model.named_parameters() if "bias" in name}


def cached_models(kit: Any) -> Any:
    for _ in leaks.steps():
        model = nn.Linear(SIDE, SIDE)
        adapter_params(model)


class StateDictHook:
    """pytorch/pytorch#96259: a class variable keeps the flat parameters of every saved state."""

    flat_params: dict[int, Any] = {}  # noqa: RUF012

    def save(self, step: Any, model: Any) -> Any:
        self.flat_params[step] = torch.cat(
            [parameter.detach().flatten() for parameter in model.parameters()]
        )


def class_variable(kit: Any) -> Any:
    model = nn.Linear(SIDE, SIDE)
    hook = StateDictHook()
    for step in leaks.steps():
        hook.save(step, model)


def clean_adam(kit: Any) -> None:
    """The moments of Adam are made in the first steps of each part of the model."""
    head, body = nn.Linear(SIDE, 1), nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(20)))
    optimizer = torch.optim.Adam([*head.parameters(), *body.parameters()], lr=1e-3)
    for number in leaks.steps():
        loss = head(body(torch.randn(4, SIDE)) if number > 150 else torch.randn(4, SIDE)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def clean_loader(kit: Any) -> None:
    """A real data loader, with two processes."""
    rows = TensorDataset(torch.randn(4096, SIDE))
    model = nn.Linear(SIDE, 1)
    steps = leaks.steps()
    while not leaks.DONE.is_set():
        loader = DataLoader(rows, batch_size=16, num_workers=2, shuffle=True)
        for (batch,), _ in zip(loader, steps, strict=False):
            model(batch).mean().backward()


def clean_script(kit: Any) -> None:
    """A model compiled by torch.jit.script, on batches of many lengths."""
    warnings.simplefilter("ignore")
    model = torch.jit.script(nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, 1)))
    for number in leaks.steps():
        model(torch.randn(1 + 7 * number % 11, SIDE)).mean().backward()


if __name__ == "__main__":
    leaks.main({name: program for name, program in globals().items() if name in PROGRAMS})
