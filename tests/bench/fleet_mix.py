"""Made-up memory of many GPUs, one value a minute, for the benchmark of ``gpuwatchd fleet``.

The mix is ours, not taken from a site: 62 % stand still but for one step, 20 % are idle, 10 % rise
and fall, 5 % are given another job, 3 % leak. What leaks reaches its limit between 4 hours and a
week after it began (log-uniform); then its job dies. A third of the leaks are straight, a third
climb in steps, a third rise and fall over a floor that rises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray

SHARES: Final = {"plateau": 0.62, "idle": 0.20, "cyclic": 0.10, "job change": 0.05, "leak": 0.03}
KINDS: Final = tuple(SHARES)
TOTAL_MIB, RESERVED_MIB = 81920.0, 640.0
LIMIT_MIB = TOTAL_MIB - RESERVED_MIB
IDLE_MIB = 4.0
_BLOCK: Final = 2000


class Mix(NamedTuple):
    """Many GPUs."""

    used: npt.NDArray[np.float32]
    """(S, n) MiB."""
    kind: npt.NDArray[np.int8]
    """(S,) place in :data:`KINDS`."""
    begins: FloatArray
    """(S,) minute in which growth, or the other job, begins; may be before the first."""
    full: FloatArray
    """(S,) minute in which a leak's memory is full; infinite for what does not leak."""
    renamed: npt.NDArray[np.bool_]
    """(S,) whether the labels name another job from ``begins`` on."""

    def leaking(self, minute: float) -> npt.NDArray[np.bool_]:
        """Say what leaks at a minute: it has begun, and is not full yet."""
        leak = self.kind == KINDS.index("leak")
        return np.asarray(leak & (self.begins <= minute) & (minute < self.full))


def make(count: int, minutes: int, seed: int = 24) -> Mix:
    """Return so many GPUs over so many minutes."""
    rng = np.random.default_rng(seed)
    shares = np.cumsum(list(SHARES.values()))
    kind = rng.permutation(shares.searchsorted((np.arange(count) + 0.5) / count)).astype(np.int8)
    base = rng.uniform(8_000, 40_000, count)
    begins = rng.uniform(0, minutes, count)
    leak, change = kind == KINDS.index("leak"), kind == KINDS.index("job change")
    begins[leak] = rng.uniform(-600, minutes - 60, int(leak.sum()))
    takes = np.exp(rng.uniform(np.log(240), np.log(7 * 1440), count))
    full = np.where(leak, begins + takes, np.inf)
    renamed = change & (rng.random(count) < 0.5)
    used = np.empty((count, minutes), dtype=np.float32)
    t = np.arange(float(minutes))
    for first in range(0, count, _BLOCK):
        rows = slice(first, first + _BLOCK)
        used[rows] = _curves(rng, t, kind[rows], base[rows], begins[rows], takes[rows])
    return Mix(used, kind, begins, full, renamed)


def _curves(
    rng: np.random.Generator,
    t: FloatArray,
    kind: npt.NDArray[np.int8],
    base: FloatArray,
    begins: FloatArray,
    takes: FloatArray,
) -> FloatArray:
    count = kind.size
    since = t - begins[:, None]
    amount = np.exp(rng.uniform(np.log(256), np.log(20_000), (count, 1)))
    period = rng.uniform(6, 90, (count, 1))
    teeth = ((t + rng.uniform(0, 90, (count, 1))) % period) / period
    noise = np.rint(rng.uniform(-4, 4, (count, t.size))) * 2 * (rng.random((count, 1)) < 0.6)
    level = np.repeat(base[:, None], t.size, axis=1)
    form = rng.integers(0, 3, (count, 1))
    level += np.select(
        [kind[:, None] == KINDS.index(name) for name in KINDS],
        [
            amount * (since >= 0),
            0.0,
            amount
            * np.where(form == 0, teeth, np.where(form == 1, teeth > 0.5, np.sin(3 * teeth))),
            # Nothing for some minutes, then the next job fills its own level.
            np.where(
                since < 0,
                0.0,
                amount * np.clip((since - 5) / rng.uniform(1, 20, (count, 1)), 0, 1) ** 0.5,
            ),
            _growth(LIMIT_MIB - base[:, None], since, takes[:, None], form, period, teeth, amount),
        ],
    )
    level += noise
    idle = kind == KINDS.index("idle")
    level[idle] = np.rint(rng.uniform(3, 500, (int(idle.sum()), 1)))
    change = kind[:, None] == KINDS.index("job change")
    level[change & (since >= 0) & (since < 5)] = IDLE_MIB
    dead = (kind[:, None] == KINDS.index("leak")) & (since >= takes[:, None])
    level[dead] = IDLE_MIB
    return np.rint(np.clip(level, 0, LIMIT_MIB))


def _growth(
    room: FloatArray,
    since: FloatArray,
    takes: FloatArray,
    form: npt.NDArray[np.int64],
    period: FloatArray,
    teeth: FloatArray,
    amount: FloatArray,
) -> FloatArray:
    """Return what leaks hold beyond their level: straight, in steps, or under a saw."""
    pace = room / takes
    after = np.maximum(since, 0.0)
    stairs = np.floor(after / (0.5 * period)) * 0.5 * period
    saw = np.minimum(amount, 0.15 * room)
    grown = pace * np.where(form == 1, stairs, after)
    return np.asarray(grown + np.where(form == 2, saw * (teeth - 1), 0.0))
