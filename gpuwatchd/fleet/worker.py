"""One worker: what it asks each minute, and what of the answers goes into the rings.

A value counts while it is fresh: a server repeats the last one for five minutes after an exporter
has died, so each question leaves out what was not measured lately.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.core.state_log import StateLog
from gpuwatchd.fleet import config
from gpuwatchd.fleet.client import RangeSeries, read_labels
from gpuwatchd.fleet.rings import Rings, doubtful_totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.fleet.client import Client, Labels
    from gpuwatchd.fleet.config import Fleet
    from gpuwatchd.fleet.rings import IntArray

log = logging.getLogger("gpuwatchd.fleet")

LAG_S: Final = 15.0
"""The last scrape before that is complete, remote writers included."""
LABELS_S: Final = 3600.0
"""Labels and totals are asked for so often: they are most of the bytes."""
_SOONER_S: Final = 600.0
"""And so often at most where GPUs turn up that nobody knows."""
_RETRY_ROUNDS: Final = 8
"""A past that could not be had is asked for again after 1, 2, 4, and at most so many rounds."""
_FRESH_STEPS: Final = 2
_TRIES: Final = 4
_NEW, _NOT_OURS = -1, -2
_LONGEST_PAUSE_S: Final = 300.0
_QUERY_BYTES: Final = 14_000
"""VictoriaMetrics takes 16 KiB of text, of which some is not UUIDs."""
_RENAMED: Final = b'"exported_'
_SPECIAL: Final = re.compile(r"([^\w-])", re.ASCII)


def pause_s(tries: int, wait_s: float | None = None, *, first_s: float = 1.0) -> float:
    """Return how long to wait after so many failures: twice as long each time, with jitter."""
    usual_s = first_s * 2.0 ** min(tries, 16)
    spread = 0.5 + random.random() / 2  # noqa: S311 - so that workers do not ask together
    return float(min(_LONGEST_PAUSE_S, max(usual_s, wait_s or 0.0)) * spread)


class Worker:
    """Keeps the rings of one Prometheus up to date."""

    def __init__(
        self,
        fleet: Fleet,
        client: Client,
        *,
        sleep: Callable[[float], object] = time.sleep,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fleet, self._client = fleet, client
        self._stopped, self._sleep = stopped, sleep
        self.step_s = int(fleet.section.step)
        slots = round(fleet.section.window / self.step_s) + 1
        self.rings = Rings(fleet.map, self.step_s, slots, fleet.shard)
        self.failures: dict[str, int] = {}
        """What could not be asked -> how often."""
        self._rows: dict[bytes, int] = {}
        """Labels as the server writes them -> row, or :data:`_NOT_OURS`; within an hour."""
        self._labels_at_s = -LABELS_S
        self._batch = fleet.section.budget.series
        self.missing: dict[str, None] = {}
        """UUIDs whose past could not be had; they are judged once it is. In order of asking."""
        self._retry_in, self._retry_pause = 0, 1
        self._secrets = StateLog()

    def round(self, now_s: float) -> None:
        """Bring the rings up to the last step that is complete.

        Raises
        ------
        MetricsServerError
            When nothing could be had; then the rings are as they were.
        """
        rings, slot = self.rings, int((now_s - LAG_S) // self.step_s)
        before = rings.end
        if slot <= before:
            return
        age_s = slot * self.step_s - self._labels_at_s
        due = age_s >= LABELS_S or (rings.unknown > 0 and age_s >= _SOONER_S)
        due = due or not rings.rows.size  # started before the exporters were
        config.reread(self._fleet, self._secrets)
        rings.begin_round()
        fresh = self._discover(slot) if due else []
        oldest = slot - rings.slots + 1
        if before and slot - before == 1:
            # GPUs that have come since: what they did before is wanted too.
            self._ask_missing(fresh, oldest, before)
            self._newest(slot)
        else:
            if before:
                self.missing.update(dict.fromkeys(fresh))
            uuids = {gpu.uuid for gpu in rings.gpus if gpu.id}.difference(self.missing)
            self._history(sorted(uuids), max(before + 1, oldest), slot)
            self._ask_missing([], oldest, slot)
        rings.forget()
        if rings.forgotten:
            self._rows.clear()
            known = {rings.gpus[row].uuid for row in rings.rows}
            self.missing = {uuid: None for uuid in self.missing if uuid in known}

    def _discover(self, slot: int) -> list[str]:
        """Ask who is there, with totals and labels; return the UUIDs that are new."""
        rings, names, at_s = self.rings, self._fleet.map, float(slot * self.step_s)
        self._client.identify()
        self._rows.clear()
        texts, values = self._client.query_texts(self._by(self._fresh(names.used), job=True), at_s)
        rows = np.full(len(texts), -1, dtype=np.int64)
        for text in texts:
            if _RENAMED in text:
                rings.jobs.learn(read_labels(text), slot)
        same: set[int] = set()
        other: dict[int, Labels] = {}
        for at, text in enumerate(texts):
            series = read_labels(text)
            row = rings.row_of(series, add=slot)
            if row is not None:
                rows[at] = row
                if rings.last[row] < 0 or rings.has_job(row, series):
                    rings.label(row, series, slot)
                    same.add(row)
                else:
                    other[row] = series
        # Where jobs share a GPU, the one that it has stays for as long as it is there.
        for row in other.keys() - same:
            rings.label(row, other[row], slot)
        there = np.unique(rows[rows >= 0])
        rings.drop("duplicate", int(np.count_nonzero(rows >= 0)) - there.size)
        rings.present[there] = slot
        del texts  # before the next answer: each is large
        used = self._bytes_of_each(rows, values)
        known = {
            metric: self._bytes_of_each(*self._of_each(metric, at_s))
            for metric in (names.total, names.free, names.reserved)
            if metric
        }
        unknown = np.full(len(rings.gpus), np.nan)
        free = known.get(names.free, unknown)
        reserved = np.nan_to_num(known.get(names.reserved, unknown))
        whole = known[names.total] if names.total else used + free + reserved
        limit = used + free if names.free else whole
        read = there[~np.isnan(whole[there])]
        rings.doubtful[read] = doubtful_totals(used[read], whole[read])
        for kept, new in ((rings.total_bytes, whole), (rings.limit_bytes, limit)):
            # What was known stays where the server has nothing newer.
            had = there[~np.isnan(new[there])]
            kept[had] = new[had]
            kept[rings.doubtful == 1] = np.nan
        self._labels_at_s = at_s
        # Of a round that failed after this question, too.
        return sorted({rings.gpus[row].uuid for row in np.flatnonzero(rings.began > rings.end)})

    def _of_each(self, metric: str, at_s: float) -> tuple[IntArray, FloatArray]:
        """Return rows, negative for what is none of ours, and values of a metric."""
        texts, values = self._client.query_texts(self._by(self._fresh(metric)), at_s)
        rings = self.rings
        rows = np.array([self._rows.get(text, _NEW) for text in texts], dtype=np.int64)
        for at in np.flatnonzero(rows == _NEW).tolist():
            unknown = rings.unknown
            row = rings.row_of(read_labels(texts[at]))
            # The memory of one that is not known yet is asked for with the labels.
            if row is not None or rings.unknown == unknown:
                rows[at] = self._rows[texts[at]] = _NOT_OURS if row is None else row
        return rows, values

    def _bytes_of_each(self, rows: IntArray, values: FloatArray) -> FloatArray:
        """Return the bytes of every GPU; NaN for no value, or a blank one."""
        good = (rows >= 0) & (values >= 0) & (values < self._fleet.map.blank_from)
        out = np.full(len(self.rings.gpus), np.nan)
        out[rows[good]] = values[good] * self._fleet.map.bytes_each
        return out

    def _in_bytes(self, values: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # infinite, which no ring takes
            return values * self._fleet.map.bytes_each

    def _newest(self, slot: int) -> None:
        of_each, values = self._of_each(self._fleet.map.used, slot * self.step_s)
        rings = self.rings
        rings.advance(slot)
        known = np.flatnonzero(of_each >= 0)
        rows, first = np.unique(of_each[known], return_index=True)
        rings.drop("duplicate", known.size - rows.size)
        rings.present[rows] = slot
        newest = self._in_bytes(values[known[first]])
        if self.missing:
            # Their past comes first: values are taken in order.
            ready = [rings.gpus[row].uuid not in self.missing for row in rows.tolist()]
            rows, newest = rows[ready], newest[ready]
        rings.put_newest(rows, newest)

    def _ask_missing(self, fresh: list[str], first: int, slot: int) -> None:
        """Ask for the past of new GPUs, and now and then of those of which it could not be had."""
        due = self._retry_in <= 0
        self._retry_in -= 1
        wanted = list(dict.fromkeys((*fresh, *(self.missing if due else ()))))
        if wanted and self._asked(wanted, first, slot, patient=False):
            self._retry_in = self._retry_pause
            self._retry_pause = min(2 * self._retry_pause, _RETRY_ROUNDS)
        elif due:
            self._retry_pause = 1

    def _history(self, uuids: list[str], first: int, slot: int) -> None:
        """Bring GPUs up to a slot.

        Raises
        ------
        MetricsServerError
            When nothing could be had.
        """
        before = self.missing.copy()
        failed = self._asked(uuids, first, slot)
        if failed and slot > self.rings.end:
            self.missing = before
            raise failed[0]
        if failed:
            self._retry_in = 1
        if slot > self.rings.end:
            self.rings.advance(slot)

    def _asked(
        self, uuids: list[str], first: int, slot: int, *, patient: bool = True
    ) -> list[MetricsServerError]:
        """Ask for the past of some GPUs, a batch at a time, some at once; return what failed.

        Those of whom it could not be had are :attr:`missing`. ``patient``: a server that refuses
        is asked for the other batches all the same, and again.
        """
        size = self._batch
        if uuids and self._client.backend == "victoriametrics":
            size = max(1, min(size, _QUERY_BYTES // (max(map(len, uuids)) + 1)))
        batches = [uuids[at : at + size] for at in range(0, len(uuids), size)]
        failed: list[MetricsServerError] = []
        in_flight = self._fleet.section.budget.in_flight
        tries = 0 if patient else _TRIES - 1
        with ThreadPoolExecutor(in_flight) as pool:
            pending = deque[list[str]](batches)
            ask = lambda batch: self._batched(batch, first, slot, tries)  # noqa: E731
            # No more than what is in flight is held: answers are large.
            while pending:
                several = [pending.popleft() for _ in range(min(len(pending), in_flight))]
                for batch, found in zip(several, pool.map(ask, several), strict=True):
                    for uuid in batch:
                        self.missing.pop(uuid, None)
                    if isinstance(found, MetricsServerError):
                        failed.append(found)
                        self.missing.update(dict.fromkeys(batch))
                        continue
                    if slot > self.rings.end:
                        self.rings.advance(slot)
                    self._take(found)
                denied = any(error.denied for error in failed)
                if denied or (failed and not patient) or self._stopped():
                    break
        self.missing.update(dict.fromkeys(uuid for batch in pending for uuid in batch))
        return failed

    def _batched(
        self, uuids: list[str], first: int, slot: int, tries: int = 0
    ) -> list[RangeSeries] | MetricsServerError:
        """Return the past of some GPUs; where the server refuses, of half of them at a time."""
        chosen = "|".join(_SPECIAL.sub(r"\\\\\1", uuid) for uuid in uuids)
        # Over time, "max by" costs a Prometheus several times as much as the values themselves.
        query = self._fresh(self._fleet.map.used, f'{self._fleet.map.uuid}=~"{chosen}"')
        try:
            return self._client.query_range(
                query, first * self.step_s, slot * self.step_s, float(self.step_s)
            )
        except MetricsServerError as error:
            self.count_failure("query_range", error)
            if error.denied or not error.busy or tries >= _TRIES:
                return error
            self._sleep(pause_s(tries, error.wait_s))
        middle = (len(uuids) + 1) // 2
        self._batch = max(1, min(self._batch, middle))
        out: list[RangeSeries] = []
        for part in (uuids[:middle], uuids[middle:]):
            found = self._batched(part, first, slot, tries + 1) if part else []
            if isinstance(found, MetricsServerError):
                return found
            out += found
        return out

    def count_failure(self, what: str, error: MetricsServerError) -> None:
        """Take note of what could not be asked."""
        key = f"{what} {error.status or 'no answer'}"
        self.failures[key] = self.failures.get(key, 0) + 1
        log.debug("failed %s: %s", what, error)

    def _take(self, answer: list[RangeSeries]) -> None:
        """Put the past into the rings: of each GPU one job after the other."""
        by_row: dict[int, dict[tuple[str, ...], list[RangeSeries]]] = {}
        end_s = self.rings.end * self.step_s
        for labels, at_s, values in answer:
            row = self.rings.row_of(labels)
            # A job that began at an instant to come would hide its GPU until then.
            asked = (at_s >= 0) & (at_s <= end_s)
            self.rings.drop("out-of-order", int(np.count_nonzero(~asked)))
            series = RangeSeries(labels, at_s[asked], values[asked])
            if row is not None and series.at_s.size:
                names = tuple(labels.get(name, "") for name in self.rings.jobs.names)
                by_row.setdefault(row, {}).setdefault(names, []).append(series)
        for row, named in by_row.items():
            jobs = [_merged(several) for several in named.values()]
            jobs.sort(key=lambda series: not self.rings.has_job(row, series.labels))
            known = self.rings.last[row]
            for series in _in_turn(jobs, self.step_s):
                slots = np.rint(series.at_s / self.step_s).astype(np.int64)
                new = slots > known
                if new.any():
                    slots, values = slots[new], self._in_bytes(series.values[new])
                    self.rings.label(row, series.labels, int(slots[0]))
                    self.rings.put(row, slots, values)
                    self.rings.label(row, series.labels, int(slots[-1]))
                    self.rings.present[row] = max(self.rings.present[row], self.rings.last[row])

    def _fresh(self, metric: str, *matchers: str) -> str:
        """Return the values of a metric that were measured lately."""
        every = ",".join((*self._fleet.section.matchers, *matchers))
        series = f"{metric}{{{every}}}" if every else metric
        # One second more: the window of some servers leaves out what is exactly as old as it.
        return f"last_over_time({series}[{_FRESH_STEPS * self.step_s + 1}s])"

    def _by(self, what: str, *, job: bool = False) -> str:
        """Return one value per GPU (and job, with the labels that name it)."""
        names = self._fleet.map
        labels = (*names.identity, *((*names.gpu, *self.rings.jobs.names) if job else ()))
        return f"max by ({', '.join(dict.fromkeys(labels))}) ({what})"


def _merged(several: list[RangeSeries]) -> RangeSeries:
    """Return series of the same job as one, such as those of two exporters: the largest values."""
    first, *rest = several
    if not rest:
        return first
    at_s = np.concatenate([series.at_s for series in several])
    values = np.concatenate([series.values for series in several])
    order = np.lexsort((np.nan_to_num(values, nan=-1.0), at_s))
    at_s, values = at_s[order], values[order]
    last = np.append(at_s[1:] != at_s[:-1], np.True_)
    return RangeSeries(first.labels, at_s[last], values[last])


def _in_turn(jobs: list[RangeSeries], step_s: int) -> list[RangeSeries]:
    """Return the values of one GPU, in order of time, by the job that has it; none twice.

    The last value of a job is still fresh for a while when the next one has begun. One that goes on
    for longer shares the GPU, and keeps it; where both have begun at once, the first of the list.
    """
    if len(jobs) == 1:
        return jobs
    runs = [
        RangeSeries(series.labels, at_s, values)
        for series in jobs
        for at_s, values in _without_gaps(series, step_s)
    ]
    runs.sort(key=lambda run: float(run.at_s[0]))
    out: list[RangeSeries] = []
    for run in runs:
        first, begins_s = 0, run.at_s[0]
        if out and out[-1].at_s[-1] > begins_s + _FRESH_STEPS * step_s:
            first = int(run.at_s.searchsorted(out[-1].at_s[-1], "right"))
        elif out:
            before = out.pop()
            out.append(_part(before, slice(before.at_s.searchsorted(begins_s))))
        out.append(_part(run, slice(first, None)))
        out[-2:] = [part for part in out[-2:] if part.at_s.size]
    return out


def _without_gaps(series: RangeSeries, step_s: int) -> Iterator[tuple[FloatArray, FloatArray]]:
    gaps = np.flatnonzero(np.diff(series.at_s) > 1.5 * step_s) + 1
    return zip(np.split(series.at_s, gaps), np.split(series.values, gaps), strict=True)


def _part(series: RangeSeries, part: slice) -> RangeSeries:
    return RangeSeries(series.labels, series.at_s[part], series.values[part])
