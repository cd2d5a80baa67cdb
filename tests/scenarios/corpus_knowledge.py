"""The corpus as :mod:`tests.scenarios.bench.knowledge` wants it: what is known of each process.

Nothing is known of the device and of what nobody owns but their curve, as in the daemon: every kind
of knowledge is of a process. The driver lists all processes here, so that the oracle tells apart
the same. What is read, and what the oracle knows:

* **sizes**: what the parsers of the daemon find in the command line, the variables and the
  configuration files. Oracle: the size that was planted, wherever it stands.
* **runs, stages**: profiles of the earlier runs, on the load of this one. Oracle: also the word of
  a user on each, right every time.
* **probe**: what a walk finds when a watch or an alert opens (:mod:`tests.scenarios.inside`): by
  its literal view, with the bound that the program has. A process that leaks keeps in a variable
  what it loses, which the corpus does not say; one that is harmless and fills something for long
  without a bound is found to have none. No other growth is named, and nothing in a program without
  Python. Oracle: the informed view, which always finds it. Nothing is known of allocators.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from gpuwatchd.analysis import declared, forecast, verdict
from gpuwatchd.collect.host import declarations
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import GrowthFact
from gpuwatchd.core.text import clean, mask_argv
from tests.scenarios import corpus, inside
from tests.scenarios.replay_processes import subjects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Holder, Profile, Series
    from tests.scenarios.world import Array, Truth

FAMILIES = corpus.FAMILIES
PROBED = frozenset({"PyTorch", "JAX", "TensorFlow", "vLLM", "SGLang"})
"""Frameworks of programs in Python."""
DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A process; or the device, or what nobody owns."""

    series: Series
    truth: Truth
    limits: Array
    """Bytes at which it runs out, at each of its samples."""
    item: corpus.Item
    view: corpus.ProcessView | None = None
    """The process; None: nothing is known but its curve."""

    def limit_bytes(self, at_s: float) -> float:
        """Return where it runs out at an epoch second: what it holds and what is free."""
        newest = int(np.searchsorted(self.series.t_s, at_s, side="right")) - 1
        return float(self.limits[newest])

    def knows(self, kind: str, *, oracle: bool) -> bool:
        """Say whether anything is known of it by a kind."""
        if kind in {"runs", "stages"}:
            return bool(self._earlier)
        probed = self._probed
        if kind != "probe" or probed is None:
            return bool(self.facts(kind, 0.0, oracle=oracle))
        return oracle or not (probed.unnamed or probed.cause == "settles")

    def facts(self, kind: str, at_s: float, *, oracle: bool) -> tuple[GrowthFact, ...]:
        """Return the declared sizes, which are the same all the time."""
        del at_s
        if kind != "sizes" or self.view is None:
            return ()
        return self._planted if oracle else self._read

    def runs(self, *, oracle: bool) -> tuple[Profile, ...]:
        """Return its earlier runs, newest last."""
        word = "leak" if self.truth.leak else "normal"
        return tuple(replace(run, word=word) if oracle else run for run in self._earlier)

    def walk(self, asked_s: float, *, oracle: bool) -> Holder | None:
        """Return what an inspection finds that was asked for at an epoch second."""
        probed, view = self._probed, self.view
        if probed is None or view is None:
            return None
        if oracle:
            exact = changed(probed, unnamed=False, rate_error=1.0, bound_error=1.0)
            return exact.walk(asked_s, literal=False)
        found = probed.walk(asked_s, literal=True)
        return found and replace(found, bounded_at_bytes=view.bounded_at_bytes)

    @cached_property
    def _read(self) -> tuple[GrowthFact, ...]:
        # The track itself knows how long its framework warms up.
        return declared.facts(
            declared.Declared(settings=None if self.view is None else settings(self.view)),
            framework=self.series.framework,
            card_bytes=self.series.total_bytes,
        )

    @cached_property
    def _planted(self) -> tuple[GrowthFact, ...]:
        view, told = self.view, self.item.facts
        if view is None:
            return ()
        bound, text = view.bounded_at_bytes, str(told["text"])
        places = (" ".join((*view.argv, *view.parent_argv)), *view.files.values())
        if bound is None and told["role"] == "bound" and any(text in place for place in places):
            bound = told["declared_bytes"]  # type: ignore[assignment]
        if bound is None:
            return ()
        name, source = FactName.DECLARED_SIZE, "planted"
        return (GrowthFact(name=name, source=source, weight=1.0, part_bytes=bound),)

    @cached_property
    def _earlier(self) -> tuple[Profile, ...]:
        view, found = self.view, []
        if view is None:
            return ()
        started_s = view.key.started_at_s or 0.0
        for before, (age_s, used) in enumerate(reversed(view.earlier), start=1):
            ended_s = started_s - before * DAY_S
            run = replace(
                self.series,
                t_s=ended_s - age_s[-1] + age_s,
                used_bytes=used,
                limit_bytes=max(float(self.limits[-1]), float(used.max())),
                age_s=float(age_s[-1]),
            )
            alerted = verdict.judge(run, DetectionSection()).tier == "alert"
            busy = np.interp(age_s, view.t_s - started_s, view.util_pct)
            found.append(forecast.profile(run, busy=busy, alerted=alerted, ended_at_s=ended_s))
        return tuple(run for run in reversed(found) if run is not None)

    @cached_property
    def _probed(self) -> inside.Probed | None:
        """What its probe sees; None of a program without Python, or hardly seen."""
        view, family = self.view, self.item.family
        if view is None or view.framework not in PROBED:
            return None
        fills = "plain" if family in corpus.HARD else "settles"
        bounded = "written" if view.bounded_at_bytes is not None else fills
        key = [zlib.crc32(b"walk/" + family.encode()), self.item.seed, view.key.pid]
        made = (self.series, self.limits, self.truth, view.t_s, view.used_bytes, None)
        cause = "kept" if view.leaks else bounded
        return inside.of_curve(family, cause, made, np.random.default_rng(key))


@dataclass(frozen=True, kw_only=True, eq=False)
class Item(Subject):
    """An item: its device, and what is judged where processes are told apart."""

    family: str
    seed: int
    parts: tuple[Subject, ...]

    def apart(self, *, oracle: bool) -> Sequence[Subject]:
        """Return its processes and what nobody owns, where that changes."""
        del oracle
        return self.parts


def settings(view: corpus.ProcessView) -> tuple[declared.Setting, ...]:
    """Return the sizes that a process was told, as :func:`declarations.settings` looks for them."""
    found = tuple(_of_launch(view.argv, view))
    if not found and view.parent_argv and declarations._is_child(view.argv, view.parent_argv):
        found = tuple(_of_launch(view.parent_argv, view))
    return found[: declared.MOST_SETTINGS]


def _of_launch(argv: Sequence[str], view: corpus.ProcessView) -> Iterator[declared.Setting]:
    yield from declared.of_argv(mask_argv(argv, limit=declared.MOST_WORDS))
    yield from declared.of_variables(
        [pair for pair in view.env.items() if pair[0] in declared.VARIABLES]
    )
    for path in declarations.named_files(argv):
        if path in view.files:
            name = clean(path.rpartition("/")[2], limit=48)
            pairs = declarations.pairs(name, view.files[path].encode())
            yield from declared.of_pairs(pairs, name)


def build(family: str, seed: int) -> Item:
    """Return one item."""
    item = corpus.build(family, seed)
    whole, total = item.series, float(item.series.total_bytes or 0.0)
    parts = []
    for series, course in subjects(item):
        at = np.searchsorted(whole.t_s, series.t_s)
        view = next((view for view in item.views if view.name == course.name), None)
        limits = series.used_bytes + total - whole.used_bytes[at]
        parts.append(
            Subject(series=series, truth=course.truth, limits=limits, item=item, view=view)
        )
    return Item(
        series=whole, truth=item.truth, limits=np.full(whole.t_s.size, total), item=item,
        family=family, seed=seed, parts=tuple(parts),
    )  # fmt: skip
