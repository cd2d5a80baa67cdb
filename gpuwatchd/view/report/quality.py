"""How much of a period is known, and what therefore cannot be said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Device
    from gpuwatchd.store.occupancy import Stretch
    from gpuwatchd.store.reader import Reader, Segment
    from gpuwatchd.view.report.period import Asked
    from gpuwatchd.view.report.usage import DeviceUse

MOST_GAPS: Final = 20
_LEAST_GAP_S: Final = 180.0
_NEAR_S: Final = 120.0
_UNREADABLE: Final = frozenset({"gpu-lost", "gpu-hung", "reset-required"})
_SAYS: Final = {
    "start": "the daemon was not running",
    "boot": "the machine was off or starting",
    "gap": "no data",
    "clock-step": "the clock was set",
}
"""Why time is missing before a segment of this reason."""


class Missing(NamedTuple):
    """A time of which nothing is known."""

    begin_s: float
    end_s: float
    why: str
    """"" where that is not known."""
    labels: tuple[str, ...]
    """Devices; () for all of them."""


class Quality:
    """How well a period is known.

    Attributes
    ----------
    watched_share
        Of the period in which at least one device was read; None without a history.
    begun_s
        When the record begins, where that is within the period.
    faults
        What could not be read, as events have it: (instant, device, words).
    """

    def __init__(self) -> None:
        self.watched_share: float | None = None
        self.begun_s: float | None = None
        self.missing: list[Missing] = []
        self.restarts = 0
        self.boots = 0
        self.clock_steps: list[Segment] = []
        self.faults: list[tuple[float, str, str]] = []
        self.per_device: list[tuple[Device, float]] = []
        """Share of the period that each was read."""


def data_quality(
    history: Reader, devices: Sequence[Device], uses: Sequence[DeviceUse], asked: Asked
) -> Quality:
    """Return how well a period is known."""
    quality = Quality()
    segments = [
        segment for segment in history.segments(asked.since_s) if segment.at_s < asked.until_s
    ]
    quality.restarts = sum(segment.reason in {"start", "boot"} for segment in segments)
    quality.boots = sum(segment.reason == "boot" for segment in segments)
    quality.clock_steps = [segment for segment in segments if segment.reason == "clock-step"]
    labels = {device.uid: device.label for device in devices}
    quality.faults = [
        (event.at_s, labels.get(event.device_uid or "", ""), event.detail)
        for event in history.events(asked.since_s)
        if event.at_s < asked.until_s and event.kind in _UNREADABLE and event.device_uid in labels
    ]
    span_s = max(asked.span_s, 1.0)
    quality.per_device = [(use.device, min(1.0, use.watched_s / span_s)) for use in uses]
    together = _union([stretch for use in uses for stretch in use.stretches])
    quality.watched_share = min(1.0, sum(end - begin for begin, end in together) / span_s)
    if together and together[0][0] - asked.since_s > _LEAST_GAP_S:
        oldest = min((first for one in devices if (first := history.oldest_s(one.uid))),
                     default=None)  # fmt: skip
        # An hour of the oldest roll-ups may begin before the record does.
        if oldest is not None and oldest > asked.since_s:
            quality.begun_s = together[0][0]
    quality.missing = list(_missing(together, segments, asked, begun=quality.begun_s is not None))
    quality.missing += list(_own_gaps(uses, together, asked))
    return quality


def percent(share: float | None) -> str:
    """Return a share of a period; little is not nothing, and nearly all of it is not all.

    Examples
    --------
    >>> percent(0.002), percent(0.5), percent(0.997), percent(1.0), percent(0.0)
    ('< 1 %', '50 %', '> 99 %', '100 %', '0 %')
    """
    if share is not None and 0.0 < share < 0.01:
        return "< 1 %"
    if share is not None and 0.99 < share < 1.0:
        return "> 99 %"
    return units.percent(share)


def _union(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return when at least one device was read."""
    whole: list[Stretch] = []
    for begin, end in sorted(stretches):
        if whole and begin - whole[-1][1] <= _LEAST_GAP_S:
            whole[-1] = whole[-1][0], max(whole[-1][1], end)
        else:
            whole.append((begin, end))
    return whole


def _holes(stretches: Sequence[Stretch], begin_s: float, end_s: float) -> Iterator[Stretch]:
    at_s = begin_s
    for begin, end in stretches:
        if begin - at_s > _LEAST_GAP_S:
            yield at_s, begin
        at_s = max(at_s, end)
    if end_s - at_s > _LEAST_GAP_S:
        yield at_s, end_s


def _missing(
    together: Sequence[Stretch], segments: Sequence[Segment], asked: Asked, *, begun: bool
) -> Iterator[Missing]:
    """Yield when no device was read; what lies before the record began is no gap in it."""
    first_s = together[0][0] if together and begun else asked.since_s
    for begin, end in _holes(together, first_s, asked.until_s):
        near = [segment for segment in segments if abs(segment.at_s - end) <= _NEAR_S]
        yield Missing(begin, end, _SAYS.get(near[-1].reason, "") if near else "", ())


def _own_gaps(
    uses: Sequence[DeviceUse], together: Sequence[Stretch], asked: Asked
) -> Iterator[Missing]:
    """Yield when some device could not be read although others were."""
    if len(uses) < 2:
        return
    for use in uses:
        for begin, end in _holes(use.stretches, asked.since_s, asked.until_s):
            for from_s, to_s in together:
                low, high = max(begin, from_s), min(end, to_s)
                if high - low > _LEAST_GAP_S:
                    yield Missing(low, high, "", (use.device.label,))


def sentences(quality: Quality, *, now_s: float) -> Iterator[str]:
    """Yield what cannot be said, and why."""
    if quality.watched_share is None:
        yield "There is no history: only the present state is shown, not the past."
        return
    if quality.begun_s is not None:
        begun = units.moment(quality.begun_s, now_s=now_s)
        yield f"The record starts at {begun}: there is no data before that."
    whole = [missing for missing in quality.missing if not missing.labels]
    if whole:
        lost_s = sum(missing.end_s - missing.begin_s for missing in whole)
        yield (
            f"In {units.duration(lost_s)} no data was recorded: leaks, crashes and idle memory of "
            "that time are not in this report, and its hours are in no sum."
        )
    if any(missing.labels for missing in quality.missing):
        labels = sorted({label for missing in quality.missing for label in missing.labels})
        yield f"{', '.join(labels)} could not be read at times, or was not there."
    if quality.clock_steps:
        count = len(quality.clock_steps)
        times = "once" if count == 1 else f"{count} times"
        yield f"The clock was set {times}: durations across that moment are not certain."
