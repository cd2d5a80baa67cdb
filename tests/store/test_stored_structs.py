"""What is stored as JSON is found again, whatever its fields are called in Python.

Unknown keys are ignored when JSON is read, so a field that is renamed without ``rename=`` loses
what people have on their disks, and nothing else would tell.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

import gpuwatchd
from gpuwatchd.core import typed
from gpuwatchd.core.model.base import Value
from gpuwatchd.store import live
from tests.store.filling import away, filled, leaves, names, structs
from tests.store.stored import FOREIGN, STRUCTS, encoded, recorded, struct

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(gpuwatchd.__file__).parent
READS = {"decode": 1, "decoder": 0, "convert": 1, "Decoder": 0}
"""Functions that make values of JSON -> where among their arguments the type is."""
_CLASS = re.compile(r"(^|[.\[])_?[A-Z]\w*[a-z]\w*\]?$")
"""How the name of a class ends an argument; modules that have none need not be imported."""


class Renamed(Value, frozen=True, kw_only=True, rename={"now": "then"}):
    now: int = 0


def test_the_record_is_of_the_structs_that_are_stored() -> None:
    assert recorded().keys() == STRUCTS.keys()


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_of_the_example_is_away_from_its_default(name: str) -> None:
    for one in structs(filled(struct(STRUCTS[name]))):
        assert away(one) == names(type(one)), type(one)


@pytest.mark.parametrize("name", STRUCTS)
def test_it_is_written_as_it_was_recorded(name: str) -> None:
    """A field that is new is recorded by ``python -m tests.store.stored``."""
    assert encoded(filled(struct(STRUCTS[name]))) == recorded()[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_every_recorded_value_is_found_again(name: str) -> None:
    then = recorded()[name]
    now = typed.decode(msgspec.json.encode(then), struct(STRUCTS[name]))
    assert Counter(leaves(then)) - Counter(leaves(now)) == Counter()


def test_a_renamed_field_keeps_its_name_in_the_state_file() -> None:
    assert live._lean((Renamed(now=1),)) == [{"then": 1}]


def test_nothing_else_is_read_from_json() -> None:
    listed = {struct(place) for place in (*STRUCTS.values(), *FOREIGN)}
    assert set(_read()) == listed


# ---- what the source reads ----------------------------------------------------------------------


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if name != typed.__name__ and not name.endswith("__main__"):
            yield name.removesuffix(".__init__"), ast.parse(path.read_text("utf-8"))


def _read() -> Iterator[type[msgspec.Struct]]:
    """Yield every Struct that some call in the package decodes JSON into."""
    handed: set[str] = set()
    for module, tree in _trees():
        for function, call in _calls(tree):
            kind = _kind(call)
            if kind is None:
                continue
            if _takes(function, kind):
                handed.add(function.name)
            else:
                yield from _structs(_meant(module, kind))
    # Where the type is an argument of the function around it: from whoever calls that.
    for module, tree in _trees() if handed else ():
        for _, call in _calls(tree):
            if _name(call.func) in handed:
                for argument in call.args:
                    if _CLASS.search(ast.unparse(argument)):
                        yield from _structs(_meant(module, argument, None))


def _calls(tree: ast.AST, around: ast.FunctionDef | None = None) -> Iterator[Any]:
    """Yield every call with the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield around, node
        yield from _calls(node, node if isinstance(node, ast.FunctionDef) else around)


def _kind(call: ast.Call) -> ast.expr | None:
    """Return the type that a call decodes into; None where it does not decode."""
    if _name(call.func) not in READS or not isinstance(call.func, ast.Attribute):
        return None
    if ast.unparse(call.func.value) not in {"typed", "msgspec", "msgspec.json"}:
        return None
    named = next((one.value for one in call.keywords if one.arg == "type"), None)
    return named or call.args[READS[_name(call.func)]]


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _takes(function: ast.FunctionDef | None, kind: ast.expr) -> bool:
    """Say whether a type is an argument of the function that decodes into it."""
    arguments = [] if function is None else [*function.args.args, *function.args.kwonlyargs]
    return isinstance(kind, ast.Name) and kind.id in {one.arg for one in arguments}


_LOUD: Any = object()


def _meant(module: str, kind: ast.expr, otherwise: Any = _LOUD) -> Any:
    """Return what an expression means in a module."""
    try:
        return eval(ast.unparse(kind), dict(vars(import_module(module))))
    except (NameError, AttributeError, TypeError):
        if otherwise is _LOUD:
            raise
        return otherwise


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and not get_args(kind) and issubclass(kind, msgspec.Struct):
        yield kind
    for one in get_args(kind):
        yield from _structs(one)
