"""One self-contained page: its look, its pictures and what draws them, in one file.

Nothing is loaded from anywhere, and the page forbids it: a policy allows this one script and this
one style sheet by their hashes. Without scripts, as in the preview of a mail, every chart is there
as a drawing, with its sentence and its numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.charts import chart_model, text_description
from gpuwatchd.charts.chart_model import KINDS
from gpuwatchd.charts.svg import Markup, badge, draw, element, join, table
from gpuwatchd.core import units
from gpuwatchd.core.design import (
    BADGE_INK,
    BAND_OPACITY,
    FIT_DASH,
    FLAGS,
    FLOOR_DASH,
    LEGEND,
    LOOKS,
    NIGHT,
    PAPER,
    PARTS,
    colours,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.charts.svg import Node


def figure(picture: Picture, place: int, *, titled: bool = True) -> Markup:
    """Return a chart, the ``place``-th that :func:`document` gets, with its words and numbers.

    Not ``titled`` below a heading that says title and verdict: then they are only read out.
    """
    notes = [element("li", None, note) for note in picture.notes]
    return element(
        "figure", {"class": "picture"},
        element("figcaption", None if titled else {"class": "hidden"},
                element("strong", None, picture.title), badge(picture.kind),
                element("span", {"class": "faint"}, picture.verdict)),
        element("div", {"class": "chart", "data-chart": place}, _legend(picture), draw(picture),
                element("div", {"class": "chart-foot"},
                        element("p", {"class": "chart-zone"},
                                f"time in {units.zone(picture.now_s)}"))),
        element("ul", {"class": "notes"}, notes) if notes else None,
        _numbers(picture),
    )  # fmt: skip


def _numbers(picture: Picture) -> Markup | None:
    """Return what a chart shows as tables, folded: for those who cannot see it."""
    groups, marks = text_description.rows(picture), text_description.mark_rows(picture)
    if not groups and not marks:
        return None
    return element(
        "details", None, element("summary", None, "The numbers"),
        table(text_description.heads(picture), groups, caption=f"Memory of {picture.title}",
              numbers=(1, 2, 3), stack=False) if groups else None,
        table(("time", "what", "happened"), marks, caption=f"Marks of {picture.title}",
              stack=False) if marks else None,
    )  # fmt: skip


def _legend(picture: Picture) -> Markup:
    keys = [
        element("li", None, element("span", {"class": f"key key-{part}"}), LEGEND[part])
        for part in text_description.parts(picture)
    ]
    return element("div", {"class": "chart-bar"}, element("ul", {"class": "chart-legend"}, keys))


def document(
    title: str, body: Node, *, pictures: Sequence[Picture], data: Sequence[object] = (),
    head: Node = None, foot: Node = None,
) -> str:  # fmt: skip
    """Return a whole page.

    Parameters
    ----------
    title
        Of the window.
    body
        What is in ``main``: begins with the only ``h1`` unless ``head`` has it.
    pictures
        Those whose :func:`figure` is in the body, by their place.
    data
        The same pictures as ``plot --json`` answers them.
    head, foot
        Above and below ``main``.
    """
    style = page_style()
    script = f"{page_script()}\n{boot()}" if pictures else ""
    runs = _hash(script) if script else "'none'"
    policy = (
        f"default-src 'none'; script-src {runs}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    programs = ""
    if script:
        encoded = _data(pictures, data)
        programs = (
            f'<script type="application/json" id="gpuwatchd-data">{encoded}</script>'
            f"<script>{script}</script>"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n'
        '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{join(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"{element('a', {'class': 'skip', 'href': '#main'}, 'Skip to the content')}\n"
        f"{element('header', {'class': 'page-head'}, head) if head is not None else ''}\n"
        f"{element('main', {'id': 'main', 'tabindex': -1}, body)}\n"
        f"{element('footer', {'class': 'page-foot'}, foot) if foot is not None else ''}\n"
        f"{programs}\n</body>\n</html>\n"
    )


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _data(pictures: Sequence[Picture], data: Sequence[object]) -> str:
    found: dict[str, Any] = {"pictures": msgspec.to_builtins(data)}
    if pictures:
        begin_s = min(picture.begin_s for picture in pictures)
        # A forecast reaches further, at most four times the span again.
        end_s = max(5 * picture.end_s - 4 * picture.begin_s for picture in pictures)
        found["zones"] = chart_model.zone_rows(begin_s, end_s)
    return json_for_html(found)


def json_for_html(value: Any) -> str:
    r"""Return JSON that cannot end the element in which it stands.

    Examples
    --------
    >>> json_for_html("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# What a browser needs to draw pictures: one script, one style sheet, nothing from elsewhere.
# Colours, words and dashes come from :mod:`gpuwatchd.core.design`, so that no second list of
# them exists.

SCRIPTS: Final = (
    "uPlot.iife.min.js", "words.js", "facts.js", "paint.js", "tip.js", "hands.js", "chart.js",
)  # fmt: skip
"""In the order in which they need each other."""
LICENCE: Final = "uPlot.LICENSE"


@cache
def _read(name: str) -> str:
    return (resources.files("gpuwatchd.charts") / "static" / name).read_text("utf-8")


def plotting_terms() -> str:
    """Return the licence of the plotting library that is shipped inside."""
    return _read(LICENCE)


@cache
def page_script() -> str:
    """Return the program that defines ``gpuwatchdChart``; it runs nothing by itself."""
    design = {
        "legend": LEGEND,
        "fitDash": FIT_DASH,
        "floorDash": FLOOR_DASH,
        "bandOpacity": BAND_OPACITY,
        "marks": {
            kind: {"glyph": flag.mark, "colour": flag.colour, "word": flag.word}
            for kind, flag in FLAGS.items()
        },
        "looks": {kind: {"word": look.word, "mark": look.mark} for kind, look in LOOKS.items()},
        "weights": KINDS[::-1],
    }
    terms = "".join(f" * {line}".rstrip() + "\n" for line in _read(LICENCE).splitlines())
    text = json.dumps(design, ensure_ascii=True, separators=(",", ":"))
    head = f'/* Contains uPlot:\n{terms} */\n"use strict";\nconst GPUWATCHD_DESIGN = {text};\n'
    return head + "\n".join(_read(name) for name in SCRIPTS)


@cache
def boot() -> str:
    """Return the program that draws the pictures which a page has in it."""
    return _read("boot.js")


@cache
def page_style() -> str:
    """Return the style sheet, colours included."""
    return f"{_colours()}\n{_read('uPlot.min.css')}\n{_read('page.css')}"


def _variables(ground: str, *, dark: bool) -> str:
    values = {"paper": ground, "badge-ink": BADGE_INK, "band-opacity": str(BAND_OPACITY)}
    values |= colours(dark=dark)
    values |= {"curve-text": values["curve"], "edge": values["gap"]}
    scheme = "dark" if dark else "light"
    text = "".join(f"--{name}:{value};" for name, value in values.items())
    return f"{{color-scheme:{scheme};{text}}}"


def _colours() -> str:
    light, dark = _variables(PAPER, dark=False), _variables(NIGHT, dark=True)
    badges = "".join(
        f".badge-{kind}{{background:{look.fill}}}.ink-{kind}{{color:var(--{kind})}}"
        for kind, look in LOOKS.items()
    )
    text = "".join(
        f"svg.drawn .s-{name}{{stroke:var(--{name})}}svg.drawn .f-{name}{{fill:var(--{name})}}"
        for name in (*PARTS, *LOOKS)
    )
    return (
        f":root{light}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){dark}}}\n"
        f":root[data-theme=dark]{dark}\n"
        f"@media print{{:root,:root:not([data-theme=light]),:root[data-theme=dark]{light}}}\n"
        f"{badges}.ink-faint{{color:var(--faint)}}\n{text}"
    )
