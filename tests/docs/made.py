"""Files of the documentation that code makes: written anew where they differ, or only compared."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Files = Mapping[str, Callable[[], str]]
    """Name -> what makes its content."""


def stale(
    folder: Path, files: Files, said: Callable[[str], object] = lambda text: text
) -> dict[str, str]:
    """Return what belongs into the files that say something else than what is made for them."""
    found = {name: make() for name, make in files.items()}
    return {
        name: text
        for name, text in found.items()
        if not (folder / name).is_file()
        or said((folder / name).read_text(encoding="utf-8")) != said(text)
    }


def main(folder: Path, files: Files, said: Callable[[str], object] = lambda text: text) -> int:
    """Write the files that are stale; with ``--check`` only say which."""
    old = stale(folder, files, said)
    if "--check" in sys.argv[1:]:
        if old:
            print(f"stale, run make docs: {', '.join(old)}", file=sys.stderr)
        return 1 if old else 0
    for name, text in old.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return 0
