"""What processes were told of sizes, read beside the tick and given to their tracks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis.declared import Declared
from gpuwatchd.pipeline.engine_readings import Asker, ReadSizes

if TYPE_CHECKING:
    from gpuwatchd.analysis.declared import Setting
    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import ProcessInfo, ProcessKey, ServerReading
    from gpuwatchd.pipeline.engine_readings import Serving
    from gpuwatchd.pipeline.tracker import SampleIntake

    News = tuple[tuple[ProcessInfo, ...], tuple[ServerReading, ...], int]


class DeclaredSizes:
    """Looks once at each process on a GPU, in a thread of its own: a file may never be read."""

    def __init__(self, intake: SampleIntake, serving: Serving, host: Host | None) -> None:
        self._intake = intake
        self._serving = serving
        self._host = host
        self._asker = Asker()
        self._settings: dict[ProcessKey, tuple[Setting, ...] | None] = {}
        self.news: News = ((), (), -1)
        """By what the tracks were last brought up to date: no need to come for the same again."""
        self.waiting = 0
        """Looks that have not been answered."""

    def step(self, news: News) -> None:
        """Take over what was found, and have those looked at who are new. Never waits.

        ``news``: who is on a device, what servers say, and how many tracks there have been.
        """
        looks = [done for done in self._asker.take() if isinstance(done, ReadSizes)]
        self.waiting -= len(looks)
        if not looks and news == self.news:
            return
        self.news, (present, readings, _) = news, news
        self._meet(present)
        for look in looks:
            if look.info.key in self._settings:
                self._settings[look.info.key] = look.settings
        served = {
            key: Declared(engine=reading, model=self._serving.named.get(key))
            for reading in readings
            for key in self._serving.members(reading.url)
        }
        for device in self._intake.devices.values():
            for key, track in (*device.processes.items(), *device.hosts.items()):
                settings = self._settings.get(key)
                track.declare(served.get(key, Declared())._replace(settings=settings))

    def _meet(self, present: tuple[ProcessInfo, ...]) -> None:
        known, self._settings = self._settings, {}
        for info in present:
            key = info.key
            if self._host is None or info.foreign or key.started_at_s is None:
                continue
            if key not in known and key not in self._settings:
                self._asker.put(ReadSizes(info, self._host.booted_at_s))
                self.waiting += 1
            self._settings[key] = known.get(key)

    def close(self) -> None:
        """Read for nobody any more."""
        self._asker.close()
