"""Harmless servers, desktops and cards of many users."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from tests.scenarios.blind_rig import GIB, HOUR, MIB, Steps, cached, daily, doubling, jobs, whole
from tests.scenarios.corpus.machine import MINUTE, Machine, Program, Scene, Told, capped, stairs


def pooled(m: Machine, share: float, weights: float) -> tuple[Steps, float]:
    """Return a server that loads weights, then takes the rest of its share as one pool."""
    base, ready = m.begin(weights)
    at = ready + m.u(2.0, 25.0)
    graphs = at + np.linspace(1.0, m.u(5.0, 40.0), 20)
    more = np.append(share * m.total - base.peak(), np.full(20, m.u(0.005, 0.03) * m.total / 20))
    return base + stairs(np.append(at, graphs), more), float(graphs[-1])


def engine(m: Machine, held: Steps, model: str, told: Told, **more: Any) -> Program:
    """Return vLLM: its engine core has a title of its own, or is the process that was started."""
    program = m.start(f"vllm serve {model}", held, told=told, framework="vLLM", **more)
    if m.chance(0.5):
        return program
    return replace(program, argv=("VLLM::EngineCore",), parent_argv=program.argv)


def pool_share(m: Machine, key: str, default: float) -> tuple[float, Told]:
    """Return a share of the card that a server takes, and where it is told; else its default."""
    share = m.n(60, 92) / 100
    told = m.tell("server", key, f"{share:g}", share * m.total, plain=True)
    return (default if told.size_bytes is None else share), told


def vllm_chat(m: Machine) -> Scene:
    """One pool for weights and keys; captures within a minute; flat for the day."""
    span, (share, told) = m.day(), pool_share(m, "gpu-memory-utilization", 0.92)
    model, weights = m.model(0.1, 0.5)
    held, ready = pooled(m, share, weights)
    util = m.serving(ready, span, daily(m, m.u(0, 24) * HOUR, 0.1))
    program = engine(m, held, model, told)
    return Scene((program,), span, "preallocated stable plateau", util=util, told=told)


def sglang_samples(m: Machine) -> Scene:
    """A static share, captures, and a workspace that grows at the first long prompts."""
    span, (share, told) = m.day(), pool_share(m, "mem-fraction-static", 0.85)
    model, weights = m.model(0.1, 0.5)
    held, ready = pooled(m, min(share, 0.88), weights)
    long = m.first_asked(m.n(2, 6), m.log(1.0, 60.0) * MINUTE, ready, span)
    held += stairs(long, np.minimum(m.ragged(m.total * 0.01, 0.8, long.size), 0.01 * m.total))
    command = f"-m sglang.launch_server --model-path {model}"
    program = m.python(command, held, told=told, framework="SGLang")
    names = "preallocated stable plateau"
    return Scene((program,), span, names, util=m.serving(ready, span), told=told)


def text_generation_router(m: Machine) -> Scene:
    """A warm-up run finds the largest batch; then nothing grows."""
    span = m.lasting()
    model, weights = m.model(0.2, 0.6)
    base, ready = m.begin(weights)
    tried = ready + np.array([1.0, 3.0, 5.0, 8.0])
    held = base + stairs(tried, np.array([0.3, 0.4, 0.2, 0.1]) * (0.9 * m.total - base.peak()))
    words = ("--model-id", model, "--max-total-tokens", "4096")
    program = m.start("text-generation-server serve", held, *words, framework="PyTorch")
    return Scene((program,), span, "preallocated plateau stable", util=m.serving(ready, span))


def llama_cpp_slots(m: Machine) -> Scene:
    """Weights, keys of all slots and compute buffers are taken when it starts."""
    span = m.day()
    base, ready = m.begin(m.total * m.u(0.2, 0.5))
    keys = m.total * m.u(0.05, 0.3)
    words = ("-m", "/models/q4_k_m.gguf", "-ngl", "99", "-c", "32768", "-np", "4")
    held = base + stairs(np.array([ready + 0.5, ready + 1.5]), np.array([0.9, 0.1]) * keys)
    program = m.start("llama-server", held, *words, framework="llama.cpp")
    return Scene((program,), span, "stable plateau", util=m.serving(ready, span))


def ollama_models(m: Machine) -> Scene:
    """Models come when they are asked for and go five minutes after the last question."""
    span = m.day()
    asked = m.arrivals(m.n(4, 40) / span, 30.0, span)
    programs: list[Program] = []
    for at, lasts in zip(asked.tolist(), m.ragged(600.0, 1.0, asked.size), strict=True):
        if programs and at < programs[-1].end_s + 5.0:
            continue
        model, size = m.model(0.2, 0.75)
        base, _ = m.begin(size)
        blob = f"sha256-{zlib.crc32(model.encode()):08x}"
        command = f"/usr/lib/ollama/llama-server --model /models/blobs/{blob} -c 8192 -np 1"
        held, end = Steps(base.t + at, base.y), at + 300.0 + float(lasts)
        programs.append(m.start(command, held, begin_s=at, end_s=end, framework="Ollama"))
    return Scene(programs, span, "sawtooth stable spike plateau", util=m.serving(30, span))


def triton_arenas(m: Machine) -> Scene:
    """Several models at once; the arenas of ONNX Runtime double at the first large batch."""
    span = m.day()
    base, ready = m.begin(m.total * m.u(0.15, 0.35))
    times = m.first_asked(m.n(4, 12), m.log(20.0, 1200.0), ready, span)
    live = stairs(times, m.total * m.u(0.1, 0.22) / times.size)
    told = m.tell("server", "cuda-memory-pool-byte-size", f"0:{256 << 20}", None, plain=True)
    program = m.start(
        "tritonserver", base + doubling(live, 64 * MIB), "--model-repository=/models", told=told
    )
    return Scene((program,), span, "plateau stable", util=m.serving(ready, span), told=told)


def pictures_on_demand(m: Machine) -> Scene:
    """A diffusion pipeline keeps the workspace of the largest picture that was asked for."""
    span = m.day()
    base, ready = m.begin(m.total * m.u(0.2, 0.5))
    asked = m.arrivals(m.log(0.003, 0.2), ready, span, daily(m, m.u(0, 24) * HOUR, 0.05))
    kinds = np.array([0.25, 0.4, 0.55, 1.0]) * m.total * m.u(0.1, 0.35)
    sizes = m.rng.choice(kinds, asked.size, p=[0.6, 0.25, 0.12, 0.03])
    held = base + cached(jobs(asked, m.ragged(6.0, 0.4, asked.size), sizes), 20 * MIB)
    held = capped(held, 0.93 * m.total)
    program = m.python("app.py", held, "--model", "stabilityai/sdxl", "--port", "7860")
    return Scene((program,), span, "plateau stable spike", util=m.serving(ready, span))


def graphs_for_batches(m: Machine) -> Scene:
    """A graph is captured for each batch size when it first comes; their list is finite."""
    span = m.day()
    base, ready = m.begin(m.total * m.u(0.3, 0.6))
    sizes = m.n(12, 35)
    times = m.first_asked(sizes, m.log(1.0, 90.0) * MINUTE, ready, span)
    held = base + stairs(times, m.ragged(m.total * m.u(0.03, 0.15) / sizes, 0.3, times.size))
    listed = " ".join(str(2 ** min(k, 3) + 8 * max(0, k - 3)) for k in range(sizes))
    told = m.tell("engine", "cuda-graph-sizes", listed, None)
    program = m.python("-m serve.api", held, "--port", "8000", told=told)
    return Scene((program,), span, "plateau stable", util=m.serving(ready, span), told=told)


def adapters_with_limit(m: Machine) -> Scene:
    """Adapters are loaded when a customer first asks; the slots are few and used again."""
    span, slots = m.day(), m.n(4, 32)
    base, ready = m.begin(m.total * m.u(0.3, 0.6))
    size = m.total * m.u(0.08, 0.25)
    times = m.first_asked(3 * slots, m.log(5.0, 400.0) * MINUTE, ready, span)[:slots]
    told = m.tell("lora", "max-loras", str(slots), size, also={"max-lora-rank": "64"})
    held = base + stairs(times, size / slots)
    program = m.python("serve_lora.py", held, "--enable-lora", told=told, bound=size)
    return Scene((program,), span, "plateau stable", util=m.serving(ready, span), told=told)


def prefixes_least_recently_used(m: Machine) -> Scene:
    """Keys of prompts are kept up to a set size; how fast that fills follows the load."""
    span = m.day()
    base, ready = m.begin(m.total * m.u(0.25, 0.5))
    gib = max(1.0, round(m.total / GIB * m.u(0.1, 0.35), 1))
    load = daily(m, m.u(0, 24) * HOUR, 0.2)
    times = m.arrivals(m.u(0.05, 0.3), ready, span, load)
    fill = m.log(0.05, 0.7) * times.size
    kept = capped(stairs(times, m.ragged(gib * GIB / fill, 0.8, times.size)), gib * GIB)
    told = m.tell("prefix_cache", "prefix-cache-gb", f"{gib:g}", gib * GIB)
    held = base + Steps(kept.t, whole(kept.y, 2 * MIB))
    program = m.python("-m chat.server", held, told=told, bound=gib * GIB)
    util = m.serving(ready, span, load)
    return Scene((program,), span, "plateau stable", util=util, told=told)


def keys_moved_to_host(m: Machine) -> Scene:
    """Conversations hold keys on the card; above a limit the oldest are moved to the host."""
    span, load = m.day(), daily(m, m.u(0, 24) * HOUR, 0.1)
    base, ready = m.begin(m.total * m.u(0.3, 0.6))
    starts = m.arrivals(m.u(0.02, 0.2), 60.0, span, load)
    lasts = m.ragged(m.log(60.0, 1800.0), 0.9, starts.size)
    top = m.total * m.u(0.1, 0.3)
    mean = max(starts.size * float(lasts.mean()) / span, 1.0)
    level = capped(jobs(starts, lasts, m.ragged(top / (1.5 * mean), 0.6, starts.size)), top)
    told = m.tell("kv", "kv-offload-threshold-gb", f"{top / GIB:.1f}", top)
    program = m.python("serve_hf.py", base + level, "--offload", told=told, bound=top)
    util = m.serving(ready, span, load)
    return Scene((program,), span, "stable sawtooth plateau spike", util=util, told=told)


def checkpoint_swapped(m: Machine) -> Scene:
    """Every few hours the new weights are loaded before the old ones are freed."""
    span = m.day()
    weights = m.total * m.u(0.2, 0.42)
    base, ready = m.begin(weights)
    swaps = m.ticks(m.log(0.3, 6.0) * HOUR, ready, span, 0.1)
    held = base + m.spikes(swaps, m.u(10, 120), weights)
    program = m.python("serve.py", held, "--watch-dir", "/ckpt")
    return Scene((program,), span, "spike sawtooth stable", util=m.serving(ready, span))


def cameras_decoded(m: Machine) -> Scene:
    """Decoding sessions of cameras: so many during the day, fewer at night, each given back."""
    span, limit = m.day(), m.n(8, 48)
    load = daily(m, m.u(0, 24) * HOUR, m.u(0.1, 0.6))
    starts = m.arrivals(limit / 1800.0, 60.0, span, load)
    lasts = m.ragged(900.0, 0.9, starts.size)
    each = min(m.u(40, 250) * MIB, 0.5 * m.total / limit)
    base, ready = m.begin(m.total * m.u(0.03, 0.2))
    held = base + capped(jobs(starts, lasts, np.full(starts.size, each)), limit * each)
    told = m.tell("decoder", "max-sessions", str(limit), limit * each, plain=True)
    program = m.start("deepstream-app", held, "-s", "30", told=told, bound=limit * each)
    util = m.serving(ready, span, load)
    return Scene((program,), span, "stable sawtooth plateau spike", util=util, told=told)


def features_cached(m: Machine) -> Scene:
    """Features are kept when they are missed; the popular ones come first, so it fills slower."""
    span = m.day()
    base, ready = m.begin(m.total * m.u(0.1, 0.3))
    size = m.total * m.u(0.2, 0.55)
    t = ready + np.linspace(0.0, span - ready, 5000)
    level = size * -np.expm1(-(t - ready) / (m.log(0.02, 0.25) * span))
    gib = size / GIB
    told = m.tell("feature_store", "gpu-cache-size", f"{gib:.1f}GB", size)
    held = base + Steps(t, whole(level, 2 * MIB))
    program = m.python("rank_server.py", held, "--hosts", "features", told=told, bound=size)
    return Scene((program,), span, "plateau stable", util=m.serving(ready, span), told=told)


def many_tenants(m: Machine) -> Scene:
    """Four to forty processes of students: each takes its memory at once; they come and go."""
    span, count = m.day(), m.n(4, 40)
    starts = np.sort(m.rng.uniform(-0.3 * span, 0.9 * span, count))
    lasts = m.ragged(0.4 * span, 1.0, count) + 120.0
    sizes = m.ragged(0.7 * m.total / (0.5 * count + 2), 0.7, count)
    fits = 0.8 * m.total / max(jobs(starts, lasts, sizes).peak(), 0.8 * m.total)
    programs = []
    for at, last, size in zip(starts.tolist(), lasts.tolist(), sizes * fits, strict=True):
        held = stairs(at + np.array([0.5, 3.0, 8.0]), float(size) * np.array([0.2, 0.5, 0.3]))
        script = ("train.py", "-m ipykernel_launcher", "eval.py", "infer.py")[m.n(0, 3)]
        words = ("--seed", str(m.n(1, 999)))
        programs.append(m.python(script, held, *words, begin_s=at, end_s=at + last))
    return Scene(programs, span, "stable sawtooth plateau spike", util=m.serving(10, span))


def left_by_one_crash(m: Machine) -> Scene:
    """A worker was killed, and what it held is listed for no process; its successor is fine."""
    span = m.lasting()
    base, ready = m.begin(m.total * m.u(0.1, 0.4))
    at, size = m.u(0.05, 0.7) * span, m.total * m.u(0.05, 0.3)
    first = stairs(np.array([ready + 1.0]), size)
    again = stairs(at + m.u(5, 60) + np.array([0.5, 4.0]), size * np.array([0.3, 0.7]))
    programs = [m.python("serve.py", base), m.python("worker.py --id 0", first, end_s=at)]
    programs.append(m.python("worker.py --id 0", again, begin_s=at + 2.0))
    loose = stairs(np.array([at]), size)
    return Scene(programs, span, "stable plateau", loose=loose, util=m.serving(ready, span))


def clients_of_one_context(m: Machine) -> Scene:
    """Clients of the multi-process service: a server with the context, four to ten small jobs."""
    span, count = m.lasting(), m.n(4, 10)
    first = stairs(np.array([0.5]), m.u(30, 80) * MIB)
    programs = [Program(argv=("nvidia-cuda-mps-server",), held=first, framework=None)]
    for k in range(count):
        at = m.u(1.0, 60.0)
        size = m.total * m.u(0.4, 0.85) / count
        held = stairs(at + np.array([0.3, 2.0, 6.0]), size * np.array([0.3, 0.4, 0.3]))
        env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={int(1.3 * size / MIB)}M"}
        argv = ("python", "infer_worker.py", "--shard", str(k))
        programs.append(Program(argv=argv, held=held, env=env, begin_s=at))
    return Scene(programs, span, "stable plateau", util=m.serving(60, span))


def evening_at_the_desk(m: Machine) -> Scene:
    """A desktop with a browser, and a game whose levels are loaded and left again."""
    span = m.log(1.0, 10.0) * HOUR
    windows = m.arrivals(m.n(10, 60) / HOUR, 1.0, span)
    drawn = jobs(
        windows, m.ragged(1500.0, 1.2, windows.size), m.ragged(30 * MIB, 1.0, windows.size)
    )
    begin = m.u(0.05, 0.4) * span
    levels = begin + np.cumsum(m.ragged(0.12 * span, 0.5, 12))
    level = Steps(
        np.append(begin, levels),
        m.total * m.u(0.2, 0.5) * m.ragged(1.0, 0.2, 13).clip(0.5, 1.4),
    )
    desk = stairs(np.array([0.0]), m.u(100, 400) * MIB)
    end = begin + m.u(0.2, 0.6) * span
    programs = [
        Program(argv=("/usr/lib/xorg/Xorg", ":0"), held=desk, framework=None),
        Program(argv=("firefox", "-contentproc"), held=desk + drawn, framework=None),
        Program(argv=("Game.x86_64",), held=level, begin_s=begin, end_s=end, framework=None),
    ]
    util = Steps(np.array([0.0, begin, end]), np.array([5.0, m.u(60, 99), 5.0]))
    return Scene(programs, span, "stable plateau sawtooth spike", util=util)
