"""What a browser needs to draw pictures: one script, one style sheet, nothing from elsewhere.

Colours, words and dashes come from :mod:`gpuwatchd.core.design`, so that no second list of them
exists.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.charts import chart_model
from gpuwatchd.charts.chart_model import KINDS
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


def data(pictures: Sequence[Picture], shapes: Sequence[object]) -> str:
    """Return what the script draws as JSON, with the local time of this machine over its span.

    ``shapes`` are the pictures as ``plot --json`` has them.
    """
    # A forecast reaches further, at most four times the span again.
    zones = chart_model.zone_rows(
        min((picture.begin_s for picture in pictures), default=0.0),
        max((5 * picture.end_s - 4 * picture.begin_s for picture in pictures), default=0.0),
    )
    return json_for_html({"pictures": msgspec.to_builtins(shapes), "zones": zones})


def policy_hash(content: str) -> str:
    """Return what a policy allows a script or a style sheet by; "none" where there is none."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}" if content else "none"


def json_for_html(value: Any) -> str:
    r"""Return JSON that cannot end the element in which it stands.

    Examples
    --------
    >>> json_for_html("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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
