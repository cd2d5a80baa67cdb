"""Leaks that people reported in public, re-made small: a source, what the answer has to name, and the loop.

Each loop takes `tick`, which says whether to go on and takes its time. The words of `EXPECTED` were written
before the walker was run on any of them: every word of one row must be in the name. An empty row means that
no name is right and that any name would be wrong.
"""

import functools

import torch
from torch import nn
from torch.utils.data import Dataset

SIDE = 32


def running_total(tick):
    """BatsResearch/labelmodels#4: the loss of an epoch is a sum of tensors with their graphs."""
    model = nn.Linear(SIDE, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    running_loss = 0.0
    while tick():
        optimizer.zero_grad()
        loss = model(torch.randn(8, SIDE)).pow(2).mean()
        loss.backward()
        optimizer.step()
        running_loss += loss
    return running_loss


class RetrievalMetric(nn.Module):
    """Lightning-AI/torchmetrics#2481: list states of a metric that nobody resets."""

    def __init__(self):
        super().__init__()
        self.indexes, self.preds = [], []

    def update(self, preds):
        self.preds.append(preds.detach())
        self.indexes.append(0)


def metric_states(tick):
    metrics = nn.ModuleDict({"mrr": RetrievalMetric()})
    model = nn.Linear(SIDE, SIDE)
    while tick():
        for metric in metrics.values():
            metric.update(model(torch.randn(SIDE, SIDE)))


class EvaluationLoop:
    """Lightning-AI/pytorch-lightning#8453: what validation_step returns is kept for the end of the epoch."""

    def __init__(self):
        self.outputs = []

    def advance(self, module, batch):
        self.outputs.append({"loss": module(batch).mean(), "batch": batch})


class Trainer:
    def __init__(self):
        self.evaluation_loop = EvaluationLoop()

    def validate(self, module, tick):
        while tick():
            with torch.no_grad():
                self.evaluation_loop.advance(module, torch.randn(SIDE, SIDE))


def step_outputs(tick):
    Trainer().validate(nn.Linear(SIDE, SIDE), tick)


def log_metrics(logs, z, loss):
    """KempnerInstitute/overcomplete#5: some activations of each step go to the log and stay on the device."""
    logs["z"].append(z.detach()[::2])
    logs["loss"].append(loss.item())


def training_log(tick):
    logs = {"z": [], "loss": []}
    encoder = nn.Linear(SIDE, SIDE)
    while tick():
        z = encoder(torch.randn(SIDE, SIDE))
        log_metrics(logs, z, z.pow(2).mean())


class CodesDataset(Dataset):
    """MoonshotAI/Kimi-Audio#117: lru_cache(maxsize=None) around __getitem__."""

    def __len__(self):
        return 1 << 20

    @functools.lru_cache(maxsize=None)  # noqa: B019
    def __getitem__(self, index):
        return {"codes": torch.full((SIDE, SIDE), float(index))}


def cached_items(tick):
    dataset = CodesDataset()
    model = nn.Linear(SIDE, SIDE)
    index = 0
    while tick():
        model(dataset[index]["codes"])
        index += 1


def prediction_loop(tick):
    """huggingface/transformers#7232: predictions are concatenated on the device, step by step."""
    model = nn.Linear(SIDE, SIDE)
    preds = None
    while tick():
        with torch.no_grad():
            logits = model(torch.randn(SIDE, SIDE))
        preds = logits if preds is None else torch.cat((preds, logits), dim=0)
    return preds


def hidden_state(tick):
    """pytorch/pytorch#2198: the hidden state of a network is fed back and never detached."""
    cell = nn.RNNCell(SIDE, SIDE)
    hidden = torch.zeros(4, SIDE)
    while tick():
        hidden = cell(torch.randn(4, SIDE), hidden)
    return hidden


def kept_errors(tick):
    """pytorch/pytorch#18853: the exception of a batch that did not fit is kept, and its frames with it."""
    failures = []

    def forward(batch):
        activations = batch @ batch.T
        raise RuntimeError("out of memory, %d" % activations.numel())

    while tick():
        try:
            forward(torch.randn(SIDE, SIDE))
        except RuntimeError as error:
            failures.append(error)


class Plots:
    """cdtools-developers/cdtools#87: each inspection registers a callback that closes over its tensors."""

    def __init__(self):
        self.callbacks = []

    def inspect(self, probe):
        def redraw():
            return probe.abs().sum()

        self.callbacks.append(redraw)
        return redraw()


def stale_callbacks(tick):
    plots = Plots()
    while tick():
        plots.inspect(torch.randn(SIDE, SIDE))


class PrivacyEngine:
    """meta-pytorch/opacus#176: a forward hook saves activations that only a backward pass takes away."""

    def __init__(self, model):
        for layer in model:
            layer.activations = []
            layer.register_forward_hook(self.capture)

    @staticmethod
    def capture(layer, inputs, output):
        layer.activations.append(inputs[0].detach())


def saved_activations(tick):
    model = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE))
    PrivacyEngine(model)
    while tick():
        with torch.no_grad():
            model(torch.randn(SIDE, SIDE))


@functools.lru_cache(maxsize=None)
def adapter_params(model):
    """meta-pytorch/torchtune#904: a cached function has models for keys, and every fold has its own model."""
    return {name: parameter for name, parameter in model.named_parameters() if "bias" in name}


def cached_models(tick):
    while tick():
        model = nn.Linear(SIDE, SIDE)
        adapter_params(model)


class StateDictHook:
    """pytorch/pytorch#96259: a class variable keeps the flat parameters of every saved state."""

    flat_params = {}

    def save(self, step, model):
        self.flat_params[step] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def class_variable(tick):
    model = nn.Linear(SIDE, SIDE)
    hook = StateDictHook()
    step = 0
    while tick():
        hook.save(step, model)
        step += 1


# The words that the name has to hold; further rows are names that are as good.
EXPECTED = {
    running_total: [["running_loss"]],
    metric_states: [["preds"]],
    step_outputs: [["outputs"]],
    training_log: [["logs", "z"]],
    cached_items: [["__getitem__"]],
    prediction_loop: [["preds"]],
    hidden_state: [["hidden"]],
    kept_errors: [["failures"]],
    stale_callbacks: [["callbacks"]],
    saved_activations: [["activations"]],
    cached_models: [["adapter_params"]],
    class_variable: [["flat_params"]],
}
