"""From a word of the configuration to a source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd import collect
from gpuwatchd.collect.nvml.system import nvidia_cards
from gpuwatchd.core import registry, text
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.config import SourcesSection
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

    Parameters
    ----------
    section
        ``[sources]``.
    platform, sys_root
        As ``sys.platform`` has it, and where /sys is.

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


def absences(reasons: Iterable[tuple[Choice, str | None]]) -> list[tuple[str, ProblemCode]]:
    """Return what to tell of sources that give nothing, one sentence each with its code.

    Parameters
    ----------
    reasons
        Each source, with why it gives nothing; None where it works.

    Examples
    --------
    >>> nvml, drm = Choice("nvml", optional=True), Choice("drm", optional=True)
    >>> absences([(nvml, "nvml: no driver"), (drm, None)])
    []
    >>> absences([(nvml, "nvml: no driver: lib.so is not there (get it)"), (drm, "drm: no card")])
    [('no GPU found: no driver; no card', <ProblemCode.NO_GPU: 'no-gpu'>)]
    """
    sources = list(reasons)
    missed = [(why, ProblemCode.OTHER) for choice, why in sources if why and not choice.optional]
    quiet = [why for choice, why in sources if why and choice.optional]
    if quiet and len(missed) + len(quiet) == len(sources):
        missed.append((none_found(quiet), ProblemCode.NO_GPU))
    return missed


def none_found(reasons: Iterable[str]) -> str:
    """Return in one short sentence that no source has a GPU; ``doctor`` tells each in full.

    Parameters
    ----------
    reasons
        Why each source gives nothing, the gist before the first colon; its name may lead it.

    Examples
    --------
    >>> none_found(["drm: no card: the kernel lists none (lspci -k)", "no driver"])
    'no GPU found: no card; no driver'
    """
    parts = []
    for reason in reasons:
        kind, colon, rest = reason.partition(": ")
        words = rest if colon and kind.partition(" ")[0] in collect.SOURCES else reason
        gist = words.partition(": ")[0].partition(" (")[0]
        parts.append(text.cut_words(gist, _GIST))
    return f"{NONE}: {'; '.join(parts)}"


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
    settings = msgspec.structs.asdict(own) if isinstance(own, msgspec.Struct) else {}
    if argument and kind in _MAIN_SETTING:
        settings[_MAIN_SETTING[kind]] = argument
    try:
        load: type[Source] = registry.load(collect.SOURCES, kind)
    except ImportError as error:
        why = f"{kind}: cannot be loaded: {error}"
        raise SourceUnavailable(why, page="errors#installation") from error
    return load(**settings)
