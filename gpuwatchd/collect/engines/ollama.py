"""Ollama: which models are loaded (/api/ps), and once which version it is (/api/version)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpuwatchd.collect.prometheus import MOST_MODELS
from gpuwatchd.core import decoding
from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.model import ServedModel, ServerReading
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class _Model(msgspec.Struct):
    name: str = ""
    model: str = ""
    size: int | None = None
    size_vram: int | None = None
    expires_at: str | None = None


class _Loaded(msgspec.Struct):
    models: list[_Model] | None


class _Version(msgspec.Struct):
    version: str


class Ollama:
    """Asks one ``ollama serve``.

    ``vram_bytes`` of a model is an estimate made when it was loaded, not what is held now.
    """

    name = "Ollama"

    def __init__(self) -> None:
        self._version: str | None = None

    def ask(self, get: Callable[[str], bytes], url: str, at_s: float) -> ServerReading:
        """Return what the server says of itself."""
        version, self._version = self._version, None
        if version is None:
            # Ends here for anything else that listens on this port.
            version = clean(_decoded(get("/api/version"), _Version).version, limit=40)
        loaded = _decoded(get("/api/ps"), _Loaded).models or []
        self._version = version  # After a failure it may be another one.
        return ServerReading(
            kind=self.name,
            url=url,
            at_s=at_s,
            models=tuple(_served(model) for model in loaded[:MOST_MODELS]),
            version=version or None,
        )


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return decoding.decode(raw, kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EndpointError("what it answers is not of Ollama") from error


def _served(model: _Model) -> ServedModel:
    return ServedModel(
        name=clean(model.name or model.model),
        size_bytes=_size(model.size) or None,
        vram_bytes=_size(model.size_vram),
        expires_at_s=_instant(model.expires_at),
    )


def _size(told: int | None) -> int | None:
    """Return a number of bytes; None for what no machine has."""
    return told if told is not None and 0 <= told < 1 << 60 else None


def _instant(text: str | None) -> float | None:
    """Return an instant of RFC 3339, epoch seconds; None for none and for Go's zero time."""
    try:
        at_s = datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return at_s if at_s > 0.0 else None
