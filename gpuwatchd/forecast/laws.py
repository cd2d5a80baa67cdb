"""The library of growth laws: how growth may go on, and when it then reaches the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.model import FloatArray

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
        self.log, self.hyper, self.shifted = log, hyper, shifted
        self.decay, self.stopped, self.logistic = decay, stopped, logistic
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

    def reach(self, ratio: FloatArray) -> FloatArray:
        """Return u (k, laws) where a law has grown (1 + ratio) times the window's growth.

        ``ratio`` (k,) is headroom over growth. Infinite where the law stops before.
        """
        target = self.first + self.rise * (1.0 + ratio[:, None])
        out = np.full(target.shape, np.inf)
        at = self.exponents.size
        np.power(target[:, :at], 1.0 / self.exponents, out=out[:, :at])
        part = slice(at, at + self.log.size)
        np.exp(np.minimum(target[:, part], 60.0), out=out[:, part])
        out[:, part] -= self.log
        part = slice(part.stop, part.stop + self.hyper.size)
        below = target[:, part] < 0.0
        np.divide(-1.0, target[:, part], out=out[:, part], where=below)
        out[:, part] -= self.hyper
        part = slice(part.stop, part.stop + self.shifted.size)
        np.square(target[:, part], out=out[:, part])
        out[:, part] -= self.shifted
        part = slice(part.stop, part.stop + self.decay.size)
        rest = 1.0 - target[:, part]
        np.log(rest, out=out[:, part], where=rest > 0.0)
        out[:, part] *= -self.decay
        # -inf * -τ cannot occur; where the logarithm was not taken inf * -τ must stay "never".
        out[:, part][rest <= 0.0] = np.inf
        part = slice(part.stop + self.stopped.size, None)
        value = target[:, part]
        inside = value < 1.0
        odds = np.divide(value, 1.0 - value, out=np.ones_like(value), where=inside)
        out[:, part] = np.where(inside, self.logistic + np.log(odds) / 10.0, np.inf)
        return out


LAWS = Laws()
