"""The list of all that is recorded: name -> what makes it."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.recordings.worlds import Stage


class Item(NamedTuple):
    """One answer of the program."""

    name: str
    make: Callable[[], str]
    whole: bool = False
    """Whether its text is kept in the repository, not its hash alone."""


def every(stage: Stage) -> Iterator[Item]:
    """Yield all items; nothing is made yet."""
    from tests.recordings import (
        errors,
        incidents,
        logs,
        messages,
        pages,
        screens,
        verbs,
    )

    for part in (verbs, errors, logs, messages, incidents, pages, screens):
        yield from part.items(stage)


@functools.cache
def _lists() -> dict[str, list[str]]:
    return tomllib.loads(Path(__file__).with_name("asked.toml").read_text("utf-8"))


def listed(name: str) -> list[str]:
    """Return a list of what is asked, of ``asked.toml``."""
    return _lists()[name]
