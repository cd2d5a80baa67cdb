"""Inference servers, leaking and harmless: requests, sessions, adapters, replicas, the day."""

from __future__ import annotations

import numpy as np

from tests.scenarios.blind_benign import LATEST
from tests.scenarios.blind_leaks import SPAN, base, plain
from tests.scenarios.blind_rig import (
    HOUR,
    MIB,
    Rig,
    Run,
    Steps,
    cached,
    changes,
    daily,
    doubling,
    harmless,
    jobs,
    leaking,
    whole,
)


def request_by_day(rig: Rig) -> Run:
    """A little is lost with every request, and requests follow the day."""
    life = rig.life(3.0, 40.0)
    under, ready = base(rig, life)
    load = daily(rig, rig.u(0.0, 24.0) * HOUR, rig.u(0.05, 0.4))
    times = rig.arrivals(25_000 / (SPAN * life), ready, ready + SPAN * life, load)
    by_life = max(int(np.searchsorted(times, ready + life)), 50)
    sizes = rig.ragged(rig.room(under) / by_life, rig.u(0.1, 1.2), times.size)
    lost = cached(changes(times, sizes), rig.segment)
    return leaking(under, lost, float(times[0]), ready + SPAN * life, "gradual")


def sessions_not_closed(rig: Rig) -> Run:
    """Chats hold their cache while they last; of some whose client vanished it is never freed."""
    life = rig.life(0.5, 40.0)
    boot, ready = plain(rig, life, low=0.15, high=0.45)
    span = ready + SPAN * life
    live, lasts = rig.u(4.0, 25.0), max(life * rig.log(0.003, 0.06), 20.0)
    starts = rig.arrivals(min(live / lasts, 20_000 / (SPAN * life)), ready, span)
    share = max(rig.u(0.02, 0.2), 20 * SPAN / starts.size)
    vanish = rig.rng.random(starts.size) < share
    per = rig.total * rig.u(0.05, 0.2) / live
    sizes = rig.ragged(per, 0.7, starts.size)
    stays = rig.rng.exponential(lasts, starts.size)
    chats = jobs(starts, stays, sizes)
    # Who comes when the server is full waits outside.
    chats = Steps(chats.t, np.minimum(chats.y, 0.45 * rig.room(boot)))
    room = rig.room(boot + chats)
    meant = room / max(starts.size * share / SPAN, 1.0)
    stops = starts[vanish] + stays[vanish]
    lost = changes(stops, whole(sizes[vanish] * meant / per, MIB))
    return leaking(boot + chats, lost, float(stops.min()), span, "gradual", "cyclic", "step")


def models_swapped(rig: Rig) -> Run:
    """Each deployment loads the new model beside the old one, of which a part stays."""
    life = rig.life(1.0, 40.0)
    boot, ready = plain(rig, life, low=0.1, high=0.3)
    swaps = rig.n(6, 40)
    gaps = rig.ragged(life / swaps, 0.5, int(SPAN * swaps) + 2)
    times = ready + np.cumsum(gaps)
    model = rig.total * rig.u(0.05, 0.2)
    both = jobs(times, np.minimum(0.3 * gaps, rig.u(10.0, 120.0)), np.full(times.size, model))
    room = rig.total - boot.peak() - model
    lost = changes(times, whole(rig.ragged(room / swaps, 0.15, times.size), 2 * MIB))
    return leaking(boot + both, lost, float(times[0]), float(times[-1]), "step", "gradual")


def adapters_pile_up(rig: Rig) -> Run:
    """Adapters are loaded for the tenant that asks and never unloaded; tenants keep joining."""
    life = rig.life(0.5, 40.0)
    under, ready = base(rig, life)
    count = rig.n(25, 200)
    span = ready + SPAN * life
    # Known tenants first: their adapters come in the first part of the life, new ones all along.
    known = rig.first_asked(count // 4, 0.15 * life, ready, span)
    new = rig.arrivals(0.75 * count / life, ready, span)
    times = np.sort(np.concatenate((known, new)))
    ranks = 2.0 ** rig.rng.integers(0, 4, times.size)
    sizes = ranks / ranks.mean() * rig.room(under) / count
    lost = changes(times, whole(sizes, 2 * MIB))
    return leaking(under, lost, float(times[0]), span, "gradual", "step")


def replicas_left_behind(rig: Rig) -> Run:
    """Replicas are started for the peaks and stopped after; some clients of a stopped one stay."""
    life = rig.life(2.0, 40.0)
    boot, ready = plain(rig, life, low=0.05, high=0.25)
    waves = rig.n(10, 60)
    gaps = rig.ragged(life / waves, 0.3, int(SPAN * waves) + 2)
    starts = ready + np.cumsum(gaps)
    each = rig.room(boot) * rig.u(0.05, 0.15)
    count = rig.rng.integers(1, 4, starts.size)
    lasts = gaps * rig.rng.uniform(0.3, 0.8, starts.size)
    up = jobs(starts, lasts, each * count)
    room = rig.room(boot) - 2.0 * each
    lost = changes(starts + lasts, whole(rig.ragged(room / waves, 0.4, starts.size), 2 * MIB))
    onset = float((starts + lasts).min())
    return leaking(boot + up, lost, onset, float(starts[-1]), "cyclic", "gradual", "step")


def prompts_never_evicted(rig: Rig) -> Run:
    """A cache of prompts keyed by text: repeated prompts hit, every new one stays for good."""
    life = rig.life(0.3, 30.0)
    under, ready = base(rig, life)
    count = 12_000
    times = np.sort(rig.rng.uniform(ready, ready + SPAN * life, count))
    # Templates fill first; after them a share of the prompts is unique.
    unique = rig.u(0.1, 0.6)
    rank = np.minimum(rig.rng.zipf(1.3, count), 10**9)
    kinds = rig.n(20, 300)
    template = (rig.rng.random(count) > unique) & (rank <= kinds)
    seen = np.zeros(count, dtype=bool)
    first = np.unique(rank[template], return_index=True)[1]
    seen[np.flatnonzero(template)[first]] = True
    fresh = ~template | seen
    sizes = np.where(fresh, rig.ragged(1.0, 0.8, count), 0.0)
    scale = rig.room(under) / sizes[: int(count / SPAN)].sum()
    lost = cached(changes(times, sizes * scale), 2 * MIB)
    return leaking(under, lost, float(times[0]), ready + SPAN * life, "gradual")


def paged_pool(rig: Rig) -> Run:
    """A server that takes a fixed share of the card for pages, captures its graphs, and serves.

    The longest prompts raise the activation mark a few times, in the first part of the record.
    """
    span, boot, ready = rig.loaded_day(0.15, 0.6)
    target = rig.total * rig.u(0.75, 0.92)
    pool = changes(np.array([ready + 20.0]), np.array([max(target - boot.peak(), 0.0)]))
    graphs = rig.n(8, 35)
    times = ready + 25.0 + np.cumsum(rig.rng.exponential(0.6, graphs))
    captured = changes(times, np.full(graphs, 0.02 * rig.total / graphs))
    longer = rig.first_asked(rig.n(1, 6), 0.15 * span, ready + 60.0, LATEST * span)
    marks = changes(longer, np.full(longer.size, 0.003 * rig.total))
    used = boot + pool + captured + marks
    return harmless(used, used, span, "preallocated", "stable", "plateau")


def replicas_by_day(rig: Rig) -> Run:
    """Replicas follow the load of the day; the peak and a fall after it lie inside the record."""
    span = rig.u(10.0, 24.0) * HOUR
    boot, ready = rig.boot(rig.total * rig.u(0.03, 0.12))
    load = daily(rig, rig.u(0.3, 0.6) * span, rig.u(0.0, 0.2))
    most = rig.n(2, 8)
    each = rig.total * rig.u(0.3, 0.75) / most
    t = np.arange(ready, span, rig.u(30.0, 300.0))
    noisy = load(t) + rig.rng.normal(0.0, rig.u(0.01, 0.06), t.size)
    # The autoscaler looks at the mean of its last few minutes.
    kernel = np.ones(8) / 8
    seen = np.convolve(np.pad(noisy, (7, 0), mode="edge"), kernel, mode="valid")
    count = np.clip(np.ceil(seen * most), 1, most)
    return harmless(
        boot + Steps(t, count * each), boot, span,
        "sawtooth", "unknown", "plateau", "stable", "spike",
    )  # fmt: skip


def image_resolutions(rig: Rig) -> Run:
    """An image server: every resolution once asked for keeps its workspace; the menu is finite.

    Decoding a batch comes on top for seconds.
    """
    span, boot, ready = rig.loaded_day(0.15, 0.45)
    menu = rig.n(5, 40)
    times = rig.first_asked(menu, span * rig.u(0.03, 0.3), ready, LATEST * span)
    pixels = rig.rng.choice([0.25, 0.5, 0.75, 1.0, 1.5, 2.0], times.size)
    sizes = whole(pixels * rig.total * rig.u(0.05, 0.25) / menu, 20 * MIB)
    keep = boot + changes(times, np.minimum(sizes, 0.3 * rig.total / menu + 20 * MIB))
    asks = rig.arrivals(min(rig.log(0.005, 0.3), 15_000 / span), ready, span)
    decode = jobs(asks, rig.u(0.5, 2.0) * np.ones(asks.size),
                  rig.ragged(0.015 * rig.total, 0.3, asks.size))  # fmt: skip
    decode = Steps(decode.t, np.minimum(decode.y, 0.1 * rig.total))
    return harmless(keep + decode, keep, span, "plateau", "stable")


def arena_by_doubling(rig: Rig) -> Run:
    """An embeddings service: the arena takes the next power of two when a longer text comes.

    Text length is limited, and the longest text comes in the first part of the record.
    """
    span, boot, ready = rig.loaded_day(0.03, 0.15)
    asks = rig.arrivals(8_000 / span, ready, span)
    longest = rig.total * rig.u(0.05, 0.3)
    need = np.minimum(rig.ragged(0.06, rig.u(0.8, 1.4), asks.size), 1.0) * longest
    at = rig.u(0.02, LATEST) * span
    need[min(int(np.searchsorted(asks, at)), asks.size - 1)] = longest
    used = boot + doubling(Steps(asks, need), rig.log(1.0, 64.0) * MIB)
    return harmless(used, used, span, "plateau", "stable")


def sessions_with_limit(rig: Rig) -> Run:
    """Chat sessions keep their cache until idle for long or pushed out: fills, then stays full."""
    span, boot, ready = rig.loaded_day(0.15, 0.45)
    places = rig.n(10, 120)
    pool = rig.total * rig.u(0.15, 0.45)
    fill = rig.u(0.05, 0.5) * span
    starts = rig.arrivals(places / fill, ready, span)
    gone = starts + rig.ragged(2.5 * fill, 0.6, starts.size)
    # Least recently opened goes first when every place is taken.
    pushed = np.append(starts[places:], np.full(min(places, starts.size), 2.0 * span))
    lasts = np.maximum(np.minimum(gone, pushed) - starts, 1.0)
    live = jobs(starts, lasts, rig.ragged(pool / places, 0.3, starts.size))
    live = Steps(live.t, whole(live.y, 2 * MIB))
    return harmless(boot + live, boot, span, "plateau", "stable", "sawtooth")


def adapters_with_limit(rig: Rig) -> Run:
    """Adapters are loaded on demand into a fixed number of slots, then swapped in place."""
    span, boot, ready = rig.loaded_day(0.2, 0.5)
    slots = rig.n(4, 64)
    gaps = rig.rng.exponential(1.0, slots)
    full = rig.u(0.03, 0.7) * span
    times = ready + np.cumsum(gaps) / gaps.sum() * (full - ready)
    size = rig.total * rig.u(0.05, 0.35) / slots
    keep = boot + changes(times, np.full(slots, size))
    swaps = rig.arrivals(rig.u(1.0, 30.0) / HOUR, full, span)
    staging = jobs(swaps, np.full(swaps.size, rig.u(0.5, 5.0)), np.full(swaps.size, size))
    return harmless(keep + staging, keep, span, "plateau", "stable")


def models_kept_alive(rig: Rig) -> Run:
    """A home server loads the model that is asked for and drops it when it idles for minutes."""
    span = rig.day()
    screen = Steps(np.zeros(1), np.array([rig.u(5.0, 400.0) * MIB]))
    models = rig.total * rig.rng.uniform(0.08, 0.28, rig.n(1, 3))
    used = screen
    for size in models.tolist():
        asks = rig.arrivals(rig.u(0.5, 6.0) / HOUR, 30.0, 0.98 * span)
        alive = np.full(asks.size, rig.u(3.0, 20.0) * 60.0)
        loaded = jobs(asks, alive, np.ones(asks.size))
        used = used + Steps(loaded.t, np.minimum(np.round(loaded.y), 1.0) * size)
        context = rig.ragged(0.02 * rig.total, 0.5, asks.size)
        used = used + jobs(asks, rig.rng.uniform(5.0, 90.0, asks.size), context)
    used = Steps(used.t, np.minimum(used.y, 0.95 * rig.total))
    return harmless(used, screen, span, "sawtooth", "spike", "unknown", "stable", "plateau")


def draft_model_joins(rig: Rig) -> Run:
    """Speculative decoding is switched on in flight: a draft model and its cache, in one step."""
    span = rig.day()
    boot, _ = rig.boot(rig.total * rig.u(0.3, 0.65))
    at = rig.u(0.05, 0.7) * span
    parts = rig.total * np.array([rig.u(0.02, 0.1), rig.u(0.02, 0.1), 0.01])
    keep = boot + changes(at + np.array([0.0, 6.0, 20.0]), parts)
    return harmless(keep, keep, span, "plateau", "stable", "preallocated")


def batch_at_night(rig: Rig) -> Run:
    """Nothing but a context all day; one or two batch jobs that load, work and leave."""
    span = rig.u(8.0, 24.0) * HOUR
    quiet = Steps(np.zeros(1), np.array([rig.u(5.0, 600.0) * MIB]))
    starts = np.sort(rig.rng.uniform(0.05, 0.6, rig.n(1, 2))) * span
    used = quiet
    for start in starts.tolist():
        lasts = rig.u(0.04, 0.2) * span
        files = rig.n(5, 80)
        opens = np.sort(rig.rng.uniform(start, start + 0.7 * lasts, files))
        sizes = rig.ragged(rig.total * rig.u(0.05, 0.2) / files, 0.5, files)
        used = used + jobs(opens, start + lasts - opens, sizes)
        model = np.array([rig.total * rig.u(0.05, 0.2)])
        used = used + jobs(np.array([start]), np.array([lasts]), model)
    return harmless(used, quiet, span, "spike", "plateau", "unknown", "sawtooth", "stable")


def shared_by_clients(rig: Rig) -> Run:
    """One daemon, several clients of different size that come and go; places are limited."""
    span = rig.day()
    boot, ready = rig.boot(30.0 * MIB)
    used = boot
    places = rig.n(2, 6)
    for _ in range(places):
        works, rests = rig.log(120.0, 2.5 * HOUR), rig.log(60.0, 1.5 * HOUR)
        count = int(1.5 * span / (works + rests)) + 2
        on, off = rig.rng.exponential(works, count), rig.rng.exponential(rests, count)
        starts = ready + np.cumsum(on + off) - on
        inside = starts < 0.97 * span
        size = np.minimum(rig.ragged(0.5 / places, 0.5, count), 0.85 / places) * rig.total
        used = used + jobs(starts[inside], on[inside], size[inside])
    return harmless(used, boot, span, "unknown", "sawtooth", "stable", "spike", "plateau")


def prefixes_with_eviction(rig: Rig) -> Run:
    """A prefix cache beside the pool: grows with new prompts up to its budget, then evicts."""
    span, boot, ready = rig.loaded_day(0.15, 0.45)
    budget = rig.total * rig.u(0.1, 0.4)
    fill = rig.u(0.05, 0.68) * span
    count = rig.n(200, 4_000)
    times = rig.arrivals(count / fill, ready, span)
    sizes = rig.ragged(1.0, 0.9, times.size)
    stored = np.cumsum(sizes) * budget / sizes[times < fill].sum()
    # Evicted in small batches just before the budget is reached.
    batch = rig.u(0.005, 0.06) * budget
    level = np.where(stored < budget, stored, budget - (stored - budget) % batch)
    used = boot + Steps(times, whole(level, 2 * MIB))
    keep = boot + Steps(times, np.minimum(stored, budget - batch))
    return harmless(used, keep, span, "plateau", "sawtooth", "stable")


LEAKS = (
    request_by_day, sessions_not_closed, models_swapped, adapters_pile_up, replicas_left_behind,
    prompts_never_evicted,
)  # fmt: skip
BENIGN = (
    paged_pool, replicas_by_day, image_resolutions, arena_by_doubling, sessions_with_limit,
    adapters_with_limit, models_kept_alive, draft_model_joins, batch_at_night, shared_by_clients,
    prefixes_with_eviction,
)  # fmt: skip
