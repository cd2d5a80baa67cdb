"""The licences of all that is installed with the program, and which of them may be.

Read from what each package says of itself, in an environment made of the pins.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pins
import vendored
from project import PINS_FULL, ROOT, run, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

ALLOWED = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "HPND", "ISC", "MIT"}
    | {"MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib"}
    | {"LicenseRef-Public-Domain"}
)
"""What a program under Apache-2.0 may bring along; none of them says how ours is licensed."""
_MEANT = (
    (r"GPL|GNU|Affero", None),  # whatever else is said, a person must look
    (r"Apache", "Apache-2.0"),
    (r"MPL|Mozilla", "MPL-2.0"),
    (r"^MIT", "MIT"),
    (r"BSD[ -]2", "BSD-2-Clause"),
    (r"BSD", "BSD-3-Clause"),
    (r"^ISC", "ISC"),
    (r"Python Software Foundation|^PSF", "PSF-2.0"),
    (r"Public Domain|Unlicense", "LicenseRef-Public-Domain"),
)
ELSEWHERE: Mapping[str, str] = {"rubicon-objc": "BSD-3-Clause"}
"""Packages for macOS alone: not installed where a release is made."""
_ASK = """
import json, re
from importlib import metadata
found = {}
for one in metadata.distributions():
    said = one.metadata
    found[re.sub(r"[-_.]+", "-", said["Name"]).lower()] = {
        "version": one.version, "expression": said.get("License-Expression"),
        "classifiers": [c.split(" :: ")[-1] for c in said.get_all("Classifier") or []
                        if c.startswith("License :: ") and not c.endswith("OSI Approved")],
        "license": said.get("License") or "", "needs": one.requires or []}
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What an installed package says of itself."""

    name: str
    version: str
    licence: str | None
    """An SPDX expression; None when nothing can be made of what it says."""
    needs: tuple[str, ...] = ()


def installed() -> dict[str, Said]:
    """Install the pins into an environment of their own and ask every package."""
    path = ROOT / PINS_FULL
    home = ROOT / "build" / "tools" / f"shipped-{sha256(path)[:12]}"
    if not (home / "complete").exists():
        run([pins.uv(), "venv", "--quiet", "--clear", home])
        words = [pins.uv(), "pip", "install", "--quiet", "--python", home / "bin" / "python"]
        run([*words, "--require-hashes", "-r", path])
        (home / "complete").touch()
    answer = json.loads(run([home / "bin" / "python", "-c", _ASK]))
    return {
        name: Said(
            name=name,
            version=one["version"],
            licence=expression(one["expression"], one["classifiers"], one["license"]),
            needs=tuple(one["needs"]),
        )
        for name, one in answer.items()
    }


def expression(said: str | None, classifiers: Iterable[str], text: str) -> str | None:
    """Return the SPDX expression of a package from the three places that may have it.

    Examples
    --------
    >>> expression(None, ["MIT License"], "")
    'MIT'
    >>> expression(None, [], "GPLv3") is None
    True
    """
    if said:
        return said
    first = text.strip().splitlines()[0] if text.strip() else ""
    for word in (*classifiers, first if len(first) < 60 else ""):
        for pattern, name in _MEANT:
            if re.search(pattern, word, re.IGNORECASE):
                return name
    return None


def may_ship(licence: str | None) -> bool:
    """Say whether all that an SPDX expression demands is allowed.

    Examples
    --------
    >>> may_ship("MIT AND (GPL-3.0-only OR BSD-3-Clause)"), may_ship("MIT AND GPL-3.0-only")
    (True, False)
    """
    if licence is None:
        return False
    if " WITH " in licence:  # an exception to a licence: a person must read it
        return False
    words = [
        {"AND": "and", "OR": "or"}.get(word, word)
        if word in {"AND", "OR", "(", ")"}
        else str(word in ALLOWED)
        for word in re.findall(r"[()]|[A-Za-z0-9.+-]+", licence)
    ]
    return _true(words)


def _true(words: list[str]) -> bool:
    """Evaluate ``or`` of ``and`` of ``True``, ``False`` and brackets, from left to right."""
    found = _all(words)
    while words and words[0] == "or":
        words.pop(0)
        found = _all(words) or found
    return found


def _all(words: list[str]) -> bool:
    found = _one(words)
    while words and words[0] == "and":
        words.pop(0)
        found = _one(words) and found
    return found


def _one(words: list[str]) -> bool:
    if not words:
        return False
    word = words.pop(0)
    if word != "(":
        return word == "True"
    found = _true(words)
    if words:
        words.pop(0)
    return found


def of_pins(found: Mapping[str, Said], pinned: Iterable[pins.Pin]) -> dict[str, str | None]:
    """Return the licence of each pinned package."""
    return {
        pin.name: found[pin.name].licence if pin.name in found else ELSEWHERE.get(pin.name)
        for pin in pinned
    }


def table(licences: Mapping[str, str | None], pinned: Iterable[pins.Pin]) -> str:
    """Return the list that goes with a release."""
    rows = sorted({(pin.name, pin.version, licences[pin.name] or "unknown") for pin in pinned})
    rows += [(one.name, one.version(), f"{one.licence} (inside ours)") for one in vendored.VENDORED]
    return "".join(f"{name:24} {version:14} {licence}\n" for name, version, licence in rows)


def faults(licences: Mapping[str, str | None]) -> list[str]:
    """Return what may not be shipped."""
    return [
        f"{name} is under {licence or 'a licence that it does not name'}"
        for name, licence in sorted(licences.items())
        if not may_ship(licence)
    ]


def write(path: Path, text: str) -> None:
    """Write an output of the release."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
