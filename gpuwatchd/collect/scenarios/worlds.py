"""Scripted worlds: which cards there are, who works on them, and what goes wrong.

One scenario = one function of the seed + one line in ``SCENARIOS``. The seed moves phases and
noise, never the story: what is planted stays planted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatchd.core.model import Pattern

# Behaviours of simulated processes: memory as a pure function of age. Every shape answers
# ``at(age_s)`` in bytes from nothing but its own fields, so a world looks the same however often it
# is read. Chance comes from :func:`unit`, a hash, not from a generator kept in step.


MIB = 1024**2
GIB = 1024**3

_MASK = 2**64 - 1


def unit(seed: int, index: int) -> float:
    """Return a number in [0, 1) that depends on nothing but the two arguments.

    Examples
    --------
    >>> unit(7, 1) == unit(7, 1), unit(7, 1) == unit(7, 2)
    (True, False)
    """
    # A finaliser of shifts and odd multipliers: every input bit moves every output bit.
    mixed = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1342543DE82EF95) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) / 2.0**64


class Shape(Protocol):
    """Memory of one process over its life."""

    def at(self, age_s: float) -> float:
        """Return bytes held ``age_s`` seconds after the process started."""


class Flat(msgspec.Struct, frozen=True):
    """The same all the time: a model that was loaded, or a pool taken at start."""

    level_bytes: float

    def at(self, age_s: float) -> float:  # noqa: ARG002 - that is the point of it
        """Return the level."""
        return self.level_bytes


class Linear(msgspec.Struct, frozen=True):
    """A steady rise from ``onset_s`` on; with ``gain_bytes`` it ends there (a cache that fills)."""

    start_bytes: float
    rate_bytes_per_s: float
    onset_s: float = 0.0
    gain_bytes: float = math.inf

    def at(self, age_s: float) -> float:
        """Return the start plus what has been added since the onset."""
        grown = self.rate_bytes_per_s * max(0.0, age_s - self.onset_s)
        return self.start_bytes + min(grown, self.gain_bytes)


class Stairs(msgspec.Struct, frozen=True):
    """Plateaus and risers: something is kept at every epoch, reload or evaluation.

    Riser ``n`` comes once in every ``every_s``, early or late in it by ``jitter`` (share of
    ``every_s``), and is larger or smaller by the same share.
    """

    start_bytes: float
    riser_bytes: float
    every_s: float
    onset_s: float = 0.0
    jitter: float = 0.2
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the height of the step that has been reached."""
        turns = max(0.0, age_s - self.onset_s) / self.every_s
        count = int(turns)
        moment = 0.5 + self.jitter * (unit(self.seed, count) - 0.5)
        count += turns - count >= moment
        if count == 0:
            return self.start_bytes
        wobble = self.jitter * (unit(self.seed, -count) - 0.5)
        return self.start_bytes + self.riser_bytes * (count + wobble)


class Cyclic(msgspec.Struct, frozen=True):
    """Rises and falls every ``period_s``; the floor creeps up by ``creep_bytes`` a cycle.

    With ``creep_bytes=0`` it is a sawtooth that falls back to the same floor.
    """

    floor_bytes: float
    swing_bytes: float
    period_s: float
    creep_bytes: float = 0.0
    onset_s: float = 0.0
    jitter: float = 0.15
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the floor of this cycle plus how far it has risen."""
        turns = age_s / self.period_s
        count = math.floor(turns)
        kept = max(0.0, (count * self.period_s - self.onset_s) / self.period_s)
        swing = self.swing_bytes * (1 - self.jitter * unit(self.seed, count))
        # Up over four fifths of the cycle, then everything is freed at once.
        rise = min(1.0, (turns - count) / 0.8) if turns - count < 0.8 else 0.0
        return self.floor_bytes + self.creep_bytes * math.floor(kept) + swing * rise


class WarmUp(msgspec.Struct, frozen=True):
    """A rise that ends: allocator cache, autotuning, compilation."""

    start_bytes: float
    gain_bytes: float
    tau_s: float

    def at(self, age_s: float) -> float:
        """Return the start plus the part of the gain that has been reached."""
        return self.start_bytes + self.gain_bytes * -math.expm1(-max(0.0, age_s) / self.tau_s)


class Spikes(msgspec.Struct, frozen=True):
    """Flat with a bump of ``height_bytes`` for ``hold_s`` (an evaluation, a checkpoint).

    The first comes at ``first_s``; with ``every_s`` more follow.
    """

    level_bytes: float
    height_bytes: float
    first_s: float
    hold_s: float
    every_s: float = math.inf

    def at(self, age_s: float) -> float:
        """Return the level, or the top of the bump."""
        late_s = age_s - self.first_s
        inside = late_s >= 0 and math.fmod(late_s, self.every_s) < self.hold_s
        return self.level_bytes + (self.height_bytes if inside else 0.0)


class Swap(msgspec.Struct, frozen=True):
    """Models that replace each other every ``every_s``, in an order drawn by chance."""

    levels_bytes: tuple[float, ...]
    every_s: float
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the size of the model that is loaded now."""
        turn = int(max(0.0, age_s) / self.every_s)
        return self.levels_bytes[int(unit(self.seed, turn) * len(self.levels_bytes))]


class Noisy(msgspec.Struct, frozen=True):
    """Another shape under noise: a new value between -1 and 1 times ``size_bytes`` every few s."""

    shape: Shape
    size_bytes: float
    hold_s: float = 5.0
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the shape plus noise of roughly bell-shaped distribution."""
        slot = int(max(0.0, age_s) / self.hold_s)
        bell = unit(self.seed, 2 * slot) + unit(self.seed, 2 * slot + 1) - 1.0
        return max(0.0, self.shape.at(age_s) + self.size_bytes * bell)


class Recorded(msgspec.Struct, frozen=True):
    """What was recorded, or computed beforehand: each value holds until the next one.

    The first value counts before the first instant, the last one for ever.
    """

    age_s: tuple[float, ...]
    """Ascending instants, seconds since the process started."""
    held_bytes: tuple[float, ...]
    """Bytes from each instant on; as many as there are instants, at least one."""

    def at(self, age_s: float) -> float:
        """Return the value that was reached last."""
        return self.held_bytes[max(0, bisect_right(self.age_s, age_s) - 1)]


class Phases(msgspec.Struct, frozen=True):
    """One shape after another, each from its own age 0: ``((seconds, shape), ...)``.

    The last one stays.
    """

    parts: tuple[tuple[float, Shape], ...]

    def at(self, age_s: float) -> float:
        """Return what the current phase holds."""
        for seconds, shape in self.parts[:-1]:
            if age_s < seconds:
                return shape.at(age_s)
            age_s -= seconds
        return self.parts[-1][1].at(age_s)


MINUTE_S = 60.0
HOUR_S = 3600.0
MB = 1_000_000


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """One program of the script; it may start, end, crash and come again."""

    name: str
    """Process name; unique on its card."""
    user: str
    argv: tuple[str, ...]
    shape: Shape
    pattern: Pattern
    """What a good judge calls it."""
    leak: bool = False
    onset_s: float = 0.0
    """Age at which a leak begins."""
    rate_bytes_per_s: float = 0.0
    """Mean growth of what a leak retains; 0 for benign ones."""
    starts_s: float = -HOUR_S
    """World time of the first start; negative is before the first sample."""
    stays_s: float = math.inf
    """Life span."""
    every_s: float = math.inf
    """Comes again this long after its last planned start."""
    restarts_s: float | None = None
    """A supervisor restarts it this long after a crash; None: it stays dead."""
    framework: str | None = None
    framework_sure: bool = True
    container: str | None = None
    job: str | None = None
    kind: str = "C"
    quantum_bytes: int = 2 * MIB
    """Memory is held in multiples of this."""
    busy_pct: float = 40.0
    """What it adds to the utilisation of the card while it lives."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated GPU; its index is its position in the world."""

    name: str
    total_bytes: int
    reserved_bytes: int
    actors: tuple[Actor, ...]
    overhead_bytes: int = 12 * MIB
    """Held by nobody: what the driver itself keeps beside its reserve."""
    loose: Shape = Flat(0.0)
    """Held by nobody either, over world time: what processes that have gone left behind."""
    max_power_w: float = 300.0
    lost: tuple[tuple[float, float], ...] = ()
    """World times (from, to) at which the card does not answer; its processes die."""
    blind: tuple[tuple[float, float], ...] = ()
    """World times (from, to) at which the list of processes cannot be read."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of one scenario."""

    title: str
    cards: tuple[Card, ...]


def _card(name: str, total_mib: int, reserved_mib: int, max_power_w: float, *actors: Actor) -> Card:
    return Card(
        name=name,
        total_bytes=total_mib * MIB,
        reserved_bytes=reserved_mib * MIB,
        max_power_w=max_power_w,
        actors=actors,
    )


_rtx_4090 = partial(_card, "NVIDIA GeForce RTX 4090", 24564, 418, 450.0)
_a10 = partial(_card, "NVIDIA A10", 23028, 502, 150.0)
_a100 = partial(_card, "NVIDIA A100-SXM4-80GB", 81920, 634, 400.0)
_h100 = partial(_card, "NVIDIA H100 80GB HBM3", 81559, 551, 700.0)


def _python(script: str, user: str, *flags: str) -> Actor:
    """Return a PyTorch script that does nothing yet; :func:`replace` says what."""
    return Actor(
        name="python",
        user=user,
        argv=("python", script, *flags),
        framework="PyTorch",
        shape=Flat(0.0),
        pattern="stable",
    )


def _lora_leak(rate_mb_per_min: float, *, start_gib: float, onset_s: float) -> Actor:
    rate = rate_mb_per_min * MB / 60
    return replace(
        _python("finetune_lora.py", "alice", "--epochs", "40", "--hf-token=****"),
        shape=Linear(start_gib * GIB, rate, HOUR_S + onset_s),
        pattern="gradual",
        leak=True,
        onset_s=HOUR_S + onset_s,
        rate_bytes_per_s=rate,
        busy_pct=93.0,
    )


def _serving_leak(seed: int) -> Actor:
    riser, every_s = 420 * MIB, 4 * MINUTE_S
    return Actor(
        name="uvicorn",
        user="svc-rank",
        argv=("python", "-m", "uvicorn", "rank.app:api", "--port", "8080"),
        framework="PyTorch",
        container="rank-api",
        shape=Stairs(8.2 * GIB, riser, every_s, HOUR_S + 3 * MINUTE_S, seed=seed),
        pattern="step",
        leak=True,
        onset_s=HOUR_S + 3 * MINUTE_S,
        rate_bytes_per_s=riser / every_s,
        busy_pct=35.0,
    )


def _warm_training(seed: int) -> Actor:
    return replace(
        _python("train_vit.py", "bob", "--batch-size", "256"),
        job="slurm 48213",
        shape=Noisy(WarmUp(9 * GIB, 15 * GIB, 6 * MINUTE_S), 1 * MIB, 30.0, seed),
        pattern="plateau",
        starts_s=30.0,
        quantum_bytes=20 * MIB,
        busy_pct=70.0,
    )


def _sampler(seed: int) -> Actor:
    return replace(
        _python("sample_sd.py", "carol", "--steps", "50"),
        shape=Cyclic(6 * GIB, 7 * GIB, 2.5 * MINUTE_S, seed=seed),
        pattern="sawtooth",
        busy_pct=25.0,
    )


def _vllm_pool() -> Actor:
    return Actor(
        name="VLLM::EngineCore",
        user="svc-llm",
        argv=("VLLM::EngineCore",),
        framework="vLLM",
        container="llm-gateway",
        shape=Flat(81559 * MIB * 0.86),
        pattern="preallocated",
        starts_s=-5 * HOUR_S,
        busy_pct=55.0,
    )


def _visitor(seed: int) -> Actor:
    return replace(
        _python("eval_suite.py", "dave", "--suite", "short"),
        shape=Noisy(Flat(3 * GIB), 24 * MIB, 20.0, seed),
        pattern="stable",
        starts_s=7 * MINUTE_S,
        stays_s=9 * MINUTE_S,
        every_s=26 * MINUTE_S,
        busy_pct=30.0,
    )


def _desktop() -> Actor:
    return Actor(
        name="gnome-shell",
        user="alice",
        argv=("/usr/bin/gnome-shell",),
        framework=None,
        shape=Flat(214 * MIB),
        pattern="stable",
        starts_s=-30 * HOUR_S,
        kind="G",
        busy_pct=1.0,
    )


def _demo(seed: int) -> World:
    # The first thing that is found is a leak: what looks like one for a while starts later.
    warming = replace(_warm_training(seed + 1), starts_s=24 * MINUTE_S)
    sampling = replace(_sampler(seed + 2), starts_s=20 * MINUTE_S)
    return World(
        title="four GPUs, two of them with a leak",
        cards=(
            _rtx_4090(_lora_leak(50.0, start_gib=12.0, onset_s=4 * MINUTE_S), _desktop()),
            _a10(_serving_leak(seed)),
            _a100(warming, sampling),
            _h100(_vllm_pool(), _visitor(seed + 3)),
        ),
    )


def _quiet(seed: int) -> World:
    swapping = Actor(
        name="ollama",
        user="ollama",
        argv=("/usr/bin/ollama", "runner", "--model", "/var/lib/ollama/blobs/sha256-1f"),
        framework="Ollama",
        shape=Swap((4.9 * GIB, 9.1 * GIB, 0.4 * GIB, 6.2 * GIB), 11 * MINUTE_S, seed),
        pattern="sawtooth",
        busy_pct=20.0,
    )
    evaluating = replace(
        _python("train_detector.py", "erin", "--eval-every", "1000"),
        shape=Spikes(17 * GIB, 3 * GIB, HOUR_S + 6 * MINUTE_S, 45.0, 13 * MINUTE_S),
        pattern="sawtooth",
        busy_pct=88.0,
    )
    caching = replace(
        _python("serve_embeddings.py", "svc-embed", "--cache-gib", "2"),
        shape=Linear(5 * GIB, 2.5 * MIB, HOUR_S, 2 * GIB),
        pattern="plateau",
        busy_pct=15.0,
    )
    return World(
        title="four busy GPUs, nothing wrong",
        cards=(
            _rtx_4090(swapping, _desktop()),
            _a10(evaluating),
            _a100(_warm_training(seed + 1), _sampler(seed + 2), caching),
            _h100(_vllm_pool(), _visitor(seed + 3)),
        ),
    )


def _one_leak(seed: int) -> World:  # noqa: ARG001 - nothing here is left to chance
    return World(
        title="one GPU with a fast leak",
        cards=(_rtx_4090(_lora_leak(400.0, start_gib=6.0, onset_s=2 * MINUTE_S), _desktop()),),
    )


def _worker(card: int, slot: int, seed: int) -> Actor:
    """Return one of 64 workers; five of them leak, the rest does what workers do."""
    chance = seed * 64 + card * 8 + slot
    level = (3 + slot % 4) * GIB
    shapes: tuple[tuple[Shape, Pattern], ...] = (
        (Flat(level), "stable"),
        (Noisy(Flat(level), 48 * MIB, 10.0, chance), "stable"),
        (Cyclic(level, 2 * GIB, (90 + 17 * slot), seed=chance), "sawtooth"),
        (WarmUp(level, 2 * GIB, 12 * MINUTE_S), "plateau"),
    )
    shape, pattern = shapes[(card + slot) % len(shapes)]
    leak = slot == 5 and card in {0, 2, 3, 5, 6}
    rate = (90 + 30 * card) * MB / 60 if leak else 0.0
    if leak:
        shape, pattern = Linear(level, rate, HOUR_S), "gradual"
    return Actor(
        name=f"worker{slot}",
        user=("alice", "bob", "carol", "dave")[slot % 4],
        argv=("python", "worker.py", "--rank", str(card * 8 + slot)),
        framework="PyTorch",
        job=f"slurm {51000 + card}",
        shape=shape,
        pattern=pattern,
        leak=leak,
        onset_s=HOUR_S if leak else 0.0,
        rate_bytes_per_s=rate,
        busy_pct=11.0,
    )


def _mixed(seed: int) -> World:
    return World(
        title="eight GPUs with eight processes each, five of them leak",
        cards=tuple(_h100(*(_worker(card, slot, seed) for slot in range(8))) for card in range(8)),
    )


def _lost_gpu(seed: int) -> World:
    leaking = _a10(_lora_leak(120.0, start_gib=9.0, onset_s=2 * MINUTE_S))
    restarted = replace(
        _sampler(seed), shape=Cyclic(6 * GIB, 7 * GIB, 100.0, seed=seed), restarts_s=30.0
    )
    phased = replace(
        _python("pipeline.py", "erin"),
        shape=Phases(
            (
                (70 * MINUTE_S, Flat(4 * GIB)),
                (8 * MINUTE_S, Flat(11 * GIB)),
                (math.inf, Flat(6 * GIB)),
            )
        ),
        pattern="spike",
        restarts_s=60.0,
    )
    return World(
        title="a GPU that is lost for ten minutes, and a list of processes that fails",
        cards=(
            replace(leaking, blind=((8 * MINUTE_S, 11 * MINUTE_S),)),
            replace(_a100(restarted, phased), lost=((10 * MINUTE_S, 20 * MINUTE_S),)),
        ),
    )


def _idle(seed: int) -> World:
    notebook = Actor(
        name="python",
        user="alice",
        argv=("python", "-m", "ipykernel_launcher", "-f", "kernel-1.json"),
        framework="PyTorch",
        shape=Flat(14 * GIB),
        pattern="stable",
        busy_pct=0.0,
    )
    return World(
        title="a notebook that does nothing with its memory, beside a training that works",
        cards=(_rtx_4090(notebook), _a100(_warm_training(seed))),
    )


SCENARIOS: Mapping[str, Callable[[int], World]] = {
    "demo": _demo,
    "quiet": _quiet,
    "one-leak": _one_leak,
    "mixed-8x8": _mixed,
    "lost-gpu": _lost_gpu,
    "idle": _idle,
}
