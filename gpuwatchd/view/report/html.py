"""A report as one file that a browser shows without anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.charts import page
from gpuwatchd.charts.svg import badge, element, facts, table
from gpuwatchd.core import text
from gpuwatchd.view.answers import charts
from gpuwatchd.view.report.document import Card, Facts, Figures, Says, Steps, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.charts.scales import Picture
    from gpuwatchd.charts.svg import Markup
    from gpuwatchd.view.report.document import Block, Document, Tone

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
        data=[charts.picture(picture) for picture in pictures],
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
