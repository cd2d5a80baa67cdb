"""The history as data for everybody: series, verdicts and outcomes, and nothing that names anybody.

What is written is made of numbers, of codes and of words of a closed vocabulary only: a text of the
history is looked up in it, and never copied.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

import msgspec
import numpy as np

from gpuwatchd.alerts import FAST_S
from gpuwatchd.analysis.frameworks import recognition
from gpuwatchd.collect.logs.formats.corpus import (
    DeclaredFact,
    Episode,
    Header,
    Label,
    SubjectLine,
    steps_of,
)
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline import history_log
from gpuwatchd.pipeline.backtest import deaths, later_outcome
from gpuwatchd.store import recent_points

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from gpuwatchd.collect.logs.formats.corpus import Kind, Licence, Steps
    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.model import Alert, Device, Finding, FloatArray, ProcessInfo
    from gpuwatchd.store.reader import Reader

    Known = tuple[Alert, Label | None]

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
    licence: Licence | None,
    judged: Mapping[str, Finding] | None = None,
) -> Corpus:
    """Return what is recorded of some devices in a span of epoch seconds; no lines of nothing.

    Time begins anew with the first sample: only its place within ten seconds is kept, so that the
    file is judged at the same instants. ``judged`` is what is shown now of subjects, by their ids:
    where a fact kept growth silent there is no alert that has it.

    Raises
    ------
    StoreError
        The history cannot be read.
    """
    logs = [log for device in devices if (log := history_log.load(history, device, *span)).series]
    begun_s = min((float(one.t_s[0]) for log in logs for one in log.series), default=0.0)
    writer = _Writer(history, span, begun_s // FAST_S * FAST_S, judged or {})
    lines = tuple(line for k, log in enumerate(logs) for line in writer.device(f"d{k + 1}", log))
    steps_s = np.concatenate([np.empty(0), *(np.diff(log.series[0].t_s) for log in logs)])
    quantiles = np.quantile(steps_s, (0.05, 0.5, 0.95)).round(1) if steps_s.size else None
    header = Header(
        licence=licence,
        subjects=len(lines),
        points=sum(len(line.t_ds) for line in lines),
        span_s=max((sum(line.t_ds) for line in lines), default=0) // 10,
        interval_s=None if quantiles is None else tuple(quantiles.tolist()),
    )
    return Corpus(header, lines)


class _Writer:
    """Makes the lines of one file: its clock, its numbers of processes, its labels of programs."""

    def __init__(
        self,
        history: Reader,
        span: tuple[float, float],
        origin_s: float,
        judged: Mapping[str, Finding],
    ) -> None:
        self._history, self._judged = history, judged
        self._span = (max(span[0], origin_s), span[1])
        self._origin_s = origin_s
        self._processes: dict[object, str] = {}
        self._programs: dict[str, str] = {}
        self._alerts: dict[str, list[Known]] = {}
        labels = history.user_labels()
        for alert in history.alerts(span[0]):
            if alert.kind == "leak" and not alert.subject.host and alert.opened_at_s < span[1]:
                said = [label.word for label in labels if label.is_about(alert)][-1:]
                word = next((word for word in get_args(Label) if word in said), None)
                self._alerts.setdefault(alert.subject.id, []).append((alert, word))

    def device(self, name: str, log: LogFile) -> list[SubjectLine]:
        """Return the lines of a device: its own, of its processes, of what nobody owned."""
        whole = next((series for series in log.series if series.process is None), None)
        died = deaths(log)
        lines = []
        for series in (*log.series, *self._unattributed(whole)):
            kind: Kind = "device" if series.process is None else "process"
            kind = "unattributed" if series.subject.unattributed else kind
            lines.append(self._line(name, kind, series, whole, died.get(series.subject.id)))
        return lines

    def _unattributed(self, whole: LogSeries | None) -> list[LogSeries]:
        if whole is None:
            return []
        uid = whole.device.uid
        points = self._history.ask(recent_points.unattributed, uid, *self._span)
        t_s, used = np.array(points, dtype=np.float64).reshape(-1, 2).T
        _, kept = self._instants(t_s)
        whole = dataclasses.replace(whole, t_s=t_s[kept], used_bytes=used[kept], breaks=())
        subject = Subject(device_uid=uid, unattributed=True)
        return [dataclasses.replace(whole, subject=subject)] if kept.any() else []

    def _line(
        self,
        name: str,
        kind: Kind,
        series: LogSeries,
        whole: LogSeries | None,
        died_s: float | None,
    ) -> SubjectLine:
        device, total = series.device, series.device.memory_total_bytes or None
        t_ds, kept = self._instants(series.t_s)
        used_mib = np.rint(series.used_bytes[kept] / _MIB)
        if total is not None:
            used_mib = np.minimum(used_mib, total // _MIB)
        alerts = self._alerts.get(series.subject.id, [])
        util_ds, util_pct = self._utilisation(device.uid) if kind == "device" else ((), ())
        return SubjectLine(
            device=name,
            kind=kind,
            card=card_model(device.name),
            total_bytes=total,
            **self._who(series.process),
            t_ds=t_ds,
            used_mib=steps_of(used_mib),
            breaks=tuple(sorted({int(kept[:at].sum()) for at in series.breaks})),
            util_ds=util_ds,
            util_pct=util_pct,
            facts=_facts(
                [alert.finding for alert, _ in alerts], self._judged.get(series.subject.id)
            ),
            verdicts=tuple(self._episode(alert, word, series, whole) for alert, word in alerts),
            full_at_end_ds=self._ds(died_s),
        )

    def _who(self, info: ProcessInfo | None) -> dict[str, str | None]:
        if info is None:
            return {}
        return {
            "process": self._processes.setdefault(info.key, f"p{len(self._processes) + 1}"),
            "framework": info.framework if info.framework in {None, *FRAMEWORKS} else OTHER,
            "program": info.program
            and self._programs.setdefault(info.program, secrets.token_hex(4)),
        }

    def _instants(self, t_s: FloatArray) -> tuple[Steps, npt.NDArray[np.bool_]]:
        """Return instants as ascending tenths of a second, and which of ``t_s`` they are."""
        ds = np.rint((t_s - self._origin_s) * 10.0)
        kept = np.diff(np.maximum.accumulate(ds), prepend=-1.0) > 0
        return steps_of(ds[kept]), kept

    def _ds(self, at_s: float | None) -> int | None:
        return None if at_s is None else round((at_s - self._origin_s) * 10.0)

    def _utilisation(self, uid: str) -> tuple[Steps, Steps]:
        rows = [
            (row.at_s + 0.5 * row.width_s, row.util_pct)
            for first_s, last_s in history_log.spans(*self._span)
            for row in self._history.device_rows(uid, first_s, last_s)
            if row.util_pct is not None
        ]
        t_s, pct = np.array(rows, dtype=np.float64).reshape(-1, 2).T
        t_ds, kept = self._instants(t_s)
        return t_ds, steps_of(np.clip(np.rint(pct[kept]), 0.0, 100.0))

    def _episode(
        self, alert: Alert, word: Label | None, series: LogSeries, whole: LogSeries | None
    ) -> Episode:
        finding, eta = alert.finding, alert.finding.eta
        from_s = alert.opened_at_s if alert.firing_at_s is None else alert.firing_at_s
        lived = None
        if series.t_s[0] <= from_s <= series.t_s[-1]:
            device = None if series is whole else whole
            onset_s = from_s if finding.onset_at_s is None else finding.onset_at_s
            growth = finding.growth_bytes or 0.0
            lived = later_outcome(series, device, from_s=from_s, onset_s=onset_s, growth=growth)
        return Episode(
            opened_ds=self._ds(alert.opened_at_s) or 0,
            watch_ds=self._ds(alert.watch_at_s),
            alert_ds=self._ds(alert.firing_at_s),
            resolved_ds=self._ds(alert.resolved_at_s),
            judged_ds=self._ds(finding.judged_at_s) or 0,
            pattern=finding.pattern,
            tier=finding.tier,
            confidence=round(finding.confidence, 3),
            rate_bytes_per_s=_whole(finding.rate_bytes_per_s),
            eta_s=None if eta is None else (round(eta.low_s), round(eta.mid_s), _whole(eta.high_s)),
            onset_ds=self._ds(finding.onset_at_s),
            ended=alert.ended_code and alert.ended_code.value,
            feedback=word,
            outcome=None if lived is None else lived.came,
            outcome_ds=None if lived is None else self._ds(lived.at_s),
        )


def _facts(alerted: Sequence[Finding], last: Finding | None) -> tuple[DeclaredFact, ...]:
    """Return what counted of what was known beside the curve, by the last verdict that says it."""
    findings = alerted if last is None else (*alerted, last)
    facts = {fact.name: fact for finding in findings for fact in finding.facts or ()}
    return tuple(
        DeclaredFact(
            name=name.value,
            weight=round(fact.weight, 3),
            level_mib=_whole(fact.level_bytes, _MIB),
            part_mib=_whole(fact.part_bytes, _MIB),
        )
        for name, fact in facts.items()
    )


def _whole(value: float | None, unit: float = 1.0) -> int | None:
    return None if value is None else round(value / unit)
