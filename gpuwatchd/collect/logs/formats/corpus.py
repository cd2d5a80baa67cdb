"""``gpuwatchd-corpus``: recorded series without any identity, their verdicts and what came of them.

Lines of JSON, the first of them a header. ``contrib/corpus/README.md`` defines every field, and
``contrib/corpus/check.py`` checks a file. Instants are counted in tenths of a second (``_ds``) from
the beginning of the file; long lists hold differences: the first value, then each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from gpuwatchd.collect.logs.collector import BadRow, LineReader, Place, remember
from gpuwatchd.collect.logs.fields import MIB
from gpuwatchd.core.decoding import decode
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

NAME: Final = "gpuwatchd-corpus"
VERSION: Final = 1
Licence = Literal["CC0-1.0", "CC-BY-4.0"]
Kind = Literal["device", "process", "unattributed"]
_Number = Annotated[int, Meta(ge=-(2**38), le=2**38)]
"""The sum of as many as a line may hold fits into 64 bits."""
_Word = Annotated[str, Meta(max_length=80)]
Steps = tuple[_Number, ...]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Time between two samples of a device, over all devices: 5, 50 and 95 per cent quantiles."""

    low_s: float
    mid_s: float
    high_s: float


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file."""

    format: str
    version: int
    made_by: str
    licence: Licence | None
    subjects: int
    points: int
    span_s: int
    interval: Interval | None
    """None where no device has two samples."""


class Percent(msgspec.Struct, frozen=True, kw_only=True):
    """Utilisation of a device over time."""

    t_ds: Steps
    pct: Steps


class DeclaredFact(msgspec.Struct, frozen=True, kw_only=True):
    """What was known beside the curve: see ``GrowthFact``."""

    name: _Word
    weight: float
    level_mib: int | None
    part_mib: int | None


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One alert, or watch, as the daemon raised it, what was said of it and what came of it.

    Instants may lie before the beginning of the file.
    """

    opened_ds: int
    watch_ds: int | None
    alert_ds: int | None
    """None: it was a watch only."""
    critical_ds: int | None
    resolved_ds: int | None
    judged_ds: int
    """When the figures that follow were judged: the last time."""
    pattern: _Word
    tier: _Word
    confidence: float
    rate_bytes_per_s: int | None
    eta_s: tuple[int, int, int | None] | None
    """Quantiles of 5, 50 and 95 per cent; the last is None where it is open-ended."""
    onset_ds: int | None
    growth_mib: int | None
    ended: _Word | None
    """Code of why it was over; None while it is open."""
    feedback: Literal["normal", "leak"] | None
    outcome: _Word | None
    """Code of what came of it (``LaterOutcome.came``); None where nothing is recorded of then."""
    outcome_ds: int | None
    outcome_share: float | None


class SubjectLine(msgspec.Struct, frozen=True, kw_only=True):
    """Every other line of a file: memory over time of one subject."""

    device: Annotated[str, Meta(pattern=r"^d\d{1,6}$")]
    kind: Kind
    process: Annotated[str, Meta(pattern=r"^p\d{1,6}$")] | None
    """None unless it is of a process; the same on every device that it uses."""
    card: _Word
    vendor: _Word
    total_bytes: Annotated[int, Meta(ge=1, le=2**50)] | None
    framework: _Word | None
    program: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}$")] | None
    """The same for runs of one program, within this file alone."""
    t_ds: Annotated[Steps, Meta(min_length=1)]
    used_mib: Annotated[Steps, Meta(min_length=1)]
    breaks: Steps
    """Positions before which time or memory do not go on: a boot, a step of the clock."""
    util: Percent | None
    facts: tuple[DeclaredFact, ...]
    verdicts: tuple[Episode, ...]
    full_at_end_ds: int | None
    """When it ended near the limit, of its own growth, warned of or not."""


def steps_of(values: npt.NDArray[np.int64]) -> Steps:
    """Return whole numbers as the first of them and the differences that follow.

    Examples
    --------
    >>> steps_of(np.array([5, 7, 4]))
    (5, 2, -3)
    """
    return tuple(np.diff(values, prepend=0).tolist())


def values_of(steps: Steps) -> npt.NDArray[np.float64]:
    """Return what :func:`steps_of` was made of."""
    return np.cumsum(np.array(steps, dtype=np.int64)).astype(np.float64)


class CorpusLines(LineReader):
    """A file of ``gpuwatchctl export --anonymous``."""

    _later = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of a file stands here."""
        line = lines[at].lstrip()
        return line[:1] == "{" and f'"{NAME}"' in line[:200]

    def line(self, _line: str, stripped: str, _number: int) -> bool:
        """Take the header, or a subject with its whole series."""
        if stripped[:1] != "{":
            return False
        try:
            if self.starts([stripped], 0):
                header = decode(stripped, Header)
                self._later = header.version if header.version > VERSION else 0
            elif self._later:
                raise BadRow("of a later version")
            else:
                self._subject(decode(stripped, SubjectLine))
        except msgspec.MsgspecError:
            raise BadRow("torn") from None
        if self._later:
            why = f"this {NAME} is of version {self._later}, which is not known here"
            self._sink.lacks_memory(why, "upgrade gpuwatchd")
        return True

    def _subject(self, subject: SubjectLine) -> None:
        t_s, used = values_of(subject.t_ds) / 10.0, values_of(subject.used_mib) * MIB
        limit = np.inf if subject.total_bytes is None else subject.total_bytes
        if t_s.size != used.size or (np.diff(t_s) <= 0).any() or t_s[0] < 0:
            raise BadRow("bad time")
        if (used < 0).any() or (used > limit).any():
            raise BadRow("bad number")
        if (subject.kind == "process") != (subject.process is not None):
            raise BadRow("torn")
        sink = self._sink
        if subject.kind == "unattributed":
            sink.note("memory that nobody owns is in this file and not judged by itself")
            return
        place = sink.places.find(
            Place(
                uuid=subject.device,
                index=int(subject.device[1:]) - 1,
                name=subject.card,
                total=subject.total_bytes,
                vendor=clean(subject.vendor),
            )
        )
        who = None
        if subject.process is not None:
            framework = clean(subject.framework) if subject.framework else None
            who = sink.process(int(subject.process[1:]), subject.process, framework=framework)
        track = sink.track(place, who, timed=True)
        if track is None or len(track.t):
            raise BadRow("torn")
        sink.good(t_s.size)
        track.add(t_s, used, None, breaks=tuple(b for b in subject.breaks if 0 < b < t_s.size))
        remember(track, subject.total_bytes, None)
