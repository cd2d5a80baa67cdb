"""What counts as a tensor, and how one is read without running a method of the user's."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from . import attributes

FRAMEWORKS = (
    ("torch", "Tensor"),
    ("jaxlib._jax", "ArrayImpl"),
    ("jaxlib.xla_extension", "ArrayImpl"),
    ("mlx.core", "array"),
    ("cupy", "ndarray"),
)
MOST_NODES = 50_000
"""Of all graphs that variables keep, in one census: about .2 s."""


class Facts(NamedTuple):
    """What is known of one tensor. ``storage`` is the same for views of the same memory."""

    shape: str
    kind: str
    size: int
    storage: int


def types() -> Tuple[type, ...]:
    """Return the tensor classes of the frameworks that are imported, and all their subclasses."""
    classes: Dict[int, type] = {}
    for module, name in FRAMEWORKS:
        found = attributes.own_dict(sys.modules.get(module)).get(name)
        if isinstance(found, type):
            classes.update((id(cls), cls) for cls in (found, *subclasses(found)))
    return tuple(classes.values())


def subclasses(base: type) -> List[type]:
    """Return all classes below a class, asking no metaclass."""
    found: Dict[int, type] = {}
    waiting = [base]
    while waiting:
        direct: List[type] = type.__subclasses__(waiting.pop())
        for below in direct:
            if id(below) not in found:
                found[id(below)] = below
                waiting.append(below)
    return list(found.values())


def reader(classes: Tuple[type, ...]) -> Callable[[Any], Facts]:
    """Return the function that reads an object of one of these classes.

    What a subclass overrides is not run: each attribute is looked up in the topmost class of the
    set that the object's class descends from, which is the framework's own.
    """
    bases: Dict[int, type] = {}
    torch = attributes.own_dict(sys.modules.get("torch")).get("Tensor")

    def read(tensor: Any) -> Facts:
        """Return what is known of a tensor."""
        cls = type(tensor)
        if id(cls) not in bases:
            bases[id(cls)] = base_of(cls, classes)
        base = bases[id(cls)]
        return (_read_torch if base is torch else _read_other)(tensor, base, cls)

    return read


def base_of(cls: type, classes: Tuple[type, ...]) -> type:
    """Return the framework's own class that a class descends from."""
    known = attributes.ids_of(classes)
    return next((one for one in reversed(attributes.mro(cls)) if id(one) in known), cls)


def _read_torch(tensor: Any, base: type, cls: type) -> Facts:
    get = functools.partial(attributes.through, base, obj=tensor)
    shape = str(list(get("shape")))
    grad = get("grad_fn")
    if grad is not None:
        history = attributes.class_name(type(grad))
    else:
        history = "leaf" if get("requires_grad") else ""
    kind = "{} {} {}".format(str(get("dtype")).replace("torch.", ""), get("device"), history)
    storage = 0
    try:
        memory = attributes.call(base, "untyped_storage", tensor)
        # The address of the bookkeeping, not of the data: asking for that may copy a lazy clone.
        storage, size = memory._cdata, memory.nbytes()
    except Exception:  # sparse, or a wrapper without memory
        size = attributes.call(base, "numel", tensor) * attributes.call(
            base, "element_size", tensor
        )
    return Facts(shape, _with_class(kind.strip(), base, cls), int(size), storage)


def _read_other(tensor: Any, base: type, cls: type) -> Facts:
    get = functools.partial(attributes.through, base, obj=tensor)
    shape, size, node = get("shape"), get("nbytes"), get("grad_fn")
    kind = "{} {}".format(get("dtype") or "", "" if node is None else "graph").strip()
    return Facts(
        "" if shape is None else str(list(shape) if type(shape) is tuple else shape),
        _with_class(kind, base, cls) or attributes.class_name(cls),
        size if type(size) is int else 0,
        0,
    )


def _with_class(kind: str, base: type, cls: type) -> str:
    return kind if cls is base else f"{kind} {attributes.class_name(cls)}".strip()


def addresses(members: List[Any]) -> List[int]:
    """Return where the blocks of plain torch tensors begin, where the job records who made them."""
    torch = attributes.own_dict(sys.modules.get("torch"))
    address_of = attributes.own_dict(torch.get("_C")).get("_data_address")  # copies no lazy clone
    if address_of is None or not os.environ.get("GPUWATCHD_PROBE_RECORD"):
        return []
    return [address_of(obj) for obj in members if type(obj) is torch.get("Tensor")]


def graph_size(tensor: Any, classes: Tuple[type, ...], most: int = MOST_NODES) -> int:
    """Return how many nodes the graph behind a tensor has, at most so many.

    What the nodes saved is not read: hooks of the user would compute it anew.
    """
    first = attributes.through(base_of(type(tensor), classes), "grad_fn", tensor)
    if first is None:
        return 0
    seen = {id(first): first}  # kept, for the id of a node is its own only while it lives
    waiting = [first]
    readers: Dict[int, Callable[[Any], Any]] = {}
    while waiting and len(seen) < most:
        node = waiting.pop()
        cls = type(node)
        if id(cls) not in readers:
            readers[id(cls)] = attributes.reader(cls, "next_functions")
        following = readers[id(cls)](node)
        for node, _ in following if type(following) is tuple else ():
            if node is not None and id(node) not in seen:
                seen[id(node)] = node
                waiting.append(node)
    return len(seen)
