"""What of the first screen is under the cursor, in which order it is, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gpuwatchd.tui.widgets import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.current_state import View
    from gpuwatchd.store.live import LiveDevice

_SOON_S = 1.0
"""Two digits within this time are one number."""


class Selection:
    """Cursor, order and filter of the processes; they stay with whom they are on.

    Attributes
    ----------
    rows
        What is shown, in order.
    all_rows
        The same without the filter.
    by, turned
        Column that it is sorted by; whether the other way round.
    gpu
        Uid of the only device whose processes are shown; None: of all.
    wish
        Words of the filter.
    on_gpus
        Whether the cursor is among the devices.
    """

    def __init__(self) -> None:
        self.rows: list[table.Entry] = []
        self.all_rows: list[table.Entry] = []
        self.by = table.NATURAL
        self.turned = False
        self.gpu: str | None = None
        self.wish = ""
        self.on_gpus = False
        self._view: View | None = None
        self._who: table.Who | None = None
        self._device: str | None = None
        self._at = 0
        self._first = 0
        self._first_gpu = 0
        self._digits = ("", 0.0)

    def see(self, view: View) -> None:
        """Take a new view: the cursor stays on its process, or where that has been."""
        self._view = view
        uids = {item.device.uid for item in view.devices}
        if self.gpu not in uids:
            self.gpu = None
        if self._device not in uids:
            self._device = None
        self._arrange()

    def _arrange(self) -> None:
        if self._view is None:
            return
        self.all_rows = table.entries(self._view, self.gpu)
        entries = table.matching(self.all_rows, self.wish) if self.wish else self.all_rows
        self.rows = table.ordered(entries, self.by, turned=self.turned)
        if self._who is None:
            self._at = 0
            return
        found = next((at for at, entry in enumerate(self.rows) if entry.who == self._who), None)
        self._at = min(self._at, max(0, len(self.rows) - 1)) if found is None else found
        if found is None and self.rows:
            self._who = self.rows[self._at].who

    @property
    def devices(self) -> Sequence[LiveDevice]:
        """All devices."""
        return () if self._view is None else self._view.devices

    @property
    def under_cursor(self) -> table.Who | None:
        """The process under the cursor: the first until somebody moves it."""
        return self.rows[self._at].who if self._at < len(self.rows) else None

    @property
    def gpu_under_cursor(self) -> str | None:
        """The device under the cursor, or the one that is shown alone, or the first."""
        text = self._device or self.gpu
        if text is None and self.devices:
            text = self.devices[0].device.uid
        return text

    def left_out(self, ascii_only: bool) -> str:  # noqa: FBT001 - of the terminal
        """Return what is left out, in words; "" for nothing."""
        parts = []
        if self.gpu is not None:
            label = next(i.device.label for i in self.devices if i.device.uid == self.gpu)
            parts.append(label)
        if self.wish:
            wish = self.wish if not ascii_only else self.wish.encode("ascii", "replace").decode()
            parts.append(f"/{wish}/ {len(self.rows)} of {len(self.all_rows)}")
        return ", ".join(parts)

    # ---- moving

    def move(self, by: int) -> None:
        """Move the cursor, within what there is."""
        if self.on_gpus:
            uids = [item.device.uid for item in self.devices]
            if uids:
                at = uids.index(cast("str", self.gpu_under_cursor))
                self._device = uids[min(max(at + by, 0), len(uids) - 1)]
                if self.gpu is not None:
                    self.gpu = self._device
                    self._arrange()
        elif self.rows:
            self._at = min(max(self._at + by, 0), len(self.rows) - 1)
            self._who = self.rows[self._at].who

    def to_end(self, *, last: bool) -> None:
        """Move it to the first, which it then follows, or to the last."""
        many = len(self.devices) if self.on_gpus else len(self.rows)
        self.move(many if last else -many)
        if not last and not self.on_gpus:
            self._who, self._at = None, 0

    def take(self, kind: str, what: object) -> None:
        """Put the cursor on what was clicked."""
        self.on_gpus = kind == "gpu"
        if kind == "gpu":
            self._device = cast("str", what)
        else:
            self._who = cast("table.Who", what)
            self._arrange()

    def come_back(self, device_uid: str | None) -> None:
        """Go to the device that another screen was about, where the cursor is among them."""
        if self.on_gpus and device_uid in {item.device.uid for item in self.devices}:
            self._device = device_uid

    def first_row(self, count: int) -> int:
        """Return the first row of ``count`` that are seen, so that the cursor is one of them."""
        self._first = _first(self._first, self._at, count, len(self.rows))
        return self._first

    def first_gpu(self, count: int) -> int:
        """Return the first device of ``count`` that are seen."""
        uids = [item.device.uid for item in self.devices]
        at = uids.index(self._device) if self._device in uids else 0
        self._first_gpu = _first(self._first_gpu, at, count, len(uids))
        return self._first_gpu

    # ---- order and filter

    def sort(self, by: str) -> None:
        """Sort by a column; by the same again turns it round."""
        self.turned = not self.turned if by == self.by else False
        self.by = by
        self._arrange()

    def sort_beside(self, names: Sequence[str], by: int) -> None:
        """Sort by the next column, or the one before."""
        at = names.index(self.by) if self.by in names else 0
        self.by, self.turned = names[(at + by) % len(names)], False
        self._arrange()

    def turn(self) -> None:
        """Turn the order round."""
        self.turned = not self.turned
        self._arrange()

    def filter(self, wish: str) -> None:
        """Show only what matches."""
        self.wish = wish
        self._arrange()

    def clear(self) -> None:
        """Show everything again."""
        self.wish, self.gpu, self.on_gpus = "", None, False
        self._arrange()

    def digit(self, key: str, at_s: float) -> bool:
        """Show the processes of a GPU alone, by its index; the same again shows all.

        Returns
        -------
        bool
            False where there is no such GPU.
        """
        before, when_s = self._digits
        values = {
            str(i.device.index): i.device.uid for i in self.devices if not i.device.parent_uid
        }
        number = before + key if at_s - when_s < _SOON_S and before + key in values else key
        self._digits = (number, at_s)
        if number not in values:
            return False
        self.gpu = None if self.gpu == values[number] else values[number]
        self._device = self.gpu or self._device
        self._arrange()
        return True


def _first(first: int, at: int, count: int, total: int) -> int:
    if count < 1:
        return 0
    if at < first:
        first = at
    elif at >= first + count:
        first = at - count + 1
    return max(0, min(first, total - count))
