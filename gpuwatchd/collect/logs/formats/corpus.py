"""``gpuwatchd-corpus``: recorded series without any identity, their verdicts and what came of them.

Lines of JSON, the first of them a header. ``contrib/corpus/README.md`` defines every field, and
``contrib/corpus/check.py`` checks a file. Instants are counted in tenths of a second (``_ds``) from
the beginning of the file; long lists hold differences: the first value, then each step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from gpuwatchd import __version__
from gpuwatchd.collect.logs.collector import BadRow, Place
from gpuwatchd.collect.logs.fields import MIB
from gpuwatchd.collect.logs.reader import LineReader
from gpuwatchd.core.decoding import decode
from gpuwatchd.core.model import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

NAME: Final = "gpuwatchd-corpus"
VERSION: Final = 1
Licence = Literal["CC0-1.0", "CC-BY-4.0"]
Kind = Literal["device", "process", "unattributed"]
Label = Literal["normal", "leak"]
Steps = tuple[Annotated[int, Meta(ge=-(2**38), le=2**38)], ...]
"""The sum of as many as a line may hold fits into 64 bits."""
_Word = Annotated[str, Meta(max_length=80)]


class Header(Value, frozen=True, kw_only=True):
    """The first line of a file."""

    format: str = NAME
    version: int = VERSION
    made_by: str = f"gpuwatchd {__version__}"
    licence: Licence | None
    subjects: int
    points: int
    span_s: int
    interval_s: tuple[float, float, float] | None


class DeclaredFact(Value, frozen=True, kw_only=True):
    """What was known beside the curve: see ``GrowthFact``."""

    name: _Word
    weight: float
    level_mib: int | None
    part_mib: int | None


class Episode(Value, frozen=True, kw_only=True):
    """One watch or alert as the daemon raised it, what was said of it and what came of it."""

    opened_ds: int
    watch_ds: int | None
    alert_ds: int | None
    resolved_ds: int | None
    judged_ds: int
    pattern: _Word
    tier: _Word
    confidence: float
    rate_bytes_per_s: int | None
    eta_s: tuple[int, int, int | None] | None
    onset_ds: int | None
    ended: _Word | None
    feedback: Label | None
    outcome: _Word | None
    outcome_ds: int | None


class SubjectLine(Value, frozen=True, kw_only=True):
    """Every other line of a file: memory over time of one subject."""

    device: Annotated[str, Meta(pattern=r"^d\d{1,6}$")]
    kind: Kind
    process: Annotated[str, Meta(pattern=r"^p\d{1,6}$")] | None = None
    card: _Word
    total_bytes: Annotated[int, Meta(ge=1, le=2**50)] | None
    framework: _Word | None = None
    program: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}$")] | None = None
    t_ds: Annotated[Steps, Meta(min_length=1)]
    used_mib: Steps
    breaks: Steps
    util_ds: Steps
    util_pct: Steps
    facts: tuple[DeclaredFact, ...]
    verdicts: tuple[Episode, ...]
    full_at_end_ds: int | None


def steps_of(values: npt.NDArray[np.float64]) -> Steps:
    """Return whole numbers as the first of them and the differences that follow.

    Examples
    --------
    >>> steps_of(np.array([5, 7, 4]))
    (5, 2, -3)
    """
    return tuple(np.diff(values.astype(np.int64), prepend=0).tolist())


def values_of(steps: Steps) -> npt.NDArray[np.float64]:
    """Return what :func:`steps_of` was made of."""
    return np.cumsum(np.array(steps, dtype=np.int64)).astype(np.float64)


class CorpusLines(LineReader):
    """A file of ``gpuwatchctl export --anonymous``."""

    _known = True

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
                needed = {one.name for one in msgspec.structs.fields(Header) if one.required}
                if lacking := sorted(needed - decode(stripped, dict[str, object]).keys()):
                    raise BadRow(f"header without {', '.join(lacking)}")
                self._known = decode(stripped, Header).version <= VERSION
            elif self._known:
                self._subject(decode(stripped, SubjectLine))
        except msgspec.MsgspecError:
            raise BadRow("torn") from None
        if not self._known:
            why = f"this {NAME} is of a later version than {VERSION}"
            self._sink.lacks_memory(why, "upgrade gpuwatchd")
        return True

    def _subject(self, subject: SubjectLine) -> None:
        sink, name, total = self._sink, subject.process, subject.total_bytes
        t_s, used = values_of(subject.t_ds) / 10.0, values_of(subject.used_mib) * MIB
        if t_s.size != used.size or (np.diff(t_s) <= 0).any() or t_s[0] < 0:
            raise BadRow("bad time")
        if (used < 0).any() or (total is not None and (used > total).any()):
            raise BadRow("bad number")
        if subject.kind == "unattributed":
            sink.note("memory that nobody owns is in this file and not judged by itself")
            return
        row = Place(uuid=subject.device, name=subject.card, total=total, vendor="other")
        place = sink.places.find(row)
        who = None if name is None else sink.processes.find(int(name[1:]), name)
        track = sink.track(place, who, timed=True)
        if track is None or len(track.t) or (subject.kind == "process") != (who is not None):
            raise BadRow("torn")
        sink.counts.good(t_s.size)
        track.add(t_s.tolist(), used.tolist())
        track.breaks = tuple(at for at in subject.breaks if 0 < at < t_s.size)
        track.remember(math.nan if total is None else total, math.nan)
