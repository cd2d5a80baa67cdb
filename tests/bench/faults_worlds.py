"""The faults that are put into the stand-in, and what a tool has to show under each.

A rule looks at what was shown and can fail; every tool is held against the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.faults_views import Held, Shown, View

MIB, GIB = 2**20, 2**30
HELD = 9 * GIB
"""What the process of every world holds."""
HOST = 400 * MIB
"""What somebody else holds on the host, where that matters."""


class Cast(NamedTuple):
    """Pids of real processes that the worlds name."""

    worker: int
    helper: int
    victim: int
    """Ends between the two looks of a world that wants it gone."""


class Rule(NamedTuple):
    """Something that has to be so."""

    broken: str
    """What is wrong when it is not, in a few words."""
    holds: Callable[[View, Cast], bool]


class Fault(NamedTuple):
    """One fault."""

    name: str
    title: str
    lines: Callable[[Cast], list[str]]
    rules: tuple[Rule, ...]
    before: Callable[[Cast], list[str]] | None = None
    """What a daemon sees first; None: the fault is there from the beginning."""
    kills: bool = False
    """Whether the victim ends between the two."""
    ours: tuple[Rule, ...] = ()
    """What is asked of ours alone: what a tool that looks once cannot know, or what is no error."""
    flags: tuple[str, ...] = ()
    """The variant of the stand-in."""
    library: bytes | None = None
    """What lies in the place of the library instead."""


def of_gpu(broken: str, holds: Callable[[Shown | None, Cast], bool], key: str = "0") -> Rule:
    """Return a rule about one GPU; None stands for one that is not shown."""
    return Rule(broken, lambda view, cast: holds(view.gpus.get(key), cast))


def held_by(gpu: Shown | None, pid: int) -> Held | None:
    """Return the entry of a process on a GPU."""
    return None if gpu is None else gpu.holder(pid)


def healthy_shown(key: str = "1") -> Rule:
    """Ask that a GPU without fault is shown with its process."""

    def holds(gpu: Shown | None, cast: Cast) -> bool:
        return gpu is not None and gpu.used_bytes is not None and bool(held_by(gpu, cast.worker))

    return of_gpu("hides the healthy GPU", holds, key)


def healthy_pair() -> Rule:
    """Ask that the other GPU is shown as it is, too."""

    def holds(gpu: Shown | None, cast: Cast) -> bool:
        whole = gpu is not None and gpu.used_bytes == 2 * GIB + 500 * MIB
        return whole and bool(held_by(gpu, cast.helper))

    return of_gpu("does not show what is there", holds)


def not_idle(key: str = "0") -> Rule:
    """Ask that a GPU whose processes could not be read does not look unused."""
    return of_gpu("looks idle", lambda gpu, _: gpu is None or gpu.processes != (), key)


def marked(key: str = "0") -> Rule:
    """Ask that a GPU which does not answer is shown as such."""

    def holds(gpu: Shown | None, _: Cast) -> bool:
        return gpu is not None and gpu.state != "ok" and gpu.used_bytes is None

    return of_gpu("does not say what is wrong with the GPU", holds, key)


def used_is(wanted: int, slack: int = 0, key: str = "0") -> Rule:
    """Ask for the memory in use."""

    def holds(gpu: Shown | None, _: Cast) -> bool:
        used = gpu.used_bytes if gpu is not None else None
        return used is not None and abs(used - wanted) <= slack

    return of_gpu(f"used is not {wanted / GIB:.1f} GiB", holds, key)


def no_host_memory(limit: int, key: str = "0") -> Rule:
    """Ask that memory of the host is not shown as the GPU's."""

    def holds(gpu: Shown | None, _: Cast) -> bool:
        return gpu is not None and (gpu.used_bytes is None or gpu.used_bytes in {0, limit})

    return of_gpu("host memory shown as GPU memory", holds, key)


def holder_is(wanted: int, key: str = "0") -> Rule:
    """Ask that the worker is listed once, with what it holds."""

    def holds(gpu: Shown | None, cast: Cast) -> bool:
        rows = [h for h in (gpu.processes or ()) if h.pid == cast.worker] if gpu else []
        return [row.held_bytes for row in rows] == [wanted]

    return of_gpu("the process is not listed once with its memory", holds, key)


def not_full(key: str = "0") -> Rule:
    """Ask that a card which holds 9 GiB at most does not look full."""

    def holds(gpu: Shown | None, _: Cast) -> bool:
        if gpu is None or gpu.used_bytes is None or not gpu.total_bytes:
            return True
        return gpu.used_bytes < 0.9 * gpu.total_bytes

    return of_gpu("looks full", holds, key)


def not_unused(key: str = "0") -> Rule:
    """Ask that memory which a process holds is not said to be unused."""
    return of_gpu(
        "says that nothing is used", lambda gpu, _: gpu is None or gpu.used_bytes != 0, key
    )


def total_is(wanted: int, key: str = "0") -> Rule:
    """Ask that the size of the memory is the card's, or unknown."""

    def holds(gpu: Shown | None, _: Cast) -> bool:
        return gpu is not None and gpu.total_bytes in {None, wanted}

    return of_gpu(f"total is not {wanted / GIB:.0f} GiB", holds, key)


def within_the_card(key: str = "0") -> Rule:
    """Ask that no process is shown with more than its card has."""

    def holds(gpu: Shown | None, _: Cast) -> bool:
        return gpu is None or all(
            (held.held_bytes or 0) <= (gpu.total_bytes or 0) for held in gpu.processes or ()
        )

    return of_gpu("shows a process larger than the card", holds, key)


def kind_is(wanted: str) -> Rule:
    """Ask that ours says whose memory it is."""
    return Rule(
        f"memory is not {wanted}",
        lambda view, _cast: f'"memory_kind":"{wanted}"' in view.text.replace(": ", ":"),
    )


def loader_said(view: View, cast: Cast) -> bool:
    """Say whether it is told that there is a library, and that it cannot be loaded."""
    return "cannot be loaded" in view.text


def unknown_memory(view: View, cast: Cast) -> bool:
    """Say whether the worker is listed and its memory is unknown, not zero."""
    held = held_by(view.gpus.get("0"), cast.worker)
    return held is not None and held.held_bytes is None


def dead_listed(view: View, cast: Cast) -> bool:
    """Say whether the memory of the process that has gone is accounted for by its pid."""
    held = held_by(view.gpus.get("0"), cast.victim)
    return held is not None and held.held_bytes == HELD


def dead_named(view: View, cast: Cast) -> bool:
    """Say whether it is told who that was."""
    held = held_by(view.gpus.get("0"), cast.victim)
    return held is not None and "sleep" in held.name


def three_listed(view: View, cast: Cast) -> bool:
    """Say whether the three processes are listed, and nobody else."""
    gpu = view.gpus.get("0")
    return gpu is not None and {held.pid for held in gpu.processes or ()} == set(cast)


def mismatch_said(view: View, cast: Cast) -> bool:
    """Say whether the output tells that library and module do not fit."""
    text = view.text.lower()
    return "mismatch" in text or "does not fit" in text


def slices_shown(view: View, cast: Cast) -> bool:
    """Say whether each MIG instance has a row, the full one with its process."""
    full, empty = view.gpus.get("0:0"), view.gpus.get("0:1")
    whole = full is not None and full.total_bytes == 20 * GIB
    return whole and empty is not None and bool(held_by(full, cast.worker))


def says(*parts: str) -> Callable[[View, Cast], bool]:
    """Return whether all of these words are in the output."""
    return lambda view, _cast: all(part in view.text for part in parts)


def in_time(limit_s: float) -> Rule:
    """Ask that the answer does not wait for the GPU that hangs."""
    return Rule(f"waits longer than {limit_s:g} s", lambda view, _cast: view.wall_s < limit_s)


def pair(cast: Cast) -> list[str]:
    """Return two healthy cards, the worker on the second."""
    return [
        "gpu 0 total=80G base=500M util=50",
        "gpu 1 total=80G base=500M util=50",
        f"proc 0 pid={cast.helper} mem=2G",
        f"proc 1 pid={cast.worker} mem=9G",
    ]


def single(cast: Cast) -> list[str]:
    """Return one healthy card with the worker."""
    return ["gpu 0 total=80G base=500M util=50", f"proc 0 pid={cast.worker} mem=9G sm=50"]


def with_(world: Callable[[Cast], list[str]], *more: str) -> Callable[[Cast], list[str]]:
    """Return a world with more lines."""
    return lambda cast: [*world(cast), *more]


def fixed(*lines: str) -> Callable[[Cast], list[str]]:
    """Return a world from lines in which {worker}, {helper} and {victim} are pids."""
    return lambda cast: [line.format(**cast._asdict()) for line in lines]


def reporting(event: str) -> Callable[[Cast], list[str]]:
    """Return the pair of cards, of which the first counts errors and reports something."""
    return lambda cast: [line.replace("gpu 0 ", "gpu 0 ecc=1 ") for line in (*pair(cast), event)]


_UNIFIED = "gpu 0 name=NVIDIA_GB10 used=na"
_H100 = "gpu 0 name=NVIDIA_H100_80GB_HBM3 cc=90 total=80G"
_ODD = fixed(f"{_H100} used=0", "proc 0 pid={worker} mem=9G")
_WELL = fixed(f"{_H100} base=500M", "proc 0 pid={worker} mem=9G")
_NO_OLDER = ("fail *RunningProcesses_v2 0 13", "fail *RunningProcesses 0 13")
HANG_S = 5.0
PATIENCE_S = 4.0

FAULTS: tuple[Fault, ...] = (
    Fault("healthy", "two GPUs without a fault", pair, (healthy_shown("1"), healthy_pair())),
    Fault(
        "lost",
        "GPU 0 is lost",
        with_(pair, "fail * 0 15"),
        (healthy_shown(), marked(), not_idle()),
        before=pair,
        ours=(Rule("no event", says('"gpu-lost"')),),
    ),
    Fault(
        "permission",
        "no permission for GPU 0",
        with_(pair, "fail nvmlDeviceGetHandleBy* 0 4"),
        (healthy_shown(), marked(), not_idle()),
    ),
    Fault(
        "unified",
        "memory NOT_SUPPORTED, a process holds 9 GiB",
        fixed(_UNIFIED, "proc 0 pid={worker} mem=9G"),
        (no_host_memory(HELD), holder_is(HELD)),
        ours=(used_is(HELD),),
    ),
    Fault(
        "unified-idle",
        "the same, no process; the host is in use",
        fixed(_UNIFIED),
        (no_host_memory(0),),
    ),
    Fault(
        "unified-zero",
        "shared memory of which the driver says that none is used",
        fixed("gpu 0 name=NVIDIA_GB10 total=119G used=0", "proc 0 pid={worker} mem=9G"),
        (Rule("says that nothing is used", lambda view, _cast: view.gpus["0"].used_bytes != 0),),
        ours=(used_is(HELD), holder_is(HELD)),
    ),
    Fault(
        "list-denied",
        "process list: no permission",
        with_(single, "fail nvmlDeviceGet*RunningProcesses* 0 4"),
        (not_idle(), used_is(HELD + 500 * MIB, MIB)),
    ),
    Fault(
        "list-grew",
        "process list grew between two calls",
        with_(single, "procs_v3_fail_second 2"),
        (not_idle(), holder_is(HELD)),
    ),
    Fault(
        "list-scrambled",
        "process list of driver 535, scrambled",
        fixed(
            "gpu 0 total=80G base=500M util=50",
            "proc 0 pid={worker} mem=9G",
            "proc 0 pid={helper} mem=1G",
            "proc 0 pid={victim} mem=1G",
            "procs_widened",
        ),
        (holder_is(HELD), Rule("shows other pids than there are", three_listed)),
        flags=("-DNO_DETAIL_LIST",),
    ),
    Fault(
        "two-lists",
        "a process in the compute and the graphics list",
        fixed("gpu 0 total=80G base=500M util=50", "proc 0 pid={worker} mem=9G type=CG"),
        (
            holder_is(HELD),
            Rule(
                "counts it twice",
                lambda view, _cast: all(
                    gpu.used_bytes is None or gpu.held_bytes <= gpu.used_bytes
                    for gpu in view.gpus.values()
                ),
            ),
        ),
    ),
    Fault(
        "no-memory",
        "memory of a process not available",
        fixed("gpu 0 total=80G used=9716M util=50", "proc 0 pid={worker} mem=na"),
        (
            Rule("the process or its unknown memory is not shown", unknown_memory),
            used_is(9716 * MIB, MIB),
        ),
        ours=(Rule("no reason", says("lists processes without their memory")),),
    ),
    Fault(
        "dead-owner",
        "9 GiB of a process that has gone",
        fixed("gpu 0 total=80G base=500M", "proc 0 pid={victim} mem=9G"),
        (Rule("hides the dead owner", dead_listed),),
        before=fixed("gpu 0 total=80G base=500M", "proc 0 pid={victim} mem=9G"),
        kills=True,
        ours=(Rule("does not say who it was", dead_named),),
    ),
    Fault(
        "mig",
        "two MIG instances, one filling up",
        fixed(
            "gpu 0 total=80G mig=1",
            "mig 0 gi=1 ci=0 total=20G uuid=MIG-00000000-0000-0000-0000-000000000001",
            "mig 0 gi=2 ci=0 total=20G uuid=MIG-00000000-0000-0000-0000-000000000002",
            "proc 0 pid={worker} mem=9G gi=1 ci=0",
            "fail nvmlDeviceGet*RunningProcesses* 0 4",
        ),
        (Rule("the instances are not shown", slices_shown),),
    ),
    Fault(
        "mismatch",
        "library and kernel module do not match",
        with_(single, "init_error 18"),
        (Rule("does not say so", mismatch_said),),
        ours=(Rule("names no version", says("550.54.15")),),
    ),
    Fault(
        "hang",
        f"GPU 0 does not answer for {HANG_S:g} s a call",
        with_(pair, f"delay nvmlDeviceGetMemoryInfo* 0 {HANG_S * 1e6:.0f}"),
        (healthy_shown(), in_time(PATIENCE_S)),
        ours=(marked(),),
    ),
    Fault(
        "ecc",
        "an uncorrected memory error",
        reporting("event 0 type=2 data=0"),
        (healthy_shown(), healthy_pair()),
        before=reporting("event 0 type=8 data=31"),
        ours=(
            Rule("does not tell of the error", says("memory error")),
            Rule("does not tell of XID 31", says("XID 31")),
        ),
    ),
    Fault(
        "xid",
        "XID 79, and the GPU is gone",
        with_(pair, "event 0 type=8 data=79", "fail nvmlDevice* 0 15"),
        (healthy_shown(), marked()),
        before=with_(pair, "event 0 type=8 data=79"),
        ours=(Rule("does not tell of XID 79", says("XID 79")),),
    ),
    Fault(
        "used-zero",
        "an H100 of which the driver says that none is used, a process holds 9 GiB",
        _ODD,
        (not_unused(), total_is(80 * GIB)),
        before=_ODD,
        ours=(holder_is(HELD), kind_is("dedicated"), Rule("no reason", says("contradict"))),
    ),
    Fault(
        "used-zero-over",
        "the same for some looks, then well again",
        _WELL,
        (used_is(HELD + 500 * MIB, MIB), total_is(80 * GIB), holder_is(HELD)),
        before=_ODD,
        ours=(kind_is("dedicated"),),
    ),
    Fault(
        "larger-than-card",
        "a process that holds 90 GiB of an H100",
        fixed(f"{_H100} used=9716M", "proc 0 pid={worker} mem=90G"),
        (within_the_card(), not_idle(), used_is(9716 * MIB, MIB), total_is(80 * GIB)),
        before=_WELL,
        ours=(kind_is("dedicated"), Rule("no reason", says("more than the GPU has"))),
    ),
    Fault(
        "total-huge",
        "a total of 4 PiB",
        fixed(f"{_H100} answer=4096T/4096T/0",
              "proc 0 pid={worker} mem=9G"),
        (total_is(80 * GIB), not_unused()),
        ours=(kind_is("dedicated"), holder_is(HELD), Rule("no reason", says("not believed"))),
    ),
    Fault(
        "zeros",
        "zeros for total, free and used",
        fixed(f"{_H100} answer=0/0/0", "proc 0 pid={worker} mem=9G"),
        (total_is(80 * GIB), not_unused(), not_full()),
        ours=(kind_is("dedicated"), holder_is(HELD), Rule("no reason", says("zeros"))),
    ),
    Fault(
        "contradiction",
        "nothing is free, and 9 of 80 GiB are used",
        fixed(f"{_H100} answer=80G/0/9G", "proc 0 pid={worker} mem=9G"),
        (used_is(HELD), not_full()),
        ours=(Rule("no reason", says("contradict each other")),),
    ),
    Fault(
        "numa-zero",
        "NUMA node 0 for every card",
        fixed(f"{_H100} base=500M numa=0", "proc 0 pid={worker} mem=9G"),
        (used_is(HELD + 500 * MIB, MIB), holder_is(HELD)),
        ours=(kind_is("dedicated"),),
    ),
    Fault(
        "pid-odd",
        "a process list with a pid that cannot be",
        fixed(f"{_H100} used=9716M", "proc 0 pid={worker} mem=9G", "proc 0 pid=4194999 mem=1G"),
        (not_idle(), Rule("shows a pid that cannot be", lambda view, _cast: all(
            held.pid < 4194304 for gpu in view.gpus.values() for held in gpu.processes or ()
        ))),
        before=_WELL,
        ours=(Rule("no reason", says("not credible")),),
    ),
    Fault(
        "pid-odd-over",
        "the same for some looks, then well again; the driver knows no older list",
        with_(_WELL, *_NO_OLDER),
        (holder_is(HELD), used_is(HELD + 500 * MIB, MIB)),
        before=with_(fixed(_H100, "proc 0 pid=4194999 mem=1G"), *_NO_OLDER),
    ),
    Fault(
        "library-broken",
        "the driver's library is there and cannot be loaded",
        single,
        (Rule("says that there is none", loader_said),),
        library=b"\x7fELF, but no more of it\n" * 20,
    ),
)  # fmt: skip
