"""A report as one page that a browser shows without anything else.

Nothing is loaded from anywhere, and the page forbids it. Without scripts, as in the preview of a
mail, every chart is there as a drawing, with its sentence and its numbers.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, StrictUndefined

from gpuwatchd.charts import page, text_description
from gpuwatchd.charts.svg import Markup, draw
from gpuwatchd.core import text, units
from gpuwatchd.core.design import LEGEND, LOOKS
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import PictureShape
from gpuwatchd.view.report import document as parts

if TYPE_CHECKING:
    from jinja2 import Template

    from gpuwatchd.view.report.document import Document, Tone

_TONES: Final[dict[Tone, str]] = {
    "": "",
    "note": "faint",
    "good": "notice notice-good",
    "warn": "notice notice-warn",
    "bad": "notice notice-bad",
}


def render(document: Document) -> str:
    """Return the whole page."""
    pictures = document.pictures()
    return _template().render(
        document=document,
        sections=[section for section in document.sections if section.blocks],
        style=page.page_style(),
        script=f"{page.page_script()}\n{page.boot()}" if pictures else "",
        data=page.data(pictures, [fill(PictureShape, picture) for picture in pictures]),
        hash=page.policy_hash,
        draw=draw,
        zone=units.zone,
        words=text_description,
        legend=LEGEND,
        looks=LOOKS,
        tones=_TONES,
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_printed,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    for kind in (parts.Says, parts.Figures, parts.Facts, parts.Steps, parts.Table, parts.Card):
        environment.tests[kind.__name__.lower()] = lambda block, kind=kind: isinstance(block, kind)
    file = resources.files("gpuwatchd.view.report") / "templates" / "report.html.j2"
    return environment.from_string(file.read_text("utf-8"))


def _printed(value: object) -> object:
    """Return what a template prints: foreign text clean and escaped, markup as it is."""
    if hasattr(value, "__html__"):
        return value
    return Markup(text.for_html(text.clean(str(value), limit=4096)))
