"""A verdict at a glance: its kind, one short word, and the words that ``status`` has for it.

The live screen, pictures, reports and the live page all ask here, so that one judgement has one
colour and one word everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.cli import device_facts
from gpuwatchd.cli import verdict_text as words
from gpuwatchd.cli.envelope import is_leak
from gpuwatchd.core.design import LOOKS
from gpuwatchd.core.model import LEAK_PATTERNS, PER_INSTANCE

if TYPE_CHECKING:
    from gpuwatchd.core.design import Kind
    from gpuwatchd.core.model import (
        Alert,
        DeviceReading,
        DeviceState,
        Finding,
        Holding,
        HoldingKind,
        Pattern,
    )
    from gpuwatchd.store.live import LiveDevice, LiveProcess

WORD_CELLS: Final = 10
"""No :attr:`Badge.word` is wider."""
_RESTING: Final[frozenset[DeviceState]] = frozenset({"asleep", "released"})
_STATES: Final[dict[DeviceState, str]] = {
    "asleep": "asleep",
    "lost": "lost",
    "no-permission": "no access",
    "unsupported": "unreadable",
    "hung": "hung",
    "reset-required": "reset",
    "released": "released",
}
_PATTERNS: Final[dict[Pattern, str]] = {"preallocated": "prealloc."}
_HOLDINGS: Final[dict[HoldingKind, str]] = {
    "gone": "gone",
    "defunct": "defunct",
    "driver-wait": "in driver",
    "ghost": "ghost",
    "orphaned-runner": "orphan",
    "no-model": "no model",
    "leaked-kv": "leaked KV",
    "hung-rank": "hung rank",
    "idle": "idle",
}


class Badge(NamedTuple):
    """One verdict, as small as it gets."""

    kind: Kind
    word: str
    """At most :data:`WORD_CELLS` wide, ASCII."""
    words: str
    """As ``status`` says it."""

    @property
    def rest(self) -> str:
        """What is left to say beside the badge, "" where it says everything.

        Examples
        --------
        >>> Badge("critical", "CRITICAL", "CRITICAL step, strong 92%").rest
        'step, strong 92%'
        >>> Badge("calm", "stable", "stable").rest, Badge("calm", "prealloc.", "preallocated").rest
        ('', '')
        """
        if self.words == "unknown" or (
            self.word.endswith(".") and self.words.startswith(self.word[:-1])
        ):
            return ""
        first, _, rest = self.words.partition(" ")
        if self.words == self.word:
            return ""
        return rest if first.rstrip(",") == self.word else self.words


def kind(finding: Finding | None, reading: DeviceReading | None = None) -> Kind:
    """Return what a judgement comes to.

    Parameters
    ----------
    finding
        With the tier that policy has opened; None when nothing was judged.
    reading
        Of a device: one that cannot be read, or is broken, is in trouble whatever was judged.
        Leave it out for a process.

    Examples
    --------
    >>> kind(None)
    'unknown'
    """
    if reading is not None and reading.state != "ok":
        return "unknown" if reading.state in _RESTING else "trouble"
    if finding is None:
        return "unknown"
    if is_leak(finding):
        if finding.tier == "watch":
            return "watch"
        return "critical" if finding.severity == "critical" else "leak"
    if finding.pattern in LEAK_PATTERNS:
        return "calm" if words.SAID_NORMAL in finding.reason else "unknown"
    if finding.tier == "watch":
        return "watch"
    return "unknown" if finding.pattern == "unknown" else "calm"


def device(item: LiveDevice) -> Badge:
    """Return the badge of a device."""
    reading = item.reading
    if reading is None:
        return Badge("trouble", "unreadable", _state(item))
    if reading.state != "ok":
        return Badge(kind(item.finding, reading), _STATES[reading.state], _state(item))
    if item.finding is None and reading.uses_reason == PER_INSTANCE:
        return Badge("unknown", "see MIG", "its MIG instances are judged, not the card")
    instead = device_facts.judged_instead(item, ())
    if item.finding is None and instead:
        return Badge("unknown", "processes", instead)
    return of(item.finding, samples=item.samples)


def process(item: LiveProcess) -> Badge:
    """Return the badge of a process; one that is calm but leaks on the host says so."""
    own = of(item.finding)
    if not is_leak(item.finding) and is_leak(item.host_finding):
        return of(item.host_finding)
    return own


def holding(one: Holding) -> Badge:
    """Return the badge of memory that is held without work."""
    return Badge("held", _HOLDINGS[one.kind], one.evidence)


def alert(one: Alert) -> Badge:
    """Return the badge of an alert as it is now; what is over is only that."""
    if one.state == "resolved":
        return Badge("unknown", "over", _stage(one))
    return raised(one)


def raised(one: Alert) -> Badge:
    """Return the badge of an alert as it was when it was open, however it is now.

    A suspicion is one, however severe it would be.
    """
    text = _stage(one)
    if one.kind == "held":
        return Badge("held", LOOKS["held"].word, text)
    if one.firing_at_s is None and one.state != "firing":
        return Badge("watch", "watch", text)
    critical = one.severity == "critical"
    if one.kind == "gpu":
        return Badge("trouble", LOOKS["critical" if critical else "trouble"].word, text)
    found: Kind = "critical" if critical else "leak"
    return Badge(found, LOOKS[found].word, text)


def _stage(one: Alert) -> str:
    """Return what the list of alerts says of it: "firing critical"."""
    return f"{one.state} {one.severity}"


def of(finding: Finding | None, *, samples: int = 0) -> Badge:
    """Return the badge of a judgement; ``samples`` as in :func:`.verdict_text.verdict`."""
    text = words.verdict(finding, samples=samples)[0]
    found = kind(finding)
    if finding is None or finding.pattern == "unknown":
        collecting = text.startswith("collecting")
        return Badge(found, "collecting" if collecting else "no verdict", text)
    if is_leak(finding):
        loud = {"critical": "CRITICAL", "leak": "LEAK"}
        return Badge(found, loud.get(found, "watch"), text)
    if finding.pattern in LEAK_PATTERNS:
        return Badge(found, "normal" if found == "calm" else "growing", text)
    if finding.tier == "watch":
        return Badge(found, "watch", text)
    return Badge(found, _PATTERNS.get(finding.pattern, finding.pattern), text)


def _state(item: LiveDevice) -> str:
    parts = device_facts.state(item, now_s=0.0)
    first = parts[0]
    return first if isinstance(first, str) else first[0]
