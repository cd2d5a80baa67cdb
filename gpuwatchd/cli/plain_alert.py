"""What is said of an alert that no curve is judged for: a lost GPU, memory held without work."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from gpuwatchd.cli import consequences, process_facts
from gpuwatchd.cli.curve_reasons import Section
from gpuwatchd.cli.next_steps import Step
from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.curve_reasons import Case
    from gpuwatchd.core.model import Alert

_LINE = 400
_ENDS = {
    "gpu": (
        "it is over when the GPU has answered for a minute",
        "a GPU that sleeps, was released or cannot be read is not known to be well: it stays open",
    ),
    "held": (
        "it is over when the process has ended, or has worked or held less for five minutes",
        "while the list of processes cannot be read it stays open",
    ),
}
_ABOUT = {"gpu": "how the GPU answers", "held": "memory that is held without work"}


def is_plain(alert: Alert | None) -> bool:
    """Say whether an alert is one of these."""
    return alert is not None and alert.kind in _ENDS


def sections(case: Case) -> list[Section]:
    """Return the explanation, part by part."""
    alert = case.alert
    if alert is None:
        return []
    return [
        Section("What is told", tuple(_notification_lines(case, alert))),
        Section("Hardware", tuple(process_facts.hardware_lines(case))),
        Section("Who was told", tuple(consequences.policy_lines(case))),
        Section("What would end it", () if alert.state == "resolved" else _ENDS[alert.kind]),
    ]


def _notification_lines(case: Case, alert: Alert) -> Iterator[str]:
    yield f"{_ABOUT[alert.kind]}: {text.clean(alert.title)}"
    for part in alert.finding.parts:
        yield text.clean(part.whole, limit=_LINE)
    yield f"since {case.ago(alert.opened_at_s)}"


def steps(case: Case) -> list[Step]:
    """Return what to do next, in order; what follows a colon is there to be typed."""
    if case.alert is None:
        return []
    found, finding = [], case.alert.finding
    for line, command in zip_longest(finding.advice, finding.commands or (), fillvalue=""):
        words = line[: -len(f": {command}")] if command else line
        found.append(Step(text.clean(words, limit=_LINE), text.clean(command, limit=_LINE)))
    if case.alert.kind == "held":
        found.append(Step("see everything that is held", "gpuwatchctl zombies"))
    elif case.alert.state != "resolved":
        found.append(Step("see what else the daemon misses", "gpuwatchctl doctor"))
    return found
