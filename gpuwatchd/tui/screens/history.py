"""``h``: the memory of a GPU or a process over time, and what happened meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType

from gpuwatchd.charts import chart_model
from gpuwatchd.core import units
from gpuwatchd.tui.base import LISTED
from gpuwatchd.tui.screens.chart_screen import ChartScreen, Identity, ReadPicture, every
from gpuwatchd.tui.widgets.texts import Choices, Paragraph, sentence
from gpuwatchd.view.text import badges, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.charts.chart_model import Mark
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.view.blocks import Page, Part

_MOST: Final = 500


class PastScreen(ChartScreen):
    """A chart to be moved about, with a list of what happened."""

    name_shown = "History"
    own_keys: ClassVar[Keys] = (
        *ChartScreen.chart_keys, ("↑↓", "event"), ("Tab", "next subject"), ("< >", "cursor"),
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        *LISTED[:4],
        Binding("tab", "next(1)", show=False),
        Binding("shift+tab", "next(-1)", show=False),
    ]
    page_id = "marks"
    page_kind = Choices
    beside_columns = 100
    DEFAULT_CSS = """
    PastScreen #marks { height: 6; width: 1fr; }
    PastScreen.beside #marks { height: 1fr; width: 44; margin-left: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._identity: Identity | None = None
        self._mark: Mark | None = None

    def usual_span(self) -> tuple[str, float | None]:
        """Return a day: the past is what this is for."""
        return "24h", 86_400.0

    def redrawn(self) -> None:
        """Follow whom it is about."""
        super().redrawn()
        assert self.view is not None  # noqa: S101
        abouts = every(self.view)
        if self._identity is None:
            uid, key = self.shared.selected_device_uid, self.shared.selected_process
            wished = [about for about in abouts if key is not None and about.key == key]
            wished += [about for about in abouts if about.identity == (uid, None)]
            self._identity = next((about.identity for about in wished or abouts), None)
        about = next((about for about in abouts if about.identity == self._identity), None)
        if about is None and self.about is not None:
            about = self.about._replace(ended=self.about.process is not None)
        self.about = about

    def subject(self) -> Iterable[Part]:
        """Return whose memory it is."""
        if self.about is None:
            return
        item, process, ended = self.about
        on = f"{item.device.label}  {item.device.name}"
        if process is None:
            yield on, "bold"
            badge = badges.device(item)
        else:
            yield verdict_text.who(process.info), "bold"
            if ended:
                yield "it has ended", "watch"
            yield f"on {on}"
            badge = badges.process(process)
        yield badge.words, badge.kind

    def answered(self, picture: ReadPicture) -> None:
        """Show the chart and what happened."""
        super().answered(picture)
        self._list()

    @property
    def _marks(self) -> tuple[Mark, ...]:
        """What happened, the newest first."""
        picture = self.chart.picture
        return () if picture is None else picture.marks[::-1][:_MOST]

    def _list(self) -> None:
        picture, marks = self.chart.picture, self._marks
        if picture is None:
            return
        paragraphs = [
            Paragraph(partial(_mark_line, mark, picture.now_s, self.painter.ascii), at)
            for at, mark in enumerate(marks)
        ]
        if not paragraphs:
            paragraphs = [Paragraph(sentence("no events in this time", "dim"))]
        for gap in picture.gaps[::-1][:_MOST]:
            since = units.moment(gap.begin_s, now_s=picture.now_s)
            why = f": {gap.why}" if gap.why else ""
            lasted = units.duration(gap.end_s - gap.begin_s)
            paragraphs.append(Paragraph(sentence(f"no data for {lasted} from {since}{why}", "dim")))
        self.list.put(paragraphs, marks.index(self._mark) if self._mark in marks else None)

    def on_option_list_option_highlighted(self) -> None:
        """Go to what was chosen, with the cursor."""
        at, marks = self.list.chosen, self._marks
        if at is None or at >= len(marks) or marks[at] == self._mark:
            return
        self._mark = marks[at]
        begin_s, end_s = self.chart.span
        at_s = self._mark.at_s
        if not begin_s <= at_s <= end_s:
            half_s = (end_s - begin_s) / 2
            self.chart.go((at_s - half_s, at_s + half_s))
        self.chart.point_at(at_s)

    def action_next(self, by: int) -> None:
        """Show the next GPU, or the next process that deserves a look."""
        if self.view is None:
            return
        identities = [about.identity for about in every(self.view)]
        if not identities:
            return
        at = identities.index(self._identity) + by if self._identity in identities else 0
        self._identity = identities[at % len(identities)]
        self.about, self._mark, self.trouble = None, None, ""
        self.chart.put(None)
        self.chart.point_at(None)
        self.list.put(())
        self.redrawn()
        self.request(anew=True)


def _mark_line(mark: Mark, now_s: float, ascii_only: bool, out: Page) -> None:  # noqa: FBT001
    sign, kind = chart_model.sign((mark,), ascii_only=ascii_only)
    at = units.moment(mark.at_s, now_s=now_s)
    parts = [(f"{sign} {at}", kind), *((word, "") for word in mark.text.split(" "))]
    out.flow(parts, rest="  ", gap=" ")
