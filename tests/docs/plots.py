"""Draws what ``plot`` writes as a file: ``python -m tests.docs.plots``; ``--check`` only compares.

What is compared is what can be read in it: versions of Matplotlib differ in how they draw.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.docs import screens

FOLDER = screens.FOLDER
PLOTS = {
    "plot-leak.svg": screens.Shown("demo", 70, ("plot", "1", "--output"), ""),
}
"""The file is what follows the arguments."""


def picture(name: str) -> str:
    """Return the file."""
    one = PLOTS[name]
    with screens.world(one.scenario, one.minutes), tempfile.TemporaryDirectory() as folder:
        place = Path(folder, name)
        screens.written((*one.argv, str(place)))
        return place.read_text(encoding="utf-8")


def said(svg: str) -> list[str]:
    """Return everything that can be read in a picture, but the name of who drew it.

    Examples
    --------
    >>> said("<svg><title>GPU 0</title><text> 80 GiB </text></svg>")
    ['GPU 0', '80 GiB']
    """
    return [text.strip() for text in ET.fromstring(svg).itertext() if text.strip()]


def stale() -> list[str]:
    """Return the pictures that say something else than the program does."""
    return [
        name
        for name in PLOTS
        if not (FOLDER / name).is_file()
        or said((FOLDER / name).read_text(encoding="utf-8")) != said(picture(name))
    ]


def main() -> int:
    """Draw the pictures that say something else, or check them."""
    old = stale()
    if "--check" in sys.argv[1:]:
        if old:
            print(f"stale, run make docs: {', '.join(old)}", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        (FOLDER / name).write_text(picture(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
