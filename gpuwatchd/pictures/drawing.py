"""Having pictures drawn as a file: by a process of its own, in time or with a reason why not."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.errors import GpuwatchdError
from gpuwatchd.notify import extra, picture
from gpuwatchd.pictures.figure import MOST_PANELS, Order, fits

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S: Final = 30.0
PROGRAM: Final = ("-m", "gpuwatchd.pictures.figure")
_BEGINS: Final = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml "}


def draw(order: Order, *, deadline_s: float = DEADLINE_S) -> bytes:
    """Return a file of pictures.

    Raises
    ------
    GpuwatchdError
        Without Matplotlib, without room for the panels, or when it could not be drawn in time.
    """
    if not picture.available():
        raise GpuwatchdError(
            "a file needs the extra charts, which is not installed",
            hint=extra.install("charts"),
            page="errors#no-charts",
        )
    count = len(order.pictures)
    if count > MOST_PANELS:
        raise GpuwatchdError(
            f"{count} charts are too many for one file, which takes {MOST_PANELS}",
            hint="choose some with --gpu or --pid",
            page="errors#no-picture",
        )
    if not fits(order):
        raise GpuwatchdError(
            f"{'1 chart has' if count == 1 else f'{count} charts have'} no room in"
            f" {order.width_px}x{order.height_px}",
            hint="leave out --size, or choose fewer with --gpu or --pid",
            page="errors#no-picture",
        )
    drawn, why = picture.ask(PROGRAM, msgspec.json.encode(order), deadline_s=deadline_s)
    if drawn is None or not drawn.startswith(_BEGINS[order.form]):
        raise GpuwatchdError(
            f"the picture could not be drawn: {why or 'what came is no picture'}",
            hint="gpuwatchctl plot shows it in the terminal",
            page="errors#no-picture",
        )
    return drawn


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; one that is there is replaced.

    Raises
    ------
    GpuwatchdError
        When the place cannot be written to.
    """
    mode = 0o666 & ~_umask()
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)  # noqa: PTH105 - beside the call that made its name
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
        raise GpuwatchdError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="choose another place for --output",
            page="errors#cannot-write",
        ) from error


def _umask() -> int:
    old = os.umask(0o077)
    os.umask(old)
    return old
