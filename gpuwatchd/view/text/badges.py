"""A verdict at a glance: its kind, one short word, and the words that ``status`` has for it.

The live screen, pictures, reports and the live page all ask here, so that one judgement has one
colour and one word everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.codes import Reason
from gpuwatchd.core.design import LOOKS
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.text import subject_facts, verdict_text

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
WORST_FIRST: Final[tuple[Kind, ...]] = (
    *("critical", "leak", "trouble", "watch", "held", "unknown", "calm"),
)
_RESTING: Final[frozenset[DeviceState]] = frozenset({"asleep", "released"})
_STATES: Final[dict[DeviceState, str]] = {
    "no-permission": "no access",
    "unsupported": "unreadable",
    "reset-required": "reset",
}
_PATTERNS: Final[dict[Pattern, str]] = {"preallocated": "prealloc."}
_HOLDINGS: Final[dict[HoldingKind, str]] = {
    "driver-wait": "in driver",
    "orphaned-runner": "orphan",
    "leaked-kv": "leaked KV",
}
"""Where they are not the words of the state, the pattern or the kind themselves."""


class Badge(NamedTuple):
    """One verdict, as small as it gets."""

    kind: Kind
    word: str
    """At most :data:`WORD_CELLS` wide, ASCII."""
    words: str
    """As ``status`` says it."""
    more: str | None = None
    """What the word does not say of it; None: all of it."""
    judged: bool = False
    """It is of the judgement, not of what stands for one."""

    @property
    def rest(self) -> str:
        """What is left to say beside the badge, "" where it says everything."""
        return self.words if self.more is None else self.more


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
        return "calm" if finding.code is Reason.NORMAL else "unknown"
    if finding.tier == "watch":
        return "watch"
    return "unknown" if finding.pattern == "unknown" else "calm"


def device(item: LiveDevice) -> Badge:
    """Return the badge of a device."""
    reading = item.reading
    if reading is None:
        why = f": {item.faults[0]}" if item.faults else ""
        return Badge("trouble", "unreadable", f"not readable{why}")
    if reading.state != "ok":
        return Badge(kind(item.finding, reading), *_of_state(item, reading.state))
    if item.finding is None and reading.per_instance:
        return Badge("unknown", "see MIG", "its MIG instances are monitored, not the card")
    instead = subject_facts.judged_instead(item, ())
    if item.finding is None and instead:
        return Badge("unknown", "processes", instead)
    return badge(item.finding, samples=item.samples)


def process(item: LiveProcess) -> Badge:
    """Return the badge of a process; one that is calm but leaks on the host says so."""
    own = badge(item.finding)
    if not is_leak(item.finding) and is_leak(item.host_finding):
        return badge(item.host_finding)
    return own


def holding(one: Holding) -> Badge:
    """Return the badge of idle memory."""
    return Badge("held", _HOLDINGS.get(one.kind, one.kind.replace("-", " ")), one.evidence)


def alert(one: Alert) -> Badge:
    """Return the badge of an alert as it is now; what is over is only that."""
    if one.state == "resolved":
        return Badge("unknown", "resolved", f"resolved {one.severity}")
    return raised(one)


def raised(one: Alert) -> Badge:
    """Return the badge of an alert as it was when it was open, however it is now.

    A suspicion is one, however severe it would be.
    """
    text = f"{one.state} {one.severity}"
    if one.kind == "held":
        return Badge("held", LOOKS["held"].word, text)
    if one.firing_at_s is None and one.state != "firing":
        return Badge("watch", "watch", text, one.severity if one.state == "watch" else None)
    critical = one.severity == "critical"
    if one.kind == "gpu":
        return Badge("trouble", LOOKS["critical" if critical else "trouble"].word, text)
    found: Kind = "critical" if critical else "leak"
    return Badge(found, LOOKS[found].word, text)


def badge(finding: Finding | None, *, samples: int = 0) -> Badge:
    """Return the badge of a judgement; ``samples`` as in :func:`.verdict_text.verdict_parts`."""
    parts = verdict_text.verdict_parts(finding, samples=samples)
    found, word, more = kind(finding), parts.head, parts.rest
    if finding is None or finding.pattern == "unknown":
        word = "collecting" if parts.rest else "no verdict"
    elif is_leak(finding):
        word = {"critical": "CRITICAL", "leak": "LEAK"}.get(found, "watch")
        more = parts.text if verdict_text.part_of(finding) else more
    elif finding.pattern in LEAK_PATTERNS and found == "calm":
        word, more = "normal", parts.text
    elif finding.tier != "watch":
        word = _PATTERNS.get(finding.pattern, word)
    return Badge(found, word, parts.text, more, judged=True)


def _of_state(item: LiveDevice, state: DeviceState) -> tuple[str, str, str | None]:
    """Return the word for a state, what ``status`` says of it, and what the word does not say."""
    called, since, joint, means = subject_facts.state_words(item, state, now_s=0.0)
    more = None
    if state in {"asleep", "released"}:
        more = means
    elif state in {"lost", "hung"} and (since or not means):
        more = f"{since.strip()}{joint}{means}"
    return _STATES.get(state, state), f"{called}{since}{joint}{means}", more
