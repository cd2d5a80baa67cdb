"""A few shapes of SVG: enough for the pictures of the pages, readable on light and dark alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

STYLE = """
  .back { fill: #ffffff } .grid { stroke: #d8dee4 } .frame { stroke: #8c959f; fill: none }
  text { fill: #1f2328; font: 12px system-ui, sans-serif } .soft { fill: #59636e }
  .memory { stroke: #8c959f } .floor { stroke: #0969da } .fit { stroke: #bc4c00 }
  .limit { stroke: #cf222e } .now { stroke: #59636e } .band { fill: #bc4c00; opacity: .25 }
  .dot { fill: #bc4c00 } .blue { fill: #0969da } .red { fill: #cf222e }
  path, line { fill: none; stroke-width: 1.5 } .floor, .fit { stroke-width: 2.5 }
  .grid { stroke-width: 1 } .dash { stroke-dasharray: 6 5 } .dots { stroke-dasharray: 2 4 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } .grid { stroke: #262c36 } text { fill: #e6edf3 }
    .soft { fill: #9198a1 } .memory { stroke: #7d8590 } .floor { stroke: #58a6ff }
    .fit { stroke: #f0883e } .limit { stroke: #ff7b72 } .now { stroke: #9198a1 }
    .band, .dot { fill: #f0883e } .blue { fill: #58a6ff } .red { fill: #ff7b72 }
  }
"""


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


@dataclass(kw_only=True)
class Chart:
    """A drawing with axes.

    ``title`` and ``words`` say what it shows, for those who cannot see it; ``x`` and ``y`` are the
    range of each axis in its own unit.
    """

    title: str
    words: str
    x: tuple[float, float]
    y: tuple[float, float]
    width: float = 720.0
    height: float = 300.0
    left: float = 58.0
    right: float = 18.0
    top: float = 34.0
    bottom: float = 40.0
    parts: list[str] = field(default_factory=list)

    def px(self, x: float) -> float:
        """Return the horizontal place of a value."""
        low, high = self.x
        return self.left + (x - low) / (high - low) * (self.width - self.left - self.right)

    def py(self, y: float) -> float:
        """Return the vertical place of a value."""
        low, high = self.y
        return self.height - self.bottom - (y - low) / (high - low) * self.tall

    @property
    def tall(self) -> float:
        """Height of the area of the data."""
        return self.height - self.top - self.bottom

    def axes(
        self, x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[tuple[float, str]]
    ) -> None:
        """Draw the grid and what stands beside it."""
        base = self.height - self.bottom
        for value, label in x_ticks:
            at = self.px(value)
            self.parts.append(
                f'<line class="grid" x1="{_n(at)}" y1="{_n(self.top)}" x2="{_n(at)}" '
                f'y2="{_n(base)}"/>'
            )
            self.text(at, base + 17, label, anchor="middle", kind="soft")
        for value, label in y_ticks:
            at = self.py(value)
            self.parts.append(
                f'<line class="grid" x1="{_n(self.left)}" y1="{_n(at)}" '
                f'x2="{_n(self.width - self.right)}" y2="{_n(at)}"/>'
            )
            self.text(self.left - 8, at + 4, label, anchor="end", kind="soft")

    def text(
        self, at_x: float, at_y: float, words: str, *, anchor: str = "start", kind: str = ""
    ) -> None:
        """Write words at a place in pixels."""
        kind = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text{kind} x="{_n(at_x)}" y="{_n(at_y)}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Draw a line through values."""
        places = [(_n(self.px(x)), _n(self.py(y))) for x, y in points]
        kept = [
            one
            for k, one in enumerate(places)
            if k in {0, len(places) - 1} or not places[k - 1][1] == one[1] == places[k + 1][1]
        ]
        text = " ".join(f"{x},{y}" for x, y in kept)
        self.parts.append(f'<path class="{kind}" d="M{text}"/>')

    def stroke(self, a: tuple[float, float], b: tuple[float, float], kind: str) -> None:
        """Draw a straight line between places in pixels."""
        self.parts.append(
            f'<line class="{kind}" x1="{_n(a[0])}" y1="{_n(a[1])}" x2="{_n(b[0])}" '
            f'y2="{_n(b[1])}"/>'
        )

    def dot(self, x: float, y: float, kind: str = "dot", size: float = 4.5) -> None:
        """Mark a value."""
        self.parts.append(
            f'<circle class="{kind}" cx="{_n(self.px(x))}" cy="{_n(self.py(y))}" r="{_n(size)}"/>'
        )

    def band(self, x: tuple[float, float], y: tuple[float, float], kind: str = "band") -> None:
        """Fill a rectangle between values."""
        a, b = self.px(x[0]), self.px(x[1])
        low, high = self.py(y[0]), self.py(y[1])
        self.parts.append(
            f'<rect class="{kind}" x="{_n(a)}" y="{_n(high)}" width="{_n(b - a)}" '
            f'height="{_n(low - high)}"/>'
        )

    def svg(self) -> str:
        """Return the drawing."""
        width, height = _n(self.width), _n(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="t d">\n'
            f'<title id="t">{escape(self.title)}</title>\n<desc id="d">{escape(self.words)}</desc>'
            f'\n<style>{STYLE}</style>\n<rect class="back" width="{width}" height="{height}" '
            'rx="6"/>'
        )
        return "\n".join([head, *self.parts, "</svg>", ""])
