"""What the types of the keys cannot say: least values, and texts with a form of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.config import hours
from gpuwatchd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.config.sections import Config

SHORTEST_S = 0.01
LONGEST_QUESTION_S = 60.0
"""One thread asks all servers: one that is silent keeps the others waiting for so long."""
_AT_LEAST = (
    ("daemon", "interval"), ("daemon", "source-deadline"), ("notify.desktop", "timeout"),
    ("notify.email", "timeout"), ("notify.command", "timeout"), ("notify.chat", "timeout"),
    ("checkpoints", "every"),
    ("endpoints", "every"), ("endpoints", "timeout"),
)  # fmt: skip
_CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d")
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


def _wrong(config: Config) -> Iterator[tuple[str, str]]:
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
                hours.parse(words)
            except ValueError as error:
                yield "[policy] quiet-hours", f"{channel}: {error}"
    if not _CLOCK.fullmatch(config.policy.digest_at):
        yield "[policy] digest-at", f'"{config.policy.digest_at}" is no time of day such as "08:00"'
    if not _CURRENCY.fullmatch(config.cost.currency):
        yield (
            "[cost] currency",
            f'"{config.cost.currency}" is not three capital letters such as "EUR"',
        )
