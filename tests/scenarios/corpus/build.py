"""From a scene to an item: what a sampler, a probe and the history would have of it."""

from __future__ import annotations

import inspect
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.core.model import ProcessKey, Series, Subject
from tests.scenarios.blind import LONGEST_S, NEIGHBOURS, _clock, _seen
from tests.scenarios.blind_rig import CARDS_MIB, MIB, Array, Steps, whole
from tests.scenarios.corpus import leaks, servers, training
from tests.scenarios.corpus.machine import Machine, Program, Scene, stairs, total_of
from tests.scenarios.replay import make
from tests.scenarios.views import DEVICE_UID, EPOCH_S, FIRST_PID, LabelledSeries, View
from tests.scenarios.world import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    Family = Callable[[Machine], Scene]

Fact = str | float | tuple[str, ...] | None
Earlier = tuple[Array, Array]
"""Seconds since its start (n,) and bytes used (n,) of an earlier run."""

RERUNS = 3
BRIEF_S = 300.0
"""Nobody keeps the history of a process that lived no longer."""


@dataclass(frozen=True, kw_only=True)
class ProcessView(View):
    """One process as it was sampled, and what could be known of it."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Those variables that memory may depend on."""
    files: Mapping[str, str]
    """Text of the configuration files that ``argv`` names, by path."""
    framework: str | None
    parent_argv: tuple[str, ...]
    """How its parent was started, where it gave itself a title; else empty."""
    bounded_at_bytes: float | None
    """What a probe would say: bound of what grows; None when it has none, or none is known."""
    util_pct: Array
    """Utilisation of the device at its samples."""
    power_w: Array
    earlier: tuple[Earlier, ...]
    """Earlier runs of the same program, oldest first."""

    @property
    def key(self) -> ProcessKey:
        """Its pid, and when it started."""
        key = self.series.subject.process
        assert key is not None
        return key

    @property
    def t_s(self) -> Array:
        """When it was sampled."""
        return self.series.t_s

    @property
    def used_bytes(self) -> Array:
        """What it held then."""
        return self.series.used_bytes

    @property
    def leaks(self) -> bool:
        """Whether what it holds is what leaks."""
        return self.leaker

    @property
    def onset_s(self) -> float | None:
        """When its leak began, seconds since its first sample."""
        return self.truth.onset_s


@dataclass(frozen=True, kw_only=True)
class Item(LabelledSeries):
    """One labelled run of a card."""

    views: tuple[ProcessView, ...]
    util_pct: Array
    power_w: Array
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What was planted beside the curve: ``declared`` (argv, file, none, trap), its ``text``,
    its ``role`` (bound; hint: a setting without bytes; too large: a bound above the
    card; decoy: of something that does not leak;
    unrelated), ``declared_bytes``; ``earlier`` (some; new: never ran
    before; changed: other code since then) and the ``endings`` of these runs; ``reserve_bytes``
    of the driver."""


def _families(*modules: ModuleType) -> dict[str, Family]:
    """Return the public functions of some files that return a scene."""
    return {
        name: function
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and function.__annotations__["return"] == "Scene"
        and not name.startswith("_")
    }


LEAKS: dict[str, Family] = _families(leaks)
BENIGN: dict[str, Family] = _families(training, servers)
FAMILIES: dict[str, Family] = LEAKS | BENIGN
HARD: frozenset[str] = frozenset(
    {
        "replay_on_the_card",
        "length_curriculum",
        "progressive_resolution",
        "batch_size_warm_up",
        "layers_unfrozen",
        "data_set_on_the_card",
        "index_filled",
        "vocabulary_learnt",
        "super_network_grows",
        "adapters_with_limit",
        "prefixes_least_recently_used",
        "features_cached",
    }
)
"""Harmless families that fill something for long."""


def simulate(family: str, seed: int) -> tuple[Machine, Scene]:
    """Return the card and what happened on it, before anybody samples it."""
    rng = np.random.default_rng([zlib.crc32(b"corpus/" + family.encode()), seed])
    m = Machine(rng=rng, total=float(rng.choice(CARDS_MIB)) * MIB)
    scene = FAMILIES[family](m)
    if m.chance(NEIGHBOURS):
        scene = replace(scene, programs=(*scene.programs, *_neighbours(m, scene)))
    return m, scene


def build(family: str, seed: int) -> Item:
    """Return one item. A leak ends where an allocation does not fit any more, or after 24 h."""
    m, scene = simulate(family, seed)
    reserve = min(m.u(150, 700) * MIB, 0.03 * m.total)
    used = used_of(m, scene, reserve)
    lost = scene.lost
    oom = _out_of_memory(m, scene, used) if lost.t.size else np.inf
    end = min(scene.span_s, LONGEST_S, oom)
    begin = m.u(0.0, 0.05) * end if m.chance(0.25) else 0.0
    t = _clock(m, begin, end)
    device = np.minimum(_seen(m, used, t), m.total)
    first = float(t[0])
    names = frozenset(scene.patterns.split())
    truth = _truth(lost, oom, first, names)
    util, power = _work(m, scene, t)
    told = scene.told
    role = _role(scene)
    modes = _endings(m, leak=truth.leak)
    views = tuple(
        view
        for position, program in enumerate(scene.programs)
        if (view := _view(m, program, position, t, device, util, power, oom, names, modes))
    )
    return Item(
        family=family,
        seed=seed,
        series=make(t - first + EPOCH_S, device, m.total),
        truth=truth,
        processes={view.name: view for view in sorted(views, key=lambda view: view.begin_s)},
        views=views,
        util_pct=util,
        power_w=power,
        facts={
            "declared": told.where,
            "text": told.text,
            "role": role,
            "declared_bytes": told.size_bytes,
            "earlier": "some" if modes else ("changed" if truth.leak else "new"),
            "endings": modes,
            "reserve_bytes": reserve,
        },
    )


def used_of(m: Machine, scene: Scene, reserve: float) -> Steps:
    """Return the bytes in use on the card: all processes, what else the driver keeps, the rest."""
    each = min(20 * MIB, 0.01 * m.total / len(scene.programs))  # beside what is listed
    shells = [
        changes_of(program, each) for program in scene.programs if program.begin_s < scene.span_s
    ]
    held = [program.alive for program in scene.programs]
    floor = Steps(np.array([-LONGEST_S]), np.array([reserve]))
    return total_of([*held, *shells, scene.loose, floor])


def changes_of(program: Program, size: float) -> Steps:
    """Return what the driver keeps for a process while it lives."""
    if program.end_s == np.inf:
        return Steps(np.array([program.begin_s]), np.array([size]))
    return Steps(np.array([program.begin_s, program.end_s]), np.array([size, 0.0]))


def _role(scene: Scene) -> str:
    if scene.told.where in {"none", "trap"}:
        return "none" if scene.told.where == "none" else "unrelated"
    if scene.lost.t.size:
        return "too large" if any(program.bound for program in scene.programs) else "decoy"
    return "hint" if scene.told.size_bytes is None else "bound"


def _neighbours(m: Machine, scene: Scene) -> list[Program]:
    """Return somebody else's jobs in the memory that stays free."""
    lost = scene.lost
    held = total_of([program.alive for program in scene.programs] + [scene.loose])
    before = held.until(float(lost.t[0]) + 1.0) if lost.t.size else held
    spare = max(0.9 * m.total - before.peak(), 0.0)
    count = m.n(1, 4)
    found = []
    for _ in range(count):
        at = m.u(-0.2, 0.8) * min(scene.span_s, LONGEST_S)
        size = m.u(0.2, 1.0) * min(0.5 * spare, 0.15 * m.total) / count
        held = stairs(at + np.array([1.0, 4.0]), size * np.array([0.4, 0.6]))
        one = m.python(("infer.py", "train.py", "plot_umap.py")[m.n(0, 2)], held)
        end = at + m.log(0.02, 1.0) * min(scene.span_s, LONGEST_S) + 60.0
        found.append(replace(one, begin_s=at, end_s=end))
    return found


def _out_of_memory(m: Machine, scene: Scene, used: Steps) -> float:
    """Return when the card is full, by its mean rate where the simulation ends before."""
    oom = used.first_over(m.total)
    if oom is not None and oom < scene.span_s:
        return oom
    lost = scene.lost
    onset = float(lost.t[0])
    kept = float(lost.at(np.array([scene.span_s]))[0])
    left = m.total - float(used.at(np.array([scene.span_s]))[0])
    return scene.span_s + left * (scene.span_s - onset) / kept


def _truth(lost: Steps, oom: float, first: float, names: frozenset[str]) -> Truth:
    """Return the truth on a clock that begins at ``first``."""
    if not lost.t.size:
        return Truth(leak=False, patterns=names)
    onset = float(lost.t[0])
    amount = float(lost.at(np.array([oom]))[0])
    return Truth(
        leak=True,
        patterns=names,
        onset_s=max(onset - first, 0.0),
        rate_bytes_per_s=amount / (oom - onset),
        oom_s=oom - first,
    )


def _work(m: Machine, scene: Scene, t: Array) -> tuple[Array, Array]:
    """Return utilisation in per cent and power in watts at each sample."""
    level = scene.util if scene.util.t.size else Steps(np.array([20.0]), np.array([m.u(20, 95)]))
    util = level.at(t)
    util = np.where(util > 0, np.clip(util + m.rng.normal(0.0, 3.0, t.size), 0, 100), 0.0).round()
    most = m.u(0.85, 1.1) * np.interp(m.total / 2**30, [8, 24, 48, 80], [180, 340, 320, 650])
    idle = m.u(0.05, 0.15) * most
    power = idle + (most - idle) * (util / 100) ** 0.8 * m.u(0.7, 1.0)
    return util, np.round(power * m.rng.normal(1.0, 0.02, t.size), 1)


def _endings(m: Machine, *, leak: bool) -> tuple[str, ...]:
    """Return how three earlier runs ended; none when the program is new, or changed since."""
    if m.chance(0.35 if leak else 0.25):
        return ()
    if leak:
        return tuple("out of memory" if m.chance(0.55) else "stopped early" for _ in range(RERUNS))
    return tuple("ended" if m.chance(0.7) else "ended sooner" for _ in range(RERUNS))


def _view(
    m: Machine,
    program: Program,
    position: int,
    t: Array,
    device: Array,
    util: Array,
    power: Array,
    oom: float,
    names: frozenset[str],
    endings: tuple[str, ...],
) -> ProcessView | None:
    """Return what was seen of a process; None when it was sampled less than twice."""
    alive = program.alive
    held = alive.at(t)
    there = np.flatnonzero(held > 0)
    if there.size < 2:
        return None
    cut = slice(int(there[0]), int(there[-1]) + 1)
    used = np.asarray(whole(held[cut], 2 * MIB), dtype=np.float64)
    first, start = float(t[0]), float(t[cut][0])
    limits = used + m.total - device[cut]
    pid = FIRST_PID + position
    begin = program.begin_s - first
    key = ProcessKey(pid=pid, started_at_s=EPOCH_S + begin)
    last = program.end_s if program.end_s <= float(t[-1]) else None
    until = min(program.end_s, oom, max(float(t[-1]), 1.5 * LONGEST_S if oom < np.inf else 0.0))
    reruns = endings if until - max(program.begin_s, 0.0) >= BRIEF_S else ()
    return ProcessView(
        name=f"{program.argv[0].rsplit('/', 1)[-1]} {pid}",
        series=Series(
            subject=Subject(device_uid=DEVICE_UID, process=key),
            t_s=np.asarray(t[cut] - first + EPOCH_S, dtype=np.float64),
            used_bytes=used,
            limit_bytes=float(limits[-1]),
            total_bytes=m.total,
            framework=program.framework,
            age_s=start - program.begin_s,
        ),
        limits=limits,
        leaker=bool(program.lost.t.size),
        truth=_truth(program.lost, oom, start, names),
        begin_s=begin,
        end_s=None if last is None else last - first,
        argv=program.argv,
        env=program.env,
        files=program.files,
        framework=program.framework,
        parent_argv=program.parent_argv,
        bounded_at_bytes=program.bound,
        util_pct=util[cut],
        power_w=power[cut],
        earlier=tuple(_rerun(m, alive, program.begin_s, until, how) for how in reruns),
    )


def _rerun(m: Machine, alive: Steps, begin: float, until: float, how: str) -> Earlier:
    """Return an earlier run: times differ by up to 15 %, sizes by up to 8 %.

    One that ran out of memory did so on the same card, whatever its sizes.
    """
    length = until - begin
    share = {"ended sooner": m.u(0.3, 0.95), "stopped early": m.u(0.1, 0.6)}.get(how, 1.0)
    pace = np.cumsum(np.append(0.0, m.rng.lognormal(0.0, 0.08, 8)))
    knots = pace / pace[-1] * length * m.u(0.87, 1.13)
    age = np.arange(m.u(0, 10), share * knots[-1], max(10.0, length / 1500))
    if age.size < 2:
        age = np.array([0.0, share * knots[-1]])
    level = alive.at(begin + np.interp(age, knots, np.linspace(0.0, length * 0.9999, knots.size)))
    scale = 1.0 if how == "out of memory" else m.u(0.92, 1.08)
    small = np.minimum(level, 300 * MIB)  # the context is the same each time
    again = np.minimum(small + (level - small) * scale, 0.99 * m.total)
    return age, whole(again, 2 * MIB)
