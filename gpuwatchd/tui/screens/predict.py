"""``P``: what is foreseen of every GPU, and the chart of the one that is chosen."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.tui.base import LISTED
from gpuwatchd.tui.screens.chart_screen import About, ChartScreen
from gpuwatchd.tui.widgets.texts import Choices, Paragraph
from gpuwatchd.view import blocks
from gpuwatchd.view.text import badges, status, verdict_text
from gpuwatchd.view.text import prediction as predict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.widget import Widget

    from gpuwatchd.core.model import Finding
    from gpuwatchd.store.live import LiveDevice
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.view.blocks import Page, Part

_MOST_GPUS = 8
_SUSPECT = 24
_WIDE = 136
"""Columns from which on a row of the list has R² and confidence, too."""


class PredictScreen(ChartScreen):
    """Growth rate, R², confidence, time left, detector, pattern, framework, suspect, chart."""

    name_shown = "Predict"
    own_keys: ClassVar[Keys] = (("↑↓", "GPU"), *ChartScreen.chart_keys)
    BINDINGS: ClassVar[list[BindingType]] = [
        *LISTED[:2],
        Binding("pageup", "text('page_up')", show=False),
        Binding("pagedown,space", "text('page_down')", show=False),
    ]
    page_id = "facts"
    beside_columns = 110
    DEFAULT_CSS = """
    PredictScreen #gpus { height: auto; max-height: 8; }
    PredictScreen #facts { height: 35%; min-height: 4; width: 1fr; }
    PredictScreen.beside #facts { height: 1fr; width: 56; margin-left: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._uid: str | None = None

    def body(self) -> Iterable[Widget]:
        """Return the list, the chart and the facts."""
        yield Choices(self.painter, id="gpus")
        yield from super().body()

    @property
    def list(self) -> Choices:
        """The GPUs."""
        return self.query_one("#gpus", Choices)

    def redrawn(self) -> None:
        """Show the list and the facts as they are now."""
        super().redrawn()
        assert self.view is not None  # noqa: S101
        view, devices = self.view, self.view.devices
        uids = [item.device.uid for item in devices]
        if self._uid not in uids:
            wish = self.shared.selected_device_uid
            self._uid = wish if wish in uids else _worst(devices)
        at = uids.index(self._uid) if self._uid is not None else None
        self.about = None if at is None else About(devices[at])
        self.list.styles.height = min(len(devices), _MOST_GPUS, max(1, self.size.height // 5))
        self.list.put((Paragraph(partial(_row, item), n) for n, item in enumerate(devices)), at)
        if at is not None:
            whole = partial(
                predict.write_device, view=view, item=devices[at], whole=True,
                of_users=bool(self.shared.query.user),
            )  # fmt: skip
            short = partial(_short, devices[at])
            self.page.write(whole if self.has_class("beside") else short)

    def subject(self) -> Iterable[Part]:
        """Return of which GPU the chart is."""
        if self.about is not None:
            item = self.about.item
            badge = badges.device(item)
            yield f"{item.device.label}  {item.device.name}"
            yield badge.words, badge.kind

    def on_option_list_option_highlighted(self) -> None:
        """Show the GPU that was chosen in the list."""
        at = self.list.chosen
        if self.view is None or at is None or at >= len(self.view.devices):
            return
        uid = self.view.devices[at].device.uid
        if uid != self._uid:
            self._uid = uid
            self.shared.select(uid, self.shared.selected_process)
            self.span_name = ""
            self.chart.put(None)
            self.chart.show_span(None)
            self.chart.point_at(None)
            self.redrawn()
            self.request(anew=True)


def _worst(devices: Sequence[LiveDevice]) -> str | None:
    """Return the device that deserves a look first."""
    kinds = [badges.WORST_FIRST.index(badges.device(item).kind) for item in devices]
    return devices[kinds.index(min(kinds))].device.uid if kinds else None


def _row(item: LiveDevice, out: Page) -> None:
    """Write a device in one line."""
    badge, finding = badges.device(item), item.finding
    cells: list[Part] = [
        f"{item.device.label:<7}",
        (f"{badge.word:<{badges.WORD_CELLS}}", badge.kind),
    ]
    cells += _figures(item, finding, out.width)
    out.line(*[part for cell in cells for part in (cell, "  ")][:-1])


def _figures(item: LiveDevice, finding: Finding | None, width: int) -> list[Part]:
    if finding is None or finding.pattern not in LEAK_PATTERNS:
        return [badges.device(item).rest]
    pace = verdict_text.pace(finding)
    cells: list[Part] = [f"{pace[0]:<13}", *([f"{pace[1]:<34}"] if pace[1:] else [])]
    if width >= _WIDE and finding.r_squared is not None:
        cells.append(f"R² {finding.r_squared:.3f} ({verdict_text.fit(finding.r_squared)})")
    if width >= _WIDE and finding.tier != "watch":
        cells.append(f"confidence {units.percent(finding.confidence)}")
    by = status.suspect(item, finding) if is_leak(finding) else ""
    room = min(_SUSPECT, width // 4)
    return [f"{blocks.fit(by, room):<{room}}", *cells] if by else cells


def _short(item: LiveDevice, out: Page) -> None:
    """Write what ``predict`` says of a device in as few lines as it takes: there is a chart too."""
    judged = list(predict.subjects(item, whole=True))
    if not judged:
        out.flow([badges.device(item).words], rest="  ")
    for who, finding, process in judged:
        if not predict.told_in_full(finding):
            out.flow([(who, "bold"), *predict.calm(finding, process)], rest="  ")
            continue
        out.flow([(who, "bold"), verdict_text.verdict(finding)], rest="  ")
        pairs = predict.facts(item, finding, process)
        brief = (((label, "dim"), f"{value},") for label, value in pairs if label not in _LONG)
        out.flow(chain.from_iterable(brief), first="  ", rest="  ", gap=" ")
        for label, value in pairs:
            if label in _LONG:
                out.prose(f"{label}: {value}", first="  ", rest="    ")


_LONG = frozenset({"because", "hardware", "shares", "known", "advice"})
