"""A report as one page that a browser shows without anything else, and how files are written.

Nothing is loaded from anywhere, and the page forbids it. Without scripts, as in the preview of a
mail, every chart is there as a drawing, with its sentence and its numbers.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatchd.charts import page, text_description
from gpuwatchd.charts.svg import Markup, draw
from gpuwatchd.core import text, units
from gpuwatchd.core.design import LEGEND, LOOKS
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import PictureShape
from gpuwatchd.view.report import document as parts

if TYPE_CHECKING:
    from jinja2 import Template

    from gpuwatchd.view.report.document import Document, Tone
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
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - 25 ms, of pages alone

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
