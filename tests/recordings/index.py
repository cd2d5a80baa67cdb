"""What was recorded: one line an item, and the texts of the most telling ones."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

EXPECTED: Final = Path(__file__).parent / "expected"
INDEX: Final = EXPECTED / "index.json"


class Index(msgspec.Struct, kw_only=True):
    """What was recorded."""

    tools: dict[str, str]
    """Versions of what has a hand in the texts; only with the same ones it can be compared."""
    items: dict[str, str]
    """Name -> length in bytes and SHA-256."""


def read() -> Index:
    """Return what was recorded."""
    return msgspec.json.decode(INDEX.read_bytes(), type=Index)


def mark_of(text: str) -> str:
    """Return what stands for a text in the index."""
    data = text.encode("utf-8", "surrogatepass")
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


def in_tenth(name: str) -> bool:
    """Say whether an item is in the tenth that is always compared."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 10 == 0


def file_of(name: str) -> str:
    """Return the name of the file of an item: readable, and no two the same."""
    plain = re.sub(r"[^a-z0-9.=-]+", "_", name.lower())[:80]
    return f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:6]}.txt"
