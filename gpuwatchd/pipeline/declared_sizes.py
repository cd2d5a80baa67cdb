"""What processes were told of sizes, read beside the tick and given to their tracks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis.declared import Known
from gpuwatchd.pipeline.engine_readings import Asker, Look

if TYPE_CHECKING:
    from gpuwatchd.analysis.declared import Setting
    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import ProcessInfo, ProcessKey, ServerReading
    from gpuwatchd.pipeline.engine_readings import Serving
    from gpuwatchd.pipeline.tracker import SampleIntake


class DeclaredSizes:
    """Looks once at each process on a GPU, in a thread of its own: a file may never be read."""

    def __init__(self, intake: SampleIntake, serving: Serving, host: Host | None) -> None:
        self._intake = intake
        self._serving = serving
        self._host = host
        self._asker = Asker()
        self._settings: dict[ProcessKey, tuple[Setting, ...]] = {}
        self._seen: tuple[tuple[ProcessInfo, ...], tuple[ServerReading, ...], int] = ((), (), -1)

    def step(self, present: tuple[ProcessInfo, ...]) -> None:
        """Take over what was found, and have those looked at who are new. Never waits."""
        looks = [done for done in self._asker.take() if isinstance(done, Look)]
        before, readings = self._seen, self._serving.readings
        self._seen = (present, readings, self._intake.created)
        if not looks and all(now is was for now, was in zip(self._seen, before, strict=True)):
            return
        if present is not before[0]:
            self._meet(present)
        for look in looks:
            if look.info.key in self._settings:
                self._settings[look.info.key] = look.settings
        served = {
            key: Known(engine=reading, model=self._serving.named.get(key))
            for reading in readings
            for key in self._serving.members(reading.url)
        }
        for device in self._intake.devices.values():
            for key, track in (*device.processes.items(), *device.hosts.items()):
                track.known = served.get(key, Known())._replace(
                    settings=self._settings.get(key, ())
                )

    def _meet(self, present: tuple[ProcessInfo, ...]) -> None:
        known, self._settings = self._settings, {}
        for info in present:
            if self._host is None or info.foreign or info.key.started_at_s is None:
                continue
            if info.key not in known and info.key not in self._settings:
                self._asker.put(Look(info, self._host.booted_at_s))
            self._settings[info.key] = known.get(info.key, ())

    def close(self) -> None:
        """Look at nobody any more."""
        self._asker.close()
