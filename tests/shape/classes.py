"""Collaborators: constructors, attributes, and objects that others write into."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.shape.imports import bindings
from tests.shape.tree import Function, dotted, inside

if TYPE_CHECKING:
    from tests.shape.tree import Module, Tree

MOST_PARAMETERS = 6
MOST_ATTRIBUTES = 14
RECORDS = frozenset({"Struct", "NamedTuple", "TypedDict"})
"""Bases of plain records, which are exempt with everything that inherits from them: a record is
its fields, and a module that computes is never one."""
CALLED_BY_SETTINGS = {
    "NOTIFIERS": "a channel's keyword arguments are its section of the configuration",
    "SOURCES": "a source's keyword arguments are its section of the configuration",
}
"""Tables of "module:Class" whose classes are exempt, and why."""


def exempt(tree: Tree) -> set[tuple[str, str]]:
    """Return (module, class) of the classes that may have many parameters and attributes."""
    bases: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for module in tree.values():
        known = bindings(module)
        for node in module.classes:
            bases[module.name, node.name] = {
                _origin(tree, *_named(base, module, known)) for base in node.bases
            }
    found = {key for key, above in bases.items() if {name for _, name in above} & RECORDS}
    while more := {key for key, above in bases.items() if above & found} - found:
        found |= more
    for module in tree.values():
        for statement in module.tree.body:
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id in CALLED_BY_SETTINGS:
                for part in ast.walk(statement):
                    if isinstance(part, ast.Constant) and ":" in str(part.value):
                        where, _, name = str(part.value).partition(":")
                        found.add((where, name))
    return found


def _named(base: ast.expr, module: Module, known: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """Return the module and the name of a base class as it is written there."""
    first, _, rest = dotted(base).partition(".")
    if not rest:
        return known.get(first, (module.name, first))
    source, name = known.get(first, (first, ""))
    return (f"{source}.{name}" if name else source), rest


def _origin(tree: Tree, where: str, name: str) -> tuple[str, str]:
    """Follow a name to the module that defines it, through packages that only hand it on."""
    for _ in range(4):
        if where not in tree or (further := bindings(tree[where]).get(name)) is None:
            break
        where, name = further[0], further[1]
    return where, name


def parameters(node: ast.ClassDef) -> int:
    """Return how many parameters a class's own constructor has, self not counted."""
    for child in node.body:
        if isinstance(child, Function) and child.name == "__init__":
            arguments = child.args
            return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1
    return 0


def attributes(node: ast.ClassDef) -> set[str]:
    """Return what a class annotates in its body or assigns to itself in its methods."""
    found = {
        child.target.id
        for child in node.body
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
    }
    found |= {
        part.attr
        for child in node.body
        if isinstance(child, Function)
        for part in ast.walk(child)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and dotted(part.value) == "self"
    }
    return found


def assigned_outside(module: Module) -> list[int]:
    """Return the lines that assign to an attribute of an object that was made elsewhere.

    Not of ``self`` or ``cls`` themselves, nor of a local that the same function made by calling a
    class (a name with a capital, or a constructor of one: ``Thing.open()``).
    """
    found = []
    for scope in (module.tree, *module.functions):
        own = list(inside(scope))
        made = {"self", "cls"}
        for node in own:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _makes(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                made |= {target.id for target in targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.withitem) and _makes(node.context_expr):
                made.add(dotted(node.optional_vars) if node.optional_vars else "")
        found += [
            node.lineno
            for node in own
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and dotted(node.value) not in made
        ]
    return sorted(found)


def _makes(value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call):
        return False
    return any(part.lstrip("_")[:1].isupper() for part in dotted(value.func).split("."))
