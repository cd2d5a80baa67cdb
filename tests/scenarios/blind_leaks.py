"""Leaks of training runs, tools and desktops, by mechanism. Each plays far beyond its own end."""

from __future__ import annotations

import numpy as np

from tests.scenarios.blind_rig import (
    HOUR,
    MIB,
    Array,
    Rig,
    Run,
    Steps,
    cached,
    changes,
    jobs,
    leaking,
    whole,
)

SPAN = 1.8
"""Lives that are simulated: a leak may be slower than it was meant to be."""


def base(rig: Rig, life: float, *, low: float = 0.08, high: float = 0.4) -> tuple[Steps, float]:
    """A loaded program and, of three, one that warms up and one that comes and goes."""
    boot, ready = rig.boot(rig.total * rig.u(low, high))
    return boot + rig.setting(ready, life), ready


def plain(rig: Rig, life: float, *, low: float, high: float) -> tuple[Steps, float]:
    """A loaded program for a family that comes and goes by itself; of four, one warms up."""
    boot, ready = rig.boot(rig.total * rig.u(low, high))
    return (boot + rig.warm_up(ready, life) if rig.chance(0.25) else boot), ready


def losses_with_graph(rig: Rig) -> Run:
    """A list of losses that still hang on their graphs, one appended every few steps."""
    life = rig.life()
    under, ready = base(rig, life)
    onset = ready + rig.u(0.0, 0.05) * life
    every = max(rig.log(0.5, 20.0), life / 12_000)
    times = np.arange(onset, onset + SPAN * life, every)
    times = times + rig.rng.uniform(0.0, 0.3 * every, times.size)
    sizes = rig.ragged(rig.room(under) * every / life, rig.u(0.05, 0.6), times.size)
    lost = cached(changes(times, sizes), 20 * MIB)
    return leaking(under, lost, onset, onset + SPAN * life, "gradual")


def metric_never_reset(rig: Rig) -> Run:
    """Every evaluation appends its predictions to a metric that nobody resets.

    While it runs, activations come on top and go again; between evaluations nothing grows.
    """
    life = rig.life(0.5, 40.0)
    boot, ready = plain(rig, life, low=0.1, high=0.4)
    rounds, share = rig.n(12, 90), rig.u(0.08, 0.35)
    period = life / rounds
    peak = rig.total * rig.u(0.0, 0.12)
    starts = ready + period * (1 - share) + period * np.arange(int(SPAN * rounds))
    batches = rig.n(4, 40)
    times = (starts[:, None] + period * share * np.linspace(0.05, 1.0, batches)).ravel()
    sizes = rig.ragged((rig.room(boot) - peak) / (rounds * batches), 0.05, times.size)
    lost = cached(changes(times, sizes), rig.segment)
    peaks = jobs(starts, np.full(starts.size, period * share), np.full(starts.size, peak))
    names = ("cyclic", "step", "gradual") if peak > 0.02 * rig.total else ("step", "gradual")
    return leaking(boot + peaks, lost, float(starts[0]), ready + SPAN * life, *names)


def hooks_stacked(rig: Rig) -> Run:
    """Each epoch registers its hooks once more, and every hook appends a feature per step.

    The rate grows with the epoch: the leak accelerates.
    """
    life = rig.life(0.3, 30.0)
    under, ready = base(rig, life)
    epochs = rig.n(5, 30)
    epoch_s, steps = life / epochs, rig.n(20, 120)
    count = int(1.4 * epochs)
    onset = ready + rig.u(0.0, 1.0) * epoch_s
    times = onset + epoch_s / steps * np.arange(1, count * steps + 1)
    hooks = np.repeat(np.arange(1.0, count + 1), steps)
    unit = rig.room(under) / (steps * epochs * (epochs + 1) / 2)
    lost = cached(changes(times, hooks * unit), rig.segment)
    return leaking(under, lost, onset, float(times[-1]), "gradual")


def traceback_held(rig: Rig) -> Run:
    """A bad batch raises; the stored exception keeps the frames, and with them the activations."""
    life = rig.life(0.5, 40.0)
    under, ready = base(rig, life)
    count = rig.n(8, 40)
    times = rig.arrivals(count / life, ready, ready + SPAN * life)
    times = np.sort(np.append(times, ready + life * rig.u(0.01, 0.1)))
    sizes = whole(rig.ragged(rig.room(under) / count, rig.u(0.2, 0.7), times.size), 2 * MIB)
    lost = changes(times, sizes)
    return leaking(under, lost, float(times[0]), ready + SPAN * life, "step", "gradual")


def graph_per_shape(rig: Rig) -> Run:
    """A CUDA graph is captured for every new shape and none is dropped.

    Shapes are lengths times batch sizes: new ones become rarer but never end before the card does.
    """
    life = rig.life(0.4, 30.0)
    under, ready = base(rig, life)
    captures, power = rig.n(50, 250), rig.u(0.6, 0.95)
    # Heaps' law: the k-th new shape comes after about k ** (1 / power) requests.
    k = np.arange(1.0, 1.8 * captures)
    gaps = np.diff(np.concatenate(([0.0], k ** (1 / power)))) * life / captures ** (1 / power)
    times = ready + np.cumsum(gaps * rig.rng.exponential(1.0, k.size))
    sizes = whole(rig.ragged(rig.room(under) / captures, 0.35, times.size), 2 * MIB)
    lost = changes(times, sizes)
    return leaking(under, lost, float(times[0]), float(times[-1]), "gradual", "step")


def groups_made_anew(rig: Rig) -> Run:
    """Every elastic restart makes its communicators anew; the old buffers stay.

    Between two restarts the step's activations are up; during one they are down for a minute.
    """
    life = rig.life(1.0, 40.0)
    boot, ready = plain(rig, life, low=0.1, high=0.35)
    rounds = rig.n(15, 120)
    act = rig.total * rig.u(0.05, 0.25)
    gaps = rig.ragged(life / rounds, 0.3, int(SPAN * rounds))
    times = ready + np.cumsum(gaps)
    down = np.minimum(0.3 * gaps, rig.u(10.0, 90.0))
    work = jobs(times - gaps + down, gaps - down, rig.ragged(act, 0.01, gaps.size))
    per = (rig.total - boot.peak() - work.peak()) / rounds
    lost = changes(times, whole(rig.ragged(per, 0.1, times.size), 2 * MIB))
    return leaking(
        boot + work, lost, float(times[0]), float(times[-1]), "cyclic", "step", "gradual"
    )


def native_call(rig: Rig) -> Run:
    """A C++ extension forgets the workspace of each call; the driver maps pages of 2 MiB."""
    life = rig.life(0.25, 40.0)
    under, ready = base(rig, life)
    onset = ready + rig.u(0.0, 0.1) * life
    every = max(rig.log(0.05, 30.0), life / 20_000)
    times = np.arange(onset, onset + SPAN * life, every)
    lost = cached(changes(times, np.full(times.size, rig.room(under) * every / life)), 2 * MIB)
    return leaking(under, lost, onset, onset + SPAN * life, "gradual")


def sweep_keeps_trials(rig: Rig) -> Run:
    """A hyper-parameter sweep in one process: each trial's best weights stay in the study."""
    life = rig.life(1.0, 40.0)
    boot, ready = plain(rig, life, low=0.02, high=0.1)
    trials = rig.n(10, 60)
    lasts = rig.ragged(life / trials, 0.4, int(SPAN * trials))
    starts = ready + np.concatenate(([0.0], np.cumsum(lasts)[:-1]))
    work = rig.ragged(rig.total * rig.u(0.1, 0.3), 0.25, lasts.size)
    work = np.minimum(work, 0.45 * rig.total)
    busy = jobs(starts, lasts * rig.rng.uniform(0.85, 0.97, lasts.size), work)
    part = (rig.total - boot.peak() - float(np.median(work))) / (trials * work.mean())
    lost = changes(starts + lasts * 0.98, whole(work * part, 2 * MIB))
    onset = float((starts + lasts * 0.98)[0])
    return leaking(boot + busy, lost, onset, float(starts[-1]), "cyclic", "step", "gradual")


def notebook_outputs(rig: Rig) -> Run:
    """Cell after cell by hand: results stay in the output history, some are deleted now and then.

    Minutes between cells, longer breaks between bouts, temporaries while a cell runs.
    """
    life = rig.life(1.0, 30.0)
    boot, ready = plain(rig, life, low=0.02, high=0.2)
    cells = rig.n(25, 120)
    gaps = rig.ragged(life / cells, 0.8, int(2.2 * cells))
    gaps = np.where(rig.rng.random(gaps.size) < 0.06, 4.0 * gaps, gaps)
    times = ready + np.cumsum(gaps)
    sizes = rig.ragged(1.5 * rig.room(boot) / cells, 0.9, times.size)
    sizes = np.minimum(sizes, 0.12 * rig.total)
    deleted = rig.rng.random(times.size) < 0.15
    frees = times[deleted] + rig.rng.exponential(3.0 * life / cells, int(deleted.sum()))
    lost = changes(np.concatenate((times, frees)), np.concatenate((sizes, -sizes[deleted])))
    cell_s = np.minimum(0.7 * gaps, rig.rng.exponential(60.0, gaps.size))
    extra = jobs(times, cell_s, 0.3 * sizes)
    shown = cached(boot + lost + extra, 2 * MIB, times + cell_s)
    return leaking(
        boot, lost, float(times[0]), float(times[-1]), "step", "gradual", "cyclic", shown=shown
    )


def simulation_resets(rig: Rig) -> Run:
    """A physics simulator captured in a graph: each reset leaves the arrays of the last episode."""
    life = rig.life(0.25, 24.0)
    boot, ready = plain(rig, life, low=0.1, high=0.4)
    resets = rig.n(40, 500)
    gaps = rig.ragged(life / resets, 0.5, int(SPAN * resets))
    times = ready + np.cumsum(gaps)
    scratch = rig.total * rig.u(0.0, 0.1)
    scene = jobs(times - gaps, 0.9 * gaps, np.full(gaps.size, scratch))
    lost = changes(times, whole(np.full(times.size, (rig.room(boot) - scratch) / resets), MIB))
    return leaking(boot + scene, lost, float(times[0]), float(times[-1]), "gradual", "cyclic")


def late_stage(rig: Rig) -> Run:
    """Hours of clean training; then a stage begins that keeps a buffer per step."""
    life = rig.life(0.25, 12.0)
    under, ready = base(rig, life)
    onset = ready + rig.u(0.4, 10.0) * HOUR
    jump = rig.room(under) * rig.u(0.0, 0.15)
    every = max(rig.log(1.0, 60.0), life / 8_000)
    times = np.arange(onset, onset + SPAN * life, every)
    mean = (rig.room(under) - jump) * every / life
    lost = cached(changes(times, rig.ragged(mean, 0.3, times.size)), rig.segment)
    stage = Steps(np.array([onset - 1.0]), np.array([jump]))
    span = onset + SPAN * life
    return leaking(under + stage, lost, onset, span, "gradual")


def worker_handles(rig: Rig) -> Run:
    """Loader workers are started anew every epoch; the parent keeps the last batches' handles."""
    life = rig.life(0.5, 40.0)
    boot, ready = plain(rig, life, low=0.1, high=0.4)
    epochs = rig.n(15, 150)
    workers = rig.n(2, 12)
    period = life / epochs
    starts = ready + period * np.arange(1, int(SPAN * epochs))
    times = (starts[:, None] + rig.u(0.5, 6.0) * np.arange(workers)).ravel()
    train = rig.total * rig.u(0.02, 0.2)
    room = rig.room(boot) - train
    lost = changes(times, whole(rig.ragged(room / (epochs * workers), 0.2, times.size), 2 * MIB))
    fall = min(0.25 * period, rig.u(5.0, 60.0))
    run = jobs(starts - period + fall, np.full(starts.size, period - fall),
               np.full(starts.size, train))  # fmt: skip
    return leaking(
        boot + run, lost, float(times[0]), float(starts[-1]), "step", "gradual", "cyclic"
    )


def nightly_bursts(rig: Rig) -> Run:
    """A batch job leaks while it runs and sleeps between: bursts with long flat stretches."""
    life = rig.life(2.0, 40.0)
    under, ready = base(rig, life)
    bursts, share = rig.n(4, 10), rig.u(0.08, 0.4)
    period, per = life / bursts, rig.n(20, 200)
    starts = ready + period * (np.arange(int(SPAN * bursts)) + rig.u(0.05, 0.4))
    inside = np.sort(rig.rng.uniform(0.0, share * period, (starts.size, per)), axis=1)
    times = (starts[:, None] + inside).ravel()
    lost = cached(
        changes(times, rig.ragged(rig.room(under) / (bursts * per), 0.5, times.size)), 2 * MIB
    )
    return leaking(under, lost, float(times[0]), float(times[-1]), "step", "gradual", "cyclic")


def trimmed_in_part(rig: Rig) -> Run:
    """A store that is trimmed by the clock but keeps a share of what came in since."""
    life = rig.life(1.0, 40.0)
    under, ready = base(rig, life, high=0.3)
    rounds, keep, per = rig.n(10, 60), rig.u(0.15, 0.4), rig.n(15, 60)
    gross = rig.room(under) / (1.0 + rounds * keep)
    period = life / rounds
    trims = ready + period * np.arange(1, int(SPAN * rounds))
    inside = np.sort(rig.rng.uniform(0.0, 0.98 * period, (trims.size, per)), axis=1)
    times = (trims[:, None] - period + inside).ravel()
    sizes = rig.ragged(gross / per, 0.4, times.size)
    given = sizes.reshape(trims.size, per).sum(axis=1) * (1 - keep)
    lost = changes(np.concatenate((times, trims)), np.concatenate((sizes, -given)))
    lost = Steps(lost.t, whole(lost.y, 2 * MIB))
    return leaking(under, lost, float(times[0]), float(trims[-1]), "cyclic", "gradual")


def compositor(rig: Rig) -> Run:
    """A desktop's compositor: a closed window leaves its buffers, a woken monitor a swapchain.

    Slow while nobody is there, quicker while somebody works; applications come and go on top.
    """
    life = rig.life(3.0, 40.0)
    screen = Steps(np.array([0.0]), np.array([rig.u(200.0, 900.0) * MIB]))
    span = SPAN * life
    shift = rig.u(0.0, 2.0 * HOUR)

    def present(t: Array) -> Array:
        at_desk = ((t + shift) % (6 * HOUR)) < 4.5 * HOUR
        return np.where(at_desk, 1.0, 0.1)

    apps = rig.arrivals(rig.u(2.0, 8.0) / HOUR, 0.0, span, present)
    lasts = rig.ragged(rig.u(0.3, 1.0) * HOUR, 1.0, apps.size)
    sizes = np.minimum(rig.ragged(rig.total * 0.012, 0.9, apps.size), 0.05 * rig.total)
    under = screen + jobs(apps, lasts, sizes)
    windows = rig.arrivals(rig.log(10.0, 120.0) / HOUR, 60.0, span, present)
    wakes = rig.arrivals(0.25 / HOUR, 60.0, span)
    raw = np.concatenate((rig.ragged(1.0, 0.7, windows.size), rig.ragged(8.0, 0.2, wakes.size)))
    times = np.concatenate((windows, wakes))
    room = rig.room(under)
    sizes = whole(raw * room / (raw.sum() / SPAN), MIB / 4)
    return leaking(under, changes(times, sizes), float(times.min()), span, "gradual", "step")


def encoder_sessions(rig: Rig) -> Run:
    """Recordings start and stop; each session frees its frames but not its surfaces."""
    life = rig.life(0.5, 40.0)
    screen = Steps(np.array([0.0]), np.array([rig.u(300.0, 900.0) * MIB]))
    sessions = rig.n(25, 250)
    lines = rig.n(1, 4)
    frames = rig.total * rig.u(0.02, 0.12) / lines
    made: list[Steps] = []
    stops: list[Array] = []
    for _ in range(lines):
        gaps = rig.ragged(life * lines / sessions, 0.6, int(SPAN * sessions / lines) + 1)
        ends = 30.0 + np.cumsum(gaps)
        made.append(jobs(ends - 0.8 * gaps, 0.8 * gaps, rig.ragged(frames, 0.1, gaps.size)))
        stops.append(ends)
    under = sum(made, screen)
    times = np.sort(np.concatenate(stops))
    lost = changes(times, whole(rig.ragged(rig.room(under) / sessions, 0.15, times.size), MIB))
    names = ("gradual", "cyclic", "step")
    return leaking(under, lost, float(times[0]), float(min(s[-1] for s in stops)), *names)


def hidden_by_cache(rig: Rig) -> Run:
    """Small losses inside a caching allocator that never empties its cache.

    Steps of varying length set the mark; what is lost shows only where loss and step exceed it.
    """
    life = rig.life(0.4, 40.0)
    boot, ready = plain(rig, life, low=0.1, high=0.35)
    count = 12_000
    every = SPAN * life / count
    starts = ready + every * np.arange(count)
    work = np.minimum(rig.ragged(rig.total * rig.u(0.04, 0.12), 0.35, count), 0.3 * rig.total)
    steps = jobs(starts, np.full(count, 0.9 * every), work)
    room = rig.total - boot.peak() - float(np.quantile(work, 0.995))
    lost = changes(starts, np.full(count, room * every / life))
    shown = cached(boot + steps + lost, 20 * MIB)
    return leaking(boot, lost, ready, ready + SPAN * life, "gradual", "step", shown=shown)


def buffer_without_bound(rig: Rig) -> Run:
    """A replay buffer whose length nobody set: it fills like a bounded one and goes on.

    The simulator slows as episodes lengthen, and learning takes its batches now and then.
    """
    life = rig.life(0.4, 36.0)
    boot, ready = plain(rig, life, low=0.05, high=0.3)
    count, slower = rig.n(200, 5_000), rig.u(0.0, 0.6)
    k = np.arange(1.0, SPAN * count)
    gaps = rig.ragged(1.0, rig.u(0.0, 0.5), k.size) * (1.0 + slower * k / count)
    times = ready + np.cumsum(gaps) * life / gaps[:count].sum()
    batch, period = rig.total * rig.u(0.0, 0.1), rig.log(life / 600, life / 20)
    starts = np.arange(ready, float(times[-1]), period)
    learn = jobs(starts, np.full(starts.size, 0.35 * period), np.full(starts.size, batch))
    room = rig.room(boot) - batch
    lost = cached(changes(times, np.full(k.size, room / count)), rig.segment)
    return leaking(
        boot + learn, lost, float(times[0]), float(times[-1]), "gradual",
        *(("cyclic",) if batch > 0.02 * rig.total else ()),
    )  # fmt: skip
