"""What a browser needs to draw pictures: one script, one style sheet, nothing from elsewhere.

Colours, words and dashes come from :mod:`gpuwatchd.core.design`, so that no second list of them
exists.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Final

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
    SEVERITY_KINDS,
)

SCRIPTS: Final = (
    "uPlot.iife.min.js", "words.js", "facts.js", "paint.js", "tip.js", "hands.js", "chart.js",
)  # fmt: skip
"""In the order in which they need each other."""
LICENCE: Final = "uPlot.LICENSE"
_WEIGHTS: Final = ("faint", "calm", "held", "watch", "trouble", "leak", "critical")
"""Of several marks at one place the last of these gives its colour."""


@cache
def _read(name: str) -> str:
    return (resources.files("gpuwatchd.charts") / "static" / name).read_text("utf-8")


def plotting_terms() -> str:
    """Return the licence of the plotting library that is shipped inside."""
    return _read(LICENCE)


@cache
def script() -> str:
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
        "severities": SEVERITY_KINDS,
        "looks": {kind: {"word": look.word, "mark": look.mark} for kind, look in LOOKS.items()},
        "weights": _WEIGHTS,
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
def style() -> str:
    """Return the style sheet, colours included."""
    return f"{_colours()}\n{_read('uPlot.min.css')}\n{_read('page.css')}"


def _variables(ground: str, *, dark: bool) -> str:
    values = {"paper": ground, "badge-ink": BADGE_INK, "band-opacity": str(BAND_OPACITY)}
    values |= {name: paint.dark if dark else paint.light for name, paint in PARTS.items()}
    values |= {kind: look.dark if dark else look.light for kind, look in LOOKS.items()}
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
