"""Runs of one program within one record: what has ended counts for the runs that begin later.

The daemon has its profiles of earlier runs from its history. Here they are made from the record
itself, at the record's own clock: of a run whose last sample lies before the first of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.analysis import forecast, program_key
from gpuwatchd.core.model import ProcessInfo, Profile, Series
from gpuwatchd.pipeline.run_baselines import chosen
from gpuwatchd.pipeline.state import State
from gpuwatchd.pipeline.track_evaluation import Evaluator, thresholds
from gpuwatchd.pipeline.tracks import settled_finding
from gpuwatchd.store.profiles import KEPT_RANKS, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device, Finding, FloatArray
    from gpuwatchd.pipeline.track import Track
    from gpuwatchd.store.tables import UserLabel

    Busy = Callable[[LogSeries], FloatArray | None]
    """GPU utilisation in per cent at each sample; None where it was not recorded."""


def key_of(info: ProcessInfo | None, device: Device) -> str | None:
    """Return the key of what a recorded process runs; None where the record does not tell.

    A name alone is none: it takes a command line, or the key that the daemon has kept.

    Examples
    --------
    >>> from gpuwatchd.core.model import Device, ProcessKey
    >>> card = Device(uid="u", vendor="nvidia", index=0, name="A100", memory_total_bytes=80)
    >>> key_of(ProcessInfo(key=ProcessKey(pid=1, started_at_s=None), name="python"), card)
    """
    if info is None:
        return None
    program, words = info.program, info.argv or tuple(info.name.split())
    if program is None and len(words) > 1:
        launch = program_key.launch(words)
        program = None if launch is None else program_key.program_key(launch, user=info.user)
    return program_key.key_on(program, device)


class LogEvaluator(Evaluator):
    """Judges what is recorded; what a detector raises ends the analysis, and its caller says so.

    Live, the others are judged on. Here an answer without one subject would pass for the whole.
    """

    def _settled(self, track: Track) -> Finding | None:
        return settled_finding(track, thresholds(track, self.state.settings))

    def _judgements(self, batch: list[Series]) -> list[Finding | None]:
        return self._findings(batch)


class LearningEvaluator(LogEvaluator):
    """Judges each process of a record by what the record knows of the earlier runs of its program.

    ``labels`` are what the user said, ``busy`` when work was done: as far as that is recorded.
    """

    def __init__(
        self,
        config: Config,
        log: LogFile,
        *,
        labels: Sequence[UserLabel] = (),
        busy: Busy | None = None,
    ) -> None:
        super().__init__(State(config))
        self._labels, self._busy = labels, busy
        self._whole = {s.device.uid: s for s in log.series if s.process is None and s.t_s.size}
        self._own: dict[str, tuple[str, LogSeries]] = {}
        self._by_key: dict[str, list[LogSeries]] = {}
        again = {series.subject.id for series in log.series if series.run}
        for series in sorted(log.series, key=lambda s: float(s.t_s[-1]) if s.t_s.size else 0.0):
            key = key_of(series.process, series.device) if series.t_s.size else None
            # One process at several times at once: which of them a judgement is of is not known.
            if key is not None and series.subject.id not in again:
                self._own[series.subject.id] = (key, series)
                self._by_key.setdefault(key, []).append(series)
        self._last: dict[str, Finding] = {}
        self._known: dict[str, tuple[Profile, ...]] = {}
        self._profiles: dict[str, Profile | None] = {}

    def history_of(self, subject: str) -> tuple[Profile, ...]:
        """Return the profiles that count for a subject, which has begun; newest last."""
        if subject not in self._known:
            self._known[subject] = (
                self._earlier(*self._own[subject]) if subject in self._own else ()
            )
        return self._known[subject]

    def _findings(self, batch: list[Series]) -> list[Finding | None]:
        known = [(series, self.history_of(series.subject.id)) for series in batch]
        findings = super()._findings(
            [msgspec.structs.replace(one, history=past) if past else one for one, past in known]
        )
        # What a run was judged by last counts for later ones.
        self._last.update({one.subject.id: one for one in findings if one is not None})
        return findings

    def _earlier(self, key: str, own: LogSeries) -> tuple[Profile, ...]:
        begun_s = float(own.t_s[0])
        ended = [one for one in self._by_key[key] if float(one.t_s[-1]) < begun_s]
        runs = []
        for series in ended[-KEPT_RANKS:]:
            profile = self._profile(series)
            if profile is not None:
                runs.append(
                    Run(
                        key=key,
                        device_uid=series.device.uid,
                        process=series.subject.process,
                        label="",
                        begun_at_s=profile.ended_at_s - profile.run_s,
                        profile=profile,
                    )
                )
        labels = [label for label in self._labels if label.given_at_s < begun_s]
        process = own.subject.process
        return chosen(runs, labels, device_uid=own.device.uid, process=process)

    def _profile(self, series: LogSeries) -> Profile | None:
        subject = series.subject
        if subject.id not in self._profiles:
            started_s = None if subject.process is None else subject.process.started_at_s
            finding = self._last.get(subject.id)
            end_s = float(series.t_s[-1])
            self._profiles[subject.id] = forecast.profile(
                Series(
                    subject=subject,
                    t_s=series.t_s,
                    used_bytes=series.used_bytes,
                    limit_bytes=self._limit(series),
                    total_bytes=series.total_bytes or series.device.memory_total_bytes,
                    age_s=None if started_s is None else max(end_s - started_s, 0.0),
                ),
                busy=None if self._busy is None else self._busy(series),
                alerted=finding is not None and finding.tier == "alert",
                ended_at_s=end_s,
            )
        return self._profiles[subject.id]

    def _limit(self, series: LogSeries) -> float | None:
        """Return where a run would have run out when it ended: what it held, and what was free."""
        total, whole = series.total_bytes, self._whole.get(series.device.uid)
        if total is None or whole is None:
            return series.limit_bytes or total
        last = max(int(whole.t_s.searchsorted(series.t_s[-1], side="right")) - 1, 0)
        free = max(total - float(whole.used_bytes[last]), 0.0)
        return max(float(series.used_bytes[-1]) + free, float(np.max(series.used_bytes)))
