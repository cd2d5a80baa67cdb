"""Words and marks on a chart: what stands together, and how it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.design import FLAGS, SEVERITY_KINDS

if TYPE_CHECKING:
    from gpuwatchd.charts.drawing import Forecast, Mark, Picture
    from gpuwatchd.charts.scales import Frame


_SAME_S = 60.0
_FRESH_S = 600.0
_KINDS = ("alert", "event", "restart", "resolved", "asked", "saved", "began", "ended")
_GRAVE = ("critical", "warning", "info")
"""What matters most first."""


class Group(NamedTuple):
    """Marks that stand at one place."""

    number: int
    column: int
    marks: tuple[Mark, ...]


def sign(marks: tuple[Mark, ...], *, ascii_only: bool) -> tuple[str, str]:
    """Return the character and the part of the one that matters most."""
    mark = min(marks, key=_weight)
    flag = FLAGS[mark.kind]
    part = flag.colour
    if mark.kind == "alert" and mark.severity is not None:
        part = SEVERITY_KINDS.get(mark.severity, flag.colour)
    return (flag.ascii_mark if ascii_only else flag.mark), part


def _weight(mark: Mark) -> tuple[int, int]:
    """Return what matters most first."""
    grave = mark.severity in _GRAVE
    return _KINDS.index(mark.kind), _GRAVE.index(mark.severity) if grave else len(_GRAVE)


def numbered(found: list[Group], most: int) -> tuple[list[tuple[int, Mark]], int]:
    """Return the marks of a list by time, with their numbers, and how many are left out.

    Parameters
    ----------
    found
        All of them.
    most
        Rows of the list; where they do not suffice, one is for the count, and what matters least
        is left out.
    """
    every = [(group.number, mark) for group in found for mark in group.marks]
    if len(every) <= most:
        return every, 0
    by_weight = sorted(range(len(every)), key=lambda n: _weight(every[n][1]))
    kept = sorted(by_weight[: max(0, most - 1)])
    return [every[n] for n in kept], len(every) - len(kept)


def groups(picture: Picture, width: int, frame: Frame, *, numbered: bool = True) -> list[Group]:
    """Return the marks that are seen, those together for which there is one place."""
    per_s = width / (frame.end_s - frame.begin_s)
    found: list[Group] = []
    for mark in picture.marks:
        if not frame.begin_s <= mark.at_s <= frame.end_s or _told(mark, found):
            continue
        column = min(width - 1, int((mark.at_s - frame.begin_s) * per_s))
        before = found[-1] if found else None
        taken = 1 + len(str(before.number)) if before is not None and numbered else 1
        if before is not None and column < before.column + taken:
            found[-1] = before._replace(marks=(*before.marks, mark))
        else:
            found.append(Group(len(found) + 1, column, (mark,)))
    return found


def _told(mark: Mark, found: list[Group]) -> bool:
    """Return whether the same was said within the same minute, of another subject, say."""
    return bool(found) and any(
        (one.kind, one.text) == (mark.kind, mark.text) and mark.at_s - one.at_s < _SAME_S
        for one in found[-1].marks
    )


def since_judged(forecast: Forecast, now_s: float) -> float:
    """Return by how much the time that is left is shorter than it was foreseen, seconds.

    Of a judgement of now 0: the words beside a picture tell the figures of the judgement itself,
    and one thing has one number.
    """
    passed_s = now_s - forecast.judged_at_s
    return passed_s if passed_s > _FRESH_S else 0.0


def limit_texts(forecast: Forecast, now_s: float) -> list[str]:
    """Return when it is full, the longest form first."""
    passed_s = since_judged(forecast, now_s)
    mid_s = max(0.0, (forecast.mid_s or 0.0) - passed_s)
    short = f"full in {units.duration(mid_s)}"
    if forecast.low_s is None:
        return [short]
    high_s = None if forecast.high_s is None else max(0.0, forecast.high_s - passed_s)
    return [f"full in {units.band(max(0.0, forecast.low_s - passed_s), mid_s, high_s)}", short]
