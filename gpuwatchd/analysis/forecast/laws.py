"""The library of growth laws: how growth may go on, and when it then reaches the limit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

BINS = 16
"""Increments that a window's growth is cut into."""


class Laws:
    """The library: each law φ on [0, 1] (window), its increments, and its inverse.

    Columns are grouped by kind, so that inverses are vectorised.
    """

    def __init__(self) -> None:
        power = np.array([1.35, 2.0, 3.0])
        root = np.array([0.75, 0.5, 0.33])
        log = np.array([0.02, 0.06, 0.2, 0.6, 2.0, 5.0])
        hyper = np.array([0.06, 0.2, 0.6, 2.0, 5.0])
        shifted = np.array([0.2, 0.6, 2.0])
        decay = np.array([0.12, 0.25, 0.5, 1.0, 2.0])
        stopped = np.array([0.45, 0.6, 0.75, 0.88])
        logistic = np.array([0.25, 0.5])
        self.exponents = np.concatenate(([1.0], power, root))
        self.log, self.hyper, self.shifted, self.decay = log, hyper, shifted, decay
        kind = 0.65 / 7
        kinds = (root, log, hyper, shifted, decay, stopped, logistic)
        self.prior: FloatArray = np.concatenate(
            [np.array([0.25]), np.full(3, 0.1 / 3)]
            + [np.full(k.size, kind / k.size) for k in kinds]
        )
        u = np.linspace(0.0, 1.0, BINS + 1)[:, None]
        values = np.concatenate(
            [
                u**self.exponents,
                np.log(u + log),
                -1.0 / (u + hyper),
                np.sqrt(u + shifted),
                1.0 - np.exp(-u / decay),
                np.minimum(u, stopped),
                1.0 / (1.0 + np.exp(-10.0 * (u - logistic))),
            ],
            axis=1,
        )
        self.first, self.rise = values[0], values[-1] - values[0]
        share = 0.97 * np.diff(values, axis=0) / self.rise + 0.03 / BINS
        self.log_odds: FloatArray = np.log(BINS * share)
        """(16, laws): log of each law's share of growth per bin over the even share."""
        self.log_prior = np.log(self.prior)
        self._start, self._height = self.first[:, None], self.rise[:, None]
        self._roots, self._decay = 1.0 / self.exponents[:, None], -decay[:, None]
        self._log, self._hyper = log[:, None], hyper[:, None]
        self._shifted, self._logistic = shifted[:, None], logistic[:, None]
        edges = np.cumsum([0, self.exponents.size, *(k.size for k in kinds[1:])]).tolist()
        blocks = [slice(first, last) for first, last in pairwise(edges)]
        # Those that have stopped never reach anything.
        self._kinds = [*blocks[:5], blocks[6]]

    def reach(self, ratio: FloatArray) -> FloatArray:
        """Return u (k, laws) where a law has grown (1 + ratio) times the window's growth.

        ``ratio`` (k,) is headroom over growth. Infinite where the law stops before.
        """
        # One row per law: each kind is a block of memory of its own.
        target = self._start + self._height * (1.0 + ratio)
        out = np.empty(target.shape)
        out.fill(np.inf)
        powers, log, hyper, shifted, decay, logistic = self._kinds
        np.power(target[powers], self._roots, out=out[powers])
        here = out[log]
        np.exp(np.minimum(target[log], 60.0), out=here)
        here -= self._log
        # What is left out below stays infinite: there the law has stopped before.
        value, here = target[hyper], out[hyper]
        np.divide(-1.0, value, out=here, where=value < 0.0)
        here -= self._hyper
        value, here = target[shifted], out[shifted]
        np.multiply(value, value, out=here)
        here -= self._shifted
        rest, here = 1.0 - target[decay], out[decay]
        some = rest > 0.0
        np.log(rest, out=here, where=some)
        np.multiply(here, self._decay, out=here, where=some)
        value, here = target[logistic], out[logistic]
        some = value < 1.0
        np.divide(value, 1.0 - value, out=here, where=some)
        np.log(here, out=here, where=some)
        here /= 10.0
        here += self._logistic
        return out.T


LAWS = Laws()
