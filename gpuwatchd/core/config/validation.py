"""What the types of the keys cannot say: least values, and texts with a form of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpuwatchd.core import directories, text
from gpuwatchd.core.config.schema import THRESHOLDS, MetricsSection, WebSection
from gpuwatchd.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.config.schema import Config

SHORTEST_S = 0.01
LONGEST_QUESTION_S = 60.0
"""One thread asks all servers: one that is silent keeps the others waiting for so long."""
_AT_LEAST = (
    ("daemon", "interval"), ("daemon", "source-deadline"), ("notify.desktop", "timeout"),
    ("notify.email", "timeout"), ("notify.command", "timeout"), ("notify.chat", "timeout"),
    ("checkpoints", "every"), ("cost", "lifetime"),
    ("endpoints", "every"), ("endpoints", "timeout"),
)  # fmt: skip
SHORTEST_GAP_S = 60.0
"""Between two notices there is time to read one."""
LONGEST_TEXT = 4096
"""As long as a path can be; nothing that is meant is longer."""
LONGEST_GLOB = 500
"""Making sense of a long one takes seconds, in the loop that samples."""
_CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CURRENCY = re.compile(r"[A-Z]{3}")


def check(config: Config, file: str) -> None:
    """Refuse values that cannot be meant.

    Raises
    ------
    ConfigError
        With file and key of the first one.
    """
    for key, why in _wrong(config):
        raise ConfigError(file, key, why)
    for key, why, hint in _act(config):
        raise ConfigError(file, key, why, hint=hint)
    if config.web != WebSection():
        _web(config.web, file)
    if config.metrics != MetricsSection():
        _metrics(config.metrics, file)


def _wrong(config: Config) -> Iterator[tuple[str, str]]:
    yield from _odd_texts(config)
    yield from _globs(config)
    for section, key in _AT_LEAST:
        value: Any = config
        for part in (*section.split("."), key):
            value = getattr(value, part.replace("-", "_"))
        if value < SHORTEST_S:
            yield f"[{section}] {key}", f"shorter than {SHORTEST_S:g} s"
    if config.endpoints.timeout > LONGEST_QUESTION_S:
        yield "[endpoints] timeout", f"longer than {LONGEST_QUESTION_S:g} s"
    for channel, ranges in config.policy.quiet_hours.items():
        for words in ranges:
            try:
                parse(words)
            except ValueError as error:
                yield "[policy] quiet-hours", f"{channel}: {error}"
    if not _CLOCK.fullmatch(config.policy.digest_at):
        yield "[policy] digest-at", f'"{config.policy.digest_at}" is no time of day such as "08:00"'
    if not _CURRENCY.fullmatch(config.cost.currency):
        yield (
            "[cost] currency",
            f'"{config.cost.currency}" is not three capital letters such as "EUR"',
        )


def _act(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield key, fault and hint of what [act] and its overrides cannot mean."""
    act = config.act
    for key, steps in (("leak-steps", act.leak_steps), ("idle-steps", act.idle_steps)):
        if len(set(steps)) < len(steps):
            each = ", ".join(f'"{step}"' for step in dict.fromkeys(steps))
            yield f"[act] {key}", "names a step twice", f"{key} = [{each}]"
        if "checkpoint" in steps and act.checkpoint == "off":
            why = 'names checkpoint while [act] checkpoint is "off"'
            yield f"[act] {key}", why, 'checkpoint = "signal" or "command" says how a job saves'
    if act.notice_gap < SHORTEST_GAP_S:
        why = f"shorter than {SHORTEST_GAP_S:g} s"
        yield "[act] notice-gap", why, f'notice-gap = "{SHORTEST_GAP_S:g}s", or more'
    # Programs are run in "/"; what may end others' processes is named in full.
    if act.runner and not directories.expanded(act.runner[0]).is_absolute():
        why = f'"{text.clean(act.runner[0])}" is not a whole path'
        yield "[act] runner", why, "write it as /PATH or ~/PATH"
    for number, rule in enumerate(config.override, start=1):
        # Whose processes may be ended is said in full, never by a rule that fits everybody.
        if rule.act == "auto" and not (rule.command.strip("*?") and rule.user.strip("*?")):
            why = '"auto" needs command and user, and "*" alone is not enough'
            hint = 'such as command = "*train.py*" and user = "alice"'
            yield f"[[override]] {number} act", why, hint
        if rule.pattern and any(getattr(rule, key) is not None for key in THRESHOLDS):
            why = "goes with no threshold of [detection]: growth has no pattern before it is judged"
            yield f"[[override]] {number} pattern", why, "leave pattern out"


def _metrics(section: MetricsSection, file: str) -> None:
    if section.listen:
        _listen(section, "metrics", file)
    for key, path in (("file", section.file), ("token-file", section.token_file)):
        if path and not directories.expanded(path).is_absolute():
            raise ConfigError(file, f"[metrics] {key}", f'"{text.clean(path)}" is not a whole path')
    if section.file and not section.file.endswith(".prom"):
        why = f'"{text.clean(section.file)}" does not end in .prom: node_exporter reads no other'
        raise ConfigError(file, "[metrics] file", why)


def _listen(section: WebSection | MetricsSection, name: str, file: str) -> None:
    from gpuwatchd.core.config import listening  # noqa: PLC0415 - few have the section

    try:
        listening.parse(section.listen, remote=section.remote, section=name)
    except listening.NoAddress as error:
        raise ConfigError(file, f"[{name}] listen", str(error), hint=error.hint) from None


def _web(section: WebSection, file: str) -> None:
    from gpuwatchd.core.config import listening  # noqa: PLC0415 - few have the section

    _listen(section, "web", file)
    for host in section.hosts:
        if not listening.is_host(host):
            value = text.clean(host, limit=80)
            why = f'"{value}" is no name of a server such as "gpu.example.org" or "localhost:9800"'
            raise ConfigError(file, "[web] hosts", why)
    if section.token_file and not directories.expanded(section.token_file).is_absolute():
        value = text.clean(section.token_file)
        raise ConfigError(file, "[web] token-file", f'"{value}" is not a whole path')


def _odd_texts(config: Config) -> Iterator[tuple[str, str]]:
    for key, words in _texts(config):
        if "\0" in words:
            yield key, "has a NUL character in it"
        elif not words.isascii() and _SURROGATE.search(words):
            # An environment holds any bytes; what is read as text cannot be written as such.
            yield key, "is not UTF-8 text"
        elif len(words) > LONGEST_TEXT:
            yield key, f"longer than {LONGEST_TEXT} characters"


def _globs(config: Config) -> Iterator[tuple[str, str]]:
    for name in config.cost.prices:
        if len(name) > LONGEST_GLOB:
            yield "[cost] prices", f"a name is longer than {LONGEST_GLOB} characters"
    for number, section in enumerate(config.override, start=1):
        for field in msgspec.structs.fields(section):
            words = getattr(section, field.name)
            if field.type is str and field.name != "why" and len(words) > LONGEST_GLOB:
                key = f"[[override]] {number} {field.encode_name}"
                yield key, f"longer than {LONGEST_GLOB} characters"


def _texts(section: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a configuration, with the key that it is in."""
    # Names alone: what a key's type is takes a hundred times as long, at every start.
    for field, key in zip(section.__struct_fields__, section.__struct_encode_fields__, strict=True):
        value = getattr(section, field)
        if isinstance(value, msgspec.Struct):
            yield from _texts(value, f"{name[:-1]}.{key}]" if name else f"[{key}]")
        elif isinstance(value, dict):
            for own, held in value.items():
                yield f"{name} {key}", str(own)
                yield from ((f"{name} {key}", one) for one in _listed(held) if isinstance(one, str))
        else:
            for number, one in enumerate(_listed(value), start=1):
                if isinstance(one, msgspec.Struct):
                    yield from _texts(one, f"[[{key}]] {number}")
                elif isinstance(one, str):
                    yield f"{name} {key}", one


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


# Hours of the week as people write them: "22:00-07:00", "sat,sun 00:00-24:00".

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
_RANGE = re.compile(
    r"(?:(?P<days>[a-z]{3}(?:\s*[-,]\s*[a-z]{3})*)\s+)?"
    r"(?P<from_h>\d{1,2}):(?P<from_m>\d\d)\s*-\s*(?P<to_h>\d{1,2}):(?P<to_m>\d\d)",
    re.IGNORECASE,
)


class Hours(NamedTuple):
    """One range, on the days on which it begins; an end before its beginning is the next day's."""

    days: frozenset[int]
    """Monday is 0."""
    begin: int
    """Minute of the day."""
    end: int
    """Minute of the day, up to 1440."""


def parse(text: str) -> Hours:
    """Return the range that a text names.

    Raises
    ------
    ValueError
        With what is wrong, in words.

    Examples
    --------
    >>> parse("22:00-07:00") == Hours(frozenset(range(7)), 1320, 420)
    True
    >>> sorted(parse("fri-sun 00:00-24:00").days)
    [4, 5, 6]
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not like 22:00-07:00 or sat,sun 00:00-24:00")
    begin = _minute(match["from_h"], match["from_m"])
    end = _minute(match["to_h"], match["to_m"])
    if begin == end:
        raise ValueError(f"{text!r} is empty; the whole day is 00:00-24:00")
    if begin == DAY_MINUTES:
        raise ValueError(f"{text!r} starts when the day is over; the next one starts at 00:00")
    return Hours(_days(match["days"]), begin, end)


def _minute(hours: str, minutes: str) -> int:
    minute = 60 * int(hours) + int(minutes)
    if int(minutes) > 59 or minute > DAY_MINUTES:
        raise ValueError(f"{hours}:{minutes} is no time of day")
    return minute


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.lower().replace(" ", "").split(","):
        first, _, last = part.partition("-")
        begin, end = _day(first), _day(last or first)
        # "sat-mon" goes over the end of the week.
        days.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return frozenset(days)


def _day(name: str) -> int:
    if name not in DAYS:
        raise ValueError(f"{name!r} is no day: {', '.join(DAYS)}")
    return DAYS.index(name)
