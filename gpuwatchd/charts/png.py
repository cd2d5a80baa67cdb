"""Pictures as a file, drawn with Matplotlib in a process of its own, then gone.

``python -m gpuwatchd.charts.png`` reads an :class:`~gpuwatchd.charts.drawing.Order` as JSON on
standard input and writes a PNG or an SVG on standard output, within bounds of memory and time.
Matplotlib takes 73 MiB and most of a second: the daemon never imports it. The same order gives the
same bytes: no date, no random name.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd import __version__
from gpuwatchd.charts import mark_groups, png_panel, scales
from gpuwatchd.charts.child_process import FOLDER
from gpuwatchd.charts.drawing import Order, Picture
from gpuwatchd.charts.text_description import sentence
from gpuwatchd.core import text, units
from gpuwatchd.core.design import LOOKS, NIGHT, PAPER, PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_ORDER_BYTES: Final = 32 * 1024**2
MOST_PANELS: Final = 32
MOST_ROWS: Final = 8
"""Of the list of marks below a panel."""
WIDTH_IN: Final = 9.0
_DPI: Final = {"png": 160.0, "svg": 96.0}
"""Without a size; one inch of an SVG is 96 pixels of a page."""
_LEAST_DPI: Final = 90.0
_AXES_IN: Final = 2.3
"""Height of what is between the scales."""
_LEAST_AXES_IN: Final = 0.8
_HEAD_IN, _BARE_IN, _FOOT_IN, _ROW_IN = 0.62, 0.1, 0.64, 0.2
_SECOND_ROW_IN: Final = 0.19
"""Of the legend, where one is too narrow."""
_LEFT_IN, _RIGHT_IN = 0.82, 0.3
_NAME: Final = "gpuwatchd"
_MOST_MEMORY_BYTES: Final = 1024**3
_MOST_CPU_S: Final = 20
Row = tuple[str, str, str]
"""Below a panel: a mark, the part or kind whose colour it has, and words."""


def draw(order: Order) -> bytes:
    """Return the file. Imports Matplotlib."""
    with _own_fonts_only():
        import matplotlib as mpl  # noqa: PLC0415 - of the child alone
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415

    settings: Any = {
        "text.parse_math": False, "svg.hashsalt": _NAME, "svg.fonttype": "none",
        "font.family": "DejaVu Sans", "font.size": 9.5, "hatch.linewidth": 0.6,
    }  # fmt: skip
    with warnings.catch_warnings(), mpl.rc_context(settings):
        warnings.simplefilter("ignore")  # a name may be in letters that no font here has
        return _rendered(order, Figure, FigureCanvasAgg)


def _rendered(order: Order, figure_of: Any, canvas_of: Any) -> bytes:
    ground = NIGHT if order.dark else PAPER
    rows = [_rows(picture, order) for picture in order.pictures]
    width_in, height_in, dpi = size_in(order)
    heights = [_panel_in(own, width_in, _head_in(order)) for own in rows]
    if height_in is None:
        height_in = sum(heights)
    elif height_in < sum(heights):  # there is no room for the lists
        rows = [[] for _ in rows]
        heights = [_panel_in(own, width_in, _head_in(order)) for own in rows]
    figure = figure_of(figsize=(width_in, height_in), dpi=dpi, facecolor=ground)
    canvas_of(figure)
    spare_in = (height_in - sum(heights)) / len(heights)
    top_in = height_in
    for picture, own, own_in in zip(order.pictures, rows, heights, strict=True):
        sheet = _Sheet(figure, order, top_in, own_in + spare_in)
        sheet.draw(picture, own)
        top_in -= own_in + spare_in
    out = io.BytesIO()
    figure.savefig(out, format=order.form, dpi=dpi, facecolor=ground, metadata=_metadata(order))
    return out.getvalue() if order.form == "png" else _named(out.getvalue(), order)


def title(order: Order) -> str:
    """Return the title of the file."""
    named = [text.clean(picture.title) for picture in order.pictures]
    others = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return f"{named[0]}{others}: memory over time"


def description(order: Order) -> str:
    """Return what the file shows, in words."""
    return "\n".join(sentence(picture) for picture in order.pictures)


def _metadata(order: Order) -> dict[str, str | None]:
    if order.form == "svg":
        return {"Date": None, "Creator": _NAME, "Title": title(order)}
    return {
        "Title": title(order),
        "Description": description(order),
        "Software": f"{_NAME} {__version__}",
    }


def _named(svg: bytes, order: Order) -> bytes:
    """Return an SVG with the title and the description that screen readers read."""
    whole = svg.decode("utf-8")
    begin = whole.index("<svg ")
    end = whole.index(">", begin)
    value = (
        f'\n <title id="title">{text.for_html(title(order))}</title>'
        f'\n <desc id="desc">{text.for_html(description(order))}</desc>'
    )
    head = f'{whole[:end]} role="img" aria-labelledby="title desc">'
    return f"{head}{value}{whole[end + 1 :]}".encode()


def size_in(order: Order) -> tuple[float, float | None, float]:
    """Return width and height in inches, and the dots of an inch; a height of None is free."""
    dpi = order.dpi or _DPI[order.form]
    if order.width_px is None or order.height_px is None:
        return WIDTH_IN, None, dpi
    if order.form == "png" and order.dpi is None:
        dpi = max(_LEAST_DPI, order.width_px / WIDTH_IN)
    return order.width_px / dpi, order.height_px / dpi, dpi


def fits(order: Order) -> bool:
    """Return whether every panel has room for its axes."""
    width_in, height_in, _ = size_in(order)
    least_in = len(order.pictures) * (_head_in(order) + _LEAST_AXES_IN + _foot_in(width_in))
    return height_in is None or height_in >= least_in


def _head_in(order: Order) -> float:
    return _BARE_IN if order.bare else _HEAD_IN


def _foot_in(width_in: float) -> float:
    """Return what the scale of time and the legend take."""
    narrow = width_in - _LEFT_IN - _RIGHT_IN <= png_panel.LEGEND_IN
    return _FOOT_IN + (_SECOND_ROW_IN if narrow else 0.0)


def _panel_in(rows: list[Row], width_in: float, head_in: float) -> float:
    return head_in + _AXES_IN + _foot_in(width_in) + _ROW_IN * len(rows)


def _rows(picture: Picture, order: Order) -> list[Row]:
    """Return the list of marks, then what has to be known."""
    groups = mark_groups.groups(picture, png_panel.PLACES, scales.frame(picture, order.window))
    pairs, left_out = mark_groups.numbered(groups, MOST_ROWS)
    rows = []
    for number, mark in pairs:
        shape, part = mark_groups.sign((mark,), ascii_only=False)
        at = units.moment(mark.at_s, now_s=picture.now_s)
        rows.append((f"{shape}{number}", part, f"{at}  {text.clean(mark.text)}"))
    if left_out:
        rows.append(("", "faint", f"and {left_out} more"))
    return rows + [("", "faint", text.clean(note)) for note in picture.notes]


class _Sheet:
    """A strip of the figure for one subject: from its top (inches), so high (inches)."""

    def __init__(self, figure: Any, order: Order, top_in: float, own_in: float) -> None:
        self._figure, self._order, self._top_in, self._own_in = figure, order, top_in, own_in
        self._width_in, self._height_in = figure.get_size_inches()
        self._letters = int((self._width_in - 0.4) * 10.5)

    def draw(self, picture: Picture, rows: list[Row]) -> None:
        """Draw title, verdict, axes, legend and the list of marks."""
        head_in = _head_in(self._order)
        if not self._order.bare:
            self._head(picture)
        foot_in = _foot_in(self._width_in) + _ROW_IN * len(rows)
        axes_in = self._own_in - head_in - foot_in
        bottom_in = self._top_in - head_in - axes_in
        within_in = self._width_in - _LEFT_IN - _RIGHT_IN
        axes = self._figure.add_axes((
            *self._at(_LEFT_IN, bottom_in), within_in / self._width_in, axes_in / self._height_in
        ))  # fmt: skip
        panel = png_panel.Panel(
            axes, picture, scales.frame(picture, self._order.window), self._paint
        )
        panel.draw()
        panel.legend(self._figure, self._at(_LEFT_IN, bottom_in - 0.33), within_in)
        for at, (shape, part, value) in enumerate(rows):
            y_in = bottom_in - foot_in + 0.14 + _ROW_IN * (len(rows) - 1 - at)
            self._write(_LEFT_IN, y_in, shape, part, fontsize=8.5)
            told_ = text.cut(value, self._letters - 12)
            self._write(_LEFT_IN + (0.32 if shape else 0), y_in, told_, "faint", fontsize=8.5)

    def _head(self, picture: Picture) -> None:
        look = LOOKS[picture.kind]
        title_ = text.cut(text.clean(picture.title), int(self._letters * 0.85))
        self._write(0.2, self._top_in - 0.27, title_, "ink", weight="bold", fontsize=11)
        verdict = text.cut(f"{look.mark} {text.clean(picture.verdict)}", self._letters)
        self._write(0.2, self._top_in - 0.48, verdict, picture.kind)

    def _at(self, x_in: float, y_in: float) -> tuple[float, float]:
        return x_in / self._width_in, y_in / self._height_in

    def _paint(self, part: str) -> str:
        look: Any = PARTS.get(part) or LOOKS[part]  # type: ignore[index]
        return str(look.dark if self._order.dark else look.light)

    def _write(self, x_in: float, y_in: float, words: str, part: str, **more: Any) -> None:
        self._figure.text(*self._at(x_in, y_in), words, color=self._paint(part), **more)


@contextlib.contextmanager
def _own_fonts_only() -> Iterator[None]:
    """Let Matplotlib find the fonts that it comes with, and no others, while it is imported.

    On its first import it looks at every font of the system, which can take many seconds; and
    every import is the first here, since nothing of it is kept.
    """
    import matplotlib as mpl  # noqa: PLC0415 - of the child alone

    own, walk, path = mpl.get_data_path(), os.walk, os.environ.get("PATH")

    def walk_own(top: Any, *args: Any, **options: Any) -> Any:
        return walk(top, *args, **options) if str(top).startswith(own) else iter(())

    os.walk = walk_own
    os.environ["PATH"] = ""  # and so neither fc-list nor system_profiler
    try:
        yield
    finally:
        os.walk = walk
        if path is not None:
            os.environ["PATH"] = path


def _bound() -> None:
    """Bound this process: what goes wrong with a picture is no harm to the machine."""
    import resource  # noqa: PLC0415 - of the child alone

    limits = (
        (resource.RLIMIT_AS, _MOST_MEMORY_BYTES),
        (resource.RLIMIT_CPU, _MOST_CPU_S),
        (resource.RLIMIT_CORE, 0),
    )
    for which, most in limits:
        hard = resource.getrlimit(which)[1]
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # macOS knows no limit of the address space.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (wanted, wanted))


def main() -> int:
    """Draw what standard input says; return 0, or 1 with the reason on standard error."""
    try:
        _bound()
        order = msgspec.json.decode(sys.stdin.buffer.read(MOST_ORDER_BYTES), type=Order)
        sys.stdout.buffer.write(draw(order))
        sys.stdout.buffer.flush()
    except Exception as error:  # noqa: BLE001 (whatever it is, the mail goes without a picture)
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    else:
        return 0
    finally:
        # Who started us does the same; but he may be gone by now.
        folder = os.environ.get("MPLCONFIGDIR", "")
        if os.path.basename(folder).startswith(FOLDER):  # noqa: PTH119 - one word of a path
            import shutil  # noqa: PLC0415 - of the child alone

            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
