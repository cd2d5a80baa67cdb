"""The built-in table of what a GPU costs for an hour: dated, each row with its source."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - msgspec reads the annotation
import functools
from importlib import resources
from typing import Annotated, Literal

from msgspec import Meta

from gpuwatchd.core import decoding
from gpuwatchd.core.config.schema import Section


class PriceRow(Section, frozen=True, kw_only=True):
    """What one offer of one model costs."""

    match: Annotated[str, Meta(min_length=3)]
    """Name of the model as its driver tells it, as a glob."""
    name: str
    """The model as people call it."""
    usd_per_gpu_hour: Annotated[float, Meta(gt=0)]
    """Of one GPU: an instance's price is divided by its GPUs."""
    basis: Literal["on-demand", "reserved", "spot"]
    provider: str
    region: str
    as_of: dt.date
    source: Annotated[str, Meta(pattern="^https://")]
    """Public page on which it was read."""
    note: str
    """How it was calculated."""


class _Table(Section, frozen=True, kw_only=True):
    price: tuple[PriceRow, ...]


def decode(text: str) -> tuple[PriceRow, ...]:
    """Return the rows of a table.

    Raises
    ------
    msgspec.ValidationError
        A row has no date, no source, or anything else that it needs.
    """
    import tomllib  # noqa: PLC0415 - not before a price is asked for

    return decoding.convert(tomllib.loads(text), _Table).price


@functools.cache
def builtin() -> tuple[PriceRow, ...]:
    """Return the table that comes with the program; read once."""
    return decode(
        resources.files("gpuwatchd.core.config").joinpath("prices.toml").read_text("utf-8")
    )
