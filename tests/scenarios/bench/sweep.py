"""The same items at other confidence thresholds, judged once for all of them.

As ``gpuwatchctl backtest`` does it: above the level of a watch a threshold decides nothing but
whether a judgement is a watch or an alert. So the judgements of the replay with default settings
are kept, and policy alone is played again until the first alert; what is judged anew are the few
instants that the first replay, which looks less often once it fires, has left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.collect.logs.log_types import LogFile
from gpuwatchd.core import config
from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.pipeline.backtest import RecallingEvaluator
from tests.scenarios.bench import field
from tests.scenarios.replay import Life, replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import Series
    from gpuwatchd.pipeline.backtest import Findings
    from tests.scenarios.bench.outcome import Outcome

DEFAULT = DetectionSection().confidence_threshold
POINTS: Mapping[str, float] = config.SENSITIVITY
"""Name of an operating point -> its threshold."""
LEVELS = tuple(sorted({0.5, 0.65, 0.72, 0.76, 0.88, DEFAULT, *POINTS.values()}))
Recall = dict[DetectionSection, "Findings"]


def evaluator(level: float, recall: Recall) -> RecallingEvaluator:
    """Return an evaluator at a threshold that judges nothing that ``recall`` holds."""
    detection = msgspec.structs.replace(DetectionSection(), confidence_threshold=level)
    return RecallingEvaluator(Config(detection=detection), recall, LogFile(path="made up"))


def lives(series: Series, *, levels: Sequence[float] = ()) -> tuple[Life, list[float | None]]:
    """Return the life of a series with default settings, and its first alert at each of ``levels``.

    These ascend. Times in seconds since the first sample.
    """
    recall: Recall = {}
    life = replay(series, evaluator=evaluator(DEFAULT, recall))
    highest = max(
        (
            one.confidence
            for found in recall.values()
            for one in found.values()
            if one is not None and one.tier == "alert"
        ),
        default=0.0,
    )
    first: list[float | None] = []
    silent = False
    for level in levels:
        if level == DEFAULT:
            at_s = life.alert_s
        elif silent or highest < level:
            # Evidence that holds for long enough to fire is met by the first replay at least once:
            # even while it fires it looks that often.
            at_s = None
        else:
            at_s = replay(series, evaluator=evaluator(level, recall), stop_at_alert=True).alert_s
        silent = silent or at_s is None
        first.append(at_s)
    return life, first


def figures(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the figures of both mixes at each threshold; a harmless item counts once."""
    known = [one for one in outcomes if len(one.first_alerts) == len(LEVELS)]
    if not known:
        return []
    named = {level: name for name, level in POINTS.items()}
    out = []
    for k, level in enumerate(LEVELS):
        moved = [
            msgspec.structs.replace(one, alert_s=one.first_alerts[k], alerts=1) for one in known
        ]
        found = field.mixes([field.row_of(one) for one in moved])
        out.append({"threshold": level, "name": named.get(level), **found})
    return out
