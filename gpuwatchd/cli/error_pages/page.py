"""The shape of a section of the page of errors."""

from __future__ import annotations

from typing import NamedTuple


class ErrorPage(NamedTuple):
    """One section of the page of errors."""

    id: str
    """The stable name: ``errors#ID``."""
    title: str
    """What it is, in a few words."""
    means: str
    """What it says of the state of things."""
    causes: tuple[str, ...]
    """What usually leads to it."""
    do: tuple[str, ...]
    """What to do about it, the likeliest first."""
