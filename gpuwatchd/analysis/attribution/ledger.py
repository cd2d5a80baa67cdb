"""Who has the memory of a device: total = free + reserved + owned + unattributed.

What nobody owns is memory of the driver's contexts, of processes that the driver does not list, and
of those that have died without giving it back. How much of it is normal differs between machines,
so that is learned while the device is idle.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.codes import Reason, TitleRole
from gpuwatchd.core.model import LEAK_PATTERNS, Blame, Finding, Ledger, Value
from gpuwatchd.core.model.alerts import Title, TitlePart
from gpuwatchd.core.model.findings import Clause, dismissed_finding, reason_fields, with_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.core.model import (
        AlertState,
        DeviceReading,
        EtaRange,
        FloatArray,
        MemoryKind,
        ProcessInfo,
        ProcessKey,
        Series,
        Severity,
    )


ALIKE_RATE = 2.0
"""Ranks whose rates differ by more than this factor do not leak alike."""
ALIKE_AGE = 0.5
"""Nor do those whose growth began at times that lie further apart than this share of its age,"""
ALIKE_S = 600.0
"""and than this."""
_OPEN: dict[AlertState, int] = {"firing": 2, "watch": 1}
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}


class Rank(Value, frozen=True, kw_only=True):
    """One rank on one device, as it is judged at present."""

    subject: str
    """Subject id."""
    info: ProcessInfo
    gpu: int | None = None
    """Index of its device, where that is a whole GPU."""
    instance: str = ""
    """What its device is called where that is a part of a GPU: "MIG 3:0"."""
    finding: Finding | None = None
    state: AlertState | None = None
    """Of its own alert; None without one."""
    opened_at_s: float = 0.0

    @property
    def process(self) -> ProcessKey:
        """The identity of the process."""
        return self.info.key

    @property
    def name(self) -> str:
        """Return "rank 2", or "python[4711]" of one without a number, with its device."""
        where = self.instance or ("" if self.gpu is None else f"GPU {self.gpu}")
        return f"{self.who} on {where}" if where else self.who

    @property
    def who(self) -> str:
        """The same without its device."""
        number = self.info.rank
        return self.info.name_and_pid if number is None else f"rank {number}"


def leaks(finding: Finding | None) -> bool:
    """Say whether a judgement is one of growth that does not end."""
    return (
        finding is not None
        and finding.tier != "none"
        and finding.pattern in LEAK_PATTERNS
        and bool(finding.rate_bytes_per_s)
    )


def similar_leaks(finding: Finding, other: Finding) -> bool:
    """Say whether two leaks go at about the same pace since about the same time."""
    rates = (finding.rate_bytes_per_s or 0.0, other.rate_bytes_per_s or 0.0)
    if min(rates) <= 0.0 or max(rates) > ALIKE_RATE * min(rates):
        return False
    if finding.onset_at_s is None or other.onset_at_s is None:
        return True
    age_s = max(finding.judged_at_s - finding.onset_at_s, other.judged_at_s - other.onset_at_s)
    return abs(finding.onset_at_s - other.onset_at_s) <= max(ALIKE_S, ALIKE_AGE * age_s)


def group_ranks(own: Rank, ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks that leak as this one does, itself among them; [] when it is alone.

    ``own`` has the judgement of this instant; ``ranks`` are all of its job on this machine.
    """
    finding = own.finding
    if finding is None or not leaks(finding):
        return []
    found = [own]
    for rank in ranks:
        if rank.subject == own.subject or rank.finding is None or not leaks(rank.finding):
            continue
        if similar_leaks(finding, rank.finding):
            found.append(rank)
    return found if len({rank.process for rank in found}) > 1 else []


def lead_rank(ranks: Sequence[Rank]) -> Rank:
    """Return the rank whose alert stands for all: one that is open, else the first to be full."""

    def order(rank: Rank) -> tuple[float, float, float, int, str]:
        number = rank.info.rank
        return (
            -_OPEN.get(rank.state, 0) if rank.state is not None else 0,
            rank.opened_at_s if rank.state in _OPEN else 0.0,
            _mid_s(rank.finding),
            number if number is not None else rank.process.pid,
            rank.subject,
        )

    return min(ranks, key=order)


def _mid_s(finding: Finding | None) -> float:
    eta = None if finding is None else finding.eta
    return float("inf") if eta is None else eta.mid_s


def joined_finding(own: Rank, ranks: Sequence[Rank], of: int) -> Finding:
    """Return one judgement for ranks that leak alike: the time is that of the first to be full.

    ``own`` stands for all ``ranks``, which leak alike, ``of`` so many of its job on this machine.
    """
    finding = own.finding
    assert finding is not None  # noqa: S101 - it leaks
    rates = {rank.subject: rank.finding.rate_bytes_per_s or 0.0 for rank in ranks if rank.finding}
    total = sum(rates.values())
    first = min(ranks, key=lambda rank: _mid_s(rank.finding))
    eta: EtaRange | None = first.finding.eta if first.finding is not None else finding.eta
    every = [rank.finding for rank in ranks if rank.finding is not None]
    severity = max((one.severity for one in every), key=lambda name: _RANK[name])
    strong = any(one.tier == "alert" for one in every)
    count = len({rank.process for rank in ranks})
    text = f"{count} of {of}" if of > count else f"all {of}"
    text += f" {_ranks_of(own.info)} leak alike"
    soonest = ""
    if first.subject != own.subject and eta is not None:
        soonest = f", and {first.name} is full first"
    job = Clause(text=f"{text}, together {units.rate(total)}{soonest}", short=f"{text}{soonest}")
    how, *others = finding.parts
    how = msgspec.structs.replace(how, about=f"{own.name} {how.about}")
    return msgspec.structs.replace(
        finding,
        eta=eta,
        tier="alert" if strong else finding.tier,
        severity=severity,
        **reason_fields(job, how, *others, code=Reason.JOB),
        blame=tuple(
            Blame(
                process=rank.process,
                name=rank.name,
                rank=rank.who,
                share=rates[rank.subject] / total,
                rate_bytes_per_s=rates[rank.subject],
            )
            for rank in sorted(ranks, key=lambda rank: -rates[rank.subject])
        ),
    )


def _ranks_of(info: ProcessInfo) -> str:
    """Return what the ranks of a job are called; a log knows of jobs by the name alone."""
    alike = info.group is not None and info.name.endswith(info.group)
    return f"processes called {info.group}" if alike else f"ranks of {info.group}"


def lone_leak_text(own: Rank, ranks: Sequence[Rank]) -> str:
    """Return what to add to the reason of a rank that leaks by itself; "" when nothing is known.

    Says of its siblings what was seen of them: calm, or growing in another way.
    """
    others = {rank.process: rank for rank in ranks if rank.process != own.process}
    if not others:
        return ""
    judged = [rank for rank in others.values() if rank.finding is not None]
    growing = {rank.process for rank in judged if leaks(rank.finding)}
    calm = [
        rank
        for rank in judged
        if rank.process not in growing and rank.finding and rank.finding.pattern != "unknown"
    ]
    who = "one" if own.info.rank is None else f"rank {own.info.rank}"
    text = f"{who} of {len(others) + 1} {_ranks_of(own.info)}"
    siblings = "its sibling is" if len(others) == 1 else f"its {len(others)} siblings are"
    if len(calm) == len(others):
        return f"{text}, {siblings} calm"
    if growing:
        return f"{text}, {len(growing)} of the others grow at another pace"
    return text


def title(ranks: Sequence[Rank], *, host: bool = False) -> Title:
    """Return "4 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-3".

    Examples
    --------
    >>> from gpuwatchd.core.model import ProcessInfo, ProcessKey
    >>> who = [ProcessInfo(key=ProcessKey(pid=pid, started_at_s=1.0), name="python",
    ...                    argv=("python", "train.py"), user="alice", group="torchrun 7f3a")
    ...        for pid in (1, 2, 3)]
    >>> str(title([Rank(subject=str(k), info=info, gpu=k) for k, info in enumerate(who)]))
    '3 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-2'
    """
    count = len({rank.process for rank in ranks})
    labels = {rank.info.label for rank in ranks if rank.info.label}
    users = {rank.info.user for rank in ranks if rank.info.user}
    many = TitlePart(text=f"{count} {_ranks_of(ranks[0].info)}", role=TitleRole.RANKS)
    runs = f" ({labels.pop()})" if len(labels) == 1 else ""
    owner = f" of {users.pop()}" if len(users) == 1 else ""
    if host:
        memory = TitlePart(text="host memory of ")
        return Title((memory, many, TitlePart(text=f"{runs}{owner}")))
    gpus = spans({rank.gpu for rank in ranks if rank.gpu is not None})
    where = [f"GPU {gpus}"] if gpus else []
    where += sorted({rank.instance for rank in ranks if rank.instance})
    return Title(
        (
            many,
            TitlePart(text=runs, role=TitleRole.MODEL),
            TitlePart(text=owner, role=TitleRole.OWNER if where else TitleRole.NONE),
            TitlePart(text=f" on {', '.join(where)}" if where else ""),
        )
    )


def spans(numbers: set[int]) -> str:
    """Return "0-3" or "0, 2-3".

    Examples
    --------
    >>> spans({0, 2, 3, 4, 7})
    '0, 2-4, 7'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


IDLE_SHARE = 0.05
"""A device is idle while its processes hold less than this share of it: a desktop, or nothing."""
IDLE_LOOKS = 3
"""So many idle looks in a row are believed; the highest of them counts."""
NEW_BOOT_BYTES = 2**30
"""With a new boot (and perhaps another driver) the baseline may be higher by so much."""
LEAST_BYTES = 256 * 2**20
"""What lies within this of the baseline is no growth."""


def build_ledger(
    reading: DeviceReading, kind: MemoryKind = "dedicated", *, baseline_bytes: int | None = None
) -> Ledger:
    """Return the ledger of one look at one device.

    Parameters
    ----------
    reading
        The look; a process in several lists is counted once, with the most that it has in one. A
        list that comes with a reason lacks some.
    kind
        Of the device's memory: where it is shared with the host, or kept by the kernel, only what
        processes hold, and the capacity, mean something.
    baseline_bytes
        What nobody owns while the device is idle.
    """
    total, free, reserved = reading.total_bytes, reading.free_bytes, reading.reserved_bytes
    uses = reading.uses
    if uses is None:
        return Ledger(
            state="none",
            total_bytes=total,
            free_bytes=free,
            reserved_bytes=reserved,
            baseline_bytes=baseline_bytes,
        )
    held: dict[int, int] = {}
    # A list with a reason lacks some: those whose files may not be read.
    owned, unknown = 0, reading.uses_reason is not None
    for use in uses:
        size = use.used_bytes
        if size is None:
            unknown = True
            continue
        pid = use.key.pid
        before = held.get(pid, 0)
        if size > before:
            owned += size - before
            held[pid] = size
    if kind != "dedicated":
        return Ledger(state="partial" if unknown else "whole", total_bytes=total, owned_bytes=owned)
    taken = reading.used_bytes
    if total is not None and free is not None:
        taken = total - free - (reserved or 0)
    rest = None if taken is None else taken - owned
    return Ledger(
        state="none"
        if rest is None
        else "overlap"
        if rest < 0
        else "partial"
        if unknown
        else "whole",
        total_bytes=total,
        free_bytes=free,
        reserved_bytes=reserved,
        owned_bytes=owned,
        unattributed_bytes=rest,
        baseline_bytes=baseline_bytes,
    )


class Baseline(msgspec.Struct, kw_only=True):
    """What nobody owns on one device while it is idle, as far as that was seen.

    Within a boot the lowest counts: memory that a dead process has left behind must not become
    normal. A new boot may begin somewhat higher.
    """

    least_bytes: int | None = None
    boot_id: str = ""
    looks: int = 0
    """Idle looks in a row."""
    highest_bytes: int = 0
    """The highest of them."""

    def learn(self, ledger: Ledger, boot_id: str) -> bool:
        """Take in one look; say whether the baseline has changed."""
        rest, total = ledger.unattributed_bytes, ledger.total_bytes
        idle = (
            ledger.state == "whole"
            and rest is not None
            and total is not None
            and (ledger.owned_bytes or 0) <= IDLE_SHARE * total
        )
        if not idle or rest is None:
            self.looks = 0
            return False
        self.highest_bytes = rest if self.looks == 0 else max(rest, self.highest_bytes)
        self.looks += 1
        if self.looks < IDLE_LOOKS:
            return False
        found, self.looks = self.highest_bytes, 0
        known = self.least_bytes
        if known is not None and found >= known:
            renewed = self.boot_id != boot_id
            if not renewed:
                return False
            self.boot_id = boot_id
            if found > known + NEW_BOOT_BYTES:
                return True
        self.least_bytes, self.boot_id = found, boot_id
        return True


def above_baseline(finding: Finding, newest_bytes: float, baseline_bytes: float | None) -> Finding:
    """Return a judgement on what nobody owns, measured against what is normal for the device.

    Growth that only comes back to the idle baseline is none: processes that share memory hide a
    part of it while they live.
    """
    if baseline_bytes is None or finding.tier == "none":
        return finding
    more = newest_bytes - baseline_bytes
    usual = f"the {units.size(baseline_bytes)} without an owner while the device is idle"
    if more <= LEAST_BYTES:
        return dismissed_finding(finding, f"it is about {usual}")
    return with_reason(finding, f"{units.size(more)} more than {usual}")


# Whose growth explains a device's growth.

LEAST_SHARE = 0.05
UNATTRIBUTED = "memory that no process owns"
_SLIP = 5
"""Samples of the median that takes a slip between two readings of one tick for what it is."""


def share(
    device: Series | None,
    processes: Mapping[ProcessKey, Series],
    *,
    since_s: float,
    names: Mapping[ProcessKey, str] | None = None,
    complete: bool = True,
) -> tuple[Blame, ...]:
    """Return who grew, the largest share first; empty when the device did not grow.

    The growth of each subject is the difference of its retained floor between ``since_s`` and now:
    what a neighbour took and gave back is nobody's leak, and what one process frees does not hide
    what another takes. A process that began later starts at 0. What nobody owns is a series of its
    own, the device's less those of its processes, and so is its growth. A share is of the sum of
    all growth, so shares add up to 1; those below 5 % are left out.

    Parameters
    ----------
    device
        Series of the device; None where it says nothing (the kernel keeps pages of the dead): then
        shares are of what processes grew.
    processes
        Series of the processes that are on it now.
    since_s
        Onset, on the clock of the series.
    names
        What to call them; without a name "pid N".
    complete
        Whether the memory of every process is known. If not, nothing is said of the rest, and the
        shares are of the device's growth.

    Returns
    -------
    tuple of Blame
        ``process`` None is what no process owns.
    """
    whole, took_s = growth(device, since_s) if device is not None else (0.0, 0.0)
    if device is not None and (whole <= 0.0 or took_s <= 0.0):
        return ()
    values = dict(names or {})
    grown: list[tuple[ProcessKey | None, str, float]] = []
    for key, series in processes.items():
        more, for_s = growth(series, since_s, from_zero=_late(key, since_s))
        if more > 0.0:
            took_s = max(took_s, for_s)
            grown.append((key, values.get(key, f"pid {key.pid}"), more))
    if complete and device is not None:
        rest = _unowned(device, processes, since_s)
        if rest > 0.0:
            grown.append((None, UNATTRIBUTED, rest))
    total = max(sum(more for _, _, more in grown), whole)
    ranked = sorted(grown, key=lambda one: -one[2])
    return tuple(
        Blame(process=key, name=name, share=more / total, rate_bytes_per_s=more / took_s)
        for key, name, more in ranked
        if more >= LEAST_SHARE * total
    )


def growth(series: Series, since_s: float, *, from_zero: bool = False) -> tuple[float, float]:
    """Return bytes kept more than at ``since_s``, and the seconds in which they came.

    ``from_zero``: a series that began after ``since_s`` counts from nothing. Never negative.
    """
    t, x = series.t_s, series.used_bytes
    if t.size < 2:
        return 0.0, 0.0
    begin = int(t.searchsorted(since_s))
    if begin >= t.size:
        return 0.0, 0.0
    before = 0.0 if from_zero and float(t[0]) > since_s else None
    since = since_s if from_zero else max(since_s, float(t[0]))
    # What is kept is the lowest of the last samples: it was reached when that one was taken.
    at = t.size - _tail(x[begin:]).size + int(_tail(x[begin:]).argmin())
    return _kept(x[begin:], before), float(t[at]) - since


EXPLAINED_SHARE = 0.5
"""Parts that brought this share of the growth of their device explain it."""
JOIN_S = 60.0
"""What a process takes in its first minute comes with it, and is no growth of the device."""
_SPANS = 6
_AT_ONCE, _FELL = 0.7, 0.2
"""So much of a growth within two neighbouring spans of time came at once, unless more was given
back: then memory moves between processes."""


def explain(device: Series, parts: Iterable[tuple[Series, bool]], *, since_s: float) -> bool:
    """Say whether what is judged of its parts accounts for the growth of a device.

    One part that brought most of it is judged by itself, whatever comes of that. So is what each
    took in one go: processes that load, warm up or fill a cache one after another are a straight
    line only together. What many keep taking, and what moves among them, none can explain.

    Parameters
    ----------
    device
        Without what processes brought as they came.
    parts
        Series of each process, and of what nobody owns, with whether its growth is told of or
        known to be harmless.
    since_s
        Onset of the growth of the device, on the clock of the series.
    """
    until_s = float(device.t_s[-1])
    least = EXPLAINED_SHARE * sum(_rises(device, since_s, until_s))
    explained = 0.0
    for series, known in parts:
        rises = _rises(series, since_s, until_s)
        more = sum(rises)
        if more <= 0.0 or (min(rises) < -_FELL * more and not known):
            continue
        if more >= least:
            return True
        if known or max([a + b for a, b in pairwise(rises)]) >= _AT_ONCE * more:
            explained += more
    return explained >= least


def _rises(series: Series, since_s: float, until_s: float) -> list[float]:
    """Return by how much the lowest value of each sixth of a span lies above that before it.

    Before it came a process held what it came with; what it took while nobody saw it counts.
    """
    t, x = series.t_s, series.used_bytes
    step_s = (until_s - since_s) / _SPANS
    edges = t.searchsorted([since_s + k * step_s for k in range(_SPANS + 1)], side="right").tolist()
    late = t.size > 0 and float(t[0]) > since_s
    first = int(t.searchsorted(t[0] + JOIN_S)) if late else 0
    spans = [(max(a, first), b) for a, b in pairwise(edges)]
    levels = [] if late or not edges[0] else [float(x[edges[0] - 1])]
    levels += [float(x[a:b].min()) for a, b in spans if a < b]
    rises = [b - a for a, b in pairwise(levels)]
    return [0.0] * (_SPANS - len(rises)) + rises


def _late(key: ProcessKey, since_s: float) -> bool:
    """Say whether a process that is first seen after ``since_s`` was not there before."""
    return key.started_at_s is None or key.started_at_s > since_s


def _kept(x: FloatArray, before: float | None = None) -> float:
    """Return by how much the end lies above ``before``, by default the lowest value there is."""
    return max(0.0, float(_tail(x).min()) - (float(x.min()) if before is None else before))


def _tail(x: FloatArray) -> FloatArray:
    """Return the last few samples: a swing at the very end is not to be taken for growth."""
    return x[x.size - max(1, x.size // 10) :]


def _unowned(device: Series, processes: Mapping[ProcessKey, Series], since_s: float) -> float:
    """Return by how much the memory grew that none of these processes holds."""
    import numpy as np  # noqa: PLC0415 - the daemon draws ledgers long before anything grows

    begin = int(device.t_s.searchsorted(since_s))
    t = device.t_s[begin:]
    rest = device.used_bytes[begin:].copy()
    for key, series in processes.items():
        if series.t_s.size:
            # Before it was listed, one that was there already held what it held then.
            before = 0.0 if _late(key, since_s) else None
            rest -= np.interp(t, series.t_s, series.used_bytes, left=before)
    if rest.size >= _SLIP:
        # Device and processes are not read in one instant: between two readings one may allocate.
        padded = np.pad(rest, _SLIP // 2, mode="edge")
        # np.median would load numpy.ma, 1 MiB.
        near = np.lib.stride_tricks.sliding_window_view(padded, _SLIP)
        rest = np.sort(near, axis=1)[:, _SLIP // 2]
    # From its beginning, not from its lowest: memory that two processes share for a while is
    # counted twice, and what nobody owns seems to dip.
    return _kept(rest, float(rest[: max(1, rest.size // 10)].min())) if rest.size else 0.0
