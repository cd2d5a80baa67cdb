"""What each kind of knowledge beside the curve is worth: the same items with and without it.

A corpus brings items that satisfy :class:`Item`. A kind is switched on by what is put into the
facts, the history and the holder of a series, and by which subjects are judged; nothing else
differs. Kinds but the first are known of processes, so that these are told apart with each of them,
as in the daemon. Every kind is replayed twice: as the program reads it from outside, and as an
oracle that knows it from what was planted, the most that this kind can be worth.
"""

from __future__ import annotations

import importlib
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from tests.scenarios import inside
from tests.scenarios.bench import field
from tests.scenarios.bench.measure import harmless_shape
from tests.scenarios.bench.outcome import EARLY_S
from tests.scenarios.bench.runner import Kept, results
from tests.scenarios.replay import replay

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from gpuwatchd.core.model import Alert, GrowthFact, Holder, Profile, Series
    from tests.scenarios.replay import Life
    from tests.scenarios.world import Truth

KINDS = {
    "processes": "processes apart",
    "sizes": "declared sizes",
    "runs": "three earlier runs, without their stages",
    "stages": "the same with their stages",
    "probe": "what a probe finds when a watch opens",
}
COMBINED = {"outside": frozenset({"processes", "sizes", "runs", "stages"}), "all": frozenset(KINDS)}
"""Kinds that are known at once: all that is seen from outside a process, and all."""
NAMES = {
    "none": "nothing beside the curve of the device", **KINDS,
    "outside": "all but the probe", "all": "all",
}  # fmt: skip
Lives: TypeAlias = "dict[tuple[Judged, frozenset[str], bool], Life]"
"""What was replayed: of which subject, with which kinds, and whether an oracle knew them."""


class Judged(Protocol):
    """A subject: a device as a whole, or one process."""

    @property
    def series(self) -> Series:
        """What is seen of it, without facts and history."""

    @property
    def truth(self) -> Truth:
        """What was planted, in seconds since its own first sample."""

    def limit_bytes(self, at_s: float) -> float | None:
        """Return where it runs out at an epoch second."""

    def knows(self, kind: str, *, oracle: bool) -> bool:
        """Say whether anything is known of it by a kind: else it is not replayed again."""

    def facts(self, kind: str, at_s: float, *, oracle: bool) -> tuple[GrowthFact, ...]:
        """Return what is known of it by a kind at an epoch second."""

    def runs(self, *, oracle: bool) -> tuple[Profile, ...]:
        """Return its earlier runs, newest last, with their stages."""

    def walk(self, asked_s: float, *, oracle: bool) -> Holder | None:
        """Return what a probe finds inside it that is asked at an epoch second."""


class Item(Judged, Protocol):
    """A labelled run; as a subject, its device as a whole."""

    @property
    def family(self) -> str:
        """Name of its family."""

    @property
    def seed(self) -> int:
        """What it was drawn with."""

    def apart(self, *, oracle: bool) -> Sequence[Judged]:
        """Return what is judged where processes are told apart: the same objects each time."""


class Corpus(Protocol):
    """A module of families."""

    FAMILIES: Collection[str]

    def build(self, family: str, seed: int) -> Item:
        """Return one item."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One item, judged with what was known of it."""

    known: str
    """One of NAMES."""
    oracle: bool
    row: field.Row


def judged(
    item: Item, kinds: Collection[str], *, oracle: bool, lives: Lives | None = None
) -> field.Row:
    """Return what becomes of an item with these kinds of knowledge.

    ``lives`` are those of its subjects that were replayed before; new ones are added.
    """
    begin_s = float(item.series.t_s[0])
    lives = {} if lives is None else lives
    right: list[float] = []
    false = 0
    for one in item.apart(oracle=oracle) if "processes" in kinds else [item]:
        told = frozenset(kind for kind in kinds if one.knows(kind, oracle=oracle))
        mark = (one, told, oracle and bool(told))
        if mark not in lives:
            lives[mark] = _life(one, told, oracle=oracle)
        life = lives[mark]
        if life.alert_s is None:
            continue
        if one.truth.leak and life.alert_s >= (one.truth.onset_s or 0.0) - EARLY_S:
            right.append(float(one.series.t_s[0]) - begin_s + life.alert_s)
        else:
            false += max(1, life.alerts)
    truth = item.truth
    length_s = float(item.series.t_s[-1]) - begin_s
    onset_s = float(truth.onset_s or 0.0)
    oom_s = onset_s if truth.oom_s is None else float(truth.oom_s)
    return field.Row(
        family=item.family,
        seed=item.seed,
        leak=truth.leak,
        left_s=max(oom_s - min(right), 0.0) if right else None,
        fill_s=oom_s - onset_s,
        false=false,
        quiet_s=min(onset_s, length_s) if truth.leak else length_s,
        **harmless_shape(item.series, truth),
    )


def _life(one: Judged, kinds: Collection[str], *, oracle: bool) -> Life:
    past = one.runs(oracle=oracle) if "runs" in kinds or "stages" in kinds else ()
    if "stages" not in kinds:
        past = tuple(msgspec.structs.replace(run, stages=()) for run in past)
    return replay(
        one.series,
        stop_at_alert=one.truth.leak,
        history=lambda _: past,
        beside=_Beside(one, [kind for kind in KINDS if kind in kinds], oracle=oracle),
    )


class _Beside:
    """Adds to a series what is known of it by then, and has it inspected when a watch opens."""

    def __init__(self, one: Judged, kinds: Sequence[str], *, oracle: bool) -> None:
        self.one, self.kinds, self.oracle = one, kinds, oracle
        self.walks = inside.Walks(partial(one.walk, oracle=oracle))

    def __call__(self, known: Series, alert: Alert | None) -> Series:
        if not known.t_s.size:
            return known
        at_s = float(known.t_s[-1])
        facts = [
            fact for kind in self.kinds for fact in self.one.facts(kind, at_s, oracle=self.oracle)
        ]
        holder = self.walks.newest(alert, at_s) if "probe" in self.kinds else None
        return msgspec.structs.replace(
            known,
            limit_bytes=self.one.limit_bytes(at_s),
            facts=(*known.facts, *facts),
            holder=holder,
        )


def of_item(task: tuple[str, str, int]) -> list[Seen]:
    """Replay one item with nothing, each kind and all kinds; as read and as an oracle."""
    corpus = cast("Corpus", importlib.import_module(task[0]))
    item = corpus.build(task[1], task[2])
    lives: Lives = {}
    plain = judged(item, (), oracle=False, lives=lives)
    out = [Seen(known="none", oracle=False, row=plain)]
    for known, kinds in (*((kind, {"processes", kind}) for kind in KINDS), *COMBINED.items()):
        out += [
            Seen(known=known, oracle=oracle, row=judged(item, kinds, oracle=oracle, lives=lives))
            for oracle in (False, True)
        ]
    return out


def rows(
    corpus: str, seeds: int, path: Path, *, workers: int, code: str, every: int = 1
) -> list[Seen]:
    """Return what became of each ``every``-th family; what ``path`` holds is not run again."""
    families = [*cast("Corpus", importlib.import_module(corpus)).FAMILIES][::every]
    tasks = [(corpus, family, seed) for family in families for seed in range(seeds)]
    kept = Kept(path, list[Seen])
    return [*chain(*results(tasks, kept, of_item, workers, code, "knowledge"))]


def figures(seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """Return the figures of both mixes for each kind of knowledge, its oracle's beside them."""
    out = []
    for known in NAMES if seen else ():
        mine = [one for one in seen if one.known == known]
        read = field.mixes([one.row for one in mine if not one.oracle])
        most = field.mixes([one.row for one in mine if one.oracle])
        out.append({"known": known, "read": read, "oracle": most if known != "none" else None})
    return out
