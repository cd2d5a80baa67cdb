"""Count the tensors of the job by what they look like (in the child)."""

from __future__ import annotations

import gc
from typing import Any, Dict, List, NamedTuple, Set, Tuple

from . import attributes, tensors

MOST_IDS = 100_000


class Group(NamedTuple):
    """Tensors that look alike: how many, how much memory, and their ids, oldest first.

    ``coarse`` is the group without the shape; a cache that has one entry per shape is seen only
    there.
    """

    total: int
    size: int
    ids: List[int]
    coarse: str


class Census(NamedTuple):
    """The groups with the shape and without it, and all objects, which are held on purpose.

    The child never lets go of an object: the last reference of one may be there, and its
    finalizer is the user's.
    """

    fine: Dict[str, Group]
    coarse: Dict[str, Group]
    objects: List[Any]
    found: List[Any]
    frozen: int


def take(types: Tuple[type, ...]) -> Census:
    """Count the objects of these classes, by identity, and of those below them."""
    frozen = gc.get_freeze_count()
    if frozen:  # hidden from get_objects and get_referrers; in the child this harms nobody
        gc.unfreeze()
    classes = [*types, *(below for base in types for below in tensors.subclasses(base))]
    objects = gc.get_objects()
    # in C: no bytecode, no method of anybody's
    chosen = map(attributes.ids_of(classes).__contains__, map(id, map(type, objects)))
    found = [obj for obj, is_one in zip(objects, chosen) if is_one]
    fine, coarse = _grouped(found, tuple(classes))
    return Census(fine, coarse, objects, found, frozen)


def _grouped(
    found: List[Any], classes: Tuple[type, ...]
) -> Tuple[Dict[str, Group], Dict[str, Group]]:
    read = tensors.reader(classes)
    ids: Dict[str, List[int]] = {}
    sizes: Dict[str, int] = {}
    above: Dict[str, str] = {}
    storages: Dict[str, Set[int]] = {}
    for obj in found:
        try:
            facts = read(obj)
        except Exception:  # freed, or a wrapper of something else: not countable
            continue
        name = (facts.shape + " " + facts.kind).strip()
        above[name] = facts.kind
        for key in {name, facts.kind}:
            ids.setdefault(key, []).append(id(obj))
            seen = storages.setdefault(key, set())
            if not facts.storage or facts.storage not in seen:
                seen.add(facts.storage)
                sizes[key] = sizes.get(key, 0) + facts.size

    def group(key: str, kind: str) -> Group:
        """Return the group of this name."""
        return Group(len(ids[key]), sizes.get(key, 0), ids[key][-MOST_IDS:], kind)

    fine = {key: group(key, kind) for key, kind in above.items()}
    return fine, {kind: group(kind, kind) for kind in set(above.values())}
