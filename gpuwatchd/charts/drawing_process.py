"""Having a picture drawn: by a process of its own, within a few seconds, or not at all.

A mail never waits longer for its picture than :data:`DEADLINE_S`, and is never lost for want of it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from gpuwatchd.charts import text_description
from gpuwatchd.charts.chart_model import Curve, Forecast, Mark, Order, Picture
from gpuwatchd.core import extras, run_program, text
from gpuwatchd.core.design import FLAGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Chart

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
MOST_BYTES = 400_000
PROGRAM = ("-m", "gpuwatchd.charts.matplotlib_renderer")
MISSING = f"no pictures: {extras.install('charts')}"
FOLDER = "gpuwatchd-chart-"
"""Begins the name of the directory that Matplotlib may write to."""
SIZE_PX = (1280, 760)
"""Twice as many as shown in a mail, for screens that have them."""
_DPI = 240.0
_PNG = b"\x89PNG\r\n\x1a\n"
_KEPT = frozenset({
    "HOME", "LANG", "PYTHONPATH", "PYTHONHOME", "TMPDIR", "TZ", "TZDIR", "USER", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
})  # fmt: skip
"""Of our environment the child gets no more than this: no secrets, no sockets."""


def available() -> bool:
    """Say whether the library that draws is installed; it is not imported."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(chart: Chart, *, deadline_s: float = DEADLINE_S) -> bytes | None:
    """Return a chart as PNG; None where that cannot be had in time."""
    if text_description.drawable(chart) is None or not available():
        return None
    out, why = ask(order_of(chart), deadline_s=deadline_s)
    if out is not None and out.startswith(_PNG) and len(out) <= MOST_BYTES:
        return out
    log.debug("no picture: %s", why or f"{len(out or b'')} bytes")
    return None


def order_of(chart: Chart) -> Order:
    """Return the order for the picture of a mail."""
    wide, high = SIZE_PX
    pictures = (picture_of(chart),)
    return Order(pictures=pictures, form="png", width_px=wide, height_px=high, dpi=_DPI, bare=True)


def picture_of(chart: Chart) -> Picture:
    """Return the chart of a message as a picture: its curve, its fit and where that leads.

    As of its judgement, as is the text beside it: a mail may leave, and be read, much later.
    """
    judged_s = chart.at_s[-1] if chart.judged_at_s is None else chart.judged_at_s
    forecast = None
    if chart.level_bytes is not None and chart.rate_bytes_per_s is not None:
        judged = structs.replace(chart, judged_at_s=judged_s)
        forecast = Forecast(**{name: getattr(judged, name) for name in Forecast.__struct_fields__})
    used, died_s = chart.used_bytes, chart.died_at_s
    death = [] if died_s is None else [Mark(at_s=died_s, kind="died", text=FLAGS["died"].word)]
    return Picture(
        key="",
        title="GPU memory",
        kind="leak",
        verdict="",
        begin_s=chart.at_s[0],
        end_s=chart.at_s[-1] if died_s is None else max(chart.at_s[-1], died_s),
        now_s=judged_s,
        curve=Curve(at_s=chart.at_s, used_bytes=used, low_bytes=used, high_bytes=used),
        limit_bytes=chart.limit_bytes,
        forecast=forecast,
        marks=tuple(death),
    )


def ask(order: Order, *, deadline_s: float) -> tuple[bytes | None, str]:
    """Return what a child has drawn, and "" or why there is nothing."""
    try:
        folder = tempfile.mkdtemp(prefix=FOLDER)
    except OSError as error:
        return None, str(error)
    try:
        answer = run_program.ask(
            [sys.executable, *PROGRAM],
            msgspec.json.encode(order),
            environ=environment(os.environ, folder),
            timeout_s=deadline_s,
        )
    except (OSError, ValueError) as error:
        return None, str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if answer.code == 0:
        return answer.out, ""
    if answer.code is None:
        return None, f"not drawn within {deadline_s:g} s"
    return None, text.clean(answer.said[-400:]).strip() or f"exit {answer.code}"


def environment(base: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the environment of the child; ``folder`` takes what Matplotlib writes."""
    values = {k: v for k, v in base.items() if k in _KEPT or k.startswith("LC_")}
    return values | {"MPLCONFIGDIR": folder, "MPLBACKEND": "Agg", "OPENBLAS_NUM_THREADS": "1"}
