"""Fits the interval of the time left: quantile regression, shifted by families left out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuwatchd.analysis.forecast import eta_coefficients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.scenarios.world import Array

ROUNDS = 30
FOLDS = 6
"""Families are left out a sixth at a time."""
RIDGE = 5e-3
NEAR = 0.01
"""Residuals below this weigh no more than it in the reweighted least squares."""

_HEAD = '''"""Coefficients of the interval of the time left: quantiles of log(truth / middle).

Written by ``python -m tests.scenarios.eta --write --items {items}``: edit nothing here.
"""

from __future__ import annotations

'''


def fit(features: Array, ratio: Array, family: npt.NDArray[Any], levels: Sequence[float]) -> Array:
    """Return the coefficients (levels, features), every family with the same weight.

    Each family is left out once, in :data:`FOLDS` folds; the constant is then moved so that, over
    the rows judged without their family, the share of each level lies below it (Romano, Patterson
    and Candès 2019, with families as the units that are exchanged).
    """
    weight = _weights(family)
    names = sorted(set(family.tolist()))
    # A fold without families, when there are few, moves nothing.
    out = np.empty((len(levels), features.shape[1]))
    for k, level in enumerate(levels):
        out[k] = quantile(features, ratio, weight, level)
        rest = ratio - features @ out[k]
        for fold in range(FOLDS):
            mine = np.isin(family, names[fold::FOLDS])
            others = ~mine
            if not mine.any() or not others.any():
                continue
            apart = quantile(features[others], ratio[others], weight[others], level)
            rest[mine] = ratio[mine] - features[mine] @ apart
        out[k, 0] += _weighted(rest, weight, level)
    return out


def quantile(features: Array, target: Array, weight: Array, level: float) -> Array:
    """Return a linear quantile regression by iterated least squares (Hunter and Lange 2000)."""
    weight = weight / weight.sum()
    mean = features.mean(axis=0)
    sd = features.std(axis=0)
    mean[sd < 1e-12], sd[sd < 1e-12] = 0.0, 1.0
    scaled = (features - mean) / sd
    ridge = RIDGE * np.eye(scaled.shape[1])
    ridge[0, 0] = 1e-9
    out = np.zeros(scaled.shape[1])
    out[0] = _weighted(target, weight, level)
    pull = (level - 0.5) * weight @ scaled
    for _ in range(ROUNDS):
        near = 0.5 * weight / np.maximum(np.abs(target - scaled @ out), NEAR)
        out = np.linalg.solve(
            (scaled * near[:, None]).T @ scaled + ridge, (scaled * near[:, None]).T @ target + pull
        )
    raw: Array = out / sd
    raw[0] = out[0] - float((out[1:] * mean[1:] / sd[1:]).sum())
    return raw


def _weights(family: npt.NDArray[Any]) -> Array:
    _, index, count = np.unique(family, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / count[index] / count.size
    return weights


def _weighted(values: Array, weight: Array, level: float) -> float:
    """Return a weighted quantile."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][min(np.searchsorted(total, level * total[-1]), values.size - 1)])


def write(
    coefficients: Array, levels: Sequence[float], features: Sequence[str], items: int
) -> None:
    """Write the module of coefficients."""
    lines = [_HEAD.format(items=items)]
    lines.append("LEVELS = (" + ", ".join(f"{level:g}" for level in levels) + ")\n")
    lines.append("FEATURES = (\n" + "".join(f'    "{name}",\n' for name in features) + ")\n")
    lines.append("COEFFICIENTS = (\n")
    lines += [
        "    (\n" + "".join(f"        {value:.4f},\n" for value in row) + "    ),\n"
        for row in coefficients.tolist()
    ]
    lines.append(")\n")
    Path(eta_coefficients.__file__).write_text("".join(lines), encoding="utf-8")
