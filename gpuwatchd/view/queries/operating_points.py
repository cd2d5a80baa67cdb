"""How right and how early each sensitivity is, as the benchmark of detection measured it."""

from __future__ import annotations

import functools
from importlib import resources
from itertools import pairwise

import msgspec

from gpuwatchd.core import decoding
from gpuwatchd.core.config import SENSITIVITY
from gpuwatchd.view.answers.program import OperatingPoint, ThresholdFigures

FILE = "operating_points.json"


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file, which ``python -m tests.scenarios.bench --docs`` writes."""

    measured_on: str
    """Set of simulated runs."""
    command: str
    """What printed the figures."""
    thresholds: tuple[ThresholdFigures, ...]
    """Ascending."""


@functools.cache
def measured() -> Measured:
    """Return the figures that come with the program; read once."""
    content = resources.files("gpuwatchd.view.queries").joinpath(FILE).read_bytes()
    return decoding.decode(content, Measured)


def operating_points(threshold: float, known: Measured | None = None) -> tuple[OperatingPoint, ...]:
    """Return each sensitivity and the threshold in force, by ascending threshold.

    Parameters
    ----------
    threshold
        The confidence threshold in force. Where it was not measured, the two between which it lies
        are returned too.
    known
        Figures to take instead of those that come with the program.
    """
    figures = {row.alert_confidence: row for row in (known or measured()).thresholds}
    names = {level: name for name, level in SENSITIVITY.items()}
    nearest = {
        level
        for pair in pairwise(sorted(figures))
        if threshold not in figures and pair[0] < threshold < pair[1]
        for level in pair
    }
    return tuple(
        OperatingPoint(
            sensitivity=names.get(level),  # type: ignore[arg-type]
            alert_confidence=level,
            in_force=level == threshold,
            nearest=level in nearest,
            figures=figures.get(level),
        )
        for level in sorted({*names, *nearest, threshold})
    )
