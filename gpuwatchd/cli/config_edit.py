"""Keys set in a configuration file that people write by hand: the rest of it stays as it is."""

from __future__ import annotations

import itertools
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.cli import config_text
from gpuwatchd.core.config import loading
from gpuwatchd.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Changes = dict[str, dict[str, Any]]
"""Section ("notify.email") -> key -> value."""
_SECTION: Final = re.compile(r"\s*\[")


def edited(words: str, changes: Changes, file: Path) -> str:
    """Return the text of a file with some keys set; comments and all other keys stay.

    Raises
    ------
    ConfigError
        When the file is bad, or so written that a line put in does not mean what it should.
    """
    wanted: dict[str, Any] = loading.parse(words, file=str(file))
    after = words
    for section, values in changes.items():
        table = wanted
        for part in section.split("."):
            table = table.setdefault(part, {})
        table |= values
        for key, value in reversed(values.items()):  # each goes right below the head
            after = _set(after, section, key, config_text.toml(value))
    try:
        good = loading.parse(after, file=str(file)) == wanted
    except ConfigError:
        good = False
    if not good:
        raise ConfigError(
            str(file), "", "written in a way that only you can change", hint=_by_hand(changes)
        )
    return after


def _by_hand(changes: Changes) -> str:
    keys = (
        f"[{section}] {key} = {config_text.toml(value)}"
        for section, values in changes.items()
        for key, value in values.items()
    )
    return f"write: {'; '.join(keys)}"


def _set(words: str, section: str, key: str, value: str) -> str:
    lines = words.split("\n")
    name = r"\s*\.\s*".join(map(re.escape, section.split(".")))
    head = re.compile(rf"\s*\[\s*{name}\s*\]\s*(#.*)?")
    begin = next((at for at, line in enumerate(lines, start=1) if head.fullmatch(line)), None)
    if begin is None:
        above = f"{words.rstrip()}\n\n" if words.strip() else ""
        return f"{above}[{section}]\n{key} = {value}\n"
    old = re.compile(rf"\s*{key.replace('-', '[-_]')}\s*=")
    own = itertools.takewhile(lambda at: not _SECTION.match(lines[at]), range(begin, len(lines)))
    found = next((at for at in own if old.match(lines[at])), None)
    if found is None:
        return "\n".join([*lines[:begin], f"{key} = {value}", *lines[begin:]])
    end = next((n for n in range(found + 1, len(lines)) if _is_toml(lines[found:n])), found + 1)
    comment = ""
    if end == found + 1:
        marks = (mark.start() for mark in re.finditer("#", lines[found]))
        starts = (at for at in marks if _is_toml([lines[found][:at]]))
        comment = next((f"  {lines[found][at:]}" for at in starts), "")
    elif any("#" in line for line in lines[found:end]):
        return words  # a comment within would be lost
    return "\n".join([*lines[:found], f"{key} = {value}{comment}", *lines[end:]])


def _is_toml(lines: Sequence[str]) -> bool:
    try:
        tomllib.loads("\n".join(lines).rstrip("\r"))
    except tomllib.TOMLDecodeError:
        return False
    return True
