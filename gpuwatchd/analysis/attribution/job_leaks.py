"""Which ranks of one job leak alike: then one judgement stands for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.codes import Reason, TitleRole
from gpuwatchd.core.model import LEAK_PATTERNS, Blame, Finding, Value
from gpuwatchd.core.model.alerts import Title, TitlePart
from gpuwatchd.core.model.findings import Clause, reason_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import AlertState, EtaRange, ProcessInfo, ProcessKey, Severity

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

    Parameters
    ----------
    own
        The rank that is judged now, with the judgement of this instant.
    ranks
        All ranks of its job on this machine; itself may be among them.
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

    Parameters
    ----------
    own
        The rank that stands for all, with its own judgement.
    ranks
        Those that leak alike, itself among them.
    of
        How many ranks the job has on this machine.
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
    text += f" ranks of {own.info.group} leak alike"
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
    text = f"{who} of {len(others) + 1} ranks of {own.info.group}"
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
    many = TitlePart(text=f"{count} ranks of {ranks[0].info.group}", role=TitleRole.RANKS)
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
