"""Puts the figures of a run into the page about detection, between its markers."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from tests.scenarios.bench import result
from tests.scenarios.bench.runner import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "explanation" / "detection.md"
FIGURES = ROOT / "docs" / "explanation" / "detection-figures.json"
"""The figures that the page shows, as the benchmark wrote them."""
MARKED = re.compile(
    r"(<!-- bench-detect:begin (?P<name>[a-z-]+) -->\n).*?(<!-- bench-detect:end -->)", re.DOTALL
)


def filled(text: str, figures: dict[str, Any]) -> str:
    """Return the page with every marked table made anew."""
    sections = result.sections(figures) | {"run": _run(figures["run"])}

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        text = sections.get(name, f"The last run did not print {name}.")
        return f"{match[1]}\n{text}\n\n{match[3]}"

    return MARKED.sub(put, text)


def _run(run: dict[str, Any]) -> str:
    return (
        f"`{run['command']}`: {run['items']} items in {run['seconds'] / 60.0:.0f} minutes on "
        f"{run['workers']} cores. One family left out means {run.get('weights', 'nothing here')}."
    )


def fill(source: Path, page: Path = PAGE, kept: Path = FIGURES) -> int:
    """Write the page and keep the figures beside it; return an exit code."""
    try:
        figures = msgspec.json.decode(source.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        print(f"cannot read {source}: {error}", file=sys.stderr)
        return 1
    kept.write_bytes(result.written(figures))
    page.write_text(filled(page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    print(f"{page} shows the figures of {source}; now run python -m tests.docs.pictures")
    return 0
