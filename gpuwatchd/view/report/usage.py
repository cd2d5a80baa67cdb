"""How much GPUs were used in a period, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.model import ProcessInfo
from gpuwatchd.store import occupancy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuwatchd.analysis.cost import Price
    from gpuwatchd.core.model import Device, ProcessKey
    from gpuwatchd.store.occupancy import Stretch
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.cost_entries import Bill
    from gpuwatchd.view.report.period import Asked

_HOUR_S: Final = 3600.0
_MOST_ROWS: Final = 750
_NICE_S: Final = (60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 604800.0)


class DeviceUse(NamedTuple):
    """One device over a period; None is unknown."""

    device: Device
    stretches: tuple[Stretch, ...] = ()
    """When it was read."""
    mean_bytes: float | None = None
    """Of the time that it was read."""
    peak_bytes: int | None = None
    peak_at_s: float | None = None
    util_pct: float | None = None
    """Mean over the time of which it is known."""
    busy_hours: float | None = None
    """Utilisation times time: hours at 100 %."""
    energy_kwh: float | None = None

    @property
    def watched_s(self) -> float:
        """For how long it was read."""
        return sum(end - begin for begin, end in self.stretches)


class Holder(NamedTuple):
    """One process on one device over a period; several joined are one of nobody in particular."""

    info: ProcessInfo
    device_uid: str
    gib_hours: float | None
    gpu_hours: float | None
    usd: float | None
    peak_bytes: int | None
    first_at_s: float
    last_at_s: float
    many: int = 1
    """Processes, of joined ones."""


def of_device(history: Reader, device: Device, asked: Asked) -> DeviceUse:
    """Return how much a device was used."""
    bucket_s = next((s for s in _NICE_S if asked.span_s / s <= _MOST_ROWS), _NICE_S[-1])
    rows = history.device_rows(device.uid, asked.since_s, asked.until_s, bucket_s)
    device_rows = [row for row in rows if row.used_max_bytes is not None]
    top = max(device_rows, key=lambda row: row.used_max_bytes or 0, default=None)
    weight = sum(row.n for row in device_rows)
    held = sum((row.used_mean_bytes or 0) * row.n for row in device_rows)
    stretches = history.ask(
        lambda connection: occupancy.stretches(connection, device.uid, asked.since_s, asked.until_s)
    )
    watched_s = sum(end - begin for begin, end in stretches)
    pairs = [(row.util_pct, max(row.n, 1)) for row in rows if row.util_pct is not None]
    samples = sum(count for _, count in pairs)
    util = sum(util * count for util, count in pairs) / samples if samples else None
    energy = [row.energy_j for row in rows if row.energy_j is not None]
    return DeviceUse(
        device=device,
        stretches=tuple(stretches),
        mean_bytes=held / weight if weight else None,
        peak_bytes=None if top is None else top.used_max_bytes,
        peak_at_s=None if top is None else top.at_s,
        util_pct=util,
        busy_hours=None if util is None else util / 100.0 * watched_s / _HOUR_S,
        energy_kwh=sum(energy) / 3.6e6 if energy else None,
    )


def holders(
    history: Reader,
    devices: Sequence[Device],
    processes: Mapping[ProcessKey, ProcessInfo],
    asked: Asked,
    bill: Bill,
) -> list[Holder]:
    """Return who held what of the devices, most memory-hours first."""
    prices = {device.uid: _price(bill, device) for device in devices}
    found = []
    for tenure in history.ask(lambda it: occupancy.holders(it, asked.since_s, asked.until_s)):
        if tenure.device_uid not in prices:
            continue
        price, hours = prices[tenure.device_uid], tenure.gpu_hours
        hourly = None if price is None else price.running_usd_per_hour
        found.append(
            Holder(
                info=processes.get(tenure.process) or ProcessInfo(key=tenure.process, name="?"),
                device_uid=tenure.device_uid,
                gib_hours=tenure.gib_hours,
                gpu_hours=hours,
                usd=None if hours is None or hourly is None else hours * hourly,
                peak_bytes=tenure.peak_bytes,
                first_at_s=tenure.first_at_s,
                last_at_s=tenure.last_at_s,
            )
        )
    return sorted(found, key=_weight)


def _price(bill: Bill, device: Device) -> Price | None:
    """Return the price that a device is counted with, and let it be named."""
    if device.uid not in bill.used:
        devices = bill.devices | {device.uid: device}
        bill.devices.setdefault(device.uid, device)
        bill.used[device.uid] = bill.prices.of(device, devices, now_s=bill.now_s)
    return bill.used[device.uid]


def _weight(holder: Holder) -> tuple[float, float, int]:
    return -(holder.gib_hours or 0.0), -(holder.gpu_hours or 0.0), holder.info.key.pid


def grouped(
    found: Sequence[Holder], name: Callable[[ProcessInfo], str]
) -> list[tuple[str, Holder]]:
    """Return holders added up by a name, most memory-hours first."""
    groups: dict[str, list[Holder]] = {}
    for holder in found:
        groups.setdefault(name(holder.info), []).append(holder)
    added = [(label, joined(some)) for label, some in groups.items()]
    return sorted(added, key=lambda pair: _weight(pair[1]))


def joined(found: Sequence[Holder]) -> Holder:
    """Return several holders as one; a sum of which a part is unknown is unknown."""
    return Holder(
        info=found[0].info,
        device_uid=found[0].device_uid,
        gib_hours=_total(holder.gib_hours for holder in found),
        gpu_hours=_total(holder.gpu_hours for holder in found),
        usd=_total(holder.usd for holder in found),
        peak_bytes=max((holder.peak_bytes for holder in found if holder.peak_bytes is not None),
                       default=None),
        first_at_s=min(holder.first_at_s for holder in found),
        last_at_s=max(holder.last_at_s for holder in found),
        many=len({holder.info.key for holder in found}),
    )  # fmt: skip


def _total(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return None if None in found else sum(one for one in found if one is not None)
