"""Look into objects without running a line of the user's.

No ``getattr``, no ``isinstance``, no ``len`` of an object that was not made here: each may call
what the user's class defines. Dicts, slots and descriptors of C are read as what they are, and
classes are compared by their ids: ``==`` and ``hash`` of one are its metaclass's.
"""

from __future__ import annotations

import types
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Tuple

_MRO = type.__dict__["__mro__"]
_NAME = type.__dict__["__name__"]
_DICT = type.__dict__["__dict__"]


def ids_of(classes: Iterable[type]) -> FrozenSet[int]:
    """Return the ids of classes, which are to live on."""
    return frozenset(map(id, classes))


_DESCRIPTORS = ids_of([types.GetSetDescriptorType, types.MemberDescriptorType])
_METHODS = ids_of([types.MethodDescriptorType, types.BuiltinFunctionType])
_CONSTANTS = ids_of([int, str, tuple])

made: Optional[Dict[int, Any]] = None
"""The dicts that were read, in the child only. Since Python 3.11 an instance may have none until it
is asked for; from then on the dict refers to the values, though the job has no such dict."""


def remember_dicts() -> None:
    """Keep the dicts of instances that are read from now on; called in the child."""
    global made  # noqa: PLW0603  # the child has one thread and one purpose
    made = {}


def is_made(key: int) -> bool:
    """Tell whether this is the id of a dict that came into being by reading it here."""
    return made is not None and key in made


def mro(cls: type) -> Tuple[type, ...]:
    """Return a class and its bases, nearest first."""
    found: Tuple[type, ...] = _MRO.__get__(cls)
    return found


def class_name(cls: type) -> str:
    """Return the name of a class, whatever its metaclass says."""
    return str(_NAME.__get__(cls))


def class_dict(cls: type) -> Any:
    """Return what a class itself defines."""
    return _DICT.__get__(cls)


def own_dict(obj: Any) -> Dict[Any, Any]:
    """Return the attributes of an instance, a function or a module; empty where it has none."""
    for cls in mro(type(obj)):
        descriptor = class_dict(cls).get("__dict__")
        if descriptor is None:
            continue
        if id(type(descriptor)) not in _DESCRIPTORS:  # a property of this name is the user's
            return {}
        try:
            found = descriptor.__get__(obj)
        except Exception:
            return {}
        if type(found) is not dict:
            return {}
        if made is not None:
            made[id(found)] = found
        return found
    return {}


def locals_of(frame: types.FrameType) -> List[Tuple[str, Any]]:
    """Return the variables of a call; none of a class's body, whose mapping may be the user's."""
    found: Any = frame.f_locals
    if type(found) is dict or class_name(type(found)) == "FrameLocalsProxy":  # from 3.13 on
        return list(found.items())
    return []


def slots(obj: Any) -> List[Tuple[str, Any]]:
    """Return what the slots of an instance hold."""
    found = []
    for cls in mro(type(obj)):
        for name, descriptor in list(class_dict(cls).items()):
            if type(descriptor) is types.MemberDescriptorType and name[:2] != "__":
                try:
                    found.append((name, descriptor.__get__(obj)))
                except Exception:  # an empty slot
                    continue
    return found


def reader(cls: type, name: str) -> Callable[[Any], Any]:
    """Return what reads an attribute of many objects of one class, as :func:`through` does."""
    found: Any = next((class_dict(one)[name] for one in mro(cls) if name in class_dict(one)), None)
    if id(type(found)) in _DESCRIPTORS:
        read: Callable[[Any], Any] = found.__get__
        return read
    return lambda obj: through(cls, name, obj)


def through(base: type, name: str, obj: Any) -> Any:
    """Return an attribute as ``base`` defines it, else as the instance's dict holds it."""
    for cls in mro(base):
        found = class_dict(cls).get(name)
        if found is not None:
            kind = type(found)
            if id(kind) in _DESCRIPTORS:
                return found.__get__(obj)
            if kind is property and class_dict(base).get("__module__") != "__main__":
                return found.fget(obj) if found.fget is not None else None
            return found if id(kind) in _CONSTANTS else None
    return own_dict(obj).get(name)


def call(base: type, name: str, obj: Any) -> Any:
    """Return what a method that is written in C gives."""
    for cls in mro(base):
        found = class_dict(cls).get(name)
        if id(type(found)) in _METHODS:
            return found.__get__(obj)()
        if found is not None:
            break
    raise TypeError(name)
