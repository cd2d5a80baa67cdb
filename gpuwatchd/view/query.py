"""What one call asks about: which GPUs, whose processes, under which configuration."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpuwatchd.core.config import Loaded
    from gpuwatchd.core.model import Device


class Query:
    """What is asked.

    Attributes
    ----------
    config
        The file that the configuration is read from; None for the usual places.
    gpu
        GPUs that are meant: index, name, UUID or glob; empty for all.
    user
        Users whose processes are meant: name, glob, number or "me"; empty for all.
    """

    __slots__ = ("config", "gpu", "user")

    def __init__(
        self,
        *,
        config: Path | None = None,
        gpu: Iterable[str] = (),
        user: Iterable[str] = (),
    ) -> None:
        self.config = config
        self.gpu = list(gpu)
        self.user = list(user)

    def load_config(self) -> Loaded:
        """Return the configuration of this call.

        Raises
        ------
        ConfigError
            With file and key.
        """
        from gpuwatchd.core import config  # noqa: PLC0415 - 44 ms: only verbs that need it pay for it

        return config.load(self.config)

    def wants(self, device: Device) -> bool:
        """Return whether ``--gpu`` (index, name, UUID or glob) lets this device through.

        The index of a card means its MIG instances too; "3:0" is one of them.
        """
        return not self.gpu or any(_means(wish, device) for wish in self.gpu)

    def unmatched(self, devices: Iterable[Device]) -> list[str]:
        """Return what of ``--gpu`` lets none of these devices through, as it was written."""
        every = list(devices)
        return [wish for wish in self.gpu if not any(_means(wish, device) for device in every)]


def _means(wish: str, device: Device) -> bool:
    name = device.name.removeprefix("NVIDIA ").removeprefix("GeForce ").lower()
    # Cards of one kind differ in what follows its name: "A100-SXM4-80GB" is an A100.
    kind = name.replace("-", " ").partition(" ")[0]
    words = {device.uid.lower(), device.name.lower(), device.label.lower(), name, kind}
    if device.parent_uid is None:
        words.add(str(device.index))
    elif device.parent_index is not None:
        words |= {str(device.parent_index), f"{device.parent_index}:{device.index}"}
    return any(fnmatchcase(word, form) for form in (wish.lower(), plain(wish)) for word in words)


def plain(wish: str) -> str:
    """Return the wish for a GPU as its index: people write the name that they see.

    Examples
    --------
    >>> plain("GPU 0"), plain("gpu0"), plain("MIG 3:0"), plain("GPU-1a2b*"), plain("H100")
    ('0', '0', '3:0', 'gpu-1a2b*', 'h100')
    """
    word = wish.strip().lower()
    number = word.removeprefix("gpu").removeprefix("mig").lstrip()
    return number if units.is_number(number.replace(":", "", 1)) else word
