"""The recent past of many GPUs on one time axis, one value per step, in memory.

A value that is missing is NaN: nothing is made up for it, and a repeated one never hides it. Whose
memory it is changes with the job: what was before it is not looked at.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from gpuwatchd.core.text import clean
from gpuwatchd.fleet.config import Shard

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.fleet.config import MetricMap

    IntArray = npt.NDArray[np.int64]

_UUID: Final = re.compile(r"[\w.:/@-]{1,200}", re.ASCII)
"""What is asked for by name again: nothing that could end the text of a question."""
_SPARE: Final = 16
"""Columns beyond the window: the array is moved once in so many steps."""
_GIB: Final = 2.0**30
IDLE_SHARE: Final = 0.02
"""A GPU that holds no more than this share (a GiB at most) has no job: contexts of the driver."""
NO_DATA_S: Final = 300.0
"""Without a value for so long nothing is known of a GPU."""
FORGET_S: Final = 86_400.0
"""Without a value for so long (or the window, where that is longer) a GPU is forgotten."""
TOO_MUCH: Final = 1.01
"""A value above this share of all memory is none."""
LEAST_TOTAL_BYTES: Final = 256 * 2.0**20
"""Half of the smallest virtual GPU."""
MOST_TOTAL_BYTES: Final = 4 * 2.0**40
"""More than ten times the largest card."""
_EXPORTED: Final = "exported_"
"""Before a label of the exporter's that Prometheus has one of its own of: that of the target."""
_EMPTY: Final = np.array(
    [[np.nan], [np.nan], [0.0], [-1.0], [np.nan], [-1.0], [-1.0], [-1.0], [0.0], [-1.0]]
)
"""The numbers of a row that nobody has."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who a row is."""

    id: str
    """The UUID, with instance and host where it takes these to be told apart; "": a free row."""
    uuid: str
    host: str
    instance: str = ""
    gpu: str = ""
    job: str = ""
    namespace: str = ""

    @property
    def title(self) -> str:
        """For people."""
        return " ".join(part for part in (self.host, self.gpu and f"GPU {self.gpu}") if part)


_NOBODY: Final = Gpu(id="", uuid="", host="")
_ALL: Final = Shard()


def first_of(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the first of some labels that is there, safe to show; "" for none.

    Equal ones are one string: hosts and jobs have many GPUs.
    """
    return sys.intern(clean(next((found for name in names if (found := labels.get(name))), "")))


def doubtful_totals(used: FloatArray, total: FloatArray) -> npt.NDArray[np.bool_]:
    """Say of which GPUs a total is none: the map names another metric, or another unit.

    Such a total is not used: a time to full would be made up from it. Thresholds that are shares of
    a total stay those of an unknown one.

    Parameters
    ----------
    used, total
        Bytes of each GPU at one instant; NaN where there is no value.

    Returns
    -------
    (k,) booleans; False where there is no total. Where all GPUs use just what they have, the
    metric of the total is that of used memory.

    Examples
    --------
    >>> gib = 2.0**30
    >>> doubtful_totals(np.array([gib, gib, gib]), np.array([80 * gib, 81920.0, np.nan])).tolist()
    [False, True, False]
    >>> doubtful_totals(np.array([gib, 2 * gib]), np.array([gib, 2 * gib])).tolist()
    [True, True]
    """
    odd: npt.NDArray[np.bool_] = (total < LEAST_TOTAL_BYTES) | (total > MOST_TOTAL_BYTES)
    both = (used > 0) & ~np.isnan(total)
    if both.any() and (used[both] == total[both]).all():
        odd |= both
    return odd


class JobLabels:
    """Which job labels name; a pod that all GPUs of a host may have is the exporter's."""

    def __init__(self, names: MetricMap) -> None:
        self._map = names
        self.names = (*names.job, *names.namespace)
        self._twice = [name for name in self.names if f"{_EXPORTED}{name}" in self.names]
        self._renamed: dict[str, int] = {}
        """Hosts of which labels were renamed so -> the last slot: the others are the exporter's."""

    def learn(self, labels: Mapping[str, str], slot: int) -> None:
        """Take note of a host whose exporter's labels have been renamed."""
        if any(labels.get(f"{_EXPORTED}{name}") for name in self._twice):
            host = first_of(labels, self._map.host)
            self._renamed[host] = max(self._renamed.get(host, 0), slot)

    def of(self, labels: Mapping[str, str]) -> tuple[str, str]:
        """Return job and namespace."""
        if self._twice and first_of(labels, self._map.host) in self._renamed:
            labels = {name: word for name, word in labels.items() if name not in self._twice}
        return first_of(labels, self._map.job), first_of(labels, self._map.namespace)

    def forget(self, oldest: float) -> None:
        """Forget hosts that were last met before a slot."""
        self._renamed = {host: slot for host, slot in self._renamed.items() if slot >= oldest}


class RowIndex:
    """Which row a GPU has; those that were given up are used again."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], int] = {}
        self._ids: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: str) -> bool:
        """Say whether a GPU has this id."""
        return name in self._ids

    def get(self, key: tuple[str, str, str]) -> int | None:
        """Return the row of a UUID, instance and host."""
        return self._rows.get(key)

    def add(self, key: tuple[str, str, str], name: str, fresh: int) -> int:
        """Give a GPU with this id a row that nobody has, else the fresh one; return it."""
        row = self._free.pop() if self._free else fresh
        self._rows[key] = self._ids[name] = row
        return row

    def drop(self, rows: Collection[int]) -> None:
        """Forget whose some rows are; :meth:`free` lets others have them."""
        gone = set(rows)
        self._rows = {key: row for key, row in self._rows.items() if row not in gone}
        self._ids = {name: row for name, row in self._ids.items() if row not in gone}

    def free(self, rows: Collection[int]) -> None:
        """Let others have rows."""
        self._free += rows


class _Column:
    """A number of each GPU."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __get__(self, rings: Rings, _: type) -> FloatArray:
        """Return the numbers, to be written into as well."""
        return rings.numbers[self._at, : len(rings.gpus)]


class Rings:
    """Values of all GPUs.

    Parameters
    ----------
    names
        What the labels mean.
    step_s, slots
        Time between two values, and how many are kept. A slot is an instant divided by the step.
    shard
        Whose GPUs they are; all others are left out.
    """

    total_bytes = _Column(0)
    """Memory of each GPU; NaN where it is unknown."""
    limit_bytes = _Column(1)
    """Where each GPU is full, without the driver's reserve; NaN where it is unknown."""
    since = _Column(2)
    """The first slot of the present job, of each GPU."""
    last = _Column(3)
    """The slot of the last value, of each GPU; -1 before any."""
    _busy = _Column(4)
    """Whether the last value was above that of an idle GPU; NaN before any."""
    present = _Column(5)
    """The last slot at which the server had each GPU; -1 of a free row."""
    began = _Column(6)
    """The slot at which each GPU was met; -1 of a free row."""
    _named = _Column(7)
    """The last slot at which labels named the job of each GPU; -1 before any."""
    doubtful = _Column(8)
    """Whether the total that the server has of each GPU was left out as none."""
    above = _Column(9)
    """The slot of the last value above the total of each GPU; -1 before any."""

    def __init__(self, names: MetricMap, step_s: int, slots: int, shard: Shard = _ALL) -> None:
        self._map, self.step_s, self.slots, self._shard = names, step_s, slots, shard
        self.gpus: list[Gpu] = []
        self.dropped: dict[str, int] = {}
        """Why -> values and series that were left out."""
        self.end = 0
        """The last slot that there is."""
        self.unknown = 0
        """Series of this shard that the last round has met, and that belong to no row."""
        self.forgotten: list[int] = []
        """Rows that the last round has given up: :attr:`gpus` has who it was until the next."""
        self.jobs, self.index = JobLabels(names), RowIndex()
        self._first = 0
        self._used = np.empty((0, slots + _SPARE), dtype=np.float32)
        self.numbers = np.empty((len(_EMPTY), 0))

    @property
    def rows(self) -> IntArray:
        """The rows that are some GPU's."""
        return np.flatnonzero(self.began >= 0)

    @property
    def doubts(self) -> dict[str, int]:
        """Code -> GPUs of which there is no total, or one that is none; those with a value now.

        A GPU whose newest value is above its total has one that is none, too.
        """
        now, odd, above = self.present == self.end, self.doubtful == 1, self.above > self.last
        found = {
            "no-total": now & ~odd & np.isnan(self.total_bytes),
            "implausible-total": now & (odd | above),
        }
        return {code: int(count) for code, which in found.items() if (count := which.sum())}

    def drop(self, why: str, count: int = 1) -> None:
        """Count what was left out."""
        if count:
            self.dropped[why] = self.dropped.get(why, 0) + count

    def row_of(self, labels: Mapping[str, str], *, add: int | None = None) -> int | None:
        """Return the row of a series; None where it is of no GPU, of another shard's, or unknown.

        ``add`` is the slot at which one that is unknown begins to be known.
        """
        uuid = labels.get(self._map.uuid, "")
        if not _UUID.fullmatch(uuid):
            self.drop("no-uuid")
            return None
        host, instance = (
            next((found for name in group if (found := labels.get(name))), "")
            for group in (self._map.host, self._map.instance)
        )
        row = self.index.get((uuid, instance, host))
        # Without a host the GPU itself is what is shared out.
        if row is None and self._shard.owns(host or uuid):
            if add is not None:
                return self._added(uuid, sys.intern(instance), sys.intern(host), add)
            self.unknown += 1
        return row

    def _added(self, uuid: str, instance: str, host: str, slot: int) -> int:
        name = clean(f"{uuid}/{instance}" if instance else uuid)
        if name in self.index:
            # The same on another host: two GPUs, or one whose host was renamed.
            self.drop("uuid-on-two-hosts")
            name = clean(f"{name}@{host}")
        row = self.index.add((uuid, instance, host), name, len(self.gpus))
        if row == len(self.gpus):
            self.gpus.append(_NOBODY)
            self._widen(row)
        self.gpus[row] = Gpu(id=name, uuid=clean(uuid), host=clean(host), instance=clean(instance))
        self.began[row] = self.present[row] = slot
        return row

    def _widen(self, row: int) -> None:
        if row == len(self._used):
            more = max(256, row // 16)
            # In place: a copy of all of it would take as much memory again.
            self._used.resize((row + more, self._used.shape[1]), refcheck=False)
            self._used[row:] = np.nan
            self.numbers = np.concatenate((self.numbers, np.repeat(_EMPTY, more, axis=1)), axis=1)

    def begin_round(self) -> None:
        """Let others have the rows that the last round has given up."""
        for row in self.forgotten:
            self.gpus[row] = _NOBODY
        self.index.free(self.forgotten)
        self.forgotten, self.unknown = [], 0

    def forget(self) -> None:
        """Give up the rows of GPUs that the server has not had for :data:`FORGET_S`.

        Of none where it has no GPU at all: then it is the server, or the clock that it is asked by.
        """
        if not (self.present == self.end).any():
            return
        longest = max(FORGET_S / self.step_s, self.slots)
        self.jobs.forget(self.end - longest)
        old = (self.began >= 0) & (self.end - self.present > longest)
        self.forgotten = np.flatnonzero(old).tolist()
        if not self.forgotten:
            return
        self.index.drop(self.forgotten)
        self._used[self.forgotten] = np.nan
        self.numbers[:, self.forgotten] = _EMPTY

    def has_job(self, row: int, labels: Mapping[str, str]) -> bool:
        """Say whether labels name the job that a GPU has."""
        gpu = self.gpus[row]
        return (gpu.job, gpu.namespace) == self.jobs.of(labels)

    def label(self, row: int, labels: Mapping[str, str], slot: int) -> None:
        """Take over what labels say of a GPU; another job that they name begins at the slot."""
        self.jobs.learn(labels, slot)
        before = self.gpus[row]
        job, namespace = self.jobs.of(labels)
        if job or namespace:
            self._named[row] = slot
            if (job, namespace) != (before.job, before.namespace) and self.last[row] >= 0:
                self.since[row] = slot
        elif self._busy[row] == 1 and self.since[row] <= self._named[row]:
            # An exporter that cannot ask for a while names none: memory that is held is still its.
            job, namespace = before.job, before.namespace
        gpu = first_of(labels, self._map.gpu) or before.gpu
        self.gpus[row] = msgspec.structs.replace(before, gpu=gpu, job=job, namespace=namespace)

    def advance(self, slot: int) -> None:
        """Make room for the values of a slot, and of those between."""
        width = self._used.shape[1]
        if not self.end:
            self._first = slot - self.slots + 1
        if slot - self._first >= width:
            first = slot - self.slots + 1
            kept = max(self._first + width - first, 0)
            # Row by row, for the same reason as in _added.
            for values in self._used:
                values[:kept] = values[width - kept :].copy()
                values[kept:] = np.nan
            self._first = first
        self.end = slot

    def put(self, row: int, slots: IntArray, values: FloatArray) -> None:
        """Take in values of one GPU, in bytes, in order of time."""
        good, odd = self._checked(values, self.total_bytes[row])
        if odd.any():
            self.above[row] = slots[odd].max()
        inside = (slots >= self._first) & (slots <= self.end) & (slots > self.last[row])
        inside[1:] &= slots[1:] > np.maximum.accumulate(slots)[:-1]
        self.drop("out-of-order", int(np.count_nonzero(good & ~inside)))
        good &= inside
        slots, values = slots[good], values[good]
        if not slots.size:
            return
        self._used[row, slots - self._first] = values
        busy = values > self._idle_bytes(row)
        changes = np.flatnonzero(busy[1:] != busy[:-1]) + 1
        if changes.size:
            self.since[row] = slots[changes[-1]]
        elif busy[0] != self._busy[row] and not np.isnan(self._busy[row]):
            self.since[row] = slots[0]
        self._busy[row], self.last[row] = busy[-1], slots[-1]

    def put_newest(self, rows: IntArray, values: FloatArray) -> None:
        """Take in a value of each of some GPUs at the last slot, in bytes."""
        good, odd = self._checked(values, self.total_bytes[rows])
        self.above[rows[odd]] = self.end
        late = good & (self.last[rows] >= self.end)
        self.drop("out-of-order", int(np.count_nonzero(late)))
        good &= ~late
        rows, values = rows[good], values[good]
        self._used[rows, self.end - self._first] = values
        busy, before = values > self._idle_bytes(rows), self._busy[rows]
        self.since[rows[(busy != before) & ~np.isnan(before)]] = self.end
        self._busy[rows], self.last[rows] = busy, self.end

    def _checked(
        self, values: FloatArray, total: FloatArray | float
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Say which values are some, and which of the others are above the total."""
        number = np.isfinite(values)
        blank = number & (values >= self._map.blank_from * self._map.bytes_each)
        above = number & ~blank & (values > TOO_MUCH * total)
        odd = above | (number & ~blank & (values < 0))
        self.drop("not-a-number", int(np.count_nonzero(~number)))
        self.drop("blank", int(np.count_nonzero(blank)))
        self.drop("above-total", int(np.count_nonzero(odd)))
        return number & ~blank & ~odd, above

    def _idle_bytes(self, rows: int | IntArray) -> FloatArray:
        """Return what idle GPUs hold at most; 0 where their memory is unknown."""
        return np.nan_to_num(np.minimum(_GIB, IDLE_SHARE * self.total_bytes[rows]))

    def window(self, rows: slice) -> tuple[FloatArray, npt.NDArray[np.float32]]:
        """Return instants (n,) and a copy of values (k, n) of the present jobs of some GPUs."""
        first = self.end - self.slots + 1
        at = first - self._first
        values = self._used[: len(self.gpus)][rows, at : at + self.slots].copy()
        slots = np.arange(first, self.end + 1)
        values[slots < self.since[rows, None]] = np.nan
        return (slots * self.step_s).astype(np.float64), values

    def series(self, row: int) -> tuple[FloatArray, FloatArray]:
        """Return instants and values of the present job of one GPU, without gaps."""
        t_s, values = self.window(slice(row, row + 1))
        known = ~np.isnan(values[0])
        return t_s[known], values[0, known].astype(np.float64)
