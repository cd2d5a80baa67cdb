"""A card and the programs on it: what a family of this corpus draws from, and what it returns.

A family lists events and sends them through allocators, as :mod:`tests.scenarios.blind_rig` does;
here it also says which process holds what, how that process was started, and what its probe, its
files and the utilisation of the card would tell.
"""

from __future__ import annotations

import json
import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tests.scenarios.blind_rig import (
    GIB,
    HOUR,
    MIB,
    NOTHING,
    Array,
    Load,
    Rig,
    Steps,
    cached,
    changes,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MINUTE = 60.0
Where = Literal["argv", "file", "none", "trap"]

_MODELS = (
    ("gpt2", 0.3),
    ("Qwen/Qwen2.5-0.5B", 1.0),
    ("TinyLlama/TinyLlama-1.1B", 2.1),
    ("Qwen/Qwen2.5-1.5B", 3.0),
    ("meta-llama/Llama-3.2-3B", 6.2),
    ("microsoft/phi-3-mini", 7.3),
    ("mistralai/Mistral-7B-v0.3", 14.0),
    ("meta-llama/Llama-3.1-8B", 15.6),
    ("Qwen/Qwen2.5-14B", 28.0),
    ("google/gemma-2-27b", 52.0),
)
"""Public models, and GiB of their weights in two bytes each."""

_TRAPS = (
    ("--shuffle-buffer-gb", "64"),
    ("--cpu-offload-gb", "48"),
    ("--max-shard-size", "5GB"),
    ("--dataset-cache-dir-limit", "200GB"),
    ("--pinned-memory-pool", "16GiB"),
    ("--prefetch-buffer", "100000"),
)
"""Sizes that look as if they were the card's: of host memory, of disks, of files."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a program was told of the size of something, and where that stands."""

    where: Where = "none"
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    """As it is written there; empty when it is not."""
    size_bytes: float | None = None
    """What that comes to on the card; None when it says nothing of the card."""


UNTOLD = Told()


@dataclass(frozen=True, kw_only=True)
class Program:
    """One process: how it was started, and what it holds."""

    argv: tuple[str, ...]
    held: Steps
    """On the clock of the machine, with its context."""
    lost: Steps = NOTHING
    """The part of it that is never given back, when it leaks."""
    begin_s: float = 0.0
    end_s: float = math.inf
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    framework: str | None = None
    bound: float | None = None
    """Bound of what grows, as it is written in the program; None: none, or nobody knows."""
    parent_argv: tuple[str, ...] = ()
    """Of a worker that gave itself a title: how its parent was started."""

    @property
    def alive(self) -> Steps:
        """What it holds, and nothing before its start or after its end."""
        low, high = np.searchsorted(self.held.t, (self.begin_s, self.end_s))
        if self.end_s == math.inf or high == 0:
            return Steps(self.held.t[low:high], self.held.y[low:high])
        return Steps(
            np.append(self.held.t[low:high], self.end_s), np.append(self.held.y[low:high], 0.0)
        )


@dataclass(frozen=True)
class Scene:
    """What went on on one card."""

    programs: Sequence[Program]
    span_s: float
    patterns: str
    """The names that are right for the card."""
    _: KW_ONLY
    util: Steps = NOTHING
    """Utilisation of the card in per cent; nothing: busy from the start on."""
    loose: Steps = NOTHING
    """Bytes that no process owns."""
    left: Steps = NOTHING
    """Of a leak in which no process grows: what has been left behind, wherever it is counted."""
    told: Told = UNTOLD

    @property
    def lost(self) -> Steps:
        """All that is lost for good; nothing when nothing leaks."""
        return total_of([program.lost for program in self.programs] + [self.left])


def total_of(levels: Sequence[Steps]) -> Steps:
    """Return the sum of many levels."""
    used = [level for level in levels if level.t.size]
    if not used:
        return NOTHING
    t = np.concatenate([level.t for level in used])
    return changes(t, np.concatenate([np.diff(level.y, prepend=0.0) for level in used]))


def capped(level: Steps, limit: float) -> Steps:
    """Return a level that stops at a limit: what a cache with a size keeps."""
    return Steps(level.t, np.minimum(level.y, limit))


def stairs(times: Array, size: Array | float) -> Steps:
    """Return what is added at each time and kept."""
    return changes(times, np.broadcast_to(np.asarray(size, dtype=float), times.shape))


def written(value: float) -> int:
    """Return a number as somebody would write it: two digits and zeros."""
    scale = 10.0 ** max(int(math.log10(max(value, 1.0))) - 1, 0)
    return int(int(value / scale) * scale)


@dataclass(kw_only=True)
class Machine(Rig):
    """A card, the dice, and how users start programs."""

    def model(self, low: float, high: float) -> tuple[str, float]:
        """Return a model whose weights take such a share of the card, and their bytes."""
        size = self.total * self.u(low, high)
        name, gib = max((m for m in _MODELS if m[1] * GIB <= size), key=lambda m: m[1])
        return name, gib * GIB

    def begin(self, size: float) -> tuple[Steps, float]:
        """Return a context and what is loaded within seconds, and when that is there."""
        idle, took = self.u(0.0, 15.0), self.log(0.8, 30.0)
        count = max(1, min(40, int(size / self.log(50 * MIB, 2 * GIB))))
        times = np.append(idle, idle + np.sort(self.rng.uniform(0.3 * took, took, count)))
        sizes = np.append(self.u(250, 550) * MIB, np.full(count, size / count))
        return changes(times, sizes), idle + took

    def trained(self, low: float, high: float) -> tuple[Steps, float]:
        """Return a training that holds such a share after its first two steps, and when."""
        share = self.u(low, high)
        base, ready = self.begin(self.total * share * 0.4)
        first = ready + self.u(0.5, 8.0)
        parts = np.array([0.4, 0.2]) * share * self.total  # activations, then optimizer state
        return base + stairs(np.array([first, first + self.u(0.2, 3.0)]), parts), first + 5.0

    def ranks(self, least: int) -> int:
        """Return how many ranks of a job share the card: their contexts must fit too."""
        return self.n(least, max(least, min(8, int(self.total / (3 * GIB)))))

    def lasting(self) -> float:
        """Return how long a harmless record lasts, seconds."""
        return self.log(1.0, 24.0) * HOUR

    def ticks(self, period: float, start: float, end: float, jitter: float = 0.03) -> Array:
        """Return when something comes that is done again and again, at most 20,000 times."""
        period = max(period, (end - start) / 20_000)
        t = np.arange(start + period, end, period)
        return np.sort(t + self.rng.normal(0.0, jitter * period, t.size))

    def losing(self, times: Array, amount: float, spread: float = 0.3) -> Steps:
        """Return what is lost if ``amount`` is lost until the last but a fifth of the times."""
        level = np.cumsum(self.ragged(1.0, spread, times.size))
        return Steps(times, level * amount / level[int(0.8 * times.size)])

    def tensors(self, lost: Steps, block: float = 2.0 * MIB) -> Steps:
        """Return a loss as the driver sees it: in blocks of an allocator."""
        level = whole(lost.y, block)
        keep = np.flatnonzero(np.diff(level, prepend=0.0))
        return Steps(lost.t[keep], level[keep])

    def longest(self, start: float, end: float, scale: float, spread: float = 0.45) -> Steps:
        """Return what a caching allocator holds for batches of varying length."""
        times = self.ticks(self.log(0.5, 8.0), start, end)
        sizes = np.minimum(self.ragged(scale, spread, times.size), 5.0 * scale)
        return cached(Steps(times, np.maximum.accumulate(sizes)), 2 * MIB)

    def spikes(self, times: Array, lasts: float, size: float) -> Steps:
        """Return memory that is taken at each time for a while and given back."""
        ends = times + np.minimum(lasts, 0.8 * np.diff(times, append=times[-1:] + 2 * lasts))
        sizes = self.ragged(size, 0.1, times.size)
        return changes(np.concatenate((times, ends)), np.concatenate((sizes, -sizes)))

    def busy(self, ready: float, end: float, dips: Array | None = None) -> Steps:
        """Return utilisation of a training: high, low for a while at each of ``dips``."""
        level = self.u(60.0, 99.0)
        t, y = np.array([0.0, ready]), np.array([0.0, level])
        if dips is not None and dips.size:
            lasts = min(self.log(5.0, 90.0), 0.3 * float(np.diff(dips, append=end).min()) + 1.0)
            low = np.full(dips.size, self.u(2.0, 40.0))
            t = np.concatenate((t, dips, dips + lasts))
            y = np.concatenate((y, low, np.full(dips.size, level)))
        order = np.argsort(t, kind="stable")
        return Steps(t[order], y[order])

    def serving(self, ready: float, end: float, load: Load | None = None) -> Steps:
        """Return utilisation of a server, minute by minute."""
        t = np.arange(ready, end, MINUTE)
        mean = self.u(15.0, 80.0) * (np.ones(t.size) if load is None else load(t))
        return Steps(t, np.clip(mean + self.rng.normal(0.0, 8.0, t.size), 0.0, 100.0))

    def tell(
        self,
        section: str,
        key: str,
        value: str,
        size_bytes: float | None,
        *,
        also: Mapping[str, str] | None = None,
        plain: bool = False,
    ) -> Told:
        """Return how a program is told a size, if it is: one third are not, some are told others.

        ``also`` are further settings that stand beside it: the shape of what is counted. A value of
        several words is a list. ``plain``: the program takes flags and flat files only.
        """
        settings = {key: value, **(also or {})}
        ways: tuple[Where, ...] = ("none", "trap", "argv", "file")
        where = ways[int(self.rng.choice(4, p=[0.33, 0.14, 0.29, 0.24]))]
        if where == "none":
            return UNTOLD
        if where == "trap":
            flag, number = _TRAPS[self.n(0, len(_TRAPS) - 1)]
            return Told(where=where, argv=(flag, number), text=f"{flag} {number}")
        if where == "file":
            return replace(self._as_file("" if plain else section, settings), size_bytes=size_bytes)
        style = self.n(0, 2 if plain else 4)
        if style >= 3:  # overrides as Hydra takes them
            words = [f"{section}.{_name(k)}={_written(v, ',')}" for k, v in settings.items()]
        elif style == 2:
            words = [f"--{k}={v.replace(' ', ',')}" for k, v in settings.items()]
        else:
            words = [f"--{k} {v}" for k, v in settings.items()]
        argv = tuple(" ".join(words).split())
        return Told(where=where, argv=argv, text=words[0], size_bytes=size_bytes)

    def _as_file(self, section: str, settings: dict[str, str]) -> Told:
        """Return settings in a file: flat and with dashes where there is no section."""
        run = {"seed": self.n(0, 9999), "num_workers": self.n(2, 16), "log_every": self.n(10, 500)}
        path = ("config", "conf/run", "configs/exp_017", "settings/prod")[self.n(0, 3)]
        kind = ("yaml", "toml", "json")[self.n(0, 2) if section else 0]
        key, value = next(iter(settings.items()))
        name = f"{path}.{kind}"
        text = f"{_name(key)}: {_written(value)}"
        if not section:
            content = "".join(f"{k}: {_written(v)}\n" for k, v in settings.items())
            text = content.split("\n", maxsplit=1)[0]
        elif kind == "json":
            table = {_name(k): json.loads(_quoted(v)) for k, v in settings.items()}
            content = json.dumps({"run": run, "model": {section: table}})
            text = f'"{_name(key)}": {_quoted(value)}'
        elif kind == "toml":
            lines = [f"{k} = {v}" for k, v in run.items()]
            more = [f"{_name(k)} = {_quoted(v)}" for k, v in settings.items()]
            content = "\n".join(["[run]", *lines, "", f"[model.{section}]", *more, ""])
            text = more[0]
        else:
            lines = [f"  {k}: {v}" for k, v in run.items()]
            more = [f"    {_name(k)}: {_written(v)}" for k, v in settings.items()]
            content = "\n".join(["run:", *lines, "model:", f"  {section}:", *more, ""])
        flag = ("--config", "--config-file", "-c")[self.n(0, 2) if section else 0]
        return Told(where="file", argv=(flag, name), files={name: content}, text=text)

    def start(
        self, command: str, held: Steps, *words: str, told: Told = UNTOLD, **more: Any
    ) -> Program:
        """Return a program; ``more`` are further fields of it, ``env`` beside what it is told."""
        env = {**told.env, **more.pop("env", {})}
        argv = (*command.split(), *words, *told.argv)
        return Program(argv=argv, held=held, env=env, files=told.files, **more)

    def python(self, script: str, held: Steps, *words: str, **more: Any) -> Program:
        """Return a Python program as people start it; PyTorch unless ``framework`` is another."""
        how = ("python", "python3", "python -u", "/opt/conda/bin/python")[self.n(0, 3)]
        more.setdefault("framework", "PyTorch")
        if more["framework"] == "PyTorch" and self.chance(0.2):
            more["env"] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} | dict(
                more.get("env", {})
            )
        return self.start(f"{how} {script}", held, *words, **more)

    def decoy(self) -> Told:
        """Return a size that a leaking program is told of something that does not leak."""
        gib = max(1, int(self.total / GIB * self.u(0.05, 0.2)))
        if self.chance(0.5):
            return UNTOLD
        return self.tell("cache", "cache-size-gb", str(gib), gib * GIB)


def _name(key: str) -> str:
    """Return a key as it is called in files and overrides."""
    return key.replace("-", "_")


def _written(value: str, between: str = ", ") -> str:
    """Return a value as YAML and Hydra write it."""
    return f"[{between.join(value.split())}]" if " " in value else value


def _quoted(value: str) -> str:
    """Return a value as TOML and JSON write it."""
    plain = value.replace(".", "", 1).replace(" ", "").isdigit()
    return _written(value) if plain else json.dumps(value)
