"""Judgements in words: shared by the verbs that show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.codes import NameKind, Reason
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert, Blame, EtaRange, Finding, ProcessInfo
    from gpuwatchd.store.live import KnownRuns
    from gpuwatchd.store.tables import UserLabel

_CALM = {"stable", "plateau", "preallocated", "sawtooth"}
_HARMLESS = {
    Reason.NORMAL: "marked as normal",
    Reason.BOUNDED: "bounded",
    Reason.FREE_CACHE: "free cache",
}
_NEEDED = 20
"""Samples that a verdict takes, as minimum-samples has it by default."""
SUSPICION = "suspicion, sent to nobody"
"""What a watch is."""


def fit(r_squared: float) -> str:
    """Return the word for an R².

    Examples
    --------
    >>> fit(0.982), fit(0.75), fit(0.2)
    ('strong', 'weak', 'noise')
    """
    if r_squared > 0.8:
        return "strong"
    return "weak" if r_squared >= 0.7 else "noise"


def eta(band: EtaRange | None) -> str:
    """Return the time to out-of-memory with its interval; "" when there is none.

    Examples
    --------
    >>> from gpuwatchd.core.model import EtaRange
    >>> eta(EtaRange(low_s=2340, mid_s=2820, high_s=None))
    '47 min (at least 39 min)'
    """
    if band is None:
        return ""
    return units.band(band.low_s, band.mid_s, band.high_s)


def times(count: int) -> str:
    """Return how often something was.

    Examples
    --------
    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"


def growth(rate_bytes_per_s: float | None) -> str:
    """Return a rate with its sign.

    Examples
    --------
    >>> growth(206667.0), growth(None)
    ('+12.4 MB/min', '?')
    """
    words = units.rate(rate_bytes_per_s)
    return f"+{words}" if rate_bytes_per_s is not None and rate_bytes_per_s > 0 else words


def rate(finding: Finding) -> str:
    """Return how fast a subject grows; "" where that is unknown, or it has no pace that lasts."""
    pace = finding.shown_rate_bytes_per_s
    return "" if pace is None else growth(pace)


def shape(finding: Finding) -> str:
    """Return "+12.4 MB/min gradual"."""
    return f"{rate(finding)} {finding.pattern}".strip()


def stopped(finding: Finding | None) -> str:
    """Return "grew by 2.1 GiB, stopped 5 min ago" of a leak that does not grow now, else ""."""
    if finding is None or not is_leak(finding) or finding.rate_bytes_per_s != 0.0:
        return ""
    return finding.parts[0].whole if finding.parts else ""


def pace(finding: Finding) -> list[str]:
    """Return how fast a leak grows and when it is full; of one that has stopped, when it did."""
    past = stopped(finding)
    if past:
        return [past]
    return [rate(finding), f"full in {eta(finding.eta) or '?'}" if is_leak(finding) else ""]


def because(alert: Alert) -> str:
    """Return why an alert was raised; of one that is over without what was foreseen then.

    Its last judgement may even be from after the end, and would foresee what cannot come any more.
    """
    if alert.state != "resolved":
        return alert.finding.reason
    return "; ".join(part.whole for part in alert.finding.parts if not part.forecast)


def calmed(alert: Alert, *, now_s: float) -> str:
    """Return "stopped at 14:05" of an open alert whose subject does not grow now, else ""."""
    if alert.clear_since_s is None or alert.state == "resolved":
        return ""
    return f"stopped at {units.clock(alert.clear_since_s, now_s=now_s)}"


class Verdict(NamedTuple):
    """A judgement in a few words: what it comes to, then what exactly."""

    head: str
    joint: str = ""
    rest: str = ""
    style: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.head}{self.joint}{self.rest}"


def verdict(finding: Finding | None, *, samples: int = 0) -> tuple[str, str]:
    """Return a judgement in a few words, and its style; see :func:`verdict_parts`."""
    parts = verdict_parts(finding, samples=samples)
    return parts.text, parts.style


def collecting(finding: Finding) -> bool:
    """Say whether the reason of a judgement says all: that too little has been seen."""
    return finding.code is Reason.COLLECTING and not finding.subject.host


def verdict_parts(finding: Finding | None, *, samples: int = 0) -> Verdict:
    """Return a judgement in a few words.

    Parameters
    ----------
    finding
        With the tier that policy has opened; None when nothing was judged.
    samples
        For "collecting, 6 of 20 samples".
    """
    if finding is None:
        if 0 < samples < _NEEDED:
            return Verdict("collecting", ", ", f"{samples} of {_NEEDED} samples", "dim")
        return Verdict("no verdict", style="dim")
    if is_leak(finding):
        return _leak(finding)
    if finding.pattern in LEAK_PATTERNS:
        why = _HARMLESS.get(finding.code, "not confirmed")
        return Verdict("growing", ", ", f"{why} ({finding.pattern})")
    if finding.tier == "watch":
        # Growth that provably slows down is watched as well.
        return _watch(finding)
    if finding.pattern == "unknown":
        few = f"{units.count(finding.samples, 'sample')} so far"
        if collecting(finding):
            few = finding.parts[0].text
        elif finding.samples >= _NEEDED:
            return Verdict("unknown", style="dim")
        return Verdict("collecting", ", ", few, "dim")
    return Verdict(finding.pattern, style="green" if finding.pattern in _CALM else "")


def _leak(finding: Finding) -> Verdict:
    if chief := part_of(finding):
        return Verdict("leaks too", ", ", chief, "yellow")
    if finding.tier == "watch":
        return _watch(finding)
    sure = f"{units.strength(finding.confidence)} {units.percent(finding.confidence)}"
    word = "CRITICAL" if finding.severity == "critical" else "LEAK"
    style = "red-bold" if finding.severity == "critical" else "yellow-bold"
    return Verdict(word, " ", f"{finding.pattern}, {sure}", style)


def _watch(finding: Finding) -> Verdict:
    return Verdict("watch", " ", f"{finding.pattern}: {SUSPICION}", "yellow")


def part_of(finding: Finding | None, info: ProcessInfo | None = None) -> str:
    """Return "see rank 0 on GPU 0 of torchrun 7f3a" where another rank is told of for this one."""
    if finding is None or not is_leak(finding):
        return ""
    group = info.group if info is not None else None
    return f"see {finding.lead}{f' of {group}' if group else ''}" if finding.lead else ""


_GONE, _DEFUNCT = {"X", "x", "gone"}, "Z"


def who(info: ProcessInfo) -> str:
    """Return "python train.py[4711] of alice"; a process that has gone, or is not ours to see.

    Examples
    --------
    >>> from gpuwatchd.core.model import ProcessInfo, ProcessKey
    >>> key = ProcessKey(pid=4711, started_at_s=None)
    >>> who(ProcessInfo(key=key, name="python", user="alice", state="gone"))
    'pid 4711 (gone, was python of alice)'
    >>> who(ProcessInfo(key=key, name="?", foreign=True))
    'pid 4711 (outside this container)'
    """
    owner = f" of {info.user}" if info.user else ""
    pid = f"pid {info.key.pid}"
    if is_named(info):
        ended = " (defunct)" if is_defunct(info) else ""
        return f"{info.label}[{info.key.pid}]{owner}{ended}"
    if info.foreign:
        return f"{pid} (outside this container)"
    if info.state in _GONE or info.name == "gone" or info.name_kind is NameKind.GONE:
        name = info.was if info.name_kind is NameKind.GONE else info.label
        was = f", was {name}{owner}" if name not in {"", "?", "gone"} else ""
        return f"{pid} (gone{was})"
    if info.name_kind is NameKind.STAND_IN:
        return f"{info.name}{owner}"
    return f"{pid}{owner}"


def is_named(info: ProcessInfo) -> bool:
    """Say whether a process has not gone and has a name that is its own."""
    gone = info.state in _GONE or info.name in {"", "?", "gone"}
    return not (info.foreign or gone) and info.name_kind is NameKind.OWN


def is_defunct(info: ProcessInfo) -> bool:
    """Say whether a process has ended and its parent has not taken note."""
    return info.state == _DEFUNCT


def share(blame: Blame) -> str:
    """Return whose growth it is, with its part: "slurm 42.0 - alice - vLLM - pid 4711 87 %".

    Examples
    --------
    >>> from gpuwatchd.core.model import Blame, ProcessKey
    >>> key = ProcessKey(pid=7, started_at_s=None)
    >>> share(Blame(process=key, name="rank 1 on GPU 0", rank="rank 1", share=0.5,
    ...             rate_bytes_per_s=1.0))
    'rank 1[7] on GPU 0 50 %'
    """
    name = blame.name
    if blame.rank and blame.process is not None:
        name = f"{blame.rank}[{blame.process.pid}]{name[len(blame.rank) :]}"
    return f"{name} {units.percent(blame.share)}"


def since_s(alert: Alert) -> float:
    """Return since when an alert has its state and severity; of a resolved one, when it began."""
    if alert.state == "resolved":
        return next(filter(None, (alert.firing_at_s, alert.watch_at_s)), alert.opened_at_s)
    return alert.changed_at_s


def since(alert: Alert, *, now_s: float) -> str:
    """Return the clock of :func:`since_s`."""
    return units.clock(since_s(alert), now_s=now_s)


def growth_since(alert: Alert, *, now_s: float) -> tuple[str, str]:
    """Return a label and since when it has grown, or been so; "" where that is unknown."""
    onset_s = alert.finding.onset_at_s
    label = "growth since" if alert.kind == "leak" else "since"
    return label, "" if onset_s is None else units.clock(onset_s, now_s=now_s)


def user_label(word: UserLabel | None) -> str:
    """Return "alice said: normal (a cache)"; "" when nothing was said."""
    if word is None:
        return ""
    return f"marked as {word.word} by {word.who or 'you'}" + (f" ({word.why})" if word.why else "")


def baseline_text(history: KnownRuns | None) -> str:
    """Return what is known beside the curve; "" when nothing is.

    Examples
    --------
    >>> from gpuwatchd.store.live import KnownRuns
    >>> baseline_text(KnownRuns(runs=3, word="normal", siblings=1, yesterday=True))
    '3 earlier runs, marked as normal, 1 sibling, yesterday'
    >>> baseline_text(KnownRuns())
    ''
    """
    if history is None:
        return ""
    parts = [
        units.count(count, name)
        for count, name in ((history.runs, "earlier run"), (history.siblings, "sibling"))
        if count
    ]
    if history.word is not None:
        word = "marked as normal" if history.word == "normal" else "marked as a leak"
        parts.insert(1 if history.runs else 0, word)
    return ", ".join([*parts, "yesterday"] if history.yesterday else parts)


def framework(finding: Finding | None, info: ProcessInfo | None) -> str:
    """Return the framework, and whether it is a guess."""
    if info is not None and info.framework:
        return info.framework if info.framework_sure else f"{info.framework} (guessed)"
    if finding is not None and finding.framework:
        return finding.framework
    return "?"
