"""Silences in force: read anew when another program has written, over when their time is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Matcher
from gpuwatchd.store import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.store.profiles import ProfileStore

STEP_S: Final = 2.0
"""A smaller difference is the drift of two clocks."""

_GOES_ON = frozenset({Ending.HOLDER_KNOWN, Ending.HOLDER_UNKNOWN, Ending.OTHER_RANK})
"""Endings of alerts that go on as another one."""


class _Held(NamedTuple):
    """A silence, and when it ends at the latest on a clock that is never set."""

    silence: Silence
    latest_mono_s: float


class ActiveSilences:
    """What the user does not want to hear of.

    A silence ends at the clock time that its user was told, and never lasts longer than it was
    meant: where the clock is set back, its end moves along.
    """

    def __init__(
        self, shelf: ProfileStore | None, mono: Callable[[], float] = time.monotonic
    ) -> None:
        self._shelf = shelf
        self._mono = mono
        self.active: tuple[Silence, ...] = ()
        """Those in force, as of the last look."""
        self._held: list[_Held] = []
        self.outside = -1
        """``ProfileStore.outside`` when they were read."""
        self._offset_s = 0.0
        """Of the wall clock to the other, while anything is in force."""
        self._over: set[int] = set()
        """Rows that have ended here, whatever the file says of them."""

    def refresh(self, now_s: float) -> None:
        """Read again what has changed, and drop what is over."""
        if self._held:
            mono_s = self._mono()
            if now_s - mono_s < self._offset_s - STEP_S:
                self._set_back(now_s, mono_s)
            self._offset_s = now_s - mono_s
            over = [
                held
                for held in self._held
                if now_s >= held.silence.until_at_s or mono_s >= held.latest_mono_s
            ]
            if over:
                self._end(over, now_s)
        shelf = self._shelf
        if shelf is not None and shelf.outside != self.outside:
            found = shelf.silences(now_s)
            if found is not None:
                self.outside = shelf.outside
                self._take(found, now_s)

    def add(self, silence: Silence, now_s: float) -> Silence:
        """Take over a silence that was asked for here; it holds even where it cannot be kept."""
        kept = self._shelf and self._shelf.write_now(tables.write_silence, silence)
        silence = kept or silence
        others = [held for held in self._held if held.silence.matcher != silence.matcher]
        self._hold([*others, self._with_end(silence, now_s)], now_s)
        return silence

    def take_changes(self, changes: Sequence[Alert], now_s: float) -> None:
        """Follow alerts that have just changed, before their notices are sent.

        One that goes on under another key, since it is now known who holds the memory or another
        rank leaks on, stays silenced there. One that is over ends what was to last until then.
        """
        for alert in changes:
            mine = [held for held in self._held if held.silence.matcher.key == alert.key]
            if alert.state != "resolved" or not mine:
                continue
            heir = _heir(alert, changes)
            if heir is None:
                mine = [held for held in mine if held.silence.until_resolved]
            else:
                for held in mine:
                    moved = msgspec.structs.replace(
                        held.silence, matcher=Matcher(key=heir.key), row=None
                    )
                    self.add(moved, now_s)
            self._end(mine, now_s)

    def _take(self, found: Iterable[Silence], now_s: float) -> None:
        """Take over what the file says; those that could not be kept there stay."""
        helds = {held.silence.row: held for held in self._held if held.silence.row is not None}
        fresh = [
            helds.get(silence.row or 0) or self._with_end(silence, now_s)
            for silence in found
            if silence.row not in self._over
        ]
        self._hold([*(held for held in self._held if held.silence.row is None), *fresh], now_s)

    def _with_end(self, silence: Silence, now_s: float) -> _Held:
        meant_s = min(silence.until_at_s - silence.from_at_s, tables.LONGEST_S)
        left_s = min(silence.until_at_s - now_s, meant_s)
        return _Held(silence, self._mono() + max(left_s, 0.0))

    def _hold(self, held: list[_Held], now_s: float) -> None:
        if not self._held:
            self._offset_s = now_s - self._mono()
        self._held = held
        self.active = tuple(one.silence for one in held)

    def _set_back(self, now_s: float, mono_s: float) -> None:
        """Move the ends of silences with a clock that was set back, in the file, too."""
        moved = []
        for held in self._held:
            until_s = min(held.silence.until_at_s, now_s + held.latest_mono_s - mono_s)
            by_s = until_s - held.silence.until_at_s
            silence = msgspec.structs.replace(
                held.silence, from_at_s=held.silence.from_at_s + by_s, until_at_s=until_s
            )
            moved.append(_Held(silence, held.latest_mono_s))
        if self._shelf is not None:
            kept = [held.silence for held in moved if held.silence.row is not None]
            self._shelf.write_now(tables.move_silences, kept)
        self._hold(moved, now_s)

    def _end(self, over: list[_Held], now_s: float) -> None:
        rows = [held.silence.row for held in over if held.silence.row is not None]
        self._over.update(rows)
        if rows and self._shelf is not None:
            self._shelf.write_now(tables.end_silences, rows, now_s)
        self._hold([held for held in self._held if held not in over], now_s)


def _heir(alert: Alert, changes: Iterable[Alert]) -> Alert | None:
    """Return the alert that another goes on with; None where it is just over."""
    if alert.ended_code not in _GOES_ON:
        return None
    others = [
        change for change in changes if change.state != "resolved" and change.kind == alert.kind
    ]
    if alert.ended_code is Ending.OTHER_RANK:
        # The same alert with another rank, perhaps on another device: it began when this one did.
        begun_s = alert.opened_at_s
        return next((other for other in others if other.opened_at_s == begun_s), None)
    uid = alert.subject.device_uid
    fired = [
        other for other in others if other.state == "firing" and other.subject.device_uid == uid
    ]
    # What a process holds on the host is another memory.
    return next((one for one in fired if one.subject.host == alert.subject.host), None)
