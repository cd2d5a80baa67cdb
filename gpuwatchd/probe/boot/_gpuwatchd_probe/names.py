"""The name of an object: the nearest variable of the user that leads to it (in the child)."""

from __future__ import annotations

import functools
import gc
import itertools
import re
import sys
import time
import types
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import attributes, places

MOST_STEPS = 7
MOST_AT_ONCE = 200
BOUNDS = {"maxsize", "maxlen", "capacity", "buffersize", "cachesize", "maxentries", "maxitems"}
CACHE = type(functools.lru_cache(maxsize=1)(len))
SUSPENDED = {
    id(types.GeneratorType): "gi",
    id(types.CoroutineType): "cr",
    id(types.AsyncGeneratorType): "ag",
}
CONTAINERS = attributes.ids_of([list, tuple, set, frozenset])


class Name(NamedTuple):
    """A variable and where it is."""

    text: str
    file: Optional[str]
    line: Optional[int]
    steps: int
    function: str = ""
    """Whose local it is; ``text`` says it too."""
    is_cache: bool = False
    """It is an lru_cache."""

    @property
    def variable(self) -> str:
        """The variable and the path from it, without whose local it is."""
        end = " in %s()" % self.function if self.function else ""
        return self.text[: len(self.text) - len(end)]

    def part(self, path: str) -> str:
        """Return what a part of it is called."""
        return self.variable + path + self.text[len(self.variable) :]

    def set_at(self, place: Optional[Tuple[str, int]]) -> Name:
        """Return it with where an attribute of it is set, where that is known."""
        return self if place is None else self._replace(file=place[0], line=place[1])

    @property
    def rank(self) -> Tuple[bool, int, int]:
        """The user's own files first, then the shorter way."""
        return (not places.is_users(self.file or ""), self.steps, len(self.text))


class Step(NamedTuple):
    """An object on the way up. ``path`` leads from it to the holder.

    ``key`` is the text under which a dict holds the next object: the dict may turn out to be the
    attributes of something.
    """

    obj: Any
    path: str
    key: Any = None
    value: Any = None
    place: Optional[Tuple[str, int]] = None
    """Where the attribute next to the holder is set."""

    def inside(self) -> str:
        """Return the path for an owner that holds this object as a container, not as attributes.

        A key is a value of the user's and is not shown.
        """
        return self.path if self.key is None else "[...]" + self.path


class Namer:
    """Knows the variables of all running frames and modules; made once for a walk."""

    def __init__(self, known: Set[int], own_frames: Set[int]) -> None:
        self.known = known
        self.running: Set[int] = set()
        self.locals: Dict[int, List[Tuple[str, types.FrameType]]] = {}
        self.modules: Dict[int, Tuple[str, Optional[str]]] = {}
        self.codes: Dict[str, types.CodeType] = {}
        for frame in sys._current_frames().values():
            self._read_frames(frame, own_frames)
        for name, module in list(sys.modules.items()):
            if type(name) is str and name != "__mp_main__":
                space = attributes.own_dict(module)
                self.modules[id(space)] = (name, _text(space.get("__file__")))

    def is_jobs(self, key: int) -> bool:
        """Tell whether an object is the job's and not one of the walk."""
        return key in self.known or attributes.is_made(key)

    def _read_frames(self, frame: Optional[types.FrameType], own_frames: Set[int]) -> None:
        frames = []
        while frame is not None:
            self.running.add(id(frame))
            frames.append(frame)
            frame = frame.f_back
        for frame in reversed(frames):  # outermost first: where the variable was made
            if id(frame) in own_frames:
                continue
            if frame.f_code.co_name == "<module>":
                self.codes[frame.f_code.co_filename] = frame.f_code
                continue
            for name, value in attributes.locals_of(frame):
                self.locals.setdefault(id(value), []).append((name, frame))

    def names_of(self, obj: Any, end: float) -> List[Name]:
        """Return the nearest names of an object, best first; look until then."""
        level: Dict[int, Step] = {id(obj): Step(obj, "")}
        seen = set(level)
        found: List[Name] = []
        for count in range(MOST_STEPS):
            for step in level.values():
                found += self._roots(step, count)
            if any(places.is_users(name.file or "") for name in found):
                break
            if not level or time.monotonic() > end:
                break
            level = self._climb(level, seen, count, found)
        return sorted(set(found), key=lambda name: name.rank)

    def _climb(
        self, level: Dict[int, Step], seen: Set[int], count: int, found: List[Name]
    ) -> Dict[int, Step]:
        following: Dict[int, Step] = {}
        objects = tuple(step.obj for step in level.values())[:MOST_AT_ONCE]
        for owner in gc.get_referrers(*objects):
            key = id(owner)
            if key in seen or key in self.running or not self.is_jobs(key):
                continue
            seen.add(key)
            for held in gc.get_referents(owner):
                step = level.get(id(held))
                if step is None:
                    continue
                name = self._last(owner, step, count + 1)
                if name is not None:
                    found.append(name.set_at(step.place))
                else:
                    following[key] = _upward(owner, step)
                break
        return following

    def _roots(self, step: Step, count: int) -> Iterator[Name]:
        held = self.locals.get(id(step.obj), [])
        own = [one for one in held if places.is_users(one[1].f_code.co_filename)]
        for variable, frame in (own or held)[:1]:
            found = _in_code(variable + step.inside(), variable, frame.f_code, count)
            yield found.set_at(step.place)
        module = self.modules.get(id(step.obj))
        if module is not None and type(step.key) is str:
            name, file = module
            name = places.module_name(name, file)
            code = self.codes.get(file or "")
            line = places.line_of_name(code, step.key) if code is not None else None
            text = _short(f"{name}.{step.key}{step.path}")
            yield Name(text, file, line, count).set_at(step.place)

    def _last(self, owner: Any, step: Step, count: int) -> Optional[Name]:
        """Return the name where the owner is the end of the way up."""
        cls = type(owner)
        if cls is types.FunctionType:
            variable = _of_function(owner, step)
            if variable is not None:
                return _in_code(variable + step.path, variable, owner.__code__, count)
        if id(cls) in SUSPENDED:
            mark = SUSPENDED[id(cls)]
            frame = getattr(owner, mark + "_frame")
            return None if frame is None else _in_frame(frame, step, count)
        if cls is types.FrameType:
            return _in_frame(owner, step, count)
        if cls is CACHE:
            return of_cache(owner, count)
        if issubclass(cls, type) and type(step.key) is str:
            return self._of_class(owner, step, count)
        return None

    def _of_class(self, owner: type, step: Step, count: int) -> Optional[Name]:
        space = attributes.class_dict(owner)
        if space.get(step.key) is not step.value:
            return None
        module = attributes.own_dict(sys.modules.get(_text(space.get("__module__")) or ""))
        file, name = _text(module.get("__file__")), attributes.class_name(owner)
        place = places.of_attribute(attributes.mro(owner), step.key)
        code = self.codes.get(file or "")
        line = None if code is None else places.line_in_class(code, name, step.key)
        found = Name(_short(f"{name}.{step.key}{step.path}"), file, line, count)
        return found if line is not None else found.set_at(place)


def _of_function(owner: Any, step: Step) -> Optional[str]:
    """Return which variable of a function's closure, or which default, holds the step's object."""
    code = owner.__code__
    names: Any = ()
    if owner.__closure__ is step.obj:
        names = code.co_freevars
    elif owner.__defaults__ is step.obj and type(step.obj) is tuple:
        names = code.co_varnames[: code.co_argcount][-len(step.obj) :]
    elif owner.__kwdefaults__ is step.obj:
        return _text(step.key)
    return names[step.key] if type(step.key) is int and step.key < len(names) else None


def of_cache(owner: Any, count: int = 0) -> Optional[Name]:
    """Return the name of an lru_cache: the function that it is around."""
    function = attributes.own_dict(owner).get("__wrapped__")
    if type(function) is not types.FunctionType:
        return None
    code = function.__code__
    text = f"lru_cache of {code.co_name}()"
    return Name(text, code.co_filename, code.co_firstlineno, count, is_cache=True)


def _in_frame(frame: types.FrameType, step: Step, count: int) -> Optional[Name]:
    for variable, value in attributes.locals_of(frame):
        if value is step.obj:
            text = variable + step.inside()
            return _in_code(text, variable, frame.f_code, count)
    return None


def _in_code(text: str, variable: str, code: types.CodeType, count: int) -> Name:
    line = places.line_of_name(code, variable)
    where = f"{_short(text)} in {code.co_name}()"
    return Name(where, code.co_filename, line, count, code.co_name)


def _upward(owner: Any, step: Step) -> Step:
    """Return the step from an owner down to the one it holds."""
    name = _attribute(owner, step)
    classes = attributes.mro(type(owner))
    place = step.place or (places.of_attribute(classes, name) if name is not None else None)
    return _step(owner, step, name)._replace(place=place)


def _attribute(owner: Any, step: Step) -> Optional[str]:
    """Return which attribute of the owner the object is, or holds as an entry of its dict."""
    space = attributes.own_dict(owner)
    if space is step.obj:
        return _text(step.key)
    rows = [*space.items(), *attributes.slots(owner)]
    return next((_text(key) for key, value in rows if value is step.obj), None)


def _step(owner: Any, step: Step, name: Optional[str]) -> Step:
    cls = type(owner)
    if issubclass(cls, dict):
        key = next((k for k, value in dict.items(owner) if value is step.obj), None)
        return Step(owner, step.inside(), key if type(key) is str else 0, step.obj)
    if cls is tuple:
        index = next((i for i, value in enumerate(owner) if value is step.obj), None)
        return Step(owner, step.inside(), index, step.obj)
    if cls is types.CellType:
        return Step(owner, step.inside())
    if id(cls) in CONTAINERS or not _has_attributes(owner):
        return Step(owner, "[...]" + step.inside())
    path = step.path if attributes.own_dict(owner) is step.obj else step.inside()
    return Step(owner, path if name is None else "." + name + path)


def _has_attributes(owner: Any) -> bool:
    return bool(attributes.own_dict(owner)) or bool(attributes.slots(owner))


def bounds_of(owner: Any) -> Iterator[int]:
    """Yield the limits that an object, its class or a dict keeps beside what it holds."""
    rows: List[Any] = [attributes.own_dict(owner).items(), attributes.slots(owner)]
    rows += [attributes.class_dict(cls).items() for cls in attributes.mro(type(owner))]
    rows += [dict.items(owner)] if issubclass(type(owner), dict) else []
    for name, value in itertools.chain(*rows):
        if type(value) is int and credible(value) and type(name) is str:
            plain = re.sub("^_.*?__", "", name).replace("_", "").lower()
            if plain in BOUNDS:
                yield value


def credible(bound: Optional[int]) -> Optional[int]:
    """Return a bound that is one: what stands for "none" is too large for any memory."""
    return bound if bound is not None and 0 < bound < 1 << 53 else None


def _short(text: str) -> str:
    """Return the text with what repeats written once: a chain is as long as it is."""
    text = re.sub(r"((?:\.\w+|\[\.\.\.\])+?)(?:\1(?!\w))+", r"\1", text)
    return text if len(text) <= 120 else text[:119] + "…"


def _text(value: Any) -> Optional[str]:
    return value if type(value) is str else None
