"""Markdown of our own pages -> plain text that reads well in any terminal and in a pipe."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from gpuwatchd.cli.output import width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
_LINK = re.compile(r"\[((?:`[^`]*`|\[[^\[\]]*\]|[^\[\]])+)\]\(([^)\s]*)\)")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")
_ITEM = re.compile(r"^( *)([*+-]|\d+[.)]) +(.*)$")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$")
_CELL = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"[\s|:-]*-[\s|:-]*")
_UNDER = {1: "=", 2: "-"}
_GAP = 2


def local(target: str) -> str:
    """Return a link inside the documentation as ``docs`` takes it; another as it is.

    Examples
    --------
    >>> local("../how-to/install.md#pip"), local("cli.md"), local("https://example.org")
    ('install#pip', 'cli', 'https://example.org')
    """
    if "://" in target or target.startswith("mailto:"):
        return target
    path, mark, anchor = target.partition("#")
    name = path.rpartition("/")[2]
    return f"{name.removesuffix('.md')}{mark}{anchor}"


def linked(words: str) -> str:
    """Return text whose links are told in words: "the page (install#pip)".

    Those to a section of the same page are left out.
    """

    def link_text(match: re.Match[str]) -> str:
        label, target = match[1], local(match[2])
        known = target.startswith("#") or target == label.strip("`")
        return label if known else f"{label} ({target})"

    return _LINK.sub(link_text, _IMAGE.sub(r"[picture: \1]", words))


def inline(words: str) -> str:
    """Return text without marks.

    Examples
    --------
    >>> inline("**Read** `status` in [the list](cli.md#status)")
    'Read status in the list (cli#status)'
    """
    return _STRONG.sub(r"\1", linked(words)).replace("`", "").replace("\\|", "|")


def _wrapped(words: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    # Long commands are kept whole: they are there to be copied.
    return textwrap.wrap(
        inline(words), width, initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False, break_on_hyphens=False,
    ) or [first.rstrip()]  # fmt: skip


def _cells(line: str) -> list[str]:
    return [inline(cell.strip()) for cell in _CELL.split(line.strip().strip("|"))]


def _table(lines: list[str], width: int) -> list[str]:
    rows = [_cells(line) for line in lines if not _RULE.fullmatch(line)]
    count = max(len(row) for row in rows)
    rows = [row + [""] * (count - len(row)) for row in rows]
    widths = [max(width_of(row[n]) for row in rows) for n in range(count)]
    if sum(widths) + _GAP * (count - 1) <= width:
        out = ["  ".join(_padded(cell, w) for cell, w in zip(row, widths, strict=True)).rstrip()
               for row in rows]  # fmt: skip
        rule = "-" * min(width, sum(widths) + _GAP * (count - 1))
        return [*([out[0], rule] if out[0] else []), *out[1:]]
    return _as_list(rows, widths, width)


def _as_list(rows: list[list[str]], widths: list[int], width: int) -> list[str]:
    """Return rows that are too wide: two columns side by side, or each with its heading."""
    if len(rows[0]) == 2 and widths[0] <= width // 3:
        rule = "-" * width
        head = f"{_padded(rows[0][0], widths[0] + _GAP)}{rows[0][1]}".rstrip()
        out = [head, rule] if head else []
        for left, right in rows[1:]:
            first = _padded(left, widths[0] + _GAP)
            out += _wrapped(right, width, first, " " * (widths[0] + _GAP))
        return out
    heads = " / ".join(head for head in rows[0] if head)
    out = [*_wrapped(heads, width), "-" * width] if heads else []
    for row in rows[1:]:
        out += _wrapped(row[0], width)
        for head, cell in zip(rows[0][1:], row[1:], strict=True):
            if cell:
                label = f"{head}: " if len(row) > 2 and head else ""
                out += _wrapped(f"{label}{cell}", width, "    ")
    return out


def _padded(words: str, width: int) -> str:
    return words + " " * max(0, width - width_of(words))


def _groups(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield blocks as (kind, lines): code, table, heading, item, text."""
    texts: list[str] = []
    kind = ""
    for line in [*text.splitlines(), ""]:
        if kind == "code":
            if line.lstrip().startswith("```"):
                yield kind, texts
                texts, kind = [], ""
            else:
                texts.append(line)
            continue
        fresh = _kind(line, kind)
        if texts and (fresh != kind or fresh in {"heading", "item"}):
            yield kind, texts
            texts = []
        kind = fresh
        if fresh and fresh != "code":
            texts.append(line)
    if texts:
        yield kind, texts


def _kind(line: str, before: str) -> str:
    if not line.strip():
        return ""
    if line.lstrip().startswith("```"):
        return "code"
    if _HEADING.match(line):
        return "heading"
    if line.startswith("    ") and before in {"", "verbatim"}:
        return "verbatim"
    if line.lstrip().startswith("|"):
        return "table"
    if _ITEM.match(line):
        return "item"
    return "more" if before in {"item", "more"} and line.startswith("  ") else "text"


def _item(lines: list[str], width: int) -> list[str]:
    match = _ITEM.match(lines[0])
    if match is None:
        return []
    indent, mark, words = match.groups()
    mark = "-" if mark in "*+-" else mark
    head = f"{indent}{mark} "
    return _wrapped(" ".join([words, *map(str.strip, lines[1:])]), width, head, " " * len(head))


def _heading(line: str) -> list[str]:
    match = _HEADING.match(line)
    if match is None:
        return []
    title = inline(match[2])
    under = _UNDER.get(len(match[1]))
    return [title, under * width_of(title)] if under else [title]


def _joined(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the blocks, lines that go on with a list item joined to it."""
    waiting: list[str] | None = None
    for kind, lines in _groups(text):
        if kind == "more" and waiting is not None:
            waiting += lines
            continue
        if waiting is not None:
            yield "item", waiting
        waiting = lines if kind == "item" else None
        if waiting is None:
            yield ("text" if kind == "more" else kind), lines
    if waiting is not None:
        yield "item", waiting


def parted(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the Markdown of a page in parts: (whether it is a table, its lines)."""
    texts: list[str] = []
    in_table = in_code = False
    for line in text.splitlines():
        in_code ^= line.lstrip().startswith("```")
        row = not in_code and line.lstrip().startswith("|")
        if row != in_table and texts:
            yield in_table, "\n".join(texts)
            texts = []
        in_table = row
        texts.append(line)
    yield in_table, "\n".join(texts)


def render(text: str, width: int) -> str:
    """Return Markdown as plain text.

    Parameters
    ----------
    text
        A page of ours or a part of one.
    width
        Columns that prose and tables are laid out for; code keeps its lines.
    """
    out: list[str] = []
    before = ""
    for kind, lines in _joined(text):
        if out and not (kind == before == "item"):
            out.append("")
        before = kind
        match kind:
            case "heading":
                out += _heading(lines[0])
            case "code":
                out += [f"    {line}".rstrip() for line in lines]
            case "verbatim":
                out += lines
            case "table":
                out += _table(lines, width)
            case "item":
                out += _item(lines, width)
            case _:
                out += _wrapped(" ".join(line.strip() for line in lines), width)
    return "\n".join(out) + "\n"
