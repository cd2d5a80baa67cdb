"""Who keeps the new tensors alive: climb from some of them to what they have in common.

Runs in the child, where holding objects and reading frames harms nobody.
"""

from __future__ import annotations

import collections
import functools
import gc
import operator
import sys
import time
import types
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from . import attributes, places
from .names import CACHE, Name, Namer, bounds_of, credible, of_cache

MOST_LEVELS = 14
MOST_FRONTIER = 300
FEWEST_ENTRIES = 6
"""A container of fewer has not taken in what a group that grows became more by."""
MOST_LEVELS_TO_BOUND = 3
"""The container, a dict that it is in, and the object whose attributes the dict holds."""
SHARED = 0.6
MOST_CANDIDATES = 8
MOST_TOGETHER = 4
"""Of so many variables that keep a group together all are named."""
MOST_FORWARD = 200_000
FORWARD_LIMIT_S = 2.0
PLAIN = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict"}
"""Kinds of which it is said what to keep in them; of others what to do with them."""
QUEUES = {"queue", "asyncio.queues", "multiprocessing.queues"}
"""Modules."""
SIZED = (list, dict, set, frozenset, tuple, collections.deque)
NO_HOLDERS = attributes.ids_of(
    [types.FrameType, types.CellType, types.ModuleType, types.FunctionType]
)
NOT_ENTERED = attributes.ids_of([types.ModuleType, types.FunctionType, types.FrameType, type])


def walk(
    members: Sequence[Any], types: Tuple[type, ...], budget_s: float, namer: Namer
) -> List[Dict[str, Any]]:
    """Return what holds some objects of a group: name, kind, len, bound, file, line; best first.

    A tensor, of one of these types, is never the holder of tensors.
    """
    end = time.monotonic() + budget_s
    return _climb(members, attributes.ids_of(types), namer, end) or _descend(
        members, namer, min(end, time.monotonic() + FORWARD_LIMIT_S)
    )


def _climb(
    members: Sequence[Any], classes: FrozenSet[int], namer: Namer, end: float
) -> List[Dict[str, Any]]:
    frontier = {id(obj): (obj, 1 << number) for number, obj in enumerate(members)}
    enough = SHARED * len(frontier)
    masks = {key: mask for key, (_, mask) in frontier.items()}
    for _ in range(MOST_LEVELS):
        if not frontier or time.monotonic() > end:
            return []
        following: Dict[int, Tuple[Any, int]] = {}
        for owner in gc.get_referrers(*(obj for obj, _ in frontier.values())):
            key = id(owner)
            if key in namer.running or key in namer.modules or not namer.is_jobs(key):
                continue
            mask = before = masks.get(key, 0)
            for held in gc.get_referents(owner):
                if id(held) in frontier:
                    mask |= frontier[id(held)][1]
            if mask != before:  # again, for a member whose way here is longer
                masks[key] = mask
                following[key] = (owner, mask)
        candidates = [
            (bin(mask).count("1"), owner)
            for owner, mask in following.values()
            if bin(mask).count("1") >= enough
            and id(type(owner)) not in classes
            and not _is_no_holder(owner, namer)
        ]
        found = _named(candidates, namer, end) or _alike(following, enough, namer, end)
        if found:
            return found
        frontier = dict(list(following.items())[:MOST_FRONTIER])
    return []


def _is_no_holder(owner: Any, namer: Namer) -> bool:
    if id(type(owner)) in NO_HOLDERS or id(owner) in namer.modules:
        return True
    length = size_of(owner)[0]
    return length is not None and length < FEWEST_ENTRIES  # it is not what became longer


def _alike(
    owners: Dict[int, Tuple[Any, int]], enough: float, namer: Namer, end: float
) -> List[Dict[str, Any]]:
    """Name containers that keep a group together, and are reached by one path, or are few.

    As the lists of the layers of a model, or a list of each metric.
    """
    several = [
        (bin(mask).count("1"), owner, mask)
        for owner, mask in owners.values()
        if mask & (mask - 1) and _is_sized(owner) and not _is_no_holder(owner, namer)
    ]
    several = sorted(several, key=lambda one: -one[0])[:MOST_CANDIDATES]
    if sum(count for count, _, _ in several) < enough:
        return []
    paths: Dict[str, List[Tuple[Name, Any, int]]] = {}
    for _, owner, mask in several:
        for name in namer.names_of(owner, end)[:1]:
            paths.setdefault(name.text, []).append((name, owner, mask))
    for alike in paths.values():
        union = functools.reduce(operator.or_, (mask for _, _, mask in alike))
        if bin(union).count("1") >= enough:
            found = [described(owner, name, namer) for name, owner, _ in alike]
            return [dict(found[0], len=sum(one["len"] for one in found), bound=None)]
    union = functools.reduce(operator.or_, (mask for _, _, mask in several))
    if bin(union).count("1") < enough or not 0 < len(paths) <= MOST_TOGETHER:
        return []
    found = [described(owner, name, namer) for alike in paths.values() for name, owner, _ in alike]
    bounds = [one["bound"] for one in found]
    bound = None if None in bounds else sum(bounds)
    length = sum(one["len"] for one in found)
    return [dict(found[0], name=" and ".join(paths), len=length, bound=bound)]


def _named(candidates: List[Tuple[int, Any]], namer: Namer, end: float) -> List[Dict[str, Any]]:
    """Name the candidates; where two names are equally good, either may be meant."""
    named: List[Tuple[Name, Any]] = []
    for _, owner in sorted(candidates, key=lambda one: -one[0])[:MOST_CANDIDATES]:
        names = [of_cache(owner)] if type(owner) is CACHE else namer.names_of(owner, end)[:1]
        named += [(name, owner) for name in names if name is not None]
    users = [one for one in named if places.is_users(one[0].file or "")]
    ordered = sorted(users or named, key=lambda one: one[0].rank)
    best = [one for one in ordered if one[0].rank[:2] == ordered[0][0].rank[:2]]
    return [described(owner, name, namer) for name, owner in best[:2]]


def described(owner: Any, name: Name, namer: Namer) -> Dict[str, Any]:
    """Return the holder as it is told: no value of the user's is in it."""
    length, bound = size_of(owner)
    return {
        "name": name.text,
        "kind": _kind(owner, name),
        "len": length,
        "bound": bound if bound is not None else _bound_beside(owner, length, namer),
        "file": name.file,
        "line": name.line,
    }


def _kind(owner: Any, name: Name) -> str:
    """Return the type of a holder, with what it is for where that says what to change."""
    if type(owner) is CACHE or name.is_cache:
        return "lru_cache"
    kind, variable = attributes.class_name(type(owner)), name.variable
    if variable.endswith(".param_groups"):
        return "parameter-group " + kind
    if variable.endswith(("_hooks", "_hooks[...]")):
        return "hook " + kind
    if kind in {"deque", "list"} and _is_of_queue(owner):
        return "queue"
    entries = gc.get_referents(owner)[:FEWEST_ENTRIES] if _is_sized(owner) else []
    raised = any(issubclass(type(entry), BaseException) for entry in entries)
    return "exception " + kind if raised else kind


def _is_of_queue(owner: Any) -> bool:
    """Tell whether a container is what a queue keeps its entries in."""
    level = [owner]
    for _ in range(2):  # its dict, where it has one, and the queue
        level = gc.get_referrers(*level)
        for cls in (base for one in level for base in attributes.mro(type(one))):
            module = attributes.class_dict(cls).get("__module__")
            if type(module) is str and module in QUEUES:
                return True
    return False


def _bound_beside(owner: Any, length: Optional[int], namer: Namer) -> Optional[int]:
    """Return the limit that a container keeps, or else the object whose attribute it is.

    A limit that is exceeded is the limit of something else.
    """
    level = [owner]
    for _ in range(MOST_LEVELS_TO_BOUND):
        for bound in (one for obj in level for one in bounds_of(obj)):
            if length is not None and length <= bound + 1:  # one more, until the oldest is removed
                return bound
        level = [
            above
            for above in gc.get_referrers(*filter(_is_sized, level))
            if namer.is_jobs(id(above))
            and id(above) not in namer.modules
            and id(type(above)) not in NOT_ENTERED
        ]
    return None


def _is_sized(obj: Any) -> bool:
    return issubclass(type(obj), SIZED)  # of classes without a metaclass: it asks nobody


def size_of(owner: Any) -> Tuple[Optional[int], Optional[int]]:
    """Return how much a container holds and the most that it may hold."""
    if type(owner) is CACHE:
        information = CACHE.cache_info(owner)
        return information.currsize, credible(information.maxsize)
    length = next((base.__len__(owner) for base in SIZED if issubclass(type(owner), base)), None)
    if issubclass(type(owner), collections.deque):
        return length, credible(collections.deque.maxlen.__get__(owner))
    return length, None


def _descend(members: Sequence[Any], namer: Namer, end: float) -> List[Dict[str, Any]]:
    """Look from the user's variables downwards: for chains, and for what the collector is not told.

    A linked list is too long to climb, and an array of objects does not say what it holds.
    """
    wanted = set(map(id, members))
    enough = SHARED * len(wanted)
    entered = 0
    found: List[Tuple[Name, Any]] = []
    for root, name in variables(namer):
        seen = {id(root)}
        level: List[Any] = [root]
        while level and len(seen) < MOST_FORWARD - entered and time.monotonic() < end:
            following = []
            for obj in [*gc.get_referents(*level), *_array_items(level)]:
                key = id(obj)
                if key in seen or id(type(obj)) in NOT_ENTERED or key in namer.modules:
                    continue
                seen.add(key)
                following.append(obj)
            level = following
        entered += len(seen)
        if len(wanted & seen) >= enough:
            found.append((name, root))
    found.sort(key=lambda one: one[0].rank)
    return [described(root, name, namer) for name, root in found[:1]]


def _array_items(level: List[Any]) -> List[Any]:
    """Return what the object arrays of numpy among these hold."""
    numpy = attributes.own_dict(sys.modules.get("numpy")).get("ndarray")
    items: List[Any] = []
    for obj in level:
        if numpy is not None and type(obj) is numpy and numpy.dtype.__get__(obj).hasobject:
            items += numpy.flatten(obj).tolist()
    return items


def variables(namer: Namer) -> List[Tuple[Any, Name]]:
    """Return the variables of the user's running functions and modules."""
    roots: List[Tuple[Any, Name]] = []
    for places_of in list(namer.locals.values()):
        variable, frame = places_of[0]
        if places.is_users(frame.f_code.co_filename):
            code = frame.f_code
            value = dict(attributes.locals_of(frame)).get(variable)
            line: Optional[int] = places.line_of_name(code, variable)
            text = f"{variable} in {code.co_name}()"
            roots.append((value, Name(text, code.co_filename, line, 0, code.co_name)))
    for name, module in list(sys.modules.items()):
        space = attributes.own_dict(module)
        file = space.get("__file__")
        if (
            type(name) is str
            and type(file) is str
            and places.is_users(file)
            and name != "__mp_main__"
        ):
            for variable, value in list(space.items()):
                named = type(variable) is str and variable[:2] != "__"
                if named and id(type(value)) not in NOT_ENTERED:
                    short = places.module_name(name, file)
                    text = f"{short}.{variable}"
                    main = namer.codes.get(file)
                    line = None if main is None else places.line_of_name(main, variable)
                    roots.append((value, Name(text, file, line, 1)))
    return roots
