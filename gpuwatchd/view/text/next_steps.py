"""What to do about a verdict: numbered steps, each with its command."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.model import is_leak
from gpuwatchd.view.text import subject_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.view.text.explanation_parts import ExplanationInput

_URGENT_S = 7200.0
_PROFILES: dict[str, tuple[str, str]] = {
    "PyTorch": (
        "record in the program, write it out, drop the file on pytorch.org/memory_viz",
        'torch.cuda.memory._record_memory_history(); torch.cuda.memory._dump_snapshot("a.pickle")',
    ),
    "JAX": (
        "in the program: name the arrays that are kept (read it with pprof)",
        'jax.profiler.save_device_memory_profile("a.prof")',
    ),
    "TensorFlow": (
        "in the program: compare what is used inside the pool",
        'tf.config.experimental.get_memory_info("GPU:0")',
    ),
    "CuPy": (
        "in the program: compare used and kept bytes of its pool",
        "cupy.get_default_memory_pool().used_bytes()",
    ),
    "MLX": ("in the program: compare active and cached memory", "mx.get_active_memory()"),
    "Ollama": ("see what is loaded and for how long", "ollama ps"),
    "vLLM": (
        "see the KV cache and the requests",
        "curl -s localhost:8000/metrics | grep -i kv_cache",
    ),
    "SGLang": (
        "see what its pool is used for",
        "curl -s localhost:30000/metrics | grep token_usage",
    ),
    "llama.cpp": ("see what its slots hold", "curl -s localhost:8080/slots"),
}
_METRICS = {
    "vLLM": "metrics", "SGLang": "metrics", "llama.cpp": "slots", "Ollama": "api/ps",
}  # fmt: skip
_ANY = ("who allocates on the device?", "nsys profile --cuda-memory-usage=true PROGRAM")


class Step(NamedTuple):
    """One thing to do."""

    text: str
    command: str = ""


def steps(case: ExplanationInput, *, hardware_first: bool) -> list[Step]:
    """Return what to do, in order: identify, isolate, stack trace, profiler."""
    out: list[Step] = []
    if hardware_first:
        out.append(Step("rule the hardware out first", "sudo dmesg | grep -iE 'xid|nvrm'"))
    if not is_leak(case.finding):
        return [*out, *_calm(case)]
    if case.subject.unattributed or case.process is None:
        return [*out, *_nobody(case), *_advice(case, hardware_first=hardware_first)]
    info = case.process.info
    out += list(_identify(case, info))
    if not info.foreign:
        out += list(_inside(case, info))
    out += list(_advice(case, hardware_first=hardware_first))
    which = f"{info.key.pid}/host" if case.subject.host else info.key.pid
    out.append(
        Step(
            f"if this is expected, mark it: {_judged_by(case)}",
            f'gpuwatchctl feedback {which} normal --why "..."',
        )
    )
    return out


def _judged_by(case: ExplanationInput) -> str:
    """Return what a word of the user is good for, as ``feedback`` says it when it is given."""
    live = case.process
    if live is None or live.history is None:
        return "it holds for this alone"
    return "it applies to its next runs"


def _calm(case: ExplanationInput) -> Iterator[Step]:
    label = _gpu(case)
    if (
        case.finding is not None
        and case.finding.pattern == "preallocated"
        and case.process is not None
    ):
        yield from _profile(case, case.process.info)
    key = case.subject.process
    flag = f" --pid {key.pid}" if key is not None else f" --gpu {label}"
    if any(holding.device_uid == case.item.device.uid for holding in case.view.holdings):
        yield Step("see which memory is idle there", "gpuwatchctl zombies")
        calm = ""
    else:
        calm = "" if subject_facts.first(case) else "no action needed; "
    yield Step(
        f"{calm}check the curve yourself",
        f"gpuwatchctl history{flag} --since 6h",
    )
    if case.finding is None or case.finding.pattern == "unknown":
        yield Step("ask again when more has been seen", f"gpuwatchctl explain {_name(case)}")


def _nobody(case: ExplanationInput) -> Iterator[Step]:
    label = _gpu(case)
    yield Step("see which memory is idle, and who holds the device", "gpuwatchctl zombies")
    if not case.item.processes:
        yield Step("learn why the processes are unknown", "gpuwatchctl doctor")
    yield Step("list every program that has the device open", "sudo fuser -v /dev/nvidia*")
    yield Step(
        "see when it started, and what else started then",
        f"gpuwatchctl history --gpu {label} --since 6h",
    )


def _advice(case: ExplanationInput, *, hardware_first: bool) -> Iterator[Step]:
    finding = case.finding
    if finding is not None:
        first = len(finding.hardware_at_s or ()) if hardware_first else 0
        yield from map(Step, finding.advice[first:])


def _identify(case: ExplanationInput, info: ProcessInfo) -> Iterator[Step]:
    pid = info.key.pid
    eta = case.finding.eta if case.finding is not None else None
    if eta is not None and eta.low_s <= _URGENT_S:
        yield Step(f"save its work now: it may be full in {units.duration(eta.low_s)}")
    yield Step(
        "identify: when it started, and what else started then",
        f"gpuwatchctl history --pid {pid} --since 6h",
    )
    if info.foreign:
        yield Step("look on the host of this container: the pid is not valid here", f"ps -fp {pid}")
    elif info.group is not None:
        yield Step("isolate: one rank or all of them?", "gpuwatchctl status --wide")
    else:
        yield Step("isolate: run it alone, shorter, and analyse its log", "gpuwatchctl analyze LOG")


def _inside(case: ExplanationInput, info: ProcessInfo) -> Iterator[Step]:
    pid = info.key.pid
    if info.name.startswith("python") or info.frameworks or info.framework in _PROFILES:
        yield Step("stack trace: what is it doing while it grows?", f"py-spy dump --pid {pid}")
    else:
        yield Step(
            "stack trace: what is it doing while it grows?",
            f"gdb -p {pid} -batch -ex 'thread apply all bt'",
        )
    if case.subject.host:
        yield Step("profiler: what holds host memory?", f"memray attach {pid}")
        return
    yield from _profile(case, info)


def _profile(case: ExplanationInput, info: ProcessInfo) -> Iterator[Step]:
    server = next((reading for reading in case.view.servers if reading.pid == info.key.pid), None)
    if server is not None and server.kind in _METRICS:
        command = f"curl -s {shlex.quote(server.url.rstrip('/'))}/{_METRICS[server.kind]}"
        yield Step("profiler: ask the server itself", command)
        return
    names = (info.framework or "", *info.frameworks)
    text, command = next((_PROFILES[name] for name in names if name in _PROFILES), _ANY)
    yield Step(f"profiler: {text}", command)


def _gpu(case: ExplanationInput) -> str:
    index = case.item.device.index
    return case.item.device.uid if index is None or case.item.device.parent_uid else str(index)


def _name(case: ExplanationInput) -> str:
    key = case.subject.process
    return str(key.pid) if key is not None else _gpu(case)
