"""What processes were told of sizes, read beside the tick and given to their tracks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis.declared import Declared
from gpuwatchd.pipeline.engine_readings import Asker, ReadSizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.analysis.declared import Setting
    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import ProcessInfo, ProcessKey, ServerReading
    from gpuwatchd.pipeline.state import State

    News = tuple[tuple[ProcessInfo, ...], tuple[ServerReading, ...], int]


DEADLINE_S: Final = 30.0
"""A look that takes longer is given up: its file system does not answer."""
MOST_STUCK: Final = 4
"""After so many of them nobody is looked at any more: each keeps a thread."""


class DeclaredSizes:
    """Looks once at each process on a GPU, in a thread of its own: a file may never be read."""

    def __init__(
        self,
        state: State,
        host: Host | None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mono = mono
        self._state = state
        self._host = host
        self._asker = Asker()
        self._settings: dict[ProcessKey, tuple[Setting, ...] | None] = {}
        self.news: News = ((), (), -1)
        """By what the tracks were last brought up to date: no need to come for the same again."""
        self.waiting: dict[ProcessKey, ReadSizes] = {}
        """Looks that have not been answered; the thread is at the first of them."""
        self._begun_s = mono()
        """When it came to that."""
        self._stuck = 0

    def step(self, news: News) -> None:
        """Take over what was found, and have those looked at who are new. Never waits.

        ``news``: who is on a device, what servers say, and how many tracks there have been.
        """
        looks = [done for done in self._asker.take() if isinstance(done, ReadSizes)]
        for look in looks:
            self.waiting.pop(look.info.key, None)
            self._begun_s = self._mono()
        if self.waiting and self._mono() - self._begun_s > DEADLINE_S:
            self._give_up()
        if not looks and news == self.news:
            return
        self.news, (present, readings, _) = news, news
        self._meet(present)
        for look in looks:
            if look.info.key in self._settings:
                self._settings[look.info.key] = look.settings
        served = {
            key: Declared(engine=self._answered(reading), model=self._state.engines.named.get(key))
            for reading in readings
            for key in self._state.engines.members(reading.url)
        }
        for device in self._state.devices.values():
            for key, track in (*device.processes.items(), *device.host_tracks.items()):
                settings = self._settings.get(key)
                track.declare(served.get(key, Declared())._replace(settings=settings))

    def _answered(self, reading: ServerReading) -> ServerReading:
        """Return the last answer of the same process: a busy server keeps its pool."""
        past = reversed(self._state.engines.recent(reading.url)) if not reading.ok else ()
        return next((one for one in past if one.ok and one.pid == reading.pid), reading)

    def _meet(self, present: tuple[ProcessInfo, ...]) -> None:
        known, self._settings = self._settings, {}
        for info in present:
            key = info.key
            if self._host is None or info.foreign or key.started_at_s is None:
                continue
            if key not in known and key not in self._settings:
                self._put(ReadSizes(info, self._host.booted_at_s))
            self._settings[key] = known.get(key)

    def _put(self, look: ReadSizes) -> None:
        if self._stuck < MOST_STUCK:
            self._begun_s = self._begun_s if self.waiting else self._mono()
            self.waiting[look.info.key] = look
            self._asker.put(look)

    def _give_up(self) -> None:
        """Leave the thread at its look, and have the others looked at by another one."""
        _, *others = self.waiting.values()
        self._asker.close()
        self._asker, self.waiting, self._stuck = Asker(), {}, self._stuck + 1
        for look in others:
            self._put(look)

    def close(self) -> None:
        """Read for nobody any more."""
        self._asker.close()
