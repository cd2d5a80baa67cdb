"""The pages of the documentation: where they are, their sections, and what is said where.

They are Markdown files that come with the program; nothing is asked of a network.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.core.errors import GpuwatchdError

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
        return "\n".join(self.text.splitlines()[sections[at].begins : end]).rstrip() + "\n"


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
    below = (file for kind in KINDS for file in sorted((place / kind).glob("*.md")))
    return {file.stem: file for file in (place / f"{FRONT}.md", *below) if file.is_file()}


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
