"""From a word of the configuration to a source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gpuwatchd import collect
from gpuwatchd.collect.nvml.driver_files import nvidia_cards
from gpuwatchd.core import registry, text
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.config import SourcesSection
    from gpuwatchd.core.model import Fault
    from gpuwatchd.core.ports import Source

AUTO: Final = "auto"
"""The word for every source that this system can have."""
HARDWARE: Final = ("nvml", "drm", "metal")
"""The sources that read GPUs of this machine; the others play."""
NONE: Final = "no GPU found"
_GIST: Final = 44
"""Characters for why one source has none: that of two fits into a line."""
_MAIN_SETTING: Final = {"replay": "file", "simulate": "scenario"}


class Choice(NamedTuple):
    """One source that is to be read."""

    word: str
    optional: bool
    """It is tried because it might be here: that it is absent is no news while another works."""


def choices(
    section: SourcesSection, *, platform: str = sys.platform, sys_root: str = "/sys"
) -> list[Choice]:
    """Return the sources of ``[sources] enabled``, each once, with "auto" spelt out.

    NVIDIA's library is optional only where the machine has no NVIDIA card: a driver that does not
    work must be said, whatever other GPU is watched.

    Examples
    --------
    >>> from gpuwatchd.core.config import SourcesSection
    >>> choices(SourcesSection(), platform="darwin")
    [Choice(word='metal', optional=True)]
    """
    named = set(section.enabled)
    found: dict[str, Choice] = {}
    for word in section.enabled:
        if word != AUTO:
            found.setdefault(word, Choice(word, optional=False))
            continue
        for kind in ("metal",) if platform == "darwin" else ("nvml", "drm"):
            if kind not in collect.SOURCES:
                continue
            optional = kind not in named and not (kind == "nvml" and nvidia_cards(Path(sys_root)))
            found.setdefault(kind, Choice(kind, optional=optional))
    return list(found.values())


def suits(kind: str, platform: str = sys.platform) -> bool:
    """Say whether a source can work on this kind of system at all.

    Examples
    --------
    >>> suits("metal", "linux"), suits("drm", "linux"), suits("replay", "darwin")
    (False, True, True)
    """
    system = {"nvml": "linux", "drm": "linux", "metal": "darwin"}.get(kind)
    return system is None or platform.startswith(system)


def is_known(word: str) -> bool:
    """Say whether a word of ``[sources] enabled`` names a source."""
    return word == AUTO or word.partition(":")[0] in collect.SOURCES


def absences(reasons: Iterable[tuple[Choice, Fault | None]]) -> list[tuple[str, ProblemCode]]:
    """Return what to tell of sources that give nothing, one sentence each with its code.

    ``reasons``: each source with why it gives nothing, None where it works.

    Examples
    --------
    >>> from gpuwatchd.core.model import Fault
    >>> nvml, drm = Choice("nvml", optional=True), Choice("drm", optional=True)
    >>> no_driver = Fault(where="nvml", why="no driver: lib.so is missing", brief="no driver")
    >>> absences([(nvml, no_driver), (drm, None)])
    []
    >>> absences([(nvml, no_driver), (drm, Fault(where="drm", why="no card"))])
    [('no GPU found: no driver; no card', <ProblemCode.NO_GPU: 'no-gpu'>)]
    """
    pairs = list(reasons)
    absent = [(choice, fault) for choice, fault in pairs if fault is not None]
    problems = [(it.text, ProblemCode.OTHER) for choice, it in absent if not choice.optional]
    quiet = [fault for choice, fault in absent if choice.optional]
    if quiet and len(absent) == len(pairs):
        problems.append((none_found(quiet), ProblemCode.NO_GPU))
    return problems


def none_found(faults: Iterable[Fault]) -> str:
    """Return in one short sentence that no source has a GPU; ``doctor`` tells each in full."""
    return f"{NONE}: {'; '.join(text.cut_words(it.brief or it.why, _GIST) for it in faults)}"


def make(word: str, section: SourcesSection) -> Source:
    """Return the source of one word of ``[sources] enabled`` or ``--source``.

    ``replay:FILE`` and ``simulate:SCENARIO`` carry their main setting behind a colon; the others
    come from the source's own section, as ``[sources.replay]``.

    Raises
    ------
    GpuwatchdError
        When there is no source of that name.
    SourceUnavailable
        When the library that it needs is missing.
    """
    kind, _, argument = word.partition(":")
    own = getattr(section, kind, None)
    settings: dict[str, Any] = {}
    if isinstance(own, msgspec.Struct):
        settings = msgspec.structs.asdict(own)
    if argument and kind in _MAIN_SETTING:
        settings[_MAIN_SETTING[kind]] = argument
    try:
        found = registry.load(collect.SOURCES, kind)
    except ImportError as error:
        raise SourceUnavailable(
            f"{kind}: cannot be loaded: {error}",
            page="errors#installation",
            brief="cannot be loaded",
        ) from error
    source: Source = found(**settings)
    return source
