"""The history as data for everybody: series, verdicts and outcomes, and nothing that names anybody.

What is written is made of numbers, of codes and of words of a closed vocabulary only: a text of the
history is looked up in it, and never copied.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
import secrets
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import numpy as np

from gpuwatchd import __version__
from gpuwatchd.alerts import FAST_S
from gpuwatchd.analysis.frameworks import recognition
from gpuwatchd.collect.logs.formats.corpus import (
    NAME,
    VERSION,
    DeclaredFact,
    Episode,
    Header,
    Interval,
    Percent,
    SubjectLine,
    steps_of,
)
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline import replay
from gpuwatchd.pipeline.backtest import deaths, later_outcome
from gpuwatchd.store import recent_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.collect.logs.formats.corpus import Kind, Licence, Steps
    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.model import Alert, Device, FloatArray
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import UserLabel

Word = Literal["normal", "leak"]
_WORDS: Final[tuple[Word, ...]] = ("normal", "leak")
_MIB: Final = float(1 << 20)
OTHER: Final = "other"
"""Stands for a word that is not in the vocabulary."""
FRAMEWORKS: Final = frozenset(
    {
        recognition.EITHER_XLA,
        *(app.name for app in recognition.APPS),
        *(name for name, _ in recognition.LIBRARIES),
        *(name for name, _ in recognition.GUESSES),
    }
)
VENDORS: Final = frozenset({"nvidia", "amd", "intel", "apple", "simulated"})
CARD_WORD: Final = re.compile(
    r"NVIDIA|AMD|Intel|Apple|Simulated|GeForce|Quadro|Tesla|TITAN|Radeon|Instinct|Arc|Iris|Xe|UHD"
    r"|Graphics|GRID|Jetson|Orin|Thor|Ada|Blackwell|Generation|Laptop|Mobile|GPU|GT|GTX|RTX|RX|XT"
    r"|XTX|GRE|Pro|PRO|Max|MAX|Ultra|FE|Ti|SUPER|Super|Xp|Q|PCIe|NVL|SXM|OAM|MIG|Server|Superchip"
    r"|Workstation|Edition|(?:[ABHKLMPTVW]|GB|GH|MI|RTX|GTX|HBM|SXM)?\d{1,5}(?:GB|[A-Z]{1,2}|e)?"
    r"|\d[cg]\.\d{1,3}(?:gb|g\.\d{1,3}gb)"
)
"""What the name of a card may be made of, between spaces and hyphens."""


class Corpus(NamedTuple):
    """What a file holds."""

    header: Header
    lines: tuple[SubjectLine, ...]

    def encoded(self, *, packed: bool = False) -> bytes:
        """Return the content of the file; ``packed`` by gzip, without a name or a time in it."""
        content = b"".join(msgspec.json.encode(part) + b"\n" for part in (self.header, *self.lines))
        return gzip.compress(content, mtime=0) if packed else content


def card_model(name: str) -> str:
    """Return those words of a card's name that are a model's.

    Examples
    --------
    >>> card_model("NVIDIA A100-SXM4-80GB MIG 3g.40gb"), card_model("alice's box")
    ('NVIDIA A100-SXM4-80GB MIG 3g.40gb', 'other')
    """
    words = (
        "-".join(part for part in word.split("-") if CARD_WORD.fullmatch(part))
        for word in name.split()[:12]
    )
    return " ".join(filter(None, words)) or OTHER


def collect(
    history: Reader,
    devices: Sequence[Device],
    span: tuple[float, float],
    licence: Licence | None = None,
) -> Corpus:
    """Return what is recorded of some devices in a span of epoch seconds.

    Time begins anew with the first sample: only its place within ten seconds is kept, so that the
    file is judged at the same instants. Without any sample there are no lines.

    Raises
    ------
    StoreError
        The history cannot be read.
    """
    logs = [replay.load(history, device, *span) for device in devices]
    begun_s = [float(series.t_s[0]) for log in logs for series in log.series]
    writer = _Writer(history, span, min(begun_s, default=0.0) // FAST_S * FAST_S)
    lines = tuple(line for k, log in enumerate(logs) for line in writer.device(f"d{k + 1}", log))
    gaps = [np.diff(log.series[0].t_s) for log in logs if log.series]
    steps = np.concatenate(gaps) if gaps else np.empty(0)
    interval = None
    if steps.size:
        low_s, mid_s, high_s = np.quantile(steps, (0.05, 0.5, 0.95)).round(1).tolist()
        interval = Interval(low_s=low_s, mid_s=mid_s, high_s=high_s)
    ended_ds = max((sum(line.t_ds) for line in lines), default=0)
    header = Header(
        format=NAME,
        version=VERSION,
        made_by=f"gpuwatchd {__version__}",
        licence=licence,
        subjects=len(lines),
        points=sum(len(line.t_ds) for line in lines),
        span_s=ended_ds // 10,
        interval=interval,
    )
    return Corpus(header, lines)


class _Writer:
    """Makes the lines of one file: its clock, its numbers of processes, its labels of programs."""

    def __init__(self, history: Reader, span: tuple[float, float], origin_s: float) -> None:
        self._history = history
        self._span = span
        self._origin_s = origin_s
        self._processes: dict[object, str] = {}
        self._programs: dict[str, str] = {}
        labels = history.user_labels()
        self._alerts: dict[str, list[tuple[Alert, Word | None]]] = {}
        for alert in history.alerts(span[0]):
            if alert.kind == "leak" and not alert.subject.host and alert.opened_at_s < span[1]:
                known = (alert, _word(alert, labels))
                self._alerts.setdefault(alert.subject.id, []).append(known)

    def device(self, name: str, log: LogFile) -> list[SubjectLine]:
        """Return the lines of a device: its own, what nobody owned, its processes."""
        if not log.series:
            return []
        whole = next((series for series in log.series if series.process is None), None)
        died = deaths(log)
        lines = []
        for series in (*log.series, *self._unattributed(whole)):
            kind: Kind = "device"
            if series.process is not None:
                kind = "process"
            elif series.subject.unattributed:
                kind = "unattributed"
            lines.append(self._line(name, kind, series, whole, died.get(series.subject.id)))
        return lines

    def _unattributed(self, whole: LogSeries | None) -> list[LogSeries]:
        if whole is None:
            return []
        uid = whole.device.uid
        points = self._history.ask(recent_points.unattributed, uid, *self._span)
        t, x = (np.array([point[k] for point in points], dtype=np.float64) for k in (0, 1))
        ahead = np.diff(np.maximum.accumulate(t), prepend=-1.0) > 0  # the clock was set back
        subject = Subject(device_uid=uid, unattributed=True)
        series = dataclasses.replace(
            whole, subject=subject, t_s=t[ahead], used_bytes=x[ahead], breaks=()
        )
        return [series] if t.size else []

    def _line(
        self,
        name: str,
        kind: Kind,
        series: LogSeries,
        whole: LogSeries | None,
        died_s: float | None,
    ) -> SubjectLine:
        device, info = series.device, series.process
        t_ds, kept = self._instants(series.t_s)
        total = device.memory_total_bytes
        used_mib = np.rint(series.used_bytes[kept] / _MIB).astype(np.int64)
        if total is not None:
            used_mib = np.minimum(used_mib, int(total // _MIB))
        alerts = self._alerts.get(series.subject.id, [])
        facts = {fact.name: fact for alert, _ in alerts for fact in alert.finding.facts or ()}
        program = None if info is None else info.program
        return SubjectLine(
            device=name,
            kind=kind,
            process=None
            if info is None
            else self._processes.setdefault(info.key, f"p{len(self._processes) + 1}"),
            card=card_model(device.name),
            vendor=device.vendor if device.vendor in VENDORS else OTHER,
            total_bytes=total or None,
            framework=None if info is None else _framework(info.framework),
            program=None
            if program is None
            else self._programs.setdefault(program, secrets.token_hex(4)),
            t_ds=t_ds,
            used_mib=steps_of(used_mib),
            breaks=tuple(sorted({int(kept[:at].sum()) for at in series.breaks})),
            util=self._utilisation(device.uid) if kind == "device" else None,
            facts=tuple(
                DeclaredFact(
                    name=fact.name.value,
                    weight=round(fact.weight, 3),
                    level_mib=_mib(fact.level_bytes),
                    part_mib=_mib(fact.part_bytes),
                )
                for fact in facts.values()
            ),
            verdicts=tuple(self._episode(alert, word, series, whole) for alert, word in alerts),
            full_at_end_ds=self._ds(died_s),
        )

    def _instants(self, t_s: FloatArray) -> tuple[Steps, npt.NDArray[np.bool_]]:
        """Return instants of ascending tenths of a second, and which of ``t_s`` they are."""
        ds = np.rint((t_s - self._origin_s) * 10.0).astype(np.int64)
        kept = np.diff(ds, prepend=-1) > 0
        return steps_of(ds[kept]), kept

    def _ds(self, at_s: float | None) -> int | None:
        return None if at_s is None else round((at_s - self._origin_s) * 10.0)

    def _utilisation(self, uid: str) -> Percent | None:
        begin_s = max(self._origin_s, self._span[0])
        points = [
            (row.at_s + 0.5 * row.width_s, row.util_pct)
            for first_s, last_s in replay.spans(begin_s, self._span[1])
            for row in self._history.device_rows(uid, first_s, last_s)
            if row.util_pct is not None and row.at_s >= self._origin_s
        ]
        t, pct = (np.array([point[k] for point in points], dtype=np.float64) for k in (0, 1))
        ahead = np.diff(np.maximum.accumulate(t), prepend=-1.0) > 0
        t_ds, kept = self._instants(t[ahead])
        whole_pct = np.clip(np.rint(pct[ahead][kept]), 0, 100).astype(np.int64)
        return Percent(t_ds=t_ds, pct=steps_of(whole_pct)) if t_ds else None

    def _episode(
        self, alert: Alert, word: Word | None, series: LogSeries, whole: LogSeries | None
    ) -> Episode:
        finding, eta = alert.finding, alert.finding.eta
        from_s = alert.opened_at_s if alert.firing_at_s is None else alert.firing_at_s
        lived = None
        if series.t_s[0] <= from_s <= series.t_s[-1]:
            lived = later_outcome(
                series,
                None if series is whole else whole,
                from_s=from_s,
                onset_s=from_s if finding.onset_at_s is None else finding.onset_at_s,
                growth=finding.growth_bytes or 0.0,
            )
        share = None if lived is None else lived.share
        return Episode(
            opened_ds=self._ds(alert.opened_at_s) or 0,
            watch_ds=self._ds(alert.watch_at_s),
            alert_ds=self._ds(alert.firing_at_s),
            critical_ds=self._ds(alert.critical_at_s),
            resolved_ds=self._ds(alert.resolved_at_s),
            judged_ds=self._ds(finding.judged_at_s) or 0,
            pattern=finding.pattern,
            tier=finding.tier,
            confidence=round(finding.confidence, 3),
            rate_bytes_per_s=_rounded(finding.rate_bytes_per_s),
            eta_s=None
            if eta is None
            else (round(eta.low_s), round(eta.mid_s), _rounded(eta.high_s)),
            onset_ds=self._ds(finding.onset_at_s),
            growth_mib=_mib(finding.growth_bytes),
            ended=None if alert.ended_code is None else alert.ended_code.value,
            feedback=word,
            outcome=None if lived is None else lived.came,
            outcome_ds=None if lived is None else self._ds(lived.at_s),
            outcome_share=None if share is None else round(share, 3),
        )


def _word(alert: Alert, labels: Sequence[UserLabel]) -> Word | None:
    """Return what the user said last of an alert; what is no such word is left out."""
    said = [label.word for label in labels if label.is_about(alert)][-1:]
    return next((word for word in _WORDS if word in said), None)


def _framework(name: str | None) -> str | None:
    return name if name is None or name in FRAMEWORKS else OTHER


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _mib(value: float | None) -> int | None:
    return None if value is None else round(value / _MIB)
