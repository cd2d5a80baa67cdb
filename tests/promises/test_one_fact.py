"""A number, a time or a name of an incident is the same in every view that has it."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import pytest

from gpuwatchd.core import units
from tests.conftest import ROOT, ran
from tests.promises.six_incidents import INCIDENTS, pid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Facts = dict[tuple[str, str], dict[str, set[str]]]
"""(incident, fact) -> view -> what it says; a fact of a message is one of its moment."""

_CET: Final = timezone(timedelta(hours=1))
_OVER: Final = frozenset({"over", "died", "normal"})
_SIZE: Final = r"(-?[\d.]+ [MGT]iB)"
_RANGE: Final = _SIZE[:-1] + " (?:to|and) " + _SIZE[1:]
_RATE: Final = r"([\d.,]+ MB/min)"
_TIME: Final = r"((?:[A-Z][a-z]{2} )?\d\d:\d\d)"
_SPAN: Final = r"(\d+ (?:d|h|min|s)(?: \d+ (?:h|min))?)"
_ENDED: Final = (
    "((?:its process|it) ended(?: near the limit: probably out of memory)?|alice marked.{,22})"
)
_BAND: Final = _SPAN[:-1] + r" \((?:at least )?\d[^()]*\))"
_COST: Final = r"(\$[\d.,]+)"
PATTERNS: Final[dict[str, tuple[str, ...]]] = {
    "title": (r"(GPU 5 \([^()]+\)|GPU \d \([^()]+\): python train_\w+\.py\[\d+\] of alice)",),
    "limit": (
        rf"\blimit (?:is )?{_SIZE}", rf"\bfull at {_SIZE}", rf"runs out at {_SIZE}",
        rf"iB to \S+ \S+ of {_SIZE}",
    ),
    "begun": (
        rf"(?:firing, critical|simulated\)\.) [Ss]ince {_TIME}",
        rf"growth since {_TIME}", rf"grown since {_TIME}", rf"Grows .{{,20}}since {_TIME}",
        rf"from {_TIME} CET on",
    ),
    "grew for": (
        rf"steadily by \S+ MB/min for {_SPAN}", rf"CET \({_SPAN}\), \S+ \S+ so far",
        rf"Grew \S+ \S+ in {_SPAN}", rf"grown since \S+, for {_SPAN}",
    ),
    "grew by": (rf"{_SIZE} so far", rf"Grew {_SIZE}"),
    "rate": (
        rf"growth(?: rate)? \+{_RATE}", rf"\+{_RATE} gradual", rf"% \+{_RATE}",
        rf"rate \+{_RATE}", rf"steadily by {_RATE}", rf"Grows {_RATE}",
        rf"rise of .{{,40}}\+{_RATE}", rf"\d \+{_RATE}", rf"% \(\+{_RATE}\)",
    ),
    "full in": (rf"\b[Ff]ull in {_BAND}",),
    "full in, short": (rf"(?<!may be )\b[Ff]ull in {_SPAN}",),
    "confidence": (r"gradual, \w+ (\d+ %)", r"confidence (\d+ %)", r"gradual leak \((\d+ %)\)"),
    "noticed": (rf"noticed {_TIME}",),
    "watched": (rf"watched {_TIME}", rf"◆\d {_TIME} watch:"),
    "raised": (rf"raised {_TIME}", rf"△\d {_TIME} alert:"),
    "resolved": (
        rf"resolved {_TIME}", rf"since \S+ - {_TIME}", rf"[●◂]?\d? {_TIME} resolved:",
        rf"✖\d? {_TIME} (?:out of memory:|\S+ ran out of memory)", rf"what came .*?, at {_TIME}",
    ),
    "severity": (
        r"(?:firing|watch|resolved) (info|warning|critical) since",
        r"(?<!firing, )\b(critical|warning) since", r"state (?:firing|watch|resolved), (\w+)",
        r"\d\d:\d\d (critical):",
    ),
    "since": (
        rf"(?<!firing, )\b(?:critical|warning|watch) since {_TIME}",
        rf"▲\d {_TIME} critical:",
    ),
    "cost so far": (
        rf"{_COST} since it was first seen", rf"cost {_COST} (?:at risk now|probably lost)",
        rf"memory after .*?, {_COST} lost",
    ),
    "ran for": (rf"ran out of memory after {_SPAN}",),
    "cost until full": (rf"{_COST} more until",),
    "GPU-hours": (r"([\d.]+ GPU-hours)",),
    "notices": (r"(\d+) notices?\b",),
    "snoozed until": (rf"silent until {_TIME}", rf"of alice until {_TIME}", rf'"until {_TIME} CET'),
    "ended": (rf"(?:resolved:|out of memory:|ended|what came) .{{,80}}?{_ENDED}",),
    "range": (rf"[▁-█] +{_RANGE}", rf"Memory used .* between {_RANGE}"),
    "gap": (rf"1 gap, {_SPAN} missing", rf"\d\d:\d\d \d\d:\d\d {_SPAN} GPU 5"),
    "held": (rf"of alice {_SIZE}", rf"on GPU \d, {_SIZE} now", rf"alice +{_SIZE} +\+"),
}  # fmt: skip
"""Fact -> how texts word it."""


def _clock(value: str) -> str:
    """Return an instant as people write it on that day, a Saturday, in that zone."""
    when = datetime.fromisoformat(value).astimezone(_CET)
    return f"{when:%H:%M}" if when.day == 21 else f"{when:%a %H:%M}"


def _band(eta: dict[str, Any]) -> str | None:
    if eta.get("mid_s") is None:
        return None
    return units.band(eta["low_s"], eta["mid_s"], eta["high_s"])


_OTHER: Final = {"signals", "first", "deliveries"}
"""What JSON says of another instant, or of one detector."""
_SCREENS: Final = {"top d", "top h"}
KEYS: Final[dict[str, tuple[str, Callable[[Any], str | None]]]] = {
    "limit_bytes": ("limit", units.size),
    "rate_bytes_per_s": ("rate", units.rate),
    "onset_at": ("begun", _clock),
    "eta": ("full in", _band),
    "forecast": ("full in", _band),
    "confidence": ("confidence", units.percent),
    "opened_at": ("noticed", _clock),
    "watch_at": ("watched", _clock),
    "firing_at": ("raised", _clock),
    "resolved_at": ("resolved", _clock),
    "ended": ("ended", str),
    "ended_at": ("resolved", _clock),
    "ran_s": ("ran for", units.duration),
    "lost_usd": ("cost so far", units.money),
}
"""Key of JSON -> fact, and how people write it."""


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Return what every view says of every incident."""
    done = ran([sys.executable, "-m", "tests.promises.six_incidents"], cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return collected(json.loads(done.stdout))


def collected(answers: dict[str, str]) -> Facts:
    """Return the facts of all answers."""
    found: Facts = defaultdict(lambda: defaultdict(set))
    for view, answer in answers.items():
        moment = re.match(r"message at \d+ s", view)
        for incident in INCIDENTS:
            # A screen is about the first, which is the one that grows most.
            whole = tag(incident) in view or (incident == "snoozed" and view[:5] in _SCREENS)
            name = incident if moment is None else f"{incident} at {moment[0]}"
            for fact, value in _facts(answer, incident, whole=whole):
                found[name, fact][view].add(value)
                if whole and " resolved " in view and fact != "range":
                    found[incident, fact][view].add(value)
    return found


def tag(incident: str) -> str:
    """Return what names an incident in every text on it."""
    return "GPU 5" if incident == "lost" else str(pid(incident))


def _facts(answer: str, incident: str, *, whole: bool) -> Iterator[tuple[str, str]]:
    body = answer.partition("== stdout\n")[2].partition("\n== stderr")[0] or answer
    if body.startswith("GET"):
        body = body.partition("\n\n")[2]
    if body.startswith("{"):
        data, _ = json.JSONDecoder().raw_decode(body)
        data.pop("page", None)
        for part in [data] if whole else _about(data, incident):
            yield from _keyed(part, incident)
            yield from _worded(" ".join(_strings(part)))
        return
    if whole:
        # Beside a chart there may be other texts.
        body = re.sub(r"[\u2500-\u257f\u2800-\u28ff]", " ", body)
        chunks = [re.sub(r"^ *\d+ GiB (?= )", "", body, flags=re.MULTILINE)]
    else:
        body = re.sub(r"^GPUWATCHD.*", "", body)
        chunks = re.split(r"\n(?=\S| \d\. )" if re.search(r"^\S", body) else "\n", body)
    for chunk in chunks:
        if whole or tag(incident) in chunk or f"train_{incident}.py ran out" in chunk:
            yield from _worded(chunk)


def _worded(text: str) -> Iterator[tuple[str, str]]:
    line = " ".join(text.split())
    for fact, patterns in PATTERNS.items():
        for pattern in patterns:
            for match in re.finditer(pattern, line):
                yield fact, match[1].replace(" and ", " to ")


def _about(data: Any, incident: str) -> Iterator[Any]:
    """Yield the smallest parts of an answer that name an incident."""
    if isinstance(data, dict):
        own = [value for value in data.values() if isinstance(value, str | int)]
        if any(tag(incident) in str(value) for value in own):
            yield data
            return
    if isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _about(value, incident)


def _keyed(part: Any, incident: str) -> Iterator[tuple[str, str]]:
    """Yield the facts that stand under their keys; not those of another process."""
    if isinstance(part, list):
        for value in part:
            yield from _keyed(value, incident)
    if not isinstance(part, dict) or part.get("leak") is False:
        return
    if part.get("pid", None) not in {None, pid(incident)}:
        return
    for key, value in part.items():
        # Of what is over the chart shows the first forecast.
        if (
            key in KEYS
            and value is not None
            and value != ""
            and (key != "forecast" or incident not in _OVER)
        ):
            fact, written = KEYS[key]
            if (text := written(value)) is not None:
                yield fact, text
        if key not in _OTHER:
            yield from _keyed(value, incident)


def _strings(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict | list):
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            if key not in _OTHER:
                yield from _strings(value)


def disagreements(facts: Facts, incident: str) -> Iterator[str]:
    """Yield each fact of an incident that has several values, with who says what."""
    for (name, fact), views in sorted(facts.items()):
        values: dict[str, list[str]] = defaultdict(list)
        for view, said in views.items():
            for value in said:
                values[value].append(view)
        if fact == "cost until full":
            # The message was written a second before the others were asked: a cent may be between.
            cents = [float(re.sub(r"[^0-9.]", "", value)) for value in values]
            if max(cents, default=0.0) - min(cents, default=0.0) < 0.011:
                continue
        if name.partition(" ")[0] == incident and len(values) > 1:
            parts = [f"{value!r} in {', '.join(sorted(found))}" for value, found in values.items()]
            yield f"{name}: {fact}: {'; '.join(parts)}"


def test_each_fact_is_found_in_several_views(facts: Facts) -> None:
    most = {fact: max(len(facts[name, fact]) for name in INCIDENTS) for fact in PATTERNS}
    assert {fact for fact, count in most.items() if count < 2} == set()


@pytest.mark.parametrize("incident", INCIDENTS)
def test_every_view_says_the_same(facts: Facts, incident: str) -> None:
    found = list(disagreements(facts, incident))
    assert not found, "\n".join(found)
