"""What the global flags of one call say; no command-line parser is needed to hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpuwatchd.core.config import Loaded
    from gpuwatchd.core.model import Device


class Globals:
    """The global flags of one call, wherever they stood."""

    __slots__ = ("ascii", "color", "config", "debug", "gpu", "json", "quiet", "user", "verb",
                 "verbose", "wide")  # fmt: skip

    def __init__(self) -> None:
        self.json = False
        self.color = "auto"
        self.ascii = False
        self.config: Path | None = None
        self.gpu: list[str] = []
        self.user: list[str] = []
        self.quiet = False
        self.verbose = False
        self.debug = False
        self.wide = False
        self.verb = ""

    def load_config(self) -> Loaded:
        """Return the configuration of this call.

        Raises
        ------
        ConfigError
            With file and key.
        """
        from gpuwatchd.core import config  # noqa: PLC0415 - only verbs that need it pay for it

        return config.load(self.config)

    def wants(self, device: Device) -> bool:
        """Return whether ``--gpu`` (index, name, UUID or glob) lets this device through.

        The index of a card means its MIG instances too; "3:0" is one of them.
        """
        return not self.gpu or any(self._means(wish, device) for wish in self.gpu)

    def unmatched(self, devices: Iterable[Device]) -> list[str]:
        """Return what of ``--gpu`` lets none of these devices through, as it was written."""
        known = list(devices)
        return [wish for wish in self.gpu if not any(self._means(wish, device) for device in known)]

    @staticmethod
    def _means(wish: str, device: Device) -> bool:
        from fnmatch import fnmatchcase  # noqa: PLC0415

        words = {device.uid.lower(), device.name.lower(), device.label.lower()}
        if device.parent_uid is None:
            words.add(str(device.index))
        elif device.parent_index is not None:
            words |= {str(device.parent_index), f"{device.parent_index}:{device.index}"}
        return any(
            fnmatchcase(word, form) for form in (wish.lower(), plain(wish)) for word in words
        )


def plain(wish: str) -> str:
    """Return the wish for a GPU as its index: people write the name that they see.

    Examples
    --------
    >>> plain("GPU 0"), plain("gpu0"), plain("MIG 3:0"), plain("GPU-1a2b*"), plain("H100")
    ('0', '0', '3:0', 'gpu-1a2b*', 'h100')
    """
    word = wish.strip().lower()
    number = word.removeprefix("gpu").removeprefix("mig").lstrip()
    return number if number.replace(":", "", 1).isdecimal() else word
