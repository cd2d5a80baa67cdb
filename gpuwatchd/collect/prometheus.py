"""The text that servers show to Prometheus: the few lines that are wanted of it.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.model import ServedModel
from gpuwatchd.core.text import METRIC_LABEL, unescaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_MAX_LINES: Final = 2000
_MOST: Final = 1e18
MOST_MODELS: Final = 64
"""Of one server so many models are told: an hour of answers is remembered."""


class Metric(NamedTuple):
    """One line."""

    name: str
    """Without the prefix."""
    labels: dict[str, str]
    value: float


def metrics(raw: bytes, prefix: str, names: Iterable[str]) -> list[Metric]:
    r"""Return the lines of these metrics; broken lines and values that are no number are left out.

    ``prefix`` ("vllm") stands before a colon, or the underscore that some exporters make of it;
    ``names`` have none, and nothing else is looked at.

    Examples
    --------
    >>> metrics(b'x:used{m="a \\"b\\"",n="1"} 0.5\nx:used_other 1\n', "x", ["used"])
    [Metric(name='used', labels={'m': 'a "b"', 'n': '1'}, value=0.5)]
    """
    text = raw.decode("utf-8", "replace")
    any_name = "|".join(re.escape(name) for name in names)
    wanted = re.compile(
        rf"^{re.escape(prefix)}[:_]({any_name})(?=[{{ \t])[ \t]*(.*)$", re.MULTILINE
    )
    found = []
    for match, _ in zip(wanted.finditer(text), range(_MAX_LINES), strict=False):
        parsed = _rest(match.group(2))
        if parsed is not None:
            found.append(Metric(match.group(1), *parsed))
    return found


def _rest(text: str) -> tuple[dict[str, str], float] | None:
    """Parse what follows a name: labels, a value, perhaps a time."""
    labels: dict[str, str] = {}
    if text.startswith("{"):
        place = 1
        while (label := METRIC_LABEL.match(text, place)) is not None:
            labels[label.group(1)] = unescaped(label.group(2))
            place = label.end()
        end = text.find("}", place)
        if end < 0 or text[place:end].strip():
            return None
        text = text[end + 1 :]
    value = number(text)
    return None if value is None else (labels, value)


def number(text: str | None) -> float | None:
    """Return the number that a text begins with; None for what no server counts or holds."""
    try:
        value = float((text or "").split(None, 1)[0])
    except (IndexError, ValueError):
        return None
    return value if 0.0 <= value < _MOST else None


def values(found: Iterable[Metric], *names: str) -> list[float]:
    """Return the values of the first of these names that is there at all."""
    known = list(found)
    for name in names:
        if some := [metric.value for metric in known if metric.name == name]:
            return some
    return []


def over_engines(
    found: Iterable[Metric], names: tuple[str, ...], over: Callable[[Iterable[float]], float]
) -> float | None:
    """Return one value for a server of several engines; None when there is none.

    Lines that differ only in the rank within one engine (tensor or pipeline parallel) show the same
    figure once more, so that the largest of them counts once; ``over`` (sum or max) joins engines.
    With a ``priority`` label, the line without a priority is the total of the others.
    """
    known = list(found)
    for name in names:
        mine = [metric for metric in known if metric.name == name]
        total = [metric for metric in mine if not metric.labels.get("priority")]
        engines: dict[tuple[str | None, ...], float] = {}
        for metric in total or mine:
            key = tuple(metric.labels.get(label) for label in ("engine", "dp_rank", "model_name"))
            engines[key] = max(engines.get(key, -math.inf), metric.value)
        if engines:
            return over(engines.values())
    return None


def facts(found: list[Metric], names: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    """Return name -> the sum over all engines of the first of its metrics, of those there are."""
    sums = {name: over_engines(found, metrics, sum) for name, metrics in names.items()}
    return {name: value for name, value in sums.items() if value is not None}


def requests(found: list[Metric], name: str) -> int | None:
    """Return a number of requests over all engines."""
    return count(over_engines(found, (name,), sum))


def served(found: Iterable[Metric]) -> tuple[ServedModel, ...] | None:
    """Return the models that lines are labelled with, not more than a server has; None: none."""
    names = dict.fromkeys(metric.labels.get("model_name", "") for metric in found)
    return tuple(ServedModel(name=name) for name in names if name)[:MOST_MODELS] or None


def count(value: float | None) -> int | None:
    """Return a number of requests; None for what is none."""
    return round(value) if value is not None and 0.0 <= value < 1e9 else None


def share(value: float | None) -> float | None:
    """Return a share, 0-1; None for what is none."""
    return value if value is not None and 0.0 <= value <= 1.0 else None
