"""The sizes that a process was told: its command line, a few variables, files that it names.

A file is read with the rights of the owner of the process, whoever reads. For a daemon of another
user: no link leads to it, the owner may search each directory on the way, and it is a regular file
that is the owner's or everybody's. Only numbers are kept of it.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import stat
import tomllib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.analysis import declared
from gpuwatchd.analysis.frameworks import engine_addresses
from gpuwatchd.collect.host import program
from gpuwatchd.core import decoding
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import ProcessInfo

log = logging.getLogger("gpuwatchd")

MOST_FILES: Final = 8
MOST_BYTES: Final = 256 * 1024
MOST_VALUES: Final = 4000
DEEPEST: Final = 8
_CHAIN: Final = re.compile(
    r"""(?:\.[ \t]*(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*){16}""", re.ASCII
)
"""A dotted key of TOML that is deeper than any is read: tomllib takes quadratic memory for it."""
_MOST_PARENTS: Final = 3
_PATH: Final = getattr(os, "O_PATH", 0)
"""Without it there is no /proc either."""
_SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml")
_OPTIONS: Final = frozenset({"--config", "--cfg", "--config-file", "--config-path", "--conf"})


def settings(
    info: ProcessInfo, booted_at_s: float | None = None, proc_root: str = "/proc"
) -> tuple[declared.Setting, ...] | None:
    """Return the sizes that a process was told, the command line before variables before files.

    Of one whose title was written over, or that was forked by ``multiprocessing``, the parent's
    count. None where nothing may be read, or the process has ended.
    """
    wanted = declared.VARIABLES
    chain = program.launches(info.key, booted_at_s, proc_root, wanted)[:_MOST_PARENTS]
    found: list[declared.Setting] = []
    for launch, parent in zip(chain, (*chain[1:], None), strict=False):
        found += declared.of_argv(launch.argv)
        found += declared.of_variables(launch.variables)
        for path in named_files(launch.argv):
            found += _of_file(f"{proc_root}/{launch.pid}", path, info.uid)
        if parent is None or found or not _is_child(launch.argv, parent.argv):
            break
    # What a command line says stands for what a file says of the same.
    first = {(declared.plain(one.option), one.kind): one for one in reversed(found)}
    found = [one for one in found if first[declared.plain(one.option), one.kind] is one]
    return tuple(found[: declared.MOST_SETTINGS]) if chain else None


def _is_child(argv: Sequence[str], parent: Sequence[str]) -> bool:
    """Say whether a process does its parent's work, whose command line says how."""
    titled = len(argv) == 1 and (" " in argv[0] or "::" in argv[0])
    forked = any("multiprocessing" in word for word in argv[:6])
    kinds = engine_addresses.PORTS
    return titled or forked or any(engine_addresses.serves(kind, parent) for kind in kinds)


def named_files(argv: Sequence[str]) -> list[str]:
    """Return the configuration files that a command line names.

    Examples
    --------
    >>> named_files(["train.py", "--config", "run.cfg", "--hp=a.yaml", "https://x/b.json"])
    ['run.cfg', 'a.yaml']
    """
    found: dict[str, None] = {}
    before = ""
    for word in argv[1 : declared.MOST_WORDS]:
        name, mark, value = word.partition("=")
        value = value if mark else word
        option = name if mark else before
        before = "" if mark else word
        fits = value.lower().endswith(_SUFFIXES) or option.replace("_", "-") in _OPTIONS
        if fits and 0 < len(value) <= 1024 and "://" not in value and not value.startswith("-"):
            found[value] = None
    return list(found)[:MOST_FILES]


def _of_file(process: str, path: str, uid: int | None) -> tuple[declared.Setting, ...]:
    """Return the sizes in a file that a process names; () where it may not or cannot be read."""
    name = clean(path.rpartition("/")[2], limit=48)
    try:
        raw = read_as(process, path, uid)
        return declared.of_pairs(pairs(name, raw), name)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        log.debug("configuration not read file=%s why=%r", name, why)
        return ()


def read_as(process: str, path: str, uid: int | None) -> bytes:
    """Return a file as the owner of a process may read it, whose place in /proc is ``process``.

    The path is relative to where the process works, or from its root.

    Raises
    ------
    OSError
        When it is not there, or its owner may not read it.
    ValueError
        When it is no small regular file of text.
    """
    if uid is None:
        raise PermissionError
    flags = _PATH | os.O_CLOEXEC
    at = os.open(f"{process}/{'root' if path.startswith('/') else 'cwd'}", flags | os.O_DIRECTORY)
    try:
        # The kernel minds the rights of a daemon that is the owner's own.
        own = os.geteuid() == uid
        for part in [path.lstrip("/")] if own else filter(None, path.split("/")):
            if not own:
                _check(os.fstat(at), uid, stat.S_IXOTH)
            inner = os.open(part, flags if own else flags | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        status = os.fstat(at)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise ValueError
        if not own:
            _check(status, uid, stat.S_IROTH)
        with open(f"/proc/self/fd/{at}", "rb", opener=_opener) as file:
            raw = file.read(MOST_BYTES + 1)
    finally:
        os.close(at)
    if len(raw) > MOST_BYTES or b"\0" in raw:
        raise ValueError
    return raw


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _check(status: os.stat_result, uid: int, right: int) -> None:
    """Raise where a user, whose groups are not known, has not a right for certain."""
    if not status.st_mode & (right << 6 if status.st_uid == uid else right):
        raise PermissionError


# ---- what is in a file ---------------------------------------------------------------------------


def pairs(name: str, raw: bytes) -> list[tuple[str, Any]]:
    """Return the names and values of a configuration file, "replay.capacity" for one within.

    Raises
    ------
    ValueError, RecursionError, msgspec.MsgspecError
        When it is none.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)
    text, suffix = raw.decode("utf-8"), name.lower().rpartition(".")[2]
    tree: Any = None
    if suffix == "toml":
        if _CHAIN.search(text):
            raise ValueError
        tree = tomllib.loads(text)
    elif suffix == "json":
        tree = decoding.decode(raw, object)
    else:
        with suppress(msgspec.MsgspecError):
            tree = decoding.decode(raw, object)
        if tree is None:
            return list(yaml_pairs(text))[:MOST_VALUES]
    found: list[tuple[str, Any]] = []
    _flatten(tree, "", 0, found)
    return found


def _flatten(tree: Any, path: str, depth: int, found: list[tuple[str, Any]]) -> None:
    if not isinstance(tree, dict) or depth > DEEPEST:
        return
    for key, value in tree.items():
        if len(found) >= MOST_VALUES:
            return
        inner = f"{path}.{key}" if path else str(key)
        if len(inner) > declared.LONGEST_NAME:
            continue
        listed = value if isinstance(value, list) else ()
        for number, one in enumerate(listed):
            _flatten(one, f"{inner}-{number}", depth + 1, found)
        if isinstance(value, dict):
            _flatten(value, inner, depth + 1, found)
        else:
            found.append((inner, value))


_ITEM: Final = re.compile(r"- +(?=[\w.\-]+:(?: |$))")


def yaml_pairs(text: str) -> Iterator[tuple[str, str | list[str]]]:
    r"""Yield "key: scalar" of nested mappings of YAML, and lists of scalars; nothing else of it.

    No library for YAML is needed. What has tabs, anchors or tags is left out, and so is the inside
    of a text block, and what has braces within braces or over several lines.

    Examples
    --------
    >>> dict(yaml_pairs("replay:\n  capacity: 1e6  # steps\n  obs_shape: [84, 84, 4]"))
    {'replay.capacity': '1e6', 'replay.obs_shape': '[84, 84, 4]'}
    """
    above: list[tuple[float, str]] = []
    items, listed = 0, list[str]()
    for indent, body in _lines(text):
        item = _ITEM.match(body)
        if body.startswith("- ") and not item:
            listed.append(body[2:].strip())
            continue
        if listed and above:
            yield _path(above), listed
        listed = []
        at = indent + (item.end() if item else 0)
        key, mark, value = body[at - indent :].partition(":")
        above = [one for one in above if one[0] < (indent + 0.5 if item else at)]
        if not mark or len(above) >= DEEPEST or (value and value[0] != " "):
            continue
        if item:
            items += 1
            above.append((indent + 0.5, f"-{items}"))
        value = value.strip().strip("\"'")
        # One sign more than a name may have: what is below it has none either.
        above.append((at, key.strip().strip("\"'")[: declared.LONGEST_NAME + 1]))
        if value and value[0] not in "&*!|>":
            yield from declared.of_text(_path(above), value)
    if listed and above:
        yield _path(above), listed


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the indent and the rest of what is no comment and not within a text block."""
    block: int | None = None
    for line in text.splitlines()[:MOST_VALUES]:
        plain = line.partition(" #")[0].rstrip()
        body = plain.lstrip(" ")
        indent = len(plain) - len(body)
        if not body or body.startswith("#") or (block is not None and indent > block):
            continue
        block = indent if re.search(r": +[|>]\S{0,3}$", body) else None
        if "\t" not in plain:
            yield indent, body


def _path(above: list[tuple[float, str]]) -> str:
    return ".".join(key for _, key in above).replace(".-", "-")
