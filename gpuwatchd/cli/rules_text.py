"""A rule set in plain sentences: who is told what, by what, when, and what never."""

from __future__ import annotations

import shutil
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, get_args

import msgspec

from gpuwatchd.core import directories, text, units
from gpuwatchd.core.config import Config, OverrideSection, channels, validation
from gpuwatchd.core.config.schema import THRESHOLDS
from gpuwatchd.core.model import LEAK_PATTERNS, Severity
from gpuwatchd.notify import NOTIFIERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

KINDS: Final = ("leak", "gpu", "held", "limit")
PATTERNS: Final = (*sorted(LEAK_PATTERNS), "spike")
ALL: Final = "all"
_CONDITIONS: Final = (
    *("gpu", "user", "process", "framework", "command", "job", "container"),
    *("kind", "pattern"),
)
_OF_PROCESS: Final = ("user", "process", "framework", "command", "job", "container")
_WEEK_MIN: Final = 7 * validation.DAY_MINUTES
_LEVELS: Final[tuple[Severity, ...]] = get_args(Severity)


def place_of(settings: Config, channel: str) -> str:
    """Return where a channel is put to use, in brackets; "" where that is the list of channels.

    Examples
    --------
    >>> place_of(Config(), "desktop"), place_of(Config(), "email")
    ('', '')
    """
    keys = [key for name, key in channels.uses(settings) if name == channel]
    return f" ({keys[0]})" if keys and keys[0] != "[policy] channels" else ""


def problems(settings: Config) -> Iterator[str]:
    """Yield what cannot be meant: names that are none, conditions that nothing fits."""
    policy = settings.policy
    tables = [(name, "[policy] severity") for name in policy.severity]
    tables += [(name, "[policy] quiet-hours") for name in policy.quiet_hours if name != ALL]
    for name, key in dict.fromkeys([*channels.uses(settings), *tables]):
        if name not in NOTIFIERS:
            yield f"{key}: {channels.unknown(name, tuple(NOTIFIERS))}"
    for number, section in enumerate(settings.override, start=1):
        for key, words in (("kind", KINDS), ("pattern", PATTERNS)):
            wanted = getattr(section, key)
            if wanted and not any(fnmatchcase(word, wanted.lower()) for word in words):
                yield f'[[override]] {number} {key}: nothing is "{wanted}"; {", ".join(words)} are'


def notes(settings: Config) -> Iterator[str]:
    """Yield what is silenced, unreachable or without effect, one sentence each."""
    policy, used = settings.policy, channels.used(settings)
    limits = [policy.severity.get(name, "info") for name in policy.channels]
    if limits and all(limit == "critical" for limit in limits):
        yield "severity: no channel is used for warnings, only critical alerts are sent"
    for name in policy.severity:
        if name in NOTIFIERS and name not in used:
            yield f"severity: {name} is not in use, so its limit has no effect"
    yield from channels.unused(settings)
    yield from _quiet(settings)
    yield from _reserves(settings)
    yield from _overrides(settings.override)
    # Nobody knows whether a message of a chat was seen.
    if _acts(settings) and set(used) <= {"chat"}:
        yield "act: no channel but chat is in use, so no notice counts and no step is taken"
    if _is_auto(settings) and not settings.act.idle_steps:
        yield 'idle-steps: empty, so no step is taken where act is "auto"'
    for program in settings.act.runner[:1]:
        path = directories.expanded(program)
        if shutil.which(path) is None:
            yield f"runner: {text.clean(str(path))} is no program that can be run here"
    cost = settings.cost
    if cost.mode == "owned" and cost.purchase is None:
        yield "purchase: not set, so what an owned device costs is unknown"
    if cost.mode != "off" and cost.currency.upper() != "USD" and cost.per_usd is None:
        yield f"per-usd: not set, so no money is shown in {cost.currency}, GPU-hours alone"


def _minutes(ranges: Iterable[str]) -> set[int]:
    """Return the minutes of the week, Monday 00:00 is 0, that some ranges cover."""
    covered: set[int] = set()
    for words in ranges:
        one = validation.parse(words)
        length = (one.end - one.begin) % validation.DAY_MINUTES or validation.DAY_MINUTES
        for day in one.days:
            start = day * validation.DAY_MINUTES + one.begin
            covered.update((start + step) % _WEEK_MIN for step in range(length))
    return covered


def _quiet(settings: Config) -> Iterator[str]:
    quiet = settings.policy.quiet_hours
    used = channels.used(settings)
    for name in sorted(used):
        ranges = (*quiet.get(name, ()), *quiet.get(ALL, ()))
        if ranges and len(_minutes(ranges)) >= _WEEK_MIN:
            yield f"quiet-hours: {name} is always quiet, so it sends critical alerts only"
    for name in quiet:
        if name != ALL and name in NOTIFIERS and name not in used:
            yield f"quiet-hours: {name} is not in use, so its hours have no effect"


def _reserves(settings: Config) -> Iterator[str]:
    policy = settings.policy
    for name in policy.fallback:
        if name in policy.channels:
            yield f"fallback: {name} is one of the channels already, so it is no second way"
    if policy.fallback and not policy.channels:
        yield "fallback: used when a channel fails, and there is none"
    if policy.digest != "off" and not policy.digest_channels:
        yield "digest-channels: empty, so the summary is not sent"
    chat = settings.notify.chat
    if "chat" in channels.used(settings) and not chat.urls_file:
        yield (
            "urls-file: not set, so chat needs the credential chat-urls or GPUWATCHD_CHAT_URLS "
            "where the daemon runs"
        )


def _overrides(sections: Sequence[OverrideSection]) -> Iterator[str]:
    for number, section in enumerate(sections, start=1):
        name, conditions, effects = f"override {number}", _conditions(section), _effects(section)
        if not effects:
            yield f"{name}: has no setting"
        elif not conditions and section.mute:
            yield f"{name}: without a condition it matches everything: no message is sent"
        elif not conditions:
            yield f"{name}: without a condition it matches everything; use [policy] for that"
        asked = [key for key in (*_OF_PROCESS, "pattern") if key in conditions]
        if asked and conditions.get("kind") == "gpu":
            yield f"{name}: alerts of kind gpu have no {asked[0]}, so it matches nothing"
        if section.grows and section.grows_to is not None:
            yield f"{name}: grows-to gives the limit, so grows has no effect"
        above = _covered(conditions, effects, sections[number:], number)
        if above:
            yield f"{name}: override {above} fits all of the same and sets the same, later wins"


def _covered(
    conditions: dict[str, str], effects: set[str], later: Sequence[OverrideSection], number: int
) -> int:
    """Return the number of the last override that leaves nothing of an earlier one; 0 for none."""
    left, last = set(effects), 0
    for offset, section in enumerate(later, start=1):
        wider = all(conditions.get(key) == value for key, value in _conditions(section).items())
        if wider and left & _effects(section):
            left -= _effects(section)
            last = number + offset
    return last if effects and not left else 0


def _conditions(section: OverrideSection) -> dict[str, str]:
    return {key: found for key in _CONDITIONS if (found := getattr(section, key)) and found != "*"}


def _effects(section: OverrideSection) -> set[str]:
    """Return the keys that an override sets; one that lets it grow is one whatever its bound."""
    fields = {field.name: field.default for field in msgspec.structs.fields(section)}
    names = {name for name, default in fields.items() if getattr(section, name) != default}
    names -= {*_CONDITIONS, "why"}
    return {"grows" if name == "grows_to" else name for name in names}


def explain(settings: Config) -> list[str]:
    """Return the rules in plain sentences."""
    policy = settings.policy
    if not policy.channels:
        texts = ["No alerts are sent: no channel is in use; status and check show them."]
    else:
        texts = [*_notification_lines(settings), *_per_channel(settings)]
    if policy.fallback and policy.channels:
        wait = units.duration(policy.fallback_after)
        texts.append(
            f"If none of them could deliver within {wait}: {_listed(policy.fallback, 'then')}."
        )
    if policy.digest != "off":
        when = f"{policy.digest} at {policy.digest_at}"
        when += " (Mondays)" if policy.digest == "weekly" else ""
        texts.append(f"A summary leaves {when} by {_listed(policy.digest_channels)}.")
    texts.append("Growth that is only watched is not sent; status shows it.")
    how = "reported" if policy.tell_hardware else "only shown"
    texts.append(f"A GPU that is lost, hangs or must be reset is {how}.")
    how = "reported" if policy.tell_limit else "only shown"
    texts.append(f"A control group that is near its limit of GPU memory is {how}.")
    if policy.tell_held:
        texts.append(f"Idle memory is reported where it is {_listed(policy.tell_held, 'or')}.")
    elif not _acts(settings):
        texts.append("Idle memory is only shown (zombies).")
    texts += _steps(settings)
    for number, section in enumerate(settings.override, start=1):
        conditions = _conditions(section).items()
        who = ", ".join(f"{key} {text.mask_argv([value])[0]}" for key, value in conditions)
        texts.append(f"Override {number} ({who or 'everything'}): {_what(section)}.")
    return texts


def _notification_lines(settings: Config) -> Iterator[str]:
    policy = settings.policy
    hold = (
        f"{units.duration(policy.flap_hold)} after it fires" if policy.flap_hold else "immediately"
    )
    steps = [units.duration(step) for step in policy.repeat]
    again = "never again"
    if steps:
        first = f"after {', '.join(steps[:-1])}, then " if steps[1:] else ""
        again = f"again {first}every {steps[-1]}"
    over = ", and when it resolves" if policy.recovered else "; not when it resolves"
    yield f"An alert is sent by {_listed(policy.channels)} {hold}, {again}{over}."
    yield (
        f"No further message about it within {units.duration(policy.cooldown)} unless it gets "
        f"worse; at most {policy.max_per_hour} messages an hour; alerts of one cause share one."
    )


def _steps(settings: Config) -> Iterator[str]:
    """Yield what ``[act]`` proposes, and what it does without being asked."""
    act = settings.act
    if act.mode == "observe":
        yield "No step is proposed."
    else:
        yield "An alert proposes its next step, and for a leak never does more."
    if _acts(settings):
        by = f" by {text.clean(act.runner[0])}" if act.runner else ""
        steps, gap = _listed(act.idle_steps, "then"), units.duration(act.notice_gap)
        yield (
            f"Idle memory of processes that opted in: {steps}{by}, after {act.notices} messages"
            f" that arrived, each {gap} before what follows; a new rule only proposes for 7 days."
            " gpuwatchctl hold PID stops one."
        )
        if settings.policy.quiet_hours:
            yield "In quiet hours no message leaves, and so no step is taken."


def _acts(settings: Config) -> bool:
    """Say whether a step may ever be taken without being asked for."""
    return _is_auto(settings) and bool(settings.act.idle_steps)


def _is_auto(settings: Config) -> bool:
    return "auto" in (settings.act.mode, *(section.act for section in settings.override))


def _per_channel(settings: Config) -> Iterator[str]:
    policy = settings.policy
    for name in sorted(channels.used(settings)):
        least = policy.severity.get(name, "info")
        quiet = (*policy.quiet_hours.get(name, ()), *policy.quiet_hours.get(ALL, ()))
        parts = []
        if least != "info":
            parts.append(f"only for {_listed(_LEVELS[_LEVELS.index(least) :])}")
        if quiet:
            parts.append(f"quiet {', '.join(quiet)}: what is not critical waits for the end")
        if parts:
            yield f"{name} is {'; '.join(parts)}."


def _listed(words: Sequence[str], last: str = "and") -> str:
    """Return words as a list in a sentence.

    Examples
    --------
    >>> _listed(["a"]), _listed(["a", "b", "c"]), _listed([])
    ('a', 'a, b and c', 'nobody')
    """
    if not words:
        return "nobody"
    *front, end = words
    return f"{', '.join(front)} {last} {end}" if front else end


def _what(section: OverrideSection) -> str:
    parts = []
    if section.mute:
        parts.append("no message is sent")
    if section.grows_to is not None:
        parts.append(f"it may grow to {units.size(section.grows_to)}, no message below that")
    elif section.grows:
        parts.append("it may grow, no message before the last hour")
    if section.severity is not None:
        parts.append(f"sent as {section.severity} at most")
    if section.channels is not None:
        parts.append(f"sent by {_listed(section.channels)}")
    if section.act is not None:
        modes = {
            "observe": "not proposed",
            "propose": "only proposed",
            "auto": "taken for idle memory",
        }
        parts.append(f"steps of [act] are {modes[section.act]}")
    own = [key for key in THRESHOLDS if getattr(section, key) is not None]
    if own:
        parts.append(f"judged with {_listed([key.replace('_', '-') for key in own])} of its own")
    if section.repeat is not None:
        steps = [units.duration(step) for step in section.repeat]
        parts.append(f"reminders after {', '.join(steps)}" if steps else "no reminders")
    value = "; ".join(parts) or "no difference"
    return f"{value} ({section.why})" if section.why else value
