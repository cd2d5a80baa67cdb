"""The first screen: every GPU, the processes by growth, what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, cast

from gpuwatchd.core import text
from gpuwatchd.tui.base import TopScreen, spread, typed
from gpuwatchd.tui.widgets import gpus, process_table
from gpuwatchd.tui.widgets.texts import Lines
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.text import subject_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual import events
    from textual.app import ComposeResult

    from gpuwatchd.tui.base import Keys
    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Row
    from gpuwatchd.view.queries.current_view import View

_KEYS: Final = (
    ("q", "quit"), ("?", "help"), ("Enter", "detail"), ("P", "predict"), ("/", "filter"),
    ("a", "alerts"), ("h", "history"), ("z", "held"), ("s", "snooze"), ("< >", "sort"),
    ("r", "reverse"), ("0-9", "GPU"), ("Tab", "GPUs"),
    ("x", "free"),
)  # fmt: skip
_LEAST_ROWS = 6
"""Of processes: GPUs get a second row, alerts a fourth, where so many are left."""
_WHEEL = 3
_WISH_CHARS = 256
_SOON_S = 1.0
"""Two digits within this time are one number."""
Hit = tuple[str, object] | None
"""What a row of the screen is about: gpu and its uid, process and who, heads, alert."""


class RowBudget(NamedTuple):
    """Rows for each part of the screen."""

    health: int
    gpus: int
    """Devices that are shown."""
    each: int
    """Rows of one."""
    alerts: int
    rows: int
    """Processes."""


def share_rows(height: int, view: View, *, wide: bool, processes: int) -> RowBudget:
    """Share the rows between head and foot out.

    Parameters
    ----------
    processes
        How many there are, whatever is filtered: alerts get the rows that they leave empty.
    wide
        Whether one row has all that there is to say of a GPU.
    """
    count = len(view.devices)
    warned = len(view.warnings)
    health = min(max(1, warned), 1 if height < 26 else 3)
    told = len(current_state.shown(view.alerts)) + bool(view.holdings) + len(view.daemon.problems)
    told += len(view.untold) + len(view.lost) + len(view.deaths)
    most = 1 if height < 16 else 3 if height < 30 else max(4, height // 6)
    alerts = min(most, 1 + told)
    left = height - health - alerts - 2  # heads of GPUs and of processes
    shown = min(count, max(1, left - min(_LEAST_ROWS, max(1, left // 3))))
    doubled = not wide and shown == count and left - 2 * count >= 2 * _LEAST_ROWS
    each = 2 if doubled else 1
    rows = max(0, left - shown * each)
    lent = max(0, min(rows - max(1, processes), 1 + told - alerts))
    return RowBudget(health, shown, each, alerts + lent, rows - lent)


class OverviewScreen(TopScreen):
    """All GPUs, the processes, what is open."""

    name_shown = "Overview"
    keys: ClassVar[Keys] = _KEYS

    def __init__(self) -> None:
        super().__init__()
        self.chosen = Selection()
        self.hits: list[Hit] = []
        self._typing = False
        self._columns: tuple[process_table.Column, ...] = ()
        self._page = 1
        self._laid: dict[process_table.Who, tuple[object, Row]] = {}

    def compose(self) -> ComposeResult:
        """Build one widget for all rows: three cost a tenth more (6.6 ms, not 6.0, a refresh)."""
        yield Lines(self.painter)

    def show(self, view: View) -> None:
        """Take a new view."""
        self.chosen.see(view)
        if len(self._laid) > 2 * len(self.chosen.all_rows):  # of processes that have ended
            self._laid.clear()
        self.draw()

    def begin(self) -> None:
        """Show what is known."""
        self.on_screen_resume()

    def on_screen_resume(self) -> None:
        """Take what came in meanwhile, and the device that another screen has gone to."""
        if self.shared.view is not None:
            self.chosen.see(self.shared.view)
            self.chosen.come_back(self.shared.selected_device_uid)
        self.draw()

    def draw(self) -> None:
        """Paint what has changed."""
        width, height = self.size
        if self.is_mounted and self.is_current and width and height:
            room = max(0, height - 2)
            pairs = [*self._body(width, room)][:room]
            self.hits = [hit for _, hit in pairs]
            rows = [row for row, _ in pairs] + [[] for _ in range(room - len(pairs))]
            rows = [self.head(width), *rows, self.foot(width)]
            self.query_one(Lines).put(rows[:height])

    def _body(self, width: int, height: int) -> Iterator[tuple[Row, Hit]]:
        """Yield health, GPUs, processes, alerts: rows, and what each is about."""
        view, painter, chosen = self.shared.view, self.painter, self.chosen
        if view is None:
            yield [(" looking for GPUs", "faint")], None
            return
        plan = gpus.plan(view, width)
        share = share_rows(height, view, wide=plan.rest > 0, processes=len(chosen.all_rows))
        health = gpus.daemon_rows(painter, view, width, share.health)
        yield from ((row, None) for row in [*health, *[[]] * (share.health - len(health))])
        yield gpus.head(painter, plan, view, share.gpus), None
        first = chosen.first_gpu(share.gpus)
        for item in view.devices[first : first + share.gpus]:
            uid = item.device.uid
            here = chosen.on_gpus and uid == chosen.gpu_under_cursor
            yield gpus.row(painter, plan, item, chosen=here), ("gpu", uid)
            if share.each > 1:
                yield gpus.second(painter, view, item, width), ("gpu", uid)
        self._columns = process_table.columns(view, width)
        heads = process_table.heads(painter, self._columns, chosen.by, turned=chosen.turned)
        yield heads, ("heads", None)
        yield from self._processes(view, width, share.rows)
        for row in gpus.alerts(painter, view, width, share.alerts):
            yield row, ("alert", None)
        if chosen.on_gpus or not chosen.rows:
            self.shared.select(chosen.gpu_under_cursor, None)
        elif chosen.under_cursor is not None:
            self.shared.select(*chosen.under_cursor)

    def _processes(self, view: View, width: int, count: int) -> Iterator[tuple[Row, Hit]]:
        chosen, painter = self.chosen, self.painter
        self._page = max(1, count - 1)
        first = chosen.first_row(count)
        cursor = None if chosen.on_gpus else chosen.under_cursor
        entries = chosen.rows[first : first + count]
        rows = [
            self._row(entry, chosen=entry.who == cursor, now_s=view.taken_at_s) for entry in entries
        ]
        if not rows:
            rows = [[(painter.fit(f" {why}", width), "faint")] for why in self._none(view)][:count]
        _scroll_bar(rows, len(chosen.rows), first, count, ascii_only=painter.ascii)
        rows += [[] for _ in range(count - len(rows))]
        hits: list[Hit] = [("process", entry.who) for entry in entries]
        yield from zip(rows, [*hits, *[None] * (count - len(hits))], strict=True)

    def _row(self, entry: process_table.Entry, *, chosen: bool, now_s: float) -> Row:
        """Return the row of a process, laid out anew only where something in it has changed."""
        age = process_table.age(entry, now_s)
        says = (entry.process, entry.item.device, self._columns, chosen, age)
        before, row = self._laid.get(entry.who, (None, []))
        if before != says:
            row = process_table.row(self.painter, self._columns, entry, chosen=chosen, now_s=now_s)
            self._laid[entry.who] = says, row
        return [*row]

    def _none(self, view: View) -> list[str]:
        """Return why there is no row."""
        if self.chosen.all_rows:
            return [f"no process matches {self.chosen.wish!r}: Esc shows all"]
        unknown = [
            f"{item.device.label}: {why}"
            for item in view.devices
            if self.chosen.gpu in {None, item.device.uid} and (why := subject_facts.processes(item))
        ]
        return unknown or ["no process uses a GPU"]

    def title_shown(self) -> str:
        """Return the name of the screen, with what is left out of it."""
        return f"{self.name_shown} {self.chosen.left_out(self.painter)}".strip()

    def foot(self, width: int) -> Row:
        """Return the filter while it is typed."""
        if not self._typing:
            return super().foot(width)
        cursor = "_" if self.painter.ascii else "▏"
        shown = self.painter.safe(f" filter: {self.chosen.wish}{cursor}")
        hint = "  name, user, pid, framework, GPU   Enter keeps, Esc clears "
        return spread([(shown[-width:], "bar bold")], [(hint, "bar faint")], width, "bar")

    async def on_key(self, event: events.Key) -> None:
        """Do what a key stands for; what is not known here goes to the program."""
        if self._typing:
            event.stop()
            event.prevent_default()
            self._type(event)
        elif self._move(event.key) or self._order(event.key) or self._open(event.key):
            event.stop()
            event.prevent_default()
        else:
            return
        self.draw()

    def _type(self, event: events.Key) -> None:
        key, chosen = event.key, self.chosen
        wish = typed(chosen.wish, event)
        if key == "escape":
            self._typing = False
            chosen.filter("")
        elif key in {"enter", "tab"}:
            self._typing = False
        elif key in {"up", "down"}:
            chosen.move(1 if key == "down" else -1)
        elif wish is not None:
            chosen.filter(wish)

    def on_paste(self, event: events.Paste) -> None:
        """Take what is pasted while the filter is typed."""
        event.stop()  # the program would hand it on to us once more
        if self._typing:
            words = text.clean(event.text, limit=_WISH_CHARS)
            self.chosen.filter((self.chosen.wish + words)[:_WISH_CHARS])
            self.draw()

    def _move(self, key: str) -> bool:
        steps = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": self._page,
                 "ctrl+d": self._page, "space": self._page, "pageup": -self._page,
                 "ctrl+u": -self._page, "ctrl+b": -self._page}  # fmt: skip
        if key in steps:
            self.chosen.move(steps[key])
        elif key in {"home", "g", "end", "G"}:
            self.chosen.to_end(last=key in {"end", "G"})
        elif key in {"tab", "shift+tab"}:
            self.chosen.on_gpus = not self.chosen.on_gpus
        else:
            return False
        return True

    def _order(self, key: str) -> bool:
        turns = {"right": 1, "full_stop": 1, "greater_than_sign": 1,
                 "left": -1, "comma": -1, "less_than_sign": -1}  # fmt: skip
        if key in turns:
            self.chosen.sort_beside([column.name for column in self._columns], turns[key])
        elif key in {"r", "R"}:
            self.chosen.turn()
        elif key in {"M", "m", "N"}:
            self.chosen.sort(process_table.NATURAL if key == "N" else "MEMORY")
        elif key.isdecimal() and len(key) == 1:
            if not self.chosen.digit(key, self.shared.now_s()):
                self.program.show_message(f"there is no GPU {key}")
        elif key == "slash":
            self._typing = True
        elif key == "escape":
            self.chosen.clear()
        else:
            return False
        return True

    def _open(self, key: str) -> bool:
        if key == "enter" and self.shared.selected_process is not None:
            self.program.open("d")
        elif key == "enter" and self.shared.selected_device_uid is not None:
            self.program.open("P")
        return key == "enter"

    def on_click(self, event: events.Click) -> None:
        """Select what was clicked; twice opens it, and the head of a column sorts by it."""
        kind, what = self._hit(event) or ("", None)
        twice = event.chain > 1
        if kind == "heads":
            name = process_table.column_at(self._columns, event.screen_x)
            if name is not None:
                self.chosen.sort(name)
        elif kind in {"gpu", "process"}:
            self.chosen.take(what, gpu=kind == "gpu")
        self.draw()
        if twice and kind in {"gpu", "process"}:
            self._open("enter")
        elif twice and kind == "alert":
            self.program.open("a")

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Go down where the mouse is."""
        self._wheel(event, _WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Go up where the mouse is."""
        self._wheel(event, -_WHEEL)

    def _wheel(self, event: events.MouseEvent, by: int) -> None:
        event.stop()
        self.chosen.on_gpus = (self._hit(event) or ("",))[0] == "gpu"
        self.chosen.move(by)
        self.draw()

    def _hit(self, event: events.MouseEvent) -> Hit:
        at = int(event.screen_y) - 1
        return self.hits[at] if 0 <= at < len(self.hits) else None


def _scroll_bar(lines: list[Row], total: int, first: int, count: int, *, ascii_only: bool) -> None:
    """Write a scroll bar over the last column, where not everything is seen."""
    if total <= count or count < 1:
        return
    size = max(1, round(count * count / total))
    begin = round((count - size) * first / max(1, total - count))
    full, empty = ("#", "|") if ascii_only else ("█", "│")
    for y, line in enumerate(lines):
        if line:
            del line[-1]  # the blank behind the last column
            inside = begin <= y < begin + size
            line.append((full if inside else empty, "faint" if inside else "grid"))


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
        self.rows: list[process_table.Entry] = []
        self.all_rows: list[process_table.Entry] = []
        self.by = process_table.NATURAL
        self.turned = False
        self.gpu: str | None = None
        self.wish = ""
        self.on_gpus = False
        self._view: View | None = None
        self._who: process_table.Who | None = None
        self._device: str | None = None
        self._at = 0
        self._first = 0
        self._first_gpu = 0
        self._digits = ("", 0.0)

    def see(self, view: View) -> None:
        """Take a new view: the cursor stays on its process, or where that has been."""
        self._view = view
        self.gpu = self.gpu if self.gpu in self._uids else None
        self._device = self._device if self._device in self._uids else None
        self.arrange()

    def arrange(self) -> None:
        """Filter and sort anew."""
        if self._view is None:
            return
        self.all_rows = process_table.entries(self._view, self.gpu)
        entries = process_table.matching(self.all_rows, self.wish) if self.wish else self.all_rows
        self.rows = process_table.ordered(entries, self.by, turned=self.turned)
        if self._who is None:
            self._at = 0
            return
        at = next((at for at, entry in enumerate(self.rows) if entry.who == self._who), None)
        self._at = min(self._at, max(0, len(self.rows) - 1)) if at is None else at
        if at is None and self.rows:
            self._who = self.rows[self._at].who

    @property
    def _uids(self) -> list[str]:
        return [] if self._view is None else [item.device.uid for item in self._view.devices]

    @property
    def under_cursor(self) -> process_table.Who | None:
        """The process under the cursor: the first until somebody moves it."""
        return self.rows[self._at].who if self._at < len(self.rows) else None

    @property
    def gpu_under_cursor(self) -> str | None:
        """The device under the cursor, or the one that is shown alone, or the first."""
        return self._device or self.gpu or next(iter(self._uids), None)

    def left_out(self, painter: Painter) -> str:
        """Return what is left out, in words; "" for nothing."""
        parts = []
        if self.gpu is not None and self._view is not None:
            devices = (item.device for item in self._view.devices)
            parts += [device.label for device in devices if device.uid == self.gpu]
        if self.wish:
            counted = f"{len(self.rows)} of {len(self.all_rows)}"
            parts.append(f"/{painter.safe(self.wish)}/ {counted}")
        return ", ".join(parts)

    def move(self, by: int) -> None:
        """Move the cursor, within what there is."""
        uids = self._uids
        if self.on_gpus and self.gpu_under_cursor is not None:
            at = uids.index(self.gpu_under_cursor)
            self._device = uids[min(max(at + by, 0), len(uids) - 1)]
            if self.gpu is not None:
                self.gpu = self._device
                self.arrange()
        elif self.rows and not self.on_gpus:
            self._at = min(max(self._at + by, 0), len(self.rows) - 1)
            self._who = self.rows[self._at].who

    def to_end(self, *, last: bool) -> None:
        """Move it to the first, which it then follows, or to the last."""
        many = len(self._uids) + len(self.rows)
        self.move(many if last else -many)
        if not last and not self.on_gpus:
            self._who, self._at = None, 0

    def take(self, what: object, *, gpu: bool) -> None:
        """Put the cursor on what was clicked."""
        self.on_gpus = gpu
        if gpu:
            self._device = cast("str", what)
        else:
            self._who = cast("process_table.Who", what)
            self.arrange()

    def come_back(self, device_uid: str | None) -> None:
        """Go to the device that another screen was about, where the cursor is among them."""
        if self.on_gpus and device_uid in self._uids:
            self._device = device_uid

    def first_row(self, count: int) -> int:
        """Return the first row of ``count`` that are seen, so that the cursor is one of them."""
        self._first = _first(self._first, self._at, count, len(self.rows))
        return self._first

    def first_gpu(self, count: int) -> int:
        """Return the first device of ``count`` that are seen."""
        uids = self._uids
        at = uids.index(self._device) if self._device in uids else 0
        self._first_gpu = _first(self._first_gpu, at, count, len(uids))
        return self._first_gpu

    def sort(self, by: str) -> None:
        """Sort by a column; by the same again turns it round."""
        self.turned = not self.turned and by == self.by
        self.by = by
        self.arrange()

    def sort_beside(self, names: Sequence[str], by: int) -> None:
        """Sort by the next column, or the one before."""
        at = names.index(self.by) if self.by in names else 0
        self.by, self.turned = names[(at + by) % len(names)], False
        self.arrange()

    def turn(self) -> None:
        """Turn the order round."""
        self.turned = not self.turned
        self.arrange()

    def filter(self, wish: str) -> None:
        """Show only what matches."""
        self.wish = wish
        self.arrange()

    def clear(self) -> None:
        """Show everything again."""
        self.gpu, self.on_gpus = None, False
        self.filter("")

    def digit(self, key: str, at_s: float) -> bool:
        """Show the processes of a GPU alone, by its index; the same again shows all.

        Returns
        -------
        bool
            False where there is no such GPU.
        """
        before, when_s = self._digits
        devices = () if self._view is None else [item.device for item in self._view.devices]
        uids = {str(device.index): device.uid for device in devices if not device.parent_uid}
        number = before + key if at_s - when_s < _SOON_S and before + key in uids else key
        self._digits = (number, at_s)
        if number not in uids:
            return False
        self.gpu = None if self.gpu == uids[number] else uids[number]
        self._device = self.gpu or self._device
        self.arrange()
        return True


def _first(first: int, at: int, count: int, total: int) -> int:
    if count < 1:
        return 0
    if at < first:
        first = at
    elif at >= first + count:
        first = at - count + 1
    return max(0, min(first, total - count))
