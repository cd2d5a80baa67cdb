"""Leaks: programs in which something that nobody needs any more is kept, until the card is full.

A harmless part stands beside each: what the program needs, and often a size that it was told of
something that does not leak (:meth:`Machine.decoy`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.scenarios.blind_rig import GIB, HOUR, MIB, Array, Load, Steps, cached, daily, jobs, whole
from tests.scenarios.corpus.machine import MINUTE, Machine, Scene, capped, stairs
from tests.scenarios.corpus.servers import engine, pool_share, pooled

OVER = 1.3
"""How much longer it is simulated than the card should last."""


def room(m: Machine, under: Steps) -> float:
    """Return the bytes that are left to lose."""
    return 0.98 * m.total - under.peak()


def lost_at(m: Machine, times: Array, under: Steps, spread: float = 0.3) -> Steps:
    """Return a loss at each time that fills what is left at about their last but a fifth."""
    return m.tensors(m.losing(times, room(m, under), spread))


def training(
    m: Machine, low: float, high: float, low_h: float, high_h: float, over: float = 1.0
) -> tuple[Steps, float, float, float]:
    """Return a training, when it is ready, how long a leak should last, and the simulation.

    Some have batches of varying length, whose largest is kept.
    """
    under, ready = m.trained(low, high)
    life = m.life(low_h, high_h)
    span = ready + OVER * over * life
    if m.chance(0.35):
        under += m.longest(ready, span, m.total * m.u(0.01, 0.03))
    return under, ready, life, span


def service(
    m: Machine, low: float, high: float, low_h: float, high_h: float, over: float = 1.0
) -> tuple[Steps, float, float, float]:
    """Return the same of a server; some have requests that come and go."""
    under, ready = m.begin(m.total * m.u(low, high))
    life = m.life(low_h, high_h)
    span = ready + OVER * over * life
    if m.chance(0.35):
        starts = m.arrivals(min(0.1, 5000.0 / span), ready, span)
        sizes = m.ragged(m.total * 0.01, 0.6, starts.size)
        live = jobs(starts, m.ragged(30.0, 0.8, starts.size), sizes)
        under += capped(live, 0.1 * m.total)
    return under, ready, life, span


def served(
    m: Machine, low_h: float, high_h: float, share: float, rate: float, night: float
) -> tuple[Array, float, float, Load]:
    """Return the requests that lose something, onset, span and load of a leaking server."""
    onset, life = m.log(1.0, 40.0) * MINUTE, m.life(low_h, high_h)
    load = daily(m, m.u(0, 24) * HOUR, night)
    rate = min(max(rate * share, 60.0 / life), 20_000.0 / life)
    span = onset + OVER * life
    return m.arrivals(rate, onset, span, load), onset, span, load


def losses_with_their_graph(m: Machine) -> Scene:
    """The loss of each step goes into a list, with its graph."""
    under, ready, _, span = training(m, 0.2, 0.6, 0.3, 12.0)
    lost = lost_at(m, m.ticks(m.log(0.3, 5.0), ready, span), under)
    told = m.decoy()
    program = m.python("train.py", under + lost, "--log-loss", told=told, lost=lost)
    return Scene((program,), span, "gradual", util=m.busy(ready, span), told=told)


def outputs_of_validation(m: Machine) -> Scene:
    """Outputs of each validation stay in a list: one stair an epoch."""
    under, ready, life, span = training(m, 0.2, 0.55, 0.5, 20.0)
    epochs = m.ticks(life / m.n(6, 40), ready, span)
    lost = lost_at(m, epochs, under, 0.05)
    peaks = m.spikes(epochs, m.log(5.0, 60.0), m.total * m.u(0.01, 0.06))
    told = m.decoy()
    program = m.python("fit.py", under + lost + peaks, "--trainer.epochs=500", told=told, lost=lost)
    return Scene((program,), span, "step cyclic", util=m.busy(ready, span, epochs), told=told)


def prompts_in_a_dictionary(m: Machine) -> Scene:
    """Keys of every prompt are remembered; new ones are rarer with time, but never end."""
    under, ready = m.begin(m.total * m.u(0.25, 0.55))
    times, _, span, load = served(m, 1.0, 30.0, m.u(0.1, 0.6), m.log(0.05, 1.0), 0.3)
    lost = lost_at(m, times, under, 0.9)
    told = m.decoy()
    program = m.python("-m chat.api", under + lost, "--port", "8080", told=told, lost=lost)
    util = m.serving(ready, span, load)
    return Scene((program,), span, "gradual step", util=util, told=told)


def sessions_not_closed(m: Machine) -> Scene:
    """A share of the clients drops the connection, and what was kept for them stays."""
    under, ready = m.begin(m.total * m.u(0.2, 0.5))
    times, _, span, load = served(m, 2.0, 40.0, m.u(0.02, 0.2), m.log(0.02, 0.5), 0.15)
    going = m.arrivals(min(0.05, 10_000 / span), ready, span, load)
    live = jobs(going, m.ragged(120.0, 0.8, going.size), np.full(going.size, m.total * 0.004))
    live = capped(live, 0.15 * m.total)
    lost = lost_at(m, times, under, 0.5)
    told = m.tell("server", "max-connections", str(2 ** m.n(8, 12)), None)
    program = m.python("ws_server.py", under + live + lost, told=told, lost=lost)
    names = "gradual step cyclic"
    return Scene((program,), span, names, util=m.serving(ready, span, load), told=told)


def requests_by_day(m: Machine) -> Scene:
    """Every request loses a little; at night there are hardly any."""
    under, ready = m.begin(m.total * m.u(0.2, 0.6))
    times, _, span, load = served(m, 10.0, 50.0, 1.0, m.log(0.05, 2.0), 0.02)
    lost = lost_at(m, times, under)
    program = m.python("-m uvicorn app:api", under + lost, "--workers", "1", lost=lost)
    return Scene((program,), span, "gradual cyclic", util=m.serving(ready, span, load))


def frames_of_exceptions(m: Machine) -> Scene:
    """A failed step is logged with its traceback, whose frames keep the activations."""
    under, ready, life, span = training(m, 0.2, 0.5, 0.5, 24.0, 1.5)
    times = m.arrivals(m.n(8, 60) / life, ready, span)
    lost = lost_at(m, times, under, 0.4)
    program = m.python("train.py", under + lost, "--skip-bad-batches", lost=lost)
    return Scene((program,), span, "step gradual", util=m.busy(ready, span))


def reloaded_without_free(m: Machine) -> Scene:
    """A changed checkpoint is loaded, and something still refers to the old one."""
    weights = m.total * m.u(0.05, 0.2)
    under, ready = m.begin(weights)
    under += stairs(np.array([ready + 1]), m.total * m.u(0.05, 0.2))
    count = room(m, under) / weights
    period = m.life(0.5, 30.0) / count
    span = ready + OVER * period * (count + 2)
    lost = stairs(m.ticks(period, ready, span, m.u(0.01, 0.3)), weights)
    told = m.tell("server", "reload-every", f"{int(period)}s", None)
    program = m.python("serve.py", under + lost, "--watch", "/ckpt", told=told, lost=lost)
    return Scene((program,), span, "step", util=m.serving(ready, span), told=told)


def graph_for_every_length(m: Machine) -> Scene:
    """A graph is captured for each length of a prompt; popular lengths come first."""
    under, ready, life, span = service(m, 0.3, 0.6, 0.5, 16.0)
    count = m.n(100, 900)
    waits = m.rng.exponential(life * (0.05 + 1.6 * m.rng.random(count)))
    times = np.sort(ready + waits)
    times = times[times < span]
    lost = lost_at(m, times, under, 0.2)
    told = m.decoy()
    program = m.python("serve_graphs.py", under + lost, "--cuda-graphs", told=told, lost=lost)
    return Scene((program,), span, "gradual step", util=m.serving(ready, span), told=told)


def pieces_between_batches(m: Machine) -> Scene:
    """Batches of ever other length leave gaps in the segments that nothing fits into again."""
    under, ready, life, span = training(m, 0.3, 0.55, 0.5, 14.0)
    times = m.arrivals(m.n(60, 500) / life, ready, span)
    sizes = whole(m.ragged(room(m, under) / (0.8 * times.size), 0.8, times.size), 20 * MIB)
    lost = stairs(times, sizes)
    env = {"PYTORCH_CUDA_ALLOC_CONF": f"max_split_size_mb:{2 ** m.n(5, 9)}"}
    program = m.python("train_asr.py", under + lost, "--bucket-by-length", env=env, lost=lost)
    return Scene((program,), span, "gradual step", util=m.busy(ready, span))


def two_up_one_down(m: Machine) -> Scene:
    """Two buffers are taken for each job, and one of them is given back."""
    under, ready, life, span = service(m, 0.2, 0.5, 0.5, 20.0)
    period = life / m.n(15, 120)
    times = m.ticks(period, ready, span, 0.08)
    each = room(m, under) / (0.8 * times.size)
    down = jobs(times + 0.2 * period, np.full(times.size, 0.5 * period), np.full(times.size, each))
    lost = stairs(times, each)
    program = m.python("batch_infer.py", under + lost + down, "--queue", "gpu-jobs", lost=lost)
    return Scene((program,), span, "cyclic step", util=m.busy(ready, span))


def residue_of_peaks(m: Machine) -> Scene:
    """Large jobs come and go, and each leaves a little of what it took."""
    under, ready, life, span = service(m, 0.15, 0.4, 1.0, 30.0, 1.3)
    times = m.arrivals(m.n(20, 150) / life, ready, span)
    sizes = m.ragged(m.total * m.u(0.08, 0.2), 0.3, times.size)
    peaks = capped(
        jobs(times, m.ragged(0.3 * life / times.size, 0.4, times.size), sizes), 0.4 * m.total
    )
    lost = lost_at(m, times, under + capped(peaks, 0.2 * m.total), 0.4)
    program = m.python("segment_scans.py", under + peaks + lost, "--tiles", "auto", lost=lost)
    return Scene((program,), span, "cyclic step gradual", util=m.serving(ready, span))


def large_rare_handles(m: Machine) -> Scene:
    """Plans and handles of libraries are made anew for rare inputs and never destroyed."""
    under, ready, life, span = service(m, 0.2, 0.5, 3.0, 40.0, 1.5)
    lost = lost_at(m, m.arrivals(m.n(5, 16) / life, ready, span), under, 0.6)
    program = m.python("fft_service.py", under + lost, "--plan-cache", "off", lost=lost)
    return Scene((program,), span, "step", util=m.serving(ready, span))


def slow_for_days(m: Machine) -> Scene:
    """A few MiB an hour: a stream and its handle for each thread that ends."""
    under, ready, _, span = service(m, 0.55, 0.85, 30.0, 90.0)
    lost = lost_at(m, m.ticks(m.log(10.0, 900.0), ready, span, 0.3), under, 0.2)
    program = m.python("-m gunicorn -k gthread app:api", under + lost, "--threads", "8", lost=lost)
    return Scene((program,), span, "gradual", util=m.serving(ready, span))


def full_within_half_an_hour(m: Machine) -> Scene:
    """Activations of every step are kept for a picture that is drawn at the end."""
    under, ready = m.trained(0.15, 0.5)
    life = m.log(12.0, 30.0) * MINUTE
    span = ready + OVER * life
    lost = lost_at(m, m.ticks(m.log(0.2, 3.0), ready, span), under, 0.1)
    told = m.decoy()
    program = m.python("probe_layers.py", under + lost, "--save-acts", told=told, lost=lost)
    return Scene((program,), span, "gradual", util=m.busy(ready, span), told=told)


def begins_after_hours(m: Machine) -> Scene:
    """Fine for hours; then a phase begins that keeps its targets."""
    under, ready, life, _ = training(m, 0.25, 0.6, 0.5, 10.0)
    onset = ready + m.log(1.5, 9.0) * HOUR
    span = onset + OVER * life
    lost = lost_at(m, m.ticks(m.log(0.5, 30.0), onset, span), under)
    told = m.tell("schedule", "distill-after-steps", str(1000 * m.n(1, 90)), None)
    program = m.python("pretrain.py", under + lost, "--ema", told=told, lost=lost)
    return Scene((program,), span, "gradual", util=m.busy(ready, span), told=told)


def one_of_many_tenants(m: Machine) -> Scene:
    """Three to thirty processes on one card, and one of them leaks."""
    under, ready, life, _ = service(m, 0.05, 0.15, 0.7, 18.0)
    onset, count, programs = ready + m.u(0.0, 1.0) * HOUR, m.n(3, 30), []
    span = onset + OVER * life
    for _ in range(count - 1):
        at, lasts = m.u(-3.0, 0.7) * HOUR, m.log(0.3, 40.0) * HOUR
        size = m.total * m.u(0.2, 0.6) / count
        held = stairs(at + np.array([0.5, 4.0]), size * np.array([0.4, 0.6]))
        script = ("train.py", "eval.py", "-m ipykernel_launcher")[m.n(0, 2)]
        programs.append(m.python(script, held, begin_s=at, end_s=at + lasts))
    lost = lost_at(m, m.ticks(m.log(0.5, 20.0), onset, span), under)
    programs.append(m.python("thesis_model.py", under + lost, "--final", lost=lost))
    return Scene(programs, span, "gradual", util=m.serving(10, span))


def after_the_fork(m: Machine) -> Scene:
    """A server forks workers; only a worker leaks, its parent holds its context."""
    parent, ready, life, _ = service(m, 0.05, 0.2, 0.5, 16.0)
    at = ready + m.u(5, 900)
    span = at + OVER * life
    base = stairs(at + np.array([0.2, 3.0]), m.total * m.u(0.1, 0.3) * np.array([0.3, 0.7]))
    lost = lost_at(m, m.ticks(m.log(0.5, 10.0), at + 5, span), parent + base)
    first = m.python("serve_fork.py", parent, "--preload")
    child = replace(first, held=base + lost, lost=lost, begin_s=at)
    return Scene((first, child), span, "gradual", util=m.serving(ready, span))


def workers_never_ended(m: Machine) -> Scene:
    """Each epoch starts workers with contexts, and those of the last one are not joined."""
    base, ready = m.trained(0.2, 0.5)
    each, count = m.u(300, 700) * MIB, m.n(1, 4)
    epochs = int(room(m, base) / (each * count)) + 3
    period = m.life(0.6, 16.0) / epochs
    span = ready + OVER * period * epochs
    starts = np.repeat(m.ticks(period, ready, span, 0.1), count)
    starts = np.sort(starts + m.rng.uniform(0.0, 3.0, starts.size))
    programs = [m.python("train.py", base, "--spawn-workers", str(count))]
    command = "python train.py --multiprocessing-fork"
    for at in starts.tolist():
        held = stairs(np.array([at, at + 1.0]), np.array([0.7, 0.3]) * each)
        programs.append(m.start(command, held, begin_s=at, framework="PyTorch"))
    left = stairs(starts, each)
    return Scene(programs, span, "step gradual", util=m.busy(ready, span), left=left)


def nobody_owns_it(m: Machine) -> Scene:
    """Workers are killed and started anew; what they held stays, and no process is listed."""
    base, ready = m.begin(m.total * m.u(0.15, 0.4))
    life = m.life(0.7, 20.0)
    span = ready + OVER * 1.3 * life
    deaths = m.ticks(life / m.n(6, 40), ready, span, 0.3)
    size = m.total * m.u(0.02, 0.06)
    held = base + stairs(np.array([ready + 1]), size)
    lost = m.losing(deaths, room(m, held), 0.2)
    program = m.python("elastic_agent.py", held, "--max-restarts", "100")
    return Scene((program,), span, "step gradual", loose=lost, left=lost, util=m.serving(10, span))


def history_concatenated(m: Machine) -> Scene:
    """All steps so far are concatenated again and again, and each result is kept."""
    under, ready, _, span = training(m, 0.15, 0.5, 0.4, 10.0)
    times = m.ticks(m.log(0.5, 20.0), ready, span)
    part = (np.arange(times.size) + 1.0) / (0.8 * times.size)
    lost = m.tensors(Steps(times, room(m, under) * part**2))
    program = m.python("rollout_memory.py", under + lost, "--context", "all", lost=lost)
    return Scene((program,), span, "gradual", util=m.busy(ready, span))


def buffer_larger_than_the_card(m: Machine) -> Scene:
    """A replay buffer of a size that was never going to fit: it fills until there is no room."""
    under, ready, _, span = training(m, 0.1, 0.3, 0.4, 10.0)
    count = int(m.u(1.1, 3.0) * m.total / 56_448 / 10_000) * 10_000
    lost = lost_at(m, m.ticks(m.log(0.5, 4.0), ready, span), under, 0.05)
    size = 56_448.0 * count
    told = m.tell("buffer", "replay-size", str(count), size, also={"obs-shape": "84x84x4"})
    program = m.python("dqn.py", under + lost, told=told, lost=lost, bound=size)
    return Scene((program,), span, "gradual", util=m.busy(ready, span), told=told)


def adapters_without_limit(m: Machine) -> Scene:
    """An adapter is loaded for each new customer and never unloaded."""
    model, weights = m.model(0.2, 0.55)
    under, ready = m.begin(weights)
    times, _, span, load = served(m, 1.0, 40.0, 1.0, m.log(0.002, 0.02), 0.2)
    lost = lost_at(m, times, under, 0.4)
    told = m.tell("lora", "max-lora-rank", "64", None)
    program = m.python("multi_lora.py", under + lost, "--model", model, told=told, lost=lost)
    return Scene((program,), span, "step gradual", util=m.serving(ready, span, load), told=told)


def groups_added_again(m: Machine) -> Scene:
    """A callback adds parameters to the optimizer once more in each epoch, with their moments."""
    under, ready, life, span = training(m, 0.2, 0.6, 0.5, 24.0)
    epochs = m.ticks(life / m.n(5, 30), ready, span, 0.01)
    lost = lost_at(m, epochs, under, 0.01)
    program = m.python("train.py", under + lost, "--unfreeze-callback", lost=lost)
    return Scene((program,), span, "step", util=m.busy(ready, span, epochs))


def cells_run_again(m: Machine) -> Scene:
    """A notebook keeps each output; cells are run again by hand, not at night."""
    under, ready = m.begin(m.total * m.u(0.1, 0.4))
    times, _, span, load = served(m, 1.0, 20.0, 1.0, m.log(0.002, 0.02), 0.05)
    lost = lost_at(m, times, under, 0.8)
    file = "/home/bo/.local/share/jupyter/runtime/kernel-4f1d.json"
    program = m.python("-m ipykernel_launcher", under + lost, "-f", file, lost=lost)
    return Scene((program,), span, "step gradual", util=m.serving(ready, span, load))


def trials_in_one_process(m: Machine) -> Scene:
    """A sweep within one process: the study remembers every model."""
    under, ready = m.begin(m.total * 0.05)
    life = m.life(0.5, 16.0)
    trials = m.n(8, 60)
    span = ready + OVER * life
    times = np.append(ready + 1.0, m.ticks(life / trials, ready + 1.0, span, 0.25))
    works = jobs(
        times,
        np.diff(times, append=times[-1] + 60) * 0.9,
        m.ragged(m.total * m.u(0.05, 0.2), 0.3, times.size),
    )
    lost = lost_at(m, times[1:], under, 0.5)
    told = m.tell("study", "n-trials", str(2 * trials), None)
    program = m.python("tune.py", under + works + lost, told=told, lost=lost)
    return Scene((program,), span, "step cyclic", util=m.busy(ready, span, times[1:]), told=told)


def all_ranks_alike(m: Machine) -> Scene:
    """Two to eight ranks on one card keep something in every step."""
    count, life = m.ranks(2), m.life(0.4, 14.0)
    ready, span = 60.0, 60.0 + OVER * life
    share = m.u(0.3, 0.6) / count
    each = (0.98 - 1.05 * share * count) * m.total / count
    period, programs = m.log(0.5, 5.0), []
    for rank in range(count):
        base, _ = m.trained(share, share)
        lost = m.tensors(m.losing(m.ticks(period, ready, span), each, 0.05))
        env = {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        program = m.start("python -u train_fsdp.py", base + lost, lost=lost, env=env)
        programs.append(replace(program, framework="PyTorch"))
    return Scene(programs, span, "gradual", util=m.busy(ready, span))


def beside_the_pool(m: Machine) -> Scene:
    """The pool of a model server is flat; what encodes pictures for it keeps them."""
    share, told = pool_share(m, "gpu-memory-utilization", 0.9)
    model, weights = m.model(0.1, 0.4)
    under, ready = pooled(m, share, weights)
    times, _, span, load = served(m, 1.0, 30.0, m.u(0.2, 1.0), m.log(0.02, 0.5), 0.3)
    lost = lost_at(m, times[times > ready], under, 0.6)
    program = engine(m, under + lost, model, told, lost=lost)
    util = m.serving(ready, span, load)
    return Scene((program,), span, "gradual step cyclic", util=util, told=told)


def streams_that_failed(m: Machine) -> Scene:
    """A transcoder does not close the decoder of a stream that broke off."""
    under = stairs(np.array([1.0]), m.u(300, 900) * MIB)
    times, _, span, load = served(m, 2.0, 40.0, m.u(0.05, 0.3), m.log(0.005, 0.1), 0.3)
    going = m.arrivals(min(0.02, 8000 / span), 2.0, span, load)
    each = m.u(60, 250) * MIB
    live = capped(
        jobs(going, m.ragged(600.0, 0.7, going.size), np.full(going.size, each)), 0.3 * m.total
    )
    lost = lost_at(m, times, under, 0.1)
    told = m.tell("decoder", "max-sessions", str(m.n(16, 64)), 0.3 * m.total, plain=True)
    program = m.start("transcoded", under + live + lost, told=told, lost=lost)
    names = "gradual step cyclic"
    return Scene((program,), span, names, util=m.serving(5, span, load), told=told)


def actors_of_old_episodes(m: Machine) -> Scene:
    """A simulator builds its actors anew for each episode and leaves the old ones."""
    under, ready, life, span = service(m, 0.2, 0.5, 0.4, 12.0)
    episodes = m.ticks(life / m.n(40, 800), ready, span, 0.2)
    lost = lost_at(m, episodes, under, 0.2)
    told = m.tell("env", "num-envs", str(2 ** m.n(8, 12)), None)
    program = m.python("play_sim.py", under + lost, "task=Franka", told=told, lost=lost)
    return Scene((program,), span, "gradual step", util=m.busy(ready, span), told=told)


def compiled_again_and_again(m: Machine) -> Scene:
    """The limit of recompilations was raised, and every new length is compiled."""
    under, ready, life, span = training(m, 0.3, 0.6, 0.5, 16.0, 1.3)
    times = m.arrivals(m.n(30, 300) / life, ready, span)
    tuned = m.spikes(times, 8.0, m.total * m.u(0.005, 0.03))
    lost = lost_at(m, times, under, 0.3)
    told = m.tell("compile", "recompile-limit", "100000", None)
    program = m.python("train.py", under + lost + tuned, "--compile", told=told, lost=lost)
    return Scene((program,), span, "step gradual cyclic", util=m.busy(ready, span), told=told)


def runners_left_over(m: Machine) -> Scene:
    """A runner is told to stop, does not, and holds its model while the next one starts."""
    size = m.total * m.u(0.06, 0.2)
    count = int(0.97 * m.total / size) + 3
    starts = np.cumsum(m.ragged(m.life(1.0, 30.0) / count, 0.6, 3 * count))
    command, programs = "/usr/lib/ollama/llama-server --model /models/blobs/sha256-6a0746a1", []
    for at in starts.tolist():
        base, _ = m.begin(size)
        held = Steps(base.t + at, base.y)
        programs.append(m.start(command, held, begin_s=at, framework="Ollama"))
    left = stairs(starts[1:], size)
    return Scene(programs, float(starts[-1]), "step", left=left, util=m.serving(10, starts[-1]))


def tables_appended(m: Machine) -> Scene:
    """Each hour's table is appended to the last, and the parts are kept for a later join."""
    under = stairs(np.array([2.0, 4.0]), np.array([400 * MIB, m.total * m.u(0.1, 0.3)]))
    life = m.life(0.5, 24.0)
    span = 5.0 + OVER * life
    times = m.ticks(life / m.n(10, 80), 5.0, span, 0.1)
    part = (np.arange(times.size) + 1.0) / (0.8 * times.size)
    lost = Steps(times, whole(room(m, under) * part ** m.u(1.0, 1.6), 256.0))
    works = m.spikes(times, 0.2 * life / times.size, m.total * m.u(0.01, 0.04))
    pool = max(1, int(m.total / GIB / 8))
    told = m.tell("rmm", "rmm-pool-size", f"{pool}GB", pool * GIB)
    program = m.python(
        "rolling_join.py", under + lost + works, told=told, lost=lost, framework=None
    )
    return Scene((program,), span, "step gradual cyclic", util=m.busy(5, span), told=told)


def copies_for_slow_storage(m: Machine) -> Scene:
    """Checkpoints are copied on the card and written behind; then the storage becomes slow."""
    under, ready = m.trained(0.2, 0.5)
    copy = m.total * m.u(0.02, 0.08)
    period = m.log(1.0, 20.0) * MINUTE
    onset = ready + m.log(0.5, 8.0) * HOUR
    count = int(room(m, under) / copy) + 3
    span = onset + OVER * 2.0 * period * count
    fine = m.spikes(m.ticks(period, ready, span, 0.02), m.u(5, 40), copy)
    lost = lost_at(m, m.ticks(2.0 * period, onset, span, 0.1), under + fine, 0.02)
    program = m.python("train.py", under + fine + lost, "--async-checkpoint", lost=lost)
    return Scene((program,), span, "step cyclic", util=m.busy(ready, span))


def cache_emptied_too_rarely(m: Machine) -> Scene:
    """The cache is emptied every hour, which hides for a while that tensors are kept below."""
    under, ready, life, span = training(m, 0.2, 0.45, 2.0, 24.0)
    lost = lost_at(m, m.ticks(m.log(1.0, 30.0), ready, span), under)
    peaks = m.spikes(m.arrivals(30.0 / life, ready, span), 60.0, m.total * m.u(0.03, 0.08))
    held = cached(under + lost + peaks, 20 * MIB, m.ticks(life / m.n(8, 30), ready, span))
    program = m.python("train_rl.py", held, "--empty-cache-every", "1000", lost=lost)
    return Scene((program,), span, "gradual cyclic step", util=m.busy(ready, span))
