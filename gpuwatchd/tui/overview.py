"""The first screen: every GPU, and the processes on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpuwatchd.ctl import badges
from gpuwatchd.tui.page import Page

if TYPE_CHECKING:
    from gpuwatchd.tui.paint import Row


class OverviewScreen(Page):
    """All GPUs, the processes, what is open."""

    name_shown = "Overview"
    keys: ClassVar[tuple[tuple[str, str], ...]] = (
        ("q", "quit"), ("?", "help"), ("P", "predict"), ("Enter", "detail"), ("z", "held"),
        ("a", "alerts"), ("h", "history"), ("/", "filter"),
    )  # fmt: skip

    def body(self, width: int, height: int) -> list[Row]:
        """Return a line per GPU."""
        rows: list[Row] = []
        for item in self.top.view.devices if self.top.view is not None else ():
            badge = badges.device(item)
            rows.append([
                (self.painter.cell(f"{item.device.label} {item.device.name}", 40), ""),
                (self.painter.cell(badge.word, badges.WORD_CELLS), f"{badge.kind} badge"),
            ])  # fmt: skip
        return rows
