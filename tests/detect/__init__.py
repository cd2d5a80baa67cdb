"""Tests of the detectors, on series that are sampled every five seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuwatchd.core.model import Series, Subject

if TYPE_CHECKING:
    from gpuwatchd.core.model import Signal
    from gpuwatchd.core.ports import Detector

Floats = npt.NDArray[np.floating[Any]]
T = np.arange(0.0, 3600.0, 5.0)


def one(x: Floats) -> Series:
    """Return a series of these bytes."""
    used, t_s = np.asarray(x, dtype=np.float64), np.arange(0.0, 5.0 * x.size, 5.0)
    return Series(subject=Subject(device_uid="G"), t_s=t_s, used_bytes=used, limit_bytes=None)


def fires(detector: Detector, x: Floats) -> Signal:
    """Return what a detector says of these bytes; it has to say something."""
    signal = detector.detect(one(x))
    assert signal is not None
    return signal
