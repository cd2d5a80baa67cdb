"""The pages of the documentation: where they are, their sections, and what is said where.

They are Markdown files that come with the program; nothing is asked of a network.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.blocks import width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FRONT = "index"
KINDS = ("tutorial", "how-to", "reference", "explanation")
"""The folders of the pages, in the order in which they are listed."""
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$")
_MARKS = re.compile(r"[`*]|!?\[([^\]]*)\]\([^)]*\)")
_HITS, _HITS_OF_A_PAGE = 15, 3
_SHOWN = 160


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what follows it, up to the next heading of any level."""

    level: int
    title: str
    """Without Markdown."""
    anchor: str
    begins: int
    """Number of the line of its heading, from 0."""
    ends: int


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page."""

    name: str
    kind: str
    """Its folder; "" for the front page."""
    text: str
    """Markdown, without comments."""

    @property
    def title(self) -> str:
        """The first heading."""
        return next((section.title for section in self.sections()), self.name)

    def sections(self) -> list[Section]:
        """Return all sections in order; headings inside code do not count."""
        lines = self.text.splitlines()
        heads: list[tuple[int, int, str]] = []
        fenced = False
        for number, line in enumerate(lines):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            match = None if fenced else _HEADING.match(line)
            if match:
                heads.append((number, len(match[1]), plain(match[2])))
        taken: dict[str, int] = {}
        out = []
        for (number, level, title), following in zip(
            heads, [*(head[0] for head in heads[1:]), len(lines)], strict=True
        ):
            anchor = anchor_of(title)
            seen = taken.get(anchor, 0)
            taken[anchor] = seen + 1
            anchor = f"{anchor}_{seen}" if seen else anchor
            out.append(
                Section(level=level, title=title, anchor=anchor, begins=number, ends=following)
            )
        return out

    def part(self, anchor: str) -> str:
        """Return the Markdown of a section with those below it.

        Raises
        ------
        KeyError
            When there is no such section.
        """
        sections = self.sections()
        at = next((n for n, section in enumerate(sections) if section.anchor == anchor), None)
        if at is None:
            raise KeyError(anchor)
        level = sections[at].level
        end = next(
            (section.begins for section in sections[at + 1 :] if section.level <= level), None
        )
        lines = self.text.splitlines()[sections[at].begins : end]
        return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A section in which all the words occur."""

    page: str
    anchor: str
    title: str
    line: str
    """The first line with one of the words."""
    score: int


def plain(words: str) -> str:
    """Return a line of Markdown without its marks.

    Examples
    --------
    >>> plain("The `--json` of [a verb](cli.md#verbs)")
    'The --json of a verb'
    """
    return _MARKS.sub(lambda match: match[1] or "", words).strip()


def anchor_of(title: str) -> str:
    """Return the anchor of a heading, as the built site has it.

    Examples
    --------
    >>> anchor_of("No GPU?"), anchor_of("[notify.email]"), anchor_of("What's new, and -- why")
    ('no-gpu', 'notifyemail', 'whats-new-and-why')
    """
    ascii_only = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def folder() -> Path:
    """Return the folder of the pages: that of the package, or of the checkout that it runs from.

    Raises
    ------
    GpuwatchdError
        When neither is there.
    """
    package = Path(str(resources.files("gpuwatchd")))
    for place in (package / "docs", package.parent / "docs"):
        if (place / f"{FRONT}.md").is_file() and (place / KINDS[0]).is_dir():
            return place
    raise GpuwatchdError(
        "the pages were not installed with the program",
        hint="reinstall gpuwatchd; man gpuwatchctl has the verbs",
        page="errors#installation",
    )


def files(place: Path) -> dict[str, Path]:
    """Return name -> file of every page, in the order in which they are listed."""
    paths = [place / f"{FRONT}.md"]
    for kind in KINDS:
        paths += sorted((place / kind).glob("*.md"))
    return {file.stem: file for file in paths if file.is_file()}


def read(file: Path) -> Page:
    """Return the page of a file.

    Raises
    ------
    GpuwatchdError
        When it cannot be read.
    """
    try:
        words = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise GpuwatchdError(
            f"{file} cannot be read: {error.strerror}",
            hint="reinstall gpuwatchd",
            page="errors#installation",
        ) from error
    kind = file.parent.name if file.parent.name in KINDS else ""
    return Page(name=file.stem, kind=kind, text=_COMMENT.sub("", words))


def wanted(word: str) -> tuple[str, str]:
    """Return page and anchor of what somebody asks for, however he writes it.

    Examples
    --------
    >>> wanted("errors#no-gpu"), wanted("docs/how-to/install.md"), wanted("#x")
    (('errors', 'no-gpu'), ('install', ''), ('index', 'x'))
    """
    path, _, anchor = word.strip().partition("#")
    name = path.rstrip("/").rpartition("/")[2].removesuffix(".md")
    return name.lower() or FRONT, anchor.lower()


def search(pages: list[Page], words: list[str]) -> list[Hit]:
    """Return the sections in which every word occurs, best first, at most three of a page.

    Case and hyphens do not count: "popup" finds "pop-up", "e-mail" finds "email".
    """
    needles = [_folded(word) or word for word in words]
    hits = sorted(
        (hit for page in pages for hit in _hits(page, needles)), key=lambda hit: -hit.score
    )
    counts: dict[str, int] = {}
    kept = []
    for hit in hits:
        counts[hit.page] = counts.get(hit.page, 0) + 1
        if counts[hit.page] <= _HITS_OF_A_PAGE:
            kept.append(hit)
    return kept[:_HITS]


def _folded(words: str) -> str:
    return words.casefold().replace("-", "")


def _hits(page: Page, needles: list[str]) -> Iterator[Hit]:
    lines = page.text.splitlines()
    for section in page.sections():
        body = [plain(line) for line in lines[section.begins + 1 : section.ends]]
        title, text = _folded(section.title), _folded("\n".join(body))
        if not all(needle in title or needle in text for needle in needles):
            continue
        line = next((value for value in body if any(n in _folded(value) for n in needles)), "")
        in_title = sum(needle in title for needle in needles)
        yield Hit(
            page=page.name, anchor=section.anchor, title=section.title, line=line[:_SHOWN],
            score=100 * in_title + min(50, sum(text.count(needle) for needle in needles)),
        )  # fmt: skip


# Markdown of our own pages -> plain text that reads well in any terminal and in a pipe.

_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
_LINK = re.compile(r"\[((?:`[^`]*`|\[[^\[\]]*\]|[^\[\]])+)\]\(([^)\s]*)\)")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")
_ITEM = re.compile(r"^( *)([*+-]|\d+[.)]) +(.*)$")
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
        out = [
            "  ".join(_padded(cell, w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
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
    """Yield blocks as (kind, lines): code, table, heading, item with what goes on with it, text."""
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
        if fresh == "more":
            texts.append(line)
            continue
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
    return "more" if before == "item" and line.startswith("  ") else "text"


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
    """Return Markdown of ours as plain text of so many columns; code keeps its lines."""
    out: list[str] = []
    before = ""
    for kind, lines in _groups(text):
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
