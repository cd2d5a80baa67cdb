"""Objects of rocm-smi."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, Place
from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_CARD = re.compile(r"card(\d{1,3})")
_ROCM = re.compile(r'"card\d{1,3}"\s*:\s*\{')
_TOTAL, _USED = "VRAM Total Memory (B)", "VRAM Total Used Memory (B)"
_NAMES = ("Card Series", "Card series", "Device Name", "Card model", "Card Model")


class RocmReader(JsonReader):
    """``rocm-smi --json``: amounts in bytes as text, no time; keys vary between releases."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object of cards begins here."""
        return bool(_ROCM.search(head_of(lines, at)))

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the cards of one look."""
        self._sink.ticks.advance()
        for key, card in value.items():
            match = _CARD.fullmatch(key)
            if match and isinstance(card, dict):
                self._sink.ticks.of(key)
                with self._sink.row(line):
                    self._card(int(match.group(1)), card)

    def _card(self, index: int, card: dict[str, Any]) -> None:
        if _USED not in card:
            self._sink.no_memory = "no VRAM figure; log with rocm-smi --showmeminfo vram --json"
            raise BadRow("no memory column")
        used = fields.amount(text_of(card[_USED]), 1.0)
        total = fields.amount(text_of(card.get(_TOTAL)), 1.0)
        if math.isnan(used) or used > total:
            raise BadRow("not available" if math.isnan(used) else "torn")
        names = (text_of(card.get(name)) for name in _NAMES)
        name = next((name for name in names if name and not name.startswith("0x")), "AMD GPU")
        known = None if math.isnan(total) or total <= 0 else total
        place = Place(
            uuid=fields.value_or_none(text_of(card.get("Unique ID"))),
            bus=fields.bus(text_of(card.get("PCI Bus"))),
            index=index,
            name=name,
            total=known,
            vendor="amd",
        )
        self._sink.point(self._sink.places.find(place), None, used, total=known)
