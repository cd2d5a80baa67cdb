"""Harmless batch jobs: training, evaluation, tables, simulation, rendering.

Most take what they need within the first steps, as real jobs do; those of ``HARD`` fill something
for a long time, and only what is known beside the curve says where that ends.
"""

from __future__ import annotations

import numpy as np

from tests.scenarios.blind_rig import GIB, HOUR, MIB, Steps, cached, doubling, jobs, whole
from tests.scenarios.corpus.machine import MINUTE, Machine, Program, Scene, capped, stairs, written


def finetune_fixed_length(m: Machine) -> Scene:
    """Every batch is padded to one length; the first evaluation takes a little more, once."""
    span = m.lasting()
    base, ready = m.trained(0.3, 0.85)
    epochs = m.ticks(m.log(0.05, 0.5) * span, ready, span)
    more = stairs(epochs[:1] + 20.0, m.total * m.u(0.005, 0.06))
    told = m.tell("trainer", "max-seq-length", str(2 ** m.n(8, 12)), None)
    program = m.python("finetune.py", base + more, "--bf16", "--gradient-checkpointing", told=told)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span, epochs), told=told)


def finetune_varying_length(m: Machine) -> Scene:
    """Batches are as long as their longest text: few large records, at no regular time."""
    span = m.lasting()
    base, ready = m.trained(0.25, 0.45)
    records = m.longest(ready, span, m.total * m.u(0.04, 0.09))
    program = m.python("train_sft.py", base + records, "--dynamic-padding", "--lr", "2e-5")
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span))


def detection_multi_scale(m: Machine) -> Scene:
    """An object detector that draws another image size now and then, and tries cuDNN algorithms."""
    span = m.lasting()
    base, ready = m.trained(0.2, 0.4)
    sizes = m.first_asked(m.n(6, 14), m.log(20.0, 600.0), ready, span)
    taken = stairs(sizes, m.ragged(m.total * m.u(0.1, 0.3) / sizes.size, 0.9, sizes.size))
    tries = m.spikes(sizes, 3.0, m.total * m.u(0.02, 0.1))
    program = m.python("train.py", base + taken + tries, "--img", "640", "--multi-scale")
    return Scene((program,), span, "plateau stable spike", util=m.busy(ready, span))


def evaluation_each_epoch(m: Machine) -> Scene:
    """An evaluation with larger batches after each epoch, whose cache is emptied behind it."""
    span = m.lasting()
    base, ready = m.trained(0.3, 0.6)
    epochs = m.ticks(span / m.n(4, 60), ready, span)
    lasts = m.log(20.0, 400.0)
    peaks = m.spikes(epochs, lasts, m.total * m.u(0.08, 0.25))
    program = m.python("main.py", base + peaks, "--epochs", str(epochs.size), "--eval-batch", "256")
    return Scene((program,), span, "sawtooth spike stable", util=m.busy(ready, span, epochs))


def distributed_ranks(m: Machine) -> Scene:
    """One to eight ranks of a job on this card; NCCL takes its buffers at the first reduction."""
    span, count = m.lasting(), m.ranks(1)
    share, programs = m.u(0.5, 0.9) / count, []
    for rank in range(count):
        base, ready = m.trained(0.85 * share, 0.9 * share)
        nccl = stairs(np.array([ready + m.u(1, 6)]), m.u(0.2, 0.9) * 0.1 * share * m.total)
        env = {
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(max(2, count)),
            "NCCL_BUFFSIZE": "4194304",
        }
        command = "/usr/bin/python3 -u train_ddp.py --batch-size 32"
        programs.append(m.start(command, base + nccl, env=env, framework="PyTorch"))
    return Scene(programs, span, "plateau stable", util=m.busy(20.0, span))


def sweep_of_trials(m: Machine) -> Scene:
    """A sweep starts one process for each trial; sizes differ, and each gives all back."""
    span, mean = m.lasting(), m.log(4.0, 60.0) * MINUTE
    programs: list[Program] = []
    at = m.u(0, 20)
    while at < span and len(programs) < 120:
        end = at + float(m.ragged(mean, 0.5, 1)[0]) + MINUTE
        base, _ = m.trained(0.15, 0.8)
        words = ("--trial", str(len(programs)), "--lr", f"{m.log(1e-5, 1e-2):.2g}")
        held = Steps(base.t + at, base.y)
        programs.append(m.python("trial.py", held, *words, begin_s=at, end_s=end))
        at = end + m.u(2, 30)
    return Scene(programs, span, "sawtooth stable spike plateau", util=m.busy(10.0, span))


def workers_with_contexts(m: Machine) -> Scene:
    """Loader workers that touch the card, started anew in each epoch (no persistent workers)."""
    span, count = m.log(1.0, 8.0) * HOUR, m.n(2, 6)
    base, ready = m.trained(0.3, 0.6)
    epochs = np.append(ready, m.ticks(span / m.n(3, 15), ready, span))
    each = min(m.u(250, 600) * MIB, 0.3 * m.total / count)
    programs = [m.python("train.py", base, "--workers", str(count))]
    for start, end in zip(epochs, np.append(epochs[1:], span + 1e5) - m.u(1, 9), strict=True):
        for _ in range(count):
            at = float(start + m.u(0.5, 6))
            held = stairs(np.array([at, at + 3]), np.array([0.6, 0.4]) * each)
            argv = (*programs[0].argv, "--multiprocessing-fork")
            programs.append(Program(argv=argv, held=held, begin_s=at, end_s=float(end)))
    util = m.busy(ready, span, epochs[1:])
    return Scene(programs, span, "sawtooth stable plateau", util=util)


def graph_neighbourhoods(m: Machine) -> Scene:
    """Sampled neighbourhoods of a graph: some are huge, and the allocator keeps the largest."""
    span = m.lasting()
    base, ready = m.trained(0.1, 0.3)
    records = m.longest(ready, span, m.total * m.u(0.03, 0.08), 0.7)
    told = m.tell("sampler", "fanout", "15 10 5", None)
    program = m.python("train_gnn.py", base + records, "--dataset", "ogbn-products", told=told)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span), told=told)


def compile_for_shapes(m: Machine) -> Scene:
    """The compiler makes code for eight shapes at most, each tried out with large workspaces."""
    span = m.lasting()
    base, ready = m.trained(0.3, 0.5)
    times = m.first_asked(8, m.log(2.0, 40.0) * MINUTE, ready, span)
    taken = stairs(times, m.total * m.u(0.005, 0.02))
    tuned = m.spikes(times, 15.0, m.total * m.u(0.03, 0.15))
    told = m.tell("compile", "recompile-limit", "8", None)
    program = m.python("train.py", base + taken + tuned, "--compile", told=told)
    return Scene((program,), span, "plateau stable spike", util=m.busy(ready, span), told=told)


def jax_preallocated(m: Machine) -> Scene:
    """JAX takes its share of the card at the first operation."""
    span, share, at = m.lasting(), float(m.rng.choice([0.75, 0.9, 0.5])), m.u(2, 20)
    held = stairs(np.array([at, at + 3]), np.array([m.u(250, 550) * MIB, share * m.total]))
    env = {} if share == 0.75 else {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share:g}"}
    program = m.python("train_flax.py", held, "--config=configs/base.py", framework="JAX", env=env)
    return Scene((program,), span, "preallocated stable plateau", util=m.busy(at + 10, span))


def tensorflow_growth(m: Machine) -> Scene:
    """TensorFlow with memory growth: an arena whose regions double, within the first steps."""
    span = m.lasting()
    base, ready = m.begin(1 * MIB)
    need = m.total * m.u(0.15, 0.42)
    live = stairs(ready + np.sort(m.rng.exponential(20.0, 30)), need / 30)
    env, held = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, base + doubling(live, 256 * MIB)
    program = m.python("fit.py", held, framework="TensorFlow", env=env)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span))


def whisper_files(m: Machine) -> Scene:
    """Recordings are transcribed one by one; each takes as much as it is long, then is freed."""
    span = m.lasting()
    base, ready = m.begin(m.total * m.u(0.1, 0.3))
    mean = m.log(20.0, 900.0)
    starts = ready + np.cumsum(m.ragged(mean, 0.7, int(span / mean) + 2))
    sizes = np.minimum(m.ragged(m.total * m.u(0.03, 0.1), 0.6, starts.size), 0.5 * m.total)
    held = jobs(starts, np.diff(starts, append=starts[-1] + mean) * m.u(0.6, 0.95), sizes)
    words = ("--model", "large-v3", "/data/calls")
    program = m.python("transcribe_all.py", base + held, *words, framework=None)
    return Scene((program,), span, "sawtooth stable spike", util=m.busy(ready, span))


def dataframe_partitions(m: Machine) -> Scene:
    """Tables are read, joined and written partition by partition from a pool of a set size."""
    span = m.log(0.5, 10.0) * HOUR
    pool = max(1, int(m.total / GIB * m.u(0.2, 0.5)))
    at = m.u(2, 20)
    base = stairs(np.array([at, at + 1]), np.array([400 * MIB, pool * GIB]))
    parts = m.ticks(m.log(15.0, 300.0), at + 20, span, 0.3)
    over = m.spikes(parts[m.rng.random(parts.size) < 0.15], 10.0, m.total * m.u(0.03, 0.2))
    told = m.tell("rmm", "rmm-pool-size", f"{pool}GB", pool * GIB)
    program = m.python("etl_join.py", base + over, "--partitions", "400", told=told, framework=None)
    return Scene((program,), span, "stable spike preallocated sawtooth", told=told)


def physics_environments(m: Machine) -> Scene:
    """A simulator spawns its environments in groups for some minutes; then training is flat."""
    span = m.lasting()
    base, ready = m.begin(m.total * m.u(0.1, 0.25))
    count, took = m.n(16, 64), m.log(20.0, 600.0)
    spawned = stairs(ready + np.linspace(0, took, count), m.total * m.u(0.15, 0.45) / count)
    told = m.tell("env", "num-envs", str(2 ** m.n(9, 13)), None)
    program = m.python("rl_games/train.py", base + spawned, "task=Ant", "headless=True", told=told)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span), told=told)


def molecular_neighbour_lists(m: Machine) -> Scene:
    """Neighbour lists are too small now and then, and made anew 1.2 to 1.5 times as long."""
    span = m.lasting()
    base, ready = m.begin(m.total * m.u(0.03, 0.1))
    times = m.first_asked(m.n(3, 7), m.log(1.0, 60.0) * MINUTE, ready, span)
    first = m.total * m.u(0.03, 0.1)
    sizes = np.minimum(first * m.u(1.2, 1.5) ** np.arange(times.size), 0.6 * m.total)
    held = base + Steps(np.append(ready + 1, times), np.append(first, sizes * 1.2))
    program = m.start("gmx mdrun", held, "-deffnm", "prod", "-nb", "gpu", "-pme", "gpu")
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span))


def rendered_frames(m: Machine) -> Scene:
    """Each frame loads its scene and frees it; some have far more in them."""
    span = m.log(0.5, 14.0) * HOUR
    each = m.log(30.0, 900.0)
    base = stairs(np.array([m.u(1, 10)]), m.u(300, 700) * MIB)
    frames = m.ticks(each, 10.0, span, 0.1)
    drift = 1 + 0.25 * np.sin(np.linspace(0, m.u(2, 12), frames.size))
    taken = m.total * m.u(0.15, 0.5) * drift * m.ragged(1.0, 0.1, frames.size)
    lasts = 0.85 * np.diff(frames, append=frames[-1] + each)
    held = jobs(frames, lasts, np.minimum(taken, 0.8 * m.total))
    words = ("-b", "shot_040.blend", "-E", "CYCLES", "-a", "--", "--cycles-device", "OPTIX")
    program = m.start("blender", base + held, *words)
    return Scene((program,), span, "sawtooth stable spike", util=m.busy(10, span))


def notebook_by_hand(m: Machine) -> Scene:
    """Somebody runs cells: loads, trains, deletes, goes to lunch."""
    span = m.lasting()
    base, ready = m.begin(10 * MIB)
    cells = m.arrivals(m.n(6, 30) / span, ready, span)
    sizes = np.minimum(m.ragged(m.total * 0.06, 1.0, cells.size), 0.2 * m.total)
    live = capped(jobs(cells, m.ragged(0.15 * span, 1.0, cells.size), sizes), 0.8 * m.total)
    held = base + cached(live, 2 * MIB, cells[m.rng.random(cells.size) < 0.25])
    file = "/home/ada/.local/share/jupyter/runtime/kernel-0c7e.json"
    program = m.python("-m ipykernel_launcher", held, "-f", file)
    load = np.where(m.rng.random(cells.size) < 0.5, m.u(30, 99), 0.0)
    return Scene((program,), span, "stable plateau spike sawtooth", util=Steps(cells, load))


def tensorrt_builder(m: Machine) -> Scene:
    """An engine is built: every layer's tactics are timed in a workspace of a set size."""
    span = m.log(0.4, 3.0) * HOUR
    base, ready = m.begin(m.total * m.u(0.05, 0.2))
    space = max(1, int(m.total / GIB * m.u(0.15, 0.5)))
    layers = m.arrivals(m.log(0.01, 0.3), ready, span)
    sizes = np.minimum(m.ragged(0.3 * space * GIB, 1.0, layers.size), space * GIB)
    held = capped(jobs(layers, m.ragged(4.0, 0.6, layers.size), sizes), 1.2 * space * GIB)
    told = m.tell("builder", "memPoolSize", f"workspace:{space * 1024}", space * GIB, plain=True)
    program = m.start("trtexec", base + held, "--onnx=model.onnx", "--fp16", told=told)
    return Scene((program,), span, "spike sawtooth stable", util=m.busy(ready, span), told=told)


# From here on: something fills for long.


def replay_on_the_card(m: Machine) -> Scene:
    """Experience is kept on the card until the buffer is full, then overwritten."""
    span = m.log(2.0, 24.0) * HOUR
    base, ready = m.trained(0.1, 0.3)
    shape, each = (("84x84x4", 28_224), ("64x64x3", 12_288), ("128,", 1_024))[m.n(0, 2)]
    count = written(m.total * m.u(0.25, 0.6) / (2 * each))
    size = 2.0 * each * count
    fill = min(m.log(0.05, 4.0) * HOUR, 0.7 * span)
    block = max(2 * MIB, size / 4000)
    times = ready + np.linspace(0.0, fill, int(size / block))[1:]
    held = base + stairs(times, size / times.size)
    told = m.tell("buffer", "replay-size", str(count), size, also={"obs-shape": shape})
    program = m.python("train_dqn.py", held, "--env", "Pong", told=told, bound=size)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span), told=told)


def _curriculum(m: Machine, stages: int, ratio: float) -> tuple[Steps, np.ndarray, float, float]:
    """Return a training of several stages, when they begin, when it is ready, and its length."""
    span = m.log(2.0, 24.0) * HOUR
    base, ready = m.trained(0.1, 0.3)
    starts = ready + m.u(0.3, 0.7) * span * np.arange(1, stages) / stages
    starts = starts + m.rng.normal(0, 0.01 * span / stages, starts.size)
    sizes = ratio ** np.arange(stages - 1)
    more = stairs(starts, m.total * m.u(0.3, 0.6) * sizes / sizes.sum())
    return base + more, starts, ready, span


def length_curriculum(m: Machine) -> Scene:
    """Sequences become longer stage by stage, as the configuration lists them."""
    stages = m.n(3, 6)
    held, starts, ready, span = _curriculum(m, stages, 2.0)
    listed = " ".join(str(256 * 2**k) for k in range(stages))
    told = m.tell("curriculum", "seq-lengths", listed, None)
    program = m.python("pretrain_gpt.py", held, "--fp16", told=told)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span, starts), told=told)


def progressive_resolution(m: Machine) -> Scene:
    """A generative network grows from 8 to 256 pixels or more."""
    held, starts, ready, span = _curriculum(m, m.n(4, 7), m.u(1.3, 2.2))
    told = m.tell("progressive", "max-resolution", str(2 ** m.n(8, 10)), None)
    program = m.python("train_progan.py", held, "--fade-in", told=told)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span, starts), told=told)


def batch_size_warm_up(m: Machine) -> Scene:
    """The batch grows by the same number of samples again and again: even stairs."""
    stages = m.n(4, 10)
    held, starts, ready, span = _curriculum(m, stages, 1.0)
    told = m.tell("batch", "rampup-batch-size", f"32 32 {m.n(1, 9)}00000", None)
    program = m.python("pretrain_gpt.py", held, "--global-batch-size", str(32 * stages), told=told)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span, starts), told=told)


def layers_unfrozen(m: Machine) -> Scene:
    """One more group of layers trains in each of the first epochs: gradients and moments."""
    held, starts, ready, span = _curriculum(m, m.n(3, 8), 1.0)
    told = m.tell("finetune", "unfreeze-every", "1", None)
    program = m.python("finetune_ulmfit.py", held, "--discriminative-lr", told=told)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span, starts), told=told)


def data_set_on_the_card(m: Machine) -> Scene:
    """Samples are kept on the card when they are first read: the first epoch fills it."""
    span = m.log(2.0, 16.0) * HOUR
    base, ready = m.trained(0.15, 0.35)
    size = m.total * m.u(0.2, 0.5)
    fill = min(m.log(1.0, 90.0) * MINUTE, 0.4 * span)
    times = ready + np.linspace(0, fill, 600)[1:]
    epochs = m.ticks(fill, ready, span, 0.01)
    gib = max(size / GIB, 0.1)
    told = m.tell("data", "cache-on-gpu-gb", f"{gib:.1f}", size)
    held = base + stairs(times, size / times.size)
    program = m.python("train.py", held, "--dataset", "imagenette", told=told, bound=size)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span, epochs), told=told)


def index_filled(m: Machine) -> Scene:
    """Vectors are added to an index chunk by chunk until all are in; then it is searched."""
    base, ready = m.begin(m.total * m.u(0.02, 0.1))
    dim = int(m.rng.choice([128, 384, 768, 1024]))
    count = written(m.total * m.u(0.3, 0.7) / (4 * dim))
    size, fill = 4.0 * dim * count, m.log(2.0, 120.0) * MINUTE
    span = fill * m.u(1.5, 4.0) + HOUR
    chunks = m.n(20, 300)
    held = base + stairs(ready + 60 + np.linspace(0, fill, chunks), size / chunks)
    told = m.tell("index", "nb", str(count), size, also={"dim": str(dim)})
    program = m.python("build_index.py", held, "--metric", "ip", told=told, framework=None)
    util = m.busy(ready, span)
    return Scene((program,), span, "plateau stable", util=util, told=told)


def vocabulary_learnt(m: Machine) -> Scene:
    """An embedding table that grows by chunks with what has been seen, to a set number of rows."""
    span = m.log(4.0, 24.0) * HOUR
    base, ready = m.trained(0.1, 0.3)
    rows = written(m.total * m.u(0.2, 0.5) / 1536)
    size = 1536.0 * rows
    t = np.linspace(ready, span, 4000)
    seen = size * np.minimum(((t - ready) / (m.u(0.2, 0.6) * span)) ** m.u(0.4, 0.8), 1.0)
    grown = Steps(t, whole(seen, max(size / 64, 2 * MIB)))
    told = m.tell("embedding", "max-rows", str(rows), size, also={"embedding-dim": "128"})
    program = m.python("train_recsys.py", base + grown, told=told, bound=size)
    return Scene((program,), span, "plateau stable", util=m.busy(ready, span), told=told)


def super_network_grows(m: Machine) -> Scene:
    """Architecture search: depth, width and kernel sizes are let free one after the other."""
    held, starts, ready, span = _curriculum(m, m.n(3, 5), m.u(0.7, 1.6))
    trials = m.spikes(m.ticks(m.log(60.0, 900.0), ready, span), 20.0, m.total * 0.03)
    program = m.python("ofa_train.py", held + trials, "--task", "depth", "--phase", "auto")
    return Scene((program,), span, "plateau stable sawtooth", util=m.busy(ready, span, starts))
