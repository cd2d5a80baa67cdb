# ruff: noqa: INP001
"""A loop on the CPU that keeps the loss of each batch, and with it all that its graph saved."""

from __future__ import annotations

import time

import torch

BATCHES_PER_S, SECONDS = 10, 300


def evaluate() -> None:
    """Judge a model on batches without end."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    began_s = time.monotonic()
    losses = []
    for number in range(BATCHES_PER_S * SECONDS):
        batch = torch.randn(64, 64)
        loss = model(batch).square().mean()
        losses.append(loss)
        time.sleep(max(0.0, began_s + number / BATCHES_PER_S - time.monotonic()))


if __name__ == "__main__":
    evaluate()
