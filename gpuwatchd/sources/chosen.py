"""From a word of the configuration to a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd import registry, sources
from gpuwatchd.errors import SourceUnavailable

if TYPE_CHECKING:
    from gpuwatchd.config import SourcesSection
    from gpuwatchd.ports import Source

_MAIN_SETTING = {"replay": "file", "simulate": "scenario"}


def make(word: str, section: SourcesSection) -> Source:
    """Return the source of one word of ``[sources] enabled`` or ``--source``.

    ``replay:FILE`` and ``simulate:SCENARIO`` carry their main setting behind a colon; the others
    come from ``[sources.replay]`` and ``[sources.simulate]``.

    Raises
    ------
    GpuwatchdError
        When there is no source of that name.
    SourceUnavailable
        When the library that it needs is missing.
    """
    kind, _, argument = word.partition(":")
    settings: dict[str, Any] = {}
    if kind in _MAIN_SETTING:
        settings = msgspec.structs.asdict(getattr(section, kind))
        if argument:
            settings[_MAIN_SETTING[kind]] = argument
    try:
        found = registry.load(sources.SOURCES, kind)
    except ImportError as error:
        raise SourceUnavailable(f"{kind}: cannot be loaded: {error}") from error
    source: Source = found(**settings)
    return source
