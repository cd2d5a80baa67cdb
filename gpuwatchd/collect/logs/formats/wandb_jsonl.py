"""System metrics of Weights & Biases as JSON lines (the events stream)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of
from gpuwatchd.collect.logs.wandb import take

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN = re.compile(r'"[^"]*gpu\.(?:process\.)?\d{1,3}\.memoryAllocated')


class Reader(JsonReader):
    """One object per look, every metric a key."""

    name = "wandb-jsonl"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with such keys begins here."""
        return bool(_OWN.search(head_of(lines, at)))

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""
        take({key: text_of(each) for key, each in value.items()}, line, self._sink)
