"""Several censuses, what grows in all of them, and who holds it: the whole of a request."""

from __future__ import annotations

import array
import binascii
import contextlib
import gc
import random
import sys
import time
from types import FrameType
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Optional,
    Set,
    Tuple,
)

from . import attributes, census, heap, holders, tensors
from .names import Name, Namer

Row = Dict[str, Any]
Classes = Tuple[type, ...]
SMALLEST_STEP = 0.3
"""Of the largest one: below it, growth comes in bursts and is not steady."""
SMALLEST_STEP_OF_ONE = 0.5
"""For the size of one variable, where batches of changing length look alike by chance."""
FEWEST_OBJECTS = 6
SAMPLED = 18
WALK_BUDGET_S = 5.0
MOST_GROUPS = 6
EXPLAINED = 0.5
MOST_INSIDE = 16
MOST_STOPS = 5
"""A job that forks so often while a copy is read has stood still for long enough."""
COMPILES = "torch/_dynamo/convert_frame"
"""In whose frames PyTorch compiles; its tensors of no memory are not the job's."""


def steps(
    types: Classes,
    censuses: int = 4,
    limit_s: float = 20.0,
    is_stopping: Callable[[], bool] = bool,
) -> Iterator[Row]:
    """Find the groups of tensors that grow steadily and what holds them, a census at each step.

    Yield before each census the one result that they fill: groups, pauses_ms, censuses, frozen and
    error (a code, or None). With fewer than 4 a clean program looks like a leak. Raises nothing.
    A census that ``is_stopping`` ends, because the job forks, is taken again.
    """
    result: Row = {"groups": [], "pauses_ms": [], "censuses": 0, "frozen": 0, "error": None}
    earlier: List[Row] = []
    count = max(4, censuses)
    stops = 0
    while len(earlier) < count:
        yield result

        def work(last: bool = len(earlier) == count - 1) -> Row:  # noqa: FBT001  # bound here
            return _in_child(types, earlier, limit_s, last=last)

        try:
            answer = heap.in_child(work, limit_s, is_stopping)
        except Exception as error:  # nothing may reach the job
            code = error.code if isinstance(error, heap.HeapError) else "died"
            stops += 1
            if code == "stopped" and stops < MOST_STOPS:
                continue
            result["error"] = code
            return
        result["pauses_ms"].append(answer.pop("pause_ms"))
        result["frozen"] = max(result["frozen"], answer["frozen"])
        result["censuses"] = len(earlier) + 1
        result["groups"] = answer.pop("groups", [])
        earlier.append(answer)
        if len(earlier) > 2:  # ids serve to tell what is new: of the first and the last
            for group in earlier[-2]["fine"].values():
                group["ids"] = ""


def _in_child(types: Classes, earlier: List[Row], limit_s: float, *, last: bool) -> Row:
    end = time.monotonic() + 0.8 * limit_s
    attributes.remember_dicts()
    running = [one for first in sys._current_frames().values() for one in frames_of(first)]
    if any(COMPILES in frame.f_code.co_filename for frame in running):
        raise heap.HeapError("compiling")
    with without_torch_functions():
        taken = census.take(types)
        known = set(map(id, taken.objects))
        namer = Namer(known, set(map(id, frames_of(sys._getframe()))))
        answer: Row = {
            "frozen": taken.frozen,
            "fine": {
                key: {"count": g.total, "size": g.size, "ids": _packed(g.ids), "coarse": g.coarse}
                for key, g in taken.fine.items()
            },
            "coarse": {key: {"count": g.total, "size": g.size} for key, g in taken.coarse.items()},
            "variables": _variables(types, namer),
        }
        if last:
            answer["groups"] = _groups(types, [*earlier, answer], taken, namer, end)
    return answer


def _packed(ids: List[int]) -> str:
    """Return ids as text: a list of a million numbers takes the job .2 s to read, and its GIL."""
    return binascii.b2a_base64(array.array("Q", ids).tobytes()).decode()


def _unpacked(text: str) -> List[int]:
    ids = array.array("Q")
    ids.frombytes(binascii.a2b_base64(text))
    return ids.tolist()


def without_torch_functions() -> ContextManager[Any]:
    """Keep reading an attribute from running ``__torch_function__`` of a user's subclass."""
    library = attributes.own_dict(attributes.own_dict(sys.modules.get("torch")).get("_C"))
    guard = library.get("DisableTorchFunctionSubclass")
    return guard() if guard is not None else contextlib.nullcontext()


def frames_of(frame: Optional[FrameType]) -> Iterator[FrameType]:
    """Yield a call and those around it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_steady(counts: List[int], smallest: float = SMALLEST_STEP, least: int = 1) -> bool:
    """Tell whether a number grew in each interval, and about as much in each."""
    steps = [after - before for before, after in zip(counts, counts[1:])]
    if len(steps) < 3 or min(steps) <= 0:
        return False
    return min(steps) >= smallest * max(steps) and sum(steps) >= least


def _steady(rows: List[Row], kind: str) -> Dict[str, List[int]]:
    found = {}
    for key in rows[-1][kind]:
        counts = [row[kind].get(key, {"count": 0})["count"] for row in rows]
        if is_steady(counts, least=FEWEST_OBJECTS):
            found[key] = counts
    return found


def _groups(
    types: Classes, rows: List[Row], taken: census.Census, namer: Namer, end: float
) -> List[Row]:
    fine, coarse = _steady(rows, "fine"), _steady(rows, "coarse")
    explained: Dict[str, int] = {}
    for key, counts in fine.items():
        above = taken.fine[key].coarse
        explained[above] = explained.get(above, 0) + counts[-1] - counts[0]
    steady = dict(fine)
    steady.update(
        (key, counts)
        for key, counts in coarse.items()
        if explained.get(key, 0) < EXPLAINED * (counts[-1] - counts[0])
    )
    groups = []
    sized = {key: (taken.fine.get(key) or taken.coarse[key]).size for key in steady}
    for key in sorted(steady, key=lambda one: -sized[one])[:MOST_GROUPS]:
        held = taken.coarse[key] if key in coarse and key not in fine else taken.fine[key]
        budget = min(WALK_BUDGET_S, end - time.monotonic())
        members = _members(held.ids, rows, taken)
        walked: List[Row] = []
        if budget > 0 and members:
            walked = holders.walk(members, types, budget, namer)
        holder = dict(walked[0]) if walked else None
        if holder is not None and len(walked) > 1 and walked[1]["name"] != holder["name"]:
            holder["name"] += " or " + walked[1]["name"]
            sure = "either"
        else:
            sure = "named" if holder else "unknown"
            if holder is None and time.monotonic() < end:
                kept = any(namer.is_jobs(id(owner)) for owner in gc.get_referrers(*members))
                sure = "unknown" if kept else "native"
        groups.append(_group(key, steady[key], held.size, holder, sure))
        groups[-1]["addresses"] = tensors.addresses(members)
        if holder is not None and holder["kind"] in holders.PLAIN and holder["bound"] is None:
            groups[-1]["graph"] = any(tensors.graph_size(one, types, 1) for one in members[:1])
    _explain_by_graph(groups)
    for group in groups:
        holder = group["holder"]
        if holder and holder["bound"] and holder["len"]:
            full = group["bytes"] * holder["bound"] / holder["len"]
            group["bounded_at_bytes"] = int(full) if full < 1 << 60 else None
    return groups + _growing_variables(rows, groups)


def _members(ids: List[int], rows: List[Row], taken: census.Census) -> List[Any]:
    """Return some objects that are new since the first census and outlived the last interval."""

    def ids_of(row: Row) -> Set[int]:
        return {one for group in row["fine"].values() for one in _unpacked(group["ids"])}

    first, before = ids_of(rows[0]), ids_of(rows[-2])
    new = [one for one in ids if one not in first]
    kept = [one for one in new if one in before]
    chosen = kept if len(kept) >= 2 else new
    # the state of the generator is a copy here: the job's own numbers do not change
    sampled = set(random.sample(chosen, min(SAMPLED, len(chosen))))
    return [obj for obj in taken.found if id(obj) in sampled]


def _group(key: str, counts: List[int], size: int, holder: Optional[Row], sure: str) -> Row:
    group = {"group": key, "counts": counts, "bytes": size, "holder": holder, "sure": sure}
    return dict(group, line=None, bounded_at_bytes=None)


def _explain_by_graph(groups: List[Row]) -> None:
    """Call a group without a holder that grows like a named one what the graph of that saved."""
    for group in groups:
        if group["holder"] is not None:
            continue
        for other in groups:
            if other["sure"] == "named" and _same_pace(group["counts"], other["counts"]):
                group["sure"] = "graph"
                group["holder"] = dict(other["holder"], kind="graph")
                break


def _same_pace(one: List[int], other: List[int]) -> bool:
    first, second = one[-1] - one[0], other[-1] - other[0]
    times = max(1, round(first / second))
    return abs(first - times * second) <= max(times, 0.05 * first)


def _variables(types: Classes, namer: Namer) -> Dict[str, Row]:
    """Return the size, and the size of the graph, of each tensor that a variable names."""
    classes = attributes.ids_of(types)
    read = tensors.reader(types)
    found: Dict[str, Row] = {}
    left = tensors.MOST_NODES
    for value, name in holders.variables(namer):
        for text, tensor in _one_level(value, name, classes):
            try:
                facts = read(tensor)
                nodes = tensors.graph_size(tensor, types, left)
                left -= nodes
            except Exception:  # as in the census: not countable
                continue
            found[text] = {"count": facts.size, "nodes": nodes, "kind": facts.kind}
            found[text].update(file=name.file, line=name.line)
    return found


def _one_level(value: Any, variable: Name, classes: FrozenSet[int]) -> List[Tuple[str, Any]]:
    if id(type(value)) in classes:
        return [(variable.text, value)]
    if (type(value) is tuple or type(value) is list) and len(value) <= MOST_INSIDE:
        return [(variable.part("[...]"), one) for one in value if id(type(one)) in classes]
    return [
        (variable.part("." + name), tensor)
        for name, tensor in list(attributes.own_dict(value).items())
        if type(name) is str and id(type(tensor)) in classes
    ]


def _growing_variables(rows: List[Row], groups: List[Row]) -> List[Row]:
    """Return single tensors that are made anew, each larger or with a longer history.

    What nobody is seen to keep is kept by such a history, where one grows or is past counting. Of
    several the shortest is meant, the others are made from it; of equal ones that which is set
    first: what is kept comes from before the loop.
    """
    found = []
    loose = [group for group in groups if group["holder"] is None]
    named = any(group["sure"] == "named" for group in groups)
    last = rows[-1]["variables"].items()
    for name, facts in sorted(last, key=lambda one: (one[1]["nodes"], one[1]["line"] or 0)):
        series = [row["variables"].get(name) for row in rows]
        if any(one is None for one in series):
            continue
        sizes = [one["count"] for one in series if one is not None]
        nodes = [one["nodes"] for one in series if one is not None]
        holder = {"name": name, "kind": "tensor", "len": None, "bound": None}
        holder.update(file=facts["file"], line=facts["line"])
        endless = nodes[0] >= tensors.MOST_NODES / 2
        if (endless and loose) or (not named and is_steady(nodes, least=FEWEST_OBJECTS)):
            for group in loose:
                group.update(holder=dict(holder, kind="graph"), sure="graph")
            if not loose:
                kind = facts["kind"] + ", operations in its history"
                found.append(_group(kind, nodes, facts["count"], holder, "graph"))
            named, loose = True, []
        elif is_steady(sizes, SMALLEST_STEP_OF_ONE):
            kind = facts["kind"] + ", bytes"
            found.append(_group(kind, sizes, facts["count"], holder, "named"))
    return found
