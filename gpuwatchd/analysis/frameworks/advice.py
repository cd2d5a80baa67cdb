"""What to check when a framework's memory grows in a certain way: one table. Pure.

Nobody outside a process knows why its memory grows. The lines name usual causes and what to look
at next; none claims a cause, and each cure says what it does not cure. The page
docs/explanation/frameworks.md holds all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from gpuwatchd.analysis.frameworks.recognition import GRAPHICS, PREALLOCATES
from gpuwatchd.core.codes import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Pattern

Topic = Literal[
    "gradual", "step", "cyclic", "slowing", "above-pool", "pool", "host", "unattributed", "notebook"
]
"""How memory grows, or whose it is.

slowing: by ever less; above-pool: beyond a preallocated pool; pool: flat, because preallocated;
host: anonymous memory of the host; notebook: said first of a notebook kernel.
"""

TOPICS: Final[dict[Topic, str]] = {
    "gradual": "grows all the time",
    "step": "grows in steps",
    "cyclic": "rises and falls, and keeps a little more each time",
    "slowing": "grows by ever less",
    "above-pool": "grows beyond a preallocated pool",
    "pool": "a preallocated pool, flat by design",
    "host": "memory of the host grows",
    "unattributed": "memory that no listed process owns grows",
    "notebook": "in a notebook kernel, before all else",
}
_ANY: Final = "any"
MOST: Final = 3
"""Lines of one finding."""

_TEXT: Final = """
any | gradual
- Usual causes: results kept in a list or dictionary, a cache without a bound, references held
  by callbacks or exceptions.
- Check what grows with each request or iteration; bound the cache, keep numbers instead of
  arrays.

any | step
- Check what happens as often as the steps: an evaluation, a checkpoint, a reload, a new input
  size.
- A cache with one entry per new shape or key grows so: give it a bound.

any | cyclic
- Check what each cycle (epoch, batch of requests, reload) leaves behind: objects from the last
  one that are still referenced.

any | slowing
- Usual of a cache or pool that fills up: it may end by itself. Check whether it has a bound.

any | above-pool
- Memory grows although its pool is meant to be fixed: check what allocates beside the pool
  (other libraries, graphs, extensions).

any | pool
- Look inside instead: the framework's own figures of what its pool really uses.
- What is watched here: growth beyond the pool, and the host memory of the process.

any | host
- The GPU may look well while this goes on: at the end the kernel kills the process.
- Usual causes: data-loader workers, caches of inputs, unbounded queues, native buffers.

any | unattributed
- Check `gpuwatchctl zombies` and, as root, `fuser -v /dev/nvidia*`: a process of another
  container, or one that has died and was not cleaned up.
- If nothing holds the device open, only a reset of the GPU or a new start of the driver frees
  it.

any | notebook
- A notebook keeps what its cells made, their outputs (Out) and the last exception's frames
  alive: restart the kernel from the notebook, do not kill it.

PyTorch | gradual
- Check for tensors that are kept with their graph: `total += loss`, a list of losses or
  outputs, a recurrent state never detached, retain_graph=True.
- Keep numbers (`loss.item()`) or `.detach().cpu()`, in a list that is emptied; gc.collect()
  only helps where reference cycles hold them.
- Compare torch.cuda.memory_reserved() over time: flat while the device grows means that it is
  outside PyTorch's allocator (a custom kernel, an extension, a library); Nsight Systems
  (`nsys profile --cuda-memory-usage=true`) then shows each allocation, and slows the job.

PyTorch | step
- Check what runs as often as the steps: evaluation without torch.no_grad(), outputs kept across
  it, checkpoints, hooks, a new input shape.
- Its allocator takes memory in blocks, so that tensors kept in each iteration look like steps
  too: `total += loss`, a list of outputs.
- Compare torch.cuda.memory_reserved() over time: flat while the device grows means that it is
  outside PyTorch's allocator (a custom kernel, an extension, a library); Nsight Systems
  (`nsys profile --cuda-memory-usage=true`) then shows each allocation, and slows the job.

PyTorch | cyclic
- Check what survives each epoch or evaluation: kept outputs, metrics that hold tensors instead
  of numbers, iterators that are never closed.
- torch.cuda.empty_cache() gives unused blocks back to other processes; it cures no leak.

PyTorch | slowing
- Usual of its caching allocator. Reserved that grows while memory_allocated() does not is
  fragmentation: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
- torch.cuda.empty_cache() gives unused blocks back to other processes; it cures no leak.

PyTorch | host
- Check the data-loader workers: Python objects that they share are copied little by little as
  they are read (use arrays), and each prefetches batches; try num_workers=0.
- Pinned buffers and results moved with .cpu() and kept are host memory too; no GPU setting
  changes that.

JAX | gradual
- Check for compilation again and again (JAX_LOG_COMPILES=1): new shapes or functions in each
  round fill the compile cache. jax.clear_caches() empties it once; padding to a few shapes
  cures it.
- Check len(jax.live_arrays()): arrays that are kept; block on, or drop, old results.

JAX | above-pool
- Its pool is not all that JAX takes: libraries and compiled programs lie beside it. Check for
  compilation again and again (JAX_LOG_COMPILES=1).
- A smaller XLA_CLIENT_MEM_FRACTION leaves more room; it does not stop the growth.

JAX | pool
- Look inside: device.memory_stats()["bytes_in_use"] over time, and len(jax.live_arrays()).
- XLA_PYTHON_CLIENT_PREALLOCATE=false makes growth visible from outside; what is freed still
  stays with the process.

TensorFlow | gradual
- Check for tf.function traced again and again (Python numbers or new shapes as arguments), and
  for models built in a loop (tf.keras.backend.clear_session()).
- With memory growth on, memory is never given back: a fall is not to be expected.

TensorFlow | above-pool
- Growth beyond its pool comes from beside it: check other libraries in the process and
  functions that are traced again and again.

TensorFlow | pool
- Look inside: tf.config.experimental.get_memory_info("GPU:0")["current"] over time.
- TF_FORCE_GPU_ALLOW_GROWTH=true makes growth visible from outside; what is freed still stays
  with the process.

TensorFlow | host
- Check tf.data: cache() without a file, a large shuffle() or prefetch() buffer, and new graph
  nodes made in each iteration.

TensorFlow or JAX | pool
- Look inside: bytes_in_use of device.memory_stats() (JAX), or
  tf.config.experimental.get_memory_info (TensorFlow), over time.

vLLM | above-pool
- Its pool is fixed by --gpu-memory-utilization, so that this is beside it: check whether it
  goes with requests (multi-modal inputs, adapters), then compare with a newer vLLM.
- A lower --gpu-memory-utilization leaves more room; it does not stop the growth.
- --enforce-eager for a while tells whether captured CUDA graphs are part of it.

vLLM | pool
- Look inside: vllm:kv_cache_usage_perc must fall to about 0 when nothing runs or waits; blocks
  that stay in use for many minutes then were not given back.
- What is watched here: that metric, growth beyond the pool, and the engine's host memory.

vLLM | host
- Check what requests leave behind on the host (multi-modal inputs and their cache, adapters),
  then compare with a newer vLLM.

SGLang | above-pool
- Its pool is fixed by --mem-fraction-static, so that this is beside it: check whether it goes
  with requests, then compare with a newer SGLang.
- A lower --mem-fraction-static leaves more room; it does not stop the growth.

SGLang | pool
- Look inside (--enable-metrics): sglang:token_usage must fall to about 0 when nothing runs or
  waits; evictable cache does not count.
- What is watched here: that metric, growth beyond the pool, and the host memory.

Ollama | llama.cpp | ggml | LM Studio | gradual
- KV and compute buffers are fixed when a model is loaded: check whether growth goes with
  requests, then compare with a newer llama.cpp; a smaller context only delays it.

Ollama | step
- Compare with `ollama ps`: each step may be one more model (OLLAMA_MAX_LOADED_MODELS), which
  leaves again after its keep-alive.
- `ollama stop MODEL` unloads one; what stays after that is not the model's.

Ollama | cyclic
- Compare the floor after each unload: what stays while `ollama ps` is empty grew with loads and
  unloads; a new start of the service gives it back.

Ollama | llama.cpp | LM Studio | host
- llama-server keeps a prompt cache on the host, by default up to 8 GiB (--cache-ram): growth
  that ends there is no leak.

Triton Server | gradual
- Check the backends one by one: Python models that keep requests or outputs, ONNX models whose
  arena grows with new shapes.
- A backend may keep what it had for a model that was unloaded, until the server starts anew.

ONNX Runtime | gradual
- Check that one InferenceSession is made and used again, not one per request.
- Its arena grows with each larger shape and is not given back: set gpu_mem_limit and
  arena_extend_strategy=kSameAsRequested; neither cures a session that is kept.

TensorRT | gradual
- Check that engines and execution contexts are made once, not per request or shape, and that
  buffers of old ones are freed.

CuPy | gradual
- Compare cupy.get_default_memory_pool().used_bytes() with total_bytes(): used that grows is
  arrays that are kept.
- free_all_blocks() gives unused blocks back to other processes; it cures no leak.

RAPIDS | gradual
- Check for data frames that are kept, and views that keep their whole parent alive;
  rmm.statistics counts what is allocated.

Numba | gradual
- Check for device arrays that are kept, and kernels compiled anew for each type or shape;
  freeing is put off until many are pending.

Triton kernels | gradual
- Check for kernels that are compiled anew for each shape or constant: each variant is kept.

MLX | gradual
- Compare mx.get_active_memory() with mx.get_cache_memory(): a cache that grows can be bounded
  (mx.set_cache_limit); active memory that grows is arrays that are kept.
- Lazy results that are never evaluated keep their whole graph: call mx.eval().

Ray | gradual
- Check `ray memory` for references that are kept, and actors that are never ended; a GPU task
  with max_calls=1 gives its memory back when it ends.

display | gradual
- It grows with windows and effects: check which program's windows it goes with; logging out
  gives all of it back.

browser | gradual
- It grows with tabs and pages: its own task manager names the page; closing that gives it back.

Blender | gradual
- Check what each render leaves loaded (textures, geometry, persistent data).
"""
"""Frameworks and the topic, then the lines; "any" stands for those that have none of their own."""


def _parsed(text: str) -> dict[tuple[str, Topic], tuple[str, ...]]:
    """Read the table above."""
    topics: dict[str, Topic] = {topic: topic for topic in TOPICS}
    groups: dict[tuple[str, Topic], tuple[str, ...]] = {}
    for part in text.strip().split("\n\n"):
        head, _, body = part.partition("\n")
        *names, topic = head.split(" | ")
        texts = tuple(" ".join(line.split()) for line in f"\n{body}".split("\n- ")[1:])
        for name in names:
            groups[name, topics[topic]] = texts
    return groups


ADVICE: Final = _parsed(_TEXT)
"""(framework, topic) -> lines; "any" is any framework."""

_LEAKS: Final[dict[str, Topic]] = {"gradual": "gradual", "step": "step", "cyclic": "cyclic"}


def lines(topic: Topic, framework: str | None = None, role: str | None = None) -> tuple[str, ...]:
    """Return what to check, at most :data:`MOST` lines.

    The framework's own lines for the topic; else its lines for steady growth where the topic is
    growth of its device memory; else what holds for any program.

    Examples
    --------
    >>> lines("pool", "vLLM")[0][:40]
    'Look inside: vllm:kv_cache_usage_perc mu'
    >>> len(lines("gradual", "PyTorch", "notebook kernel"))
    3
    """
    texts = ADVICE.get((framework or _ANY, topic))
    if texts is None and topic in {"step", "cyclic"}:
        texts = ADVICE.get((framework or _ANY, "gradual"))
    if texts is None:
        texts = ADVICE[_ANY, topic]
    if role == Role.NOTEBOOK and topic not in {"unattributed", "pool"}:
        texts = (*ADVICE[_ANY, "notebook"], *texts)
    return texts[:MOST]


def topic_of(
    pattern: Pattern,
    framework: str | None,
    *,
    leaks: bool,
    host: bool = False,
    unattributed: bool = False,
    pool_full: bool = False,
) -> Topic | None:
    """Return what a judgement is about; None when there is nothing to check.

    ``leaks``: it is worth a watch or an alert. ``pool_full``: the device is as full as a
    preallocated pool would make it.
    """
    if pattern == "preallocated":
        return "pool"
    if not leaks:
        return None
    if unattributed:
        return "unattributed"
    if host:
        return "host"
    if framework in PREALLOCATES and pool_full:
        return "above-pool"
    if pattern == "plateau":
        return None if framework in GRAPHICS else "slowing"
    return _LEAKS.get(pattern)


_HOLDERS: Final = {
    "list": "Clear the list once it is used, or bound it: collections.deque(maxlen=N).",
    "deque": "Give the deque a maxlen.",
    "set": "Remove from the set what is no longer needed.",
    "dict": "Bound the dict: remove the oldest entry, or use functools.lru_cache(maxsize=N).",
    "defaultdict": "Remove entries of the defaultdict once they are used.",
    "OrderedDict": "Remove the oldest entry of the OrderedDict when a new one comes.",
    "lru_cache": "Give lru_cache a maxsize that fits the memory.",
    "tensor": "Write into a tensor of a fixed size, in place of one that is made anew each time.",
    "queue": "Give the queue a maxsize: what fills it is faster than what empties it.",
    "hook": "Remove the hook once it is not needed: keep the handle, and call its remove().",
    "parameter-group": "Call add_param_group once, not in the loop.",
    "exception": "Keep str(exception): an exception keeps its traceback, and all variables in it.",
}


def of_holder(kind: str | None, bound: str = "", *, graph: bool) -> str | None:
    """Return what to change where a variable of this type keeps what grows; None: nobody knows.

    ``bound`` is what it takes at most, in words; ``graph``: it keeps tensors with their graph.

    Examples
    --------
    >>> of_holder("list", "2.0 GiB", graph=False)
    'It fills up to 2.0 GiB, then stops.'
    """
    if graph:
        return "Keep .item() or .detach() of it, not the tensor with its graph."
    if bound:
        return f"It fills up to {bound}, then stops."
    return _HOLDERS.get((kind or "").partition(" ")[0])


def table() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Return every entry as (framework, how it grows, lines), for the page of the manual."""
    for (framework, topic), texts in ADVICE.items():
        yield framework, TOPICS[topic], texts
