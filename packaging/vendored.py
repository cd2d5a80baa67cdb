"""What others have made and lies inside our own package, as files: no package index knows of it.

To renew uPlot: take ``dist/uPlot.iife.min.js``, ``dist/uPlot.min.css`` and ``LICENSE`` of a release
as they are, put them in place of ours, and run ``pytest tests/browser tests/pictures``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from project import ROOT, Failed, sha256

if TYPE_CHECKING:
    from pathlib import Path

_STATIC = "gpuwatchd/charts/static"


@dataclass(frozen=True, kw_only=True)
class Vendored:
    """One library, of which files lie in ours."""

    name: str
    licence: str
    """An SPDX expression."""
    purl: str
    """Where it is known under that name, without the version."""
    file: str
    """That says its version, relative to the tree."""
    says: str
    """A pattern of its version in there."""
    terms: str
    """The file of its licence, relative to the tree."""

    def version(self, root: Path = ROOT) -> str:
        """Return the version that the file itself says."""
        head = (root / self.file).read_text("utf-8")[:400]
        found = re.search(self.says, head)
        if not found:
            raise Failed(f"{self.file} does not say its version")
        return found[1]

    def digest(self, root: Path = ROOT) -> str:
        """Return the SHA-256 of the file, as it was published."""
        return sha256(root / self.file)


VENDORED = (
    Vendored(
        name="uPlot",
        licence="MIT",
        purl="pkg:npm/uplot",
        file=f"{_STATIC}/uPlot.iife.min.js",
        says=r"\(v(\d+\.\d+\.\d+)\)",
        terms=f"{_STATIC}/uPlot.LICENSE",
    ),
)


def licences() -> dict[str, str | None]:
    """Return the licence of each."""
    return {one.name: one.licence for one in VENDORED}
