"""Draws what ``plot`` writes as a file: ``python -m tests.docs.plots``; ``--check`` only compares.

What is compared is what can be read in it: versions of Matplotlib differ in how they draw.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.docs import made, screens

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

    >>> said("<svg><title>GPU 0</title><text> 80 GiB </text></svg>")
    ['GPU 0', '80 GiB']
    """
    return [text.strip() for text in ET.fromstring(svg).itertext() if text.strip()]


if __name__ == "__main__":
    files = {name: functools.partial(picture, name) for name in PLOTS}
    sys.exit(made.main(FOLDER, files, said))
