"""What the adapter of the corpus says of its items. No verdict is looked at."""

from __future__ import annotations

from dataclasses import replace as changed
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpuwatchd.core.codes import FactName
from tests.conftest import present
from tests.scenarios import corpus
from tests.scenarios import corpus_knowledge as adapter
from tests.scenarios.corpus.build import RERUNS
from tests.scenarios.replay import replay
from tests.scenarios.views import EPOCH_S
from tests.scenarios.world import GIB

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert, Series


@cache
def chosen(role: str, *, leak: bool) -> adapter.Item:
    """The first item of which a size is declared so, that was seen from its start and before."""
    for family in sorted(corpus.LEAKS if leak else corpus.BENIGN):
        item = adapter.build(family, 0)
        known = leak or any(view.bounded_at_bytes for _, view in processes(item))
        told, begun = item.item.facts, processes(item)[0][1].begin_s
        if told["role"] == role and told["earlier"] == "some" and known and begun > -60.0:
            return item
    raise AssertionError(role)


@pytest.fixture(params=["bound", "decoy"])
def item(request: pytest.FixtureRequest) -> adapter.Item:
    return chosen(request.param, leak=request.param == "decoy")


def processes(item: adapter.Item) -> list[tuple[adapter.Subject, corpus.ProcessView]]:
    return [(part, part.view) for part in item.parts if part.view is not None]


def test_what_is_told_apart_is_each_process_and_what_nobody_owns(item: adapter.Item) -> None:
    apart = item.apart(oracle=False)
    assert list(apart) == list(item.apart(oracle=True))
    assert [view for _, view in processes(item)] == [*item.item.processes.values()]
    rest = [one for one in apart if one.view is None]
    assert all(one.series.subject.unattributed for one in rest)
    assert len(apart) == len(processes(item)) + len(rest)
    assert len(rest) <= 1
    assert any(one.truth.leak for one in apart) is item.truth.leak
    total = present(item.series.total_bytes)
    for one in (item, *apart):
        t_s, used = one.series.t_s, one.series.used_bytes
        for at in (0, t_s.size // 2, t_s.size - 1):
            device = float(np.interp(t_s[at], item.series.t_s, item.series.used_bytes))
            assert one.limit_bytes(float(t_s[at])) == pytest.approx(used[at] + total - device)


def test_only_processes_are_known(item: adapter.Item) -> None:
    for one in (item, *item.parts):
        if one.view is not None:
            continue
        assert not any(one.knows(kind, oracle=True) for kind in ("sizes", "runs", "probe"))
        assert not one.facts("sizes", 0.0, oracle=True)
        assert not one.runs(oracle=True)
        assert one.walk(0.0, oracle=True) is None


def test_a_planted_bound_is_what_the_oracle_knows() -> None:
    item = chosen("bound", leak=False)
    sizes = [one for one, _ in processes(item) if one.knows("sizes", oracle=True)]
    assert len(sizes) == 1
    (fact,) = sizes[0].facts("sizes", 0.0, oracle=True)
    assert fact.part_bytes == sizes[0].item.facts["declared_bytes"]
    assert sizes[0].facts("stages", 0.0, oracle=True) == ()
    # A size of what does not leak is planted, and is the end of nothing.
    assert not any(
        one.knows("sizes", oracle=True) for one, _ in processes(chosen("decoy", leak=True))
    )


@pytest.mark.parametrize(
    "words",
    [("--cache-size-gb", "8"), ("--config", "run.yaml")],
)
def test_a_size_is_read_where_it_stands(words: tuple[str, ...]) -> None:
    process, view = processes(chosen("decoy", leak=True))[0]
    files = {"run.yaml": "cache:\n  cache_size_gb: 8\n", "other.yaml": "cache:\n  size_gb: 9\n"}
    view = changed(view, argv=("python", "t.py", *words), env={"PATH": "8"}, files=files)
    facts = changed(process, view=view).facts("sizes", 0.0, oracle=False)
    assert [(fact.name, fact.part_bytes) for fact in facts] == [
        (FactName.DECLARED_SIZE, 8 * 2**30),
    ]  # fmt: skip
    # Of a worker that gave itself a title the parent says it.
    worker = changed(view, argv=("ray::train",), parent_argv=view.argv)
    assert adapter.settings(worker) == adapter.settings(view)
    assert adapter.settings(changed(view, parent_argv=(), argv=("python", "t.py"))) == ()


def test_earlier_runs_are_profiles_before_this_one(item: adapter.Item) -> None:
    process, view = processes(item)[0]
    runs, words = (process.runs(oracle=oracle) for oracle in (False, True))
    assert len(runs) == len(view.earlier) == RERUNS
    ends = [run.ended_at_s for run in runs]
    assert ends == sorted(ends)
    assert ends[-1] < present(view.key.started_at_s)
    assert {run.word for run in runs} == {None}
    assert {run.word for run in words} == {"leak" if process.truth.leak else "normal"}
    assert [replace(run, word=None) for run in words] == list(runs)


@pytest.mark.parametrize("leak", [False, True])
def test_a_walk_finds_the_bound_that_the_program_has(leak: bool) -> None:
    process, view = processes(chosen("decoy" if leak else "bound", leak=leak))[0]
    t_s = EPOCH_S + np.arange(0.0, 7200.0, 10.0)
    used = (2 + 8 * np.minimum(t_s - t_s[0], 3600.0 if not leak else 7200.0) / 3600.0) * GIB
    series = replace(process.series, t_s=t_s, used_bytes=used)
    bound = None if leak else 8.5 * GIB
    view = changed(view, series=series, leaker=leak, framework="PyTorch", bounded_at_bytes=bound)
    truth = changed(process.truth, onset_s=0.0) if leak else process.truth
    made = [
        changed(process, series=series, limits=used, truth=truth, view=view, item=item)
        for seed in range(40)
        for item in [changed(process.item, seed=seed)]
    ]
    at_s = EPOCH_S + 1800.0
    most = [present(one.walk(at_s, oracle=True)).bounded_at_bytes for one in made]
    assert all(level is None if leak else 7 * GIB < present(level) < 9 * GIB for level in most)
    read = [one.walk(at_s, oracle=False) for one in made]
    named = [holder for holder in read if holder is not None]
    assert {holder.bounded_at_bytes for holder in named} == {bound}
    assert 20 < len(named) < 40
    assert sum(one.knows("probe", oracle=False) for one in made) == len(named)
    other = changed(made[0], view=changed(view, framework="Ollama"))
    assert other.walk(at_s, oracle=True) is None


def test_the_base_of_a_process_is_known_as_in_the_daemon() -> None:
    process, view = processes(chosen("bound", leak=False))[0]
    seen: list[Series] = []

    def beside(known: Series, alert: Alert | None) -> Series:
        seen.append(known)
        return known

    replay(process.series, until_s=900.0, beside=beside)
    ages = [present(known.age_s) for known in seen]
    assert ages[0] < 400.0 < ages[-1]
    t_s, used = (
        process.series.t_s - present(view.key.started_at_s),
        process.series.used_bytes,
    )
    base = used[(t_s >= 120.0) & (t_s < 360.0)].min()
    assert seen[-1].base_bytes == base
