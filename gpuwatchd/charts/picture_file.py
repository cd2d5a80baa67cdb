"""Having pictures drawn as a file: by a process of its own, in time or with a reason why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.charts import drawing_process
from gpuwatchd.charts.matplotlib_renderer import MOST_PANELS, fits
from gpuwatchd.core import extras
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from gpuwatchd.charts.chart_model import Order

DEADLINE_S: Final = 30.0
_BEGINS: Final = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml "}


def draw(order: Order, *, deadline_s: float = DEADLINE_S) -> bytes:
    """Return a file of pictures.

    Raises
    ------
    GpuwatchdError
        Without Matplotlib, without room for the panels, or when it could not be drawn in time.
    """
    if not drawing_process.available():
        raise GpuwatchdError(
            "a file needs the extra charts, which is not installed",
            hint=extras.install("charts"),
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
    drawn, why = drawing_process.ask(order, deadline_s=deadline_s)
    if drawn is None or not drawn.startswith(_BEGINS[order.form]):
        raise GpuwatchdError(
            f"the picture could not be drawn: {why or 'what came is no picture'}",
            hint="gpuwatchctl plot shows it in the terminal",
            page="errors#no-picture",
        )
    return drawn
