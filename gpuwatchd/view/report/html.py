"""A report as one page that a browser shows without anything else, and how files are written."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatchd.charts import page
from gpuwatchd.charts.svg import badge, element, facts, table
from gpuwatchd.core import text
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import PictureShape
from gpuwatchd.view.report.document import Card, Facts, Figures, Says, Steps, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.charts.svg import Markup
    from gpuwatchd.view.report.document import Block, Document, Tone
    from gpuwatchd.view.report.period import Asked


FORMATS = {".html": "html", ".htm": "html", ".json": "json", ".txt": "text", ".text": "text"}
"""What a name ends with -> what is written."""
_MODE = 0o600
"""As the history that it comes from: it names users, programs and their jobs."""


def named(asked: Asked) -> Path:
    """Return the name of a page that was given none: machine and days, in the current folder."""
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", base.host())[:64] or "machine"
    first, last = (
        time.strftime("%Y-%m-%d", time.localtime(at)) for at in (asked.since_s, asked.until_s)
    )
    days = first if first == last else f"{first}-to-{last}"
    return Path(f"gpu-report-{host}-{days}.html")


def write(file: Path, content: str | bytes) -> None:
    """Write a file whole: nobody ever sees half of one, and an older one stays if it fails.

    Raises
    ------
    GpuwatchdError
        When it is a folder, or its folder cannot be written.
    """
    # A link is followed: who has one there wants its target replaced.
    target = Path(os.path.realpath(file))
    if target.is_dir():
        raise _error(f"{file} is a folder", f"name a file in it: {file / 'gpu-report.html'}")
    temporary = ""
    data = content.encode() if isinstance(content, str) else content
    try:
        if file.exists() and not file.is_file():  # such as /dev/stdout or a pipe
            file.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), _MODE)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(target)
        temporary = ""
    except OSError as error:
        why = error.strerror or str(error)
        folder = file.parent
        hint = f"name a file in a folder that you may write to, such as {Path.home() / file.name}"
        if not folder.exists():
            hint = f"there is no folder {folder}: mkdir -p {folder}"
        raise _error(f"{file}: cannot be written: {why}", hint) from error
    finally:  # also when it was interrupted
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _error(message: str, hint: str) -> GpuwatchdError:
    return GpuwatchdError(message, hint=hint, page="errors#report-not-written")


_TONES: Final[dict[Tone, str | None]] = {
    "": None,
    "note": "faint",
    "good": "notice notice-good",
    "warn": "notice notice-warn",
    "bad": "notice notice-bad",
}


def render(document: Document) -> str:
    """Return the whole page."""
    sections = [section for section in document.sections if section.blocks]
    pictures: list[Picture] = []
    body = [
        element(
            "section",
            {"id": section.key, "aria-labelledby": f"{section.key}-title"},
            element("h2", {"id": f"{section.key}-title"}, section.title),
            [_block(block, pictures) for block in section.blocks],
        )
        for section in sections
    ]
    links = [
        element("li", None, element("a", {"href": f"#{section.key}"}, section.title))
        for section in sections
    ]
    head = [
        element("h1", None, _safe(document.title)),
        element("p", {"class": "faint"}, _safe(document.about)),
        element(
            "nav",
            {"class": "contents", "aria-label": "Parts of this report"},
            element("ul", None, links),
        ),
    ]
    foot = element("p", None, _safe(document.foot))
    return page.document(
        _safe(document.title),
        body,
        pictures=pictures,
        data=[fill(PictureShape, picture) for picture in pictures],
        head=head,
        foot=foot,
    )


def _block(block: Block, pictures: list[Picture], *, titled: bool = True) -> Markup:
    if isinstance(block, Card):
        return _card(block, pictures)
    if isinstance(block, Says):
        return element("p", {"class": _TONES[block.tone]}, _safe(block.text))
    if isinstance(block, Figures):
        return _figures(block)
    if isinstance(block, Facts):
        return facts(_merged(block))
    if isinstance(block, Steps):
        return _steps(block)
    if isinstance(block, Table):
        return _table(block)
    pictures.append(block)
    return page.figure(block, len(pictures) - 1, titled=titled)


def _card(card: Card, pictures: list[Picture]) -> Markup:
    heading = f"{card.key}-title"
    return element(
        "article",
        {"class": "card", "id": card.key, "aria-labelledby": heading},
        element("h3", {"id": heading}, badge(card.kind, _safe(card.word)), " ", _safe(card.title)),
        element("p", {"class": "said"}, _safe(card.said)) if card.said else None,
        [_block(block, pictures, titled=False) for block in card.blocks],
    )


def _figures(block: Figures) -> Markup:
    tiles = [
        element(
            "div",
            {"class": "tile"},
            element("dt", None, figure.label),
            element("dd", None, element("strong", None, _safe(figure.value))),
            element("dd", {"class": "faint"}, _safe(figure.note)) if figure.note else None,
        )
        for figure in block.figures
    ]
    return element("dl", {"class": "tiles"}, tiles)


def _merged(block: Facts) -> Iterator[tuple[str, Markup]]:
    """Yield each label once, with all of its lines."""
    groups: list[tuple[str, list[str]]] = []
    for label, value in block.rows:
        if label or not groups:
            groups.append((label, []))
        groups[-1][1].append(value)
    for label, lines in groups:
        if len(lines) == 1:
            yield label, element("span", None, _safe(lines[0]))
        else:
            yield label, element("ul", None, [element("li", None, _safe(line)) for line in lines])


def _steps(block: Steps) -> Markup:
    items = [
        element(
            "li",
            None,
            element("strong", None, _safe(step.text)),
            element("p", {"class": "faint"}, _safe(step.why)) if step.why else None,
            element("code", None, _safe(step.command)) if step.command else None,
        )
        for step in block.steps
    ]
    return element("ol", {"class": "steps"}, items)


def _table(block: Table) -> Markup:
    rows = [[_safe(cell) for cell in row] for row in block.rows]
    markup = table(block.heads, rows, caption=block.caption, numbers=block.right)
    if not block.left_out:
        return markup
    return element("div", None, markup, element("p", {"class": "faint"}, _safe(block.left_out)))


def _safe(words: str) -> str:
    return text.clean(words, limit=4096)
