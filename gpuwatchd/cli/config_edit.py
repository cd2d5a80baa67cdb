"""Keys set in a configuration file that people write by hand: the rest of it stays as it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.cli import config_text
from gpuwatchd.core.config import loading
from gpuwatchd.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Changes = dict[str, dict[str, Any]]
"""Section ("notify.email") -> key -> value."""
_VALUE: Final = r"""(?:[^#"'\n]|"[^"\n]*"|'[^'\n]*')*?"""
_SECTION: Final = re.compile(r"^[ \t]*\[", re.MULTILINE)


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
        keys = "; ".join(
            f"[{section}] {key} = {config_text.toml(value)}"
            for section, values in changes.items()
            for key, value in values.items()
        )
        why = "written in a way that only you can change"
        raise ConfigError(str(file), "", why, hint=f"write: {keys}")
    return after


def _set(words: str, section: str, key: str, value: str) -> str:
    """Return the text with a key of one line replaced, or put below the head of its section."""
    name = r"[ \t]*\.[ \t]*".join(map(re.escape, section.split(".")))
    head = re.search(rf"^[ \t]*\[[ \t]*{name}[ \t]*\][ \t\r]*(#.*)?$", words, re.MULTILINE)
    if head is None:
        above = f"{words.rstrip()}\n\n" if words.strip() else ""
        return f"{above}[{section}]\n{key} = {value}\n"
    begin = head.end()
    following = _SECTION.search(words, begin)
    end = len(words) if following is None else following.start()
    name = key.replace("-", "[-_]")
    old = re.compile(rf"^([ \t]*{name}[ \t]*=[ \t]*){_VALUE}([ \t\r]*(?:#.*)?)$", re.MULTILINE)
    body, count = old.subn(lambda line: line[1] + value + line[2], words[begin:end], count=1)
    body = body if count else f"\n{key} = {value}{body}"
    return f"{words[:begin]}{body}{words[end:]}"
