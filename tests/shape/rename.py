# ruff: noqa
# mypy: ignore-errors
"""Give names their words of the field: ``python -m tests.shape.rename [--locals]``.

``names.txt`` holds the names of modules, classes, functions and methods. What each name in the
code stands for is asked of mypy, so that only those are renamed that are meant. With ``--locals``
variables and parameters called ``one``, ``found`` and the like get the name of what they hold,
by its type. Kept until the house is in order, so that a branch that was begun before can be
renamed as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from mypy import build, main, nodes, types

HERE = Path(__file__).resolve().parent
ROOT = Path.cwd()
PACKAGE = "gpuwatchd"
VAGUE = frozenset({"one", "found", "known", "said", "told", "seen", "shown", "drawn", "kept"})
"""Names of variables that say nothing about what they hold."""
NOT_CHILDREN = frozenset(
    {"node", "info", "type", "typ", "definition", "analyzed", "unanalyzed_type", "original_def"}
)
SHORT = {
    "ProcessInfo": "process",
    "DeviceReading": "reading",
    "ProcessKey": "key",
    "ProcessUse": "use",
    "PosixPath": "path",
    "Pattern": "pattern",
    "UserLabel": "label",
    "Word": "label",
    "Seen": "state",
    "DeviceState": "state",
    "RunBaselines": "baselines",
    "LiveProcess": "item",
    "LiveDevice": "item",
    "KnownRuns": "runs",
    "Match": "match",
    "Struct_time": "time",
    "ndarray": "values",
    "Row": "row",
    "Style": "style",
    "Due": "due_notice",
    "Taken": "device_use",
    "Board": "board",
}
PLURALS = frozenset(
    {
        "list", "tuple", "set", "frozenset", "deque", "Sequence", "Iterable", "Iterator",
        "Collection", "Generator", "MutableSequence", "AbstractSet",
    }
)  # fmt: skip
MAPPINGS = frozenset({"dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"})
PLAIN = frozenset({"str", "int", "float", "bool", "bytes", "object", "type", "complex", "range"})
UNINFLECTED = frozenset({"series", "status", "news", "class", "is", "has", "address", "process"})
SYMBOLS: dict[str, str] = {}
BUILTIN = frozenset(dir(__import__("builtins"))) | frozenset(__import__("keyword").kwlist)

Edit = tuple[int, int, str, str]
"""Line, byte column, old name, new name."""


class Rows(NamedTuple):
    """What ``names.txt`` says."""

    symbols: dict[str, str]
    """Full name -> new last part."""


def rows() -> Rows:
    """Read ``names.txt``."""
    symbols = {}
    for line in (HERE / "names.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            module, name, new = line.split()
            inner = "" if name == "-" else f".{name}"
            symbols[f"{PACKAGE}.{module}{inner}"] = new
    return Rows(symbols)


def children(node: Any, names: dict[type, list[str]]) -> Any:
    """Yield what is below a node of mypy's tree."""
    kind = node.__class__
    if kind not in names:
        names[kind] = [
            name for name in dir(kind) if not name.startswith("_") and name not in NOT_CHILDREN
        ]
    for name in names[kind]:
        try:
            value = getattr(node, name)
        except Exception:  # noqa: BLE001, S112 - properties that assert something of their node
            continue
        yield from flat(value)


def flat(value: Any) -> Any:
    """Yield the nodes in a value."""
    if isinstance(value, nodes.Var | nodes.TypeInfo | nodes.MypyFile):
        return
    if isinstance(value, nodes.Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)


class File:
    """One file: its text, its two trees, and the edits to it."""

    def __init__(self, path: Path, module: nodes.MypyFile) -> None:
        self.path = path
        self.module = module
        self.text = path.read_bytes()
        self.lines = self.text.split(b"\n")
        self.tree = ast.parse(self.text)
        self.edits: set[Edit] = set()
        self.every = list(self._walk())

    def _walk(self) -> Any:
        names: dict[type, list[str]] = {}
        stack: list[Any] = list(self.module.defs)
        met: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) in met:
                continue
            met.add(id(node))
            yield node
            stack.extend(children(node, names))

    def edit(self, line: int, column: int, old: str, new: str) -> bool:
        """Note an edit; False when the name does not stand there."""
        if self.lines[line - 1][column : column + len(old)] != old.encode():
            return False
        self.edits.add((line, column, old, new))
        return True

    def after(self, line: int, column: int, old: str, new: str) -> bool:
        """Note an edit of the first occurrence of a name behind a place, within three lines."""
        for number in range(line, min(line + 3, len(self.lines)) + 1):
            begin = column if number == line else 0
            match = re.compile(rb"\b%s\b" % old.encode()).search(self.lines[number - 1], begin)
            if match:
                return self.edit(number, match.start(), old, new)
        return False

    def write(self) -> None:
        """Carry the edits out."""
        for line, column, old, new in sorted(self.edits, reverse=True):
            text = self.lines[line - 1]
            self.lines[line - 1] = text[:column] + new.encode() + text[column + len(old) :]
        self.path.write_bytes(b"\n".join(self.lines))


class Renamer:
    """Finds every place of the names."""

    def __init__(self, result: build.BuildResult, symbols: dict[str, str]) -> None:
        self.types = result.types
        self.symbols = symbols
        self.files = {
            name: File(Path(module.path), module)
            for name, module in result.files.items()
            if name.split(".")[0] in {PACKAGE, "tests"} and Path(module.path).suffix == ".py"
        }

    def run(self) -> None:
        """Note all edits for the symbols."""
        for name, file in self.files.items():
            self._definitions(name, file)
            self._imports(name, file)
            self._annotations(name, file)
            for node in file.every:
                if isinstance(node, nodes.NameExpr):
                    self._name(file, node)
                elif isinstance(node, nodes.MemberExpr):
                    self._member(file, node)
                elif isinstance(node, nodes.CallExpr):
                    self._call(file, node)

    def _definitions(self, name: str, file: File) -> None:
        def visit(node: ast.AST, prefix: str) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    full = f"{prefix}.{child.name}"
                    new = self.symbols.get(full)
                    if new is not None:
                        file.after(child.lineno, child.col_offset + 4, child.name, new)
                    visit(child, full)
                else:
                    visit(child, prefix)

        visit(file.tree, name)
        for node in file.tree.body:
            # ``__all__``, and names of modules in it
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                for item in ast.walk(node.value):
                    if isinstance(item, ast.Constant) and isinstance(item.value, str):
                        full = self._resolved(file, item.value)
                        new = self.symbols.get(full or "")
                        if new:
                            file.edit(item.lineno, item.col_offset + 1, item.value, new)

    def _resolved(self, file: File, name: str) -> str | None:
        entry = file.module.names.get(name)
        return entry.node.fullname if entry is not None and entry.node is not None else None

    def _imports(self, name: str, file: File) -> None:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self._dotted(file, node.lineno, node.col_offset + 5, node.module)
                for alias in node.names:
                    full = self._origin(f"{node.module}.{alias.name}")
                    new = self.symbols.get(full)
                    if new:
                        file.edit(alias.lineno, alias.col_offset, alias.name, new)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self._dotted(file, alias.lineno, alias.col_offset, alias.name)

    def _dotted(self, file: File, line: int, column: int, name: str) -> None:
        parts = name.split(".")
        for count in range(2, len(parts) + 1):
            new = self.symbols.get(".".join(parts[:count]))
            if new:
                start = column + len(".".join(parts[: count - 1])) + 1
                file.edit(line, start, parts[count - 1], new)

    def _origin(self, full: str) -> str:
        """Follow re-exports to where a name is defined."""
        module, _, name = full.rpartition(".")
        file = self.files.get(module)
        if full in self.files or file is None:
            return full
        return self._resolved(file, name) or full

    def _annotations(self, name: str, file: File) -> None:
        local: dict[str, str] = {}
        for key, entry in file.module.names.items():
            if entry.node is not None:
                local[key] = entry.node.fullname
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    local.setdefault(
                        alias.asname or alias.name, self._origin(f"{node.module}.{alias.name}")
                    )
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                self._annotation(file, node, local, classes_only=True)
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Attribute) and decorator.attr == "setter":
                        key = (decorator.lineno, decorator.col_offset)
                        for line, _, old, new in list(file.edits):
                            if old == node.name and abs(line - node.lineno) < 2:
                                file.edit(*key, old, new)
            parts: list[ast.AST | None] = []
            if isinstance(node, ast.arg | ast.AnnAssign):
                parts = [node.annotation]
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                parts = [node.returns]
            elif (
                isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("cast")
            ):
                parts = [node.args[0]]
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                parts = [node.value]
            elif isinstance(node, ast.ClassDef):
                parts = list(node.bases)
            elif isinstance(node, ast.Subscript):
                parts = [node.slice]
            for part in parts:
                for item in ast.walk(part) if part is not None else ():
                    self._annotation(file, item, local)

    def _annotation(
        self, file: File, item: ast.AST, local: dict[str, str], *, classes_only: bool = False
    ) -> None:
        if isinstance(item, ast.Constant) and isinstance(item.value, str) and not classes_only:
            for match in re.finditer(r"\b[A-Z]\w+", item.value):
                new = self.symbols.get(local.get(match[0], ""))
                if new:
                    file.edit(item.lineno, item.col_offset + 1 + match.start(), match[0], new)
        if classes_only and isinstance(item, ast.Name) and not item.id.strip("_")[:1].isupper():
            return
        if classes_only and isinstance(item, ast.Attribute) and not item.attr[:1].isupper():
            return
        if isinstance(item, ast.Name):
            full = local.get(item.id, "")
            new = self.symbols.get(full)
            if new and (
                full in self.files or item.id[:1].isupper() or item.id[:2].strip("_").isupper()
            ):
                file.edit(item.lineno, item.col_offset, item.id, new)
        elif isinstance(item, ast.Attribute) and not isinstance(item.value, ast.Call):
            first, _, rest = ast.unparse(item.value).partition(".")
            owner = local.get(first, "") + (f".{rest}" if rest else "")
            full = f"{owner}.{item.attr}"
            new = self.symbols.get(self._origin(full)) or self.symbols.get(full)
            if new and item.end_lineno and item.end_col_offset:
                file.edit(item.end_lineno, item.end_col_offset - len(item.attr), item.attr, new)

    def _name(self, file: File, node: nodes.NameExpr) -> None:
        full = node.node.fullname if node.node is not None else ""
        new = self.symbols.get(full)
        if new and full.rpartition(".")[2] == node.name:
            file.edit(node.line, node.column, node.name, new)

    def _member(self, file: File, node: nodes.MemberExpr) -> None:
        new = self._of_member(node.expr, node.name, node.fullname)
        if new and node.end_line and node.end_column:
            file.edit(node.end_line, node.end_column - len(node.name), node.name, new)

    def _of_member(self, owner: nodes.Expression, name: str, full: str | None) -> str | None:
        if full in self.symbols:
            return self.symbols[full]
        if isinstance(owner, nodes.RefExpr) and isinstance(owner.node, nodes.MypyFile):
            return self.symbols.get(self._origin(f"{owner.node.fullname}.{name}"))
        kind = self.types.get(owner)
        return next(
            (
                self.symbols[f"{base.fullname}.{name}"]
                for info in infos(kind)
                for base in info.mro
                if f"{base.fullname}.{name}" in self.symbols
            ),
            None,
        )

    def _call(self, file: File, node: nodes.CallExpr) -> None:
        # monkeypatch.setattr(owner, "name", ...)
        if len(node.args) < 2 or not isinstance(node.args[1], nodes.StrExpr):
            return
        name = node.args[1].value
        new = self._of_member(node.args[0], name, None)
        if new:
            file.after(node.args[1].line, node.args[1].column, name, new)


def infos(kind: types.Type | None) -> list[nodes.TypeInfo]:
    """Return the classes that a value of a type may be of."""
    if kind is None:
        return []
    proper = types.get_proper_type(kind)
    if isinstance(proper, types.Instance):
        return [proper.type]
    if isinstance(proper, types.UnionType):
        return [info for item in proper.items for info in infos(item)]
    if isinstance(proper, types.TupleType):
        return [proper.partial_fallback.type]
    if isinstance(proper, types.TypeType):
        return infos(proper.item)
    if isinstance(proper, types.CallableType) and proper.is_type_obj():
        return [proper.type_object()]
    if isinstance(proper, types.Overloaded) and proper.is_type_obj():
        return [proper.type_object()]
    if isinstance(proper, types.TypeVarType):
        return infos(proper.upper_bound)
    return []


class Variables:
    """Variables with vague names, and what they should be called."""

    def __init__(self, renamer: Renamer) -> None:
        self.renamer = renamer
        self.counts: dict[str, int] = defaultdict(int)
        self.parameters: dict[int, str] = {}
        """id of a parameter's variable -> new name."""

    def run(self) -> None:
        """Note all edits."""
        for name, file in self.renamer.files.items():
            if name.split(".")[0] == PACKAGE:
                self._file(file)
        for file in self.renamer.files.values():
            for node in file.every:
                if isinstance(node, nodes.CallExpr) and any(node.arg_names):
                    self._keywords(file, node)

    def _file(self, file: File) -> None:
        groups: dict[int, list[nodes.NameExpr]] = defaultdict(list)
        variables: dict[int, nodes.Var] = {}
        arguments: dict[int, nodes.Argument] = {}
        loops: dict[int, ast.expr] = {}
        for node in file.every:
            if isinstance(node, nodes.NameExpr) and node.name in VAGUE and node.kind == nodes.LDEF:
                if isinstance(node.node, nodes.Var):
                    groups[id(node.node)].append(node)
                    variables[id(node.node)] = node.node
            elif isinstance(node, nodes.FuncItem):
                for argument in node.arguments:
                    if argument.variable.name in VAGUE:
                        variables[id(argument.variable)] = argument.variable
                        arguments[id(argument.variable)] = argument
        places = {
            (n.lineno, n.col_offset): n
            for n in ast.walk(file.tree)
            if isinstance(n, ast.Name | ast.arg)
        }
        iterated: dict[tuple[int, int], ast.expr] = {}
        for n in ast.walk(file.tree):
            if isinstance(n, ast.For | ast.comprehension):
                for target in ast.walk(n.target):
                    if isinstance(target, ast.Name) and target is n.target:
                        iterated[target.lineno, target.col_offset] = n.iter
        outer = [
            node
            for node in ast.walk(file.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        spans = [(f.lineno, f.end_lineno or f.lineno, f) for f in outer]
        top: list[tuple[int, int, ast.AST]] = []
        for low, high, function in sorted(spans, key=lambda s: (s[0], -s[1])):
            if not top or low > top[-1][1]:
                top.append((low, high, function))
        del loops
        for low, high, function in top:
            self._function(
                file, low, high, function, groups, variables, arguments, places, iterated
            )

    def _function(
        self, file: File, low: int, high: int, function: ast.AST, groups: Any, variables: Any,
        arguments: Any, places: Any, iterated: Any,
    ) -> None:  # fmt: skip
        used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        used |= {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
        used |= {
            alias.asname or alias.name
            for n in ast.walk(function)
            if isinstance(n, ast.Import | ast.ImportFrom)
            for alias in n.names
        }
        used |= {n.name for n in ast.walk(function) if isinstance(n, ast.FunctionDef)}
        captured = {
            n.name
            for n in ast.walk(function)
            if isinstance(n, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and n.name
        }
        captured |= {
            name
            for n in ast.walk(function)
            if isinstance(n, ast.Nonlocal | ast.Global)
            for name in n.names
        }
        wanted = {
            (n.lineno, n.col_offset): (n.id if isinstance(n, ast.Name) else n.arg)
            for n in places.values()
            if low <= n.lineno <= high and (n.id if isinstance(n, ast.Name) else n.arg) in VAGUE
        }
        mine: dict[int, set[tuple[int, int]]] = {}
        for key, variable in variables.items():
            positions = {(n.line, n.column) for n in groups.get(key, ())}
            if key in arguments:
                argument = arguments[key]
                spots = [
                    (n.lineno, n.col_offset)
                    for n in places.values()
                    if isinstance(n, ast.arg)
                    and n.arg == variable.name
                    and (n.lineno, n.col_offset) == (argument.line, argument.column)
                ]
                positions |= set(spots)
            positions = {p for p in positions if low <= p[0] <= high and p in wanted}
            if positions:
                mine[key] = positions
        covered = set().union(*mine.values()) if mine else set()
        missing = {name for place, name in wanted.items() if place not in covered}
        fresh: set[str] = set()
        for key, positions in sorted(mine.items(), key=lambda item: min(item[1])):
            variable = variables[key]
            old = variable.name
            if old in missing or old in captured:
                self.counts["not all places known"] += 1
                continue
            loop = next((iterated[p] for p in sorted(positions) if p in iterated), None)
            # The same name in neighbouring comprehensions may stay the same.
            taken = (used | fresh | set(file.module.names)) - {old}
            new = next(
                (
                    n
                    for n in candidates(old, variable.type, loop)
                    if n not in taken and n not in BUILTIN
                ),
                None,
            )
            if new is None:
                new = next(
                    (
                        n
                        for n in candidates(old, variable.type, loop)
                        if n in fresh
                        and n not in used
                        and self._apart(function, positions, n, file)
                    ),
                    None,
                )
            if new is None or new == old:
                self.counts["no better name"] += 1
                continue
            if key in arguments:
                self.parameters[id(variable)] = new
            for line, column in positions:
                file.edit(line, column, old, new)
            self.counts["renamed"] += 1
            # Names of comprehensions may be given again beside each other.
            scope = innermost(function, min(positions))
            if not isinstance(
                scope, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp | ast.Lambda
            ):
                fresh.add(new)
            docstrings(file, function, min(positions), old, new)

    def _apart(self, function: ast.AST, positions: Any, name: str, file: File) -> bool:
        scope = innermost(function, min(positions))
        if not isinstance(
            scope, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp | ast.Lambda
        ):
            return False
        low, high = scope.lineno, scope.end_lineno or scope.lineno
        return not any(low <= line <= high and new == name for line, _, _, new in file.edits)

    def _keywords(self, file: File, node: nodes.CallExpr) -> None:
        kind = self.renamer.types.get(node.callee)
        proper = types.get_proper_type(kind) if kind is not None else None
        if not isinstance(proper, types.CallableType):
            return
        definition = proper.definition
        if isinstance(definition, nodes.Decorator):
            definition = definition.func
        if not isinstance(definition, nodes.FuncDef):
            return
        new = {
            a.variable.name: self.parameters[id(a.variable)]
            for a in definition.arguments
            if id(a.variable) in self.parameters
        }
        if not new:
            return
        for call in ast.walk(file.tree):
            if isinstance(call, ast.Call) and (call.lineno, call.col_offset, call.end_lineno, call.end_col_offset) == (
                node.line, node.column, node.end_line, node.end_column,
            ):  # fmt: skip
                for keyword in call.keywords:
                    if keyword.arg in new:
                        file.edit(keyword.lineno, keyword.col_offset, keyword.arg, new[keyword.arg])


def innermost(function: ast.AST, place: tuple[int, int]) -> ast.AST:
    """Return the innermost scope within a function that holds a place."""
    best: ast.AST = function
    for node in ast.walk(function):
        if isinstance(
            node,
            ast.FunctionDef
            | ast.Lambda
            | ast.GeneratorExp
            | ast.ListComp
            | ast.SetComp
            | ast.DictComp,
        ):
            begin, end = (
                (node.lineno, node.col_offset),
                (node.end_lineno or 0, node.end_col_offset or 0),
            )
            if begin <= place < end and begin >= (
                getattr(best, "lineno", 0),
                getattr(best, "col_offset", 0),
            ):
                best = node
    return best


def docstrings(file: File, function: ast.AST, place: tuple[int, int], old: str, new: str) -> None:
    """Rename a variable in the docstring of its function: ``name`` and "name : type"."""
    scope = innermost(function, place)
    body = getattr(scope, "body", None)
    if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
        return
    text = body[0].value
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        for number in range(text.lineno, (text.end_lineno or text.lineno) + 1):
            line = file.lines[number - 1]
            for match in re.finditer(
                rb"``(%s)(?:``|\.)|^ +(%s)(?= : |, \w+ : |:$)" % (old.encode(), old.encode()), line
            ):
                group = 1 if match[1] else 2
                file.edit(number, match.start(group), old, new)


def snake(name: str) -> str:
    """Return a class name in small letters with underscores."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower()


def plural(name: str) -> str:
    """Return the plural of a name."""
    if name.endswith(("s", "x", "ch", "sh")):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") and name[-2] not in "aeou" else f"{name}s"


def many(name: str, kind: types.Type) -> str:
    """Return the name of several values of a type."""
    proper = types.get_proper_type(kind)
    if isinstance(proper, types.UnionType):
        proper = next(
            i for i in map(types.get_proper_type, proper.items) if not isinstance(i, types.NoneType)
        )
    if isinstance(proper, types.Instance) and proper.type.name in {*PLURALS, *MAPPINGS}:
        return "groups"
    return "arrays" if name == "values" else plural(name)


def singular(name: str) -> str | None:
    """Return the singular of a name that is a plural; None when it is none."""
    last = name.rpartition("_")[2]
    if (
        last in UNINFLECTED
        or not last.endswith("s")
        or last.endswith(("ss", "us"))
        or len(last) < 4
    ):
        return None
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    if name.endswith(("sses", "xes", "ches", "shes")):
        return name[:-2]
    return name[:-1]


def candidates(old: str, kind: types.Type | None, loop: ast.expr | None) -> list[str]:
    """Return names for a variable, the best first."""
    result: list[str] = []
    if loop is not None:
        result += of_iterable(loop)
    for name in of_type(old, kind):
        last = name.rpartition("_")[2]
        short = len(name) > 10 and last not in {"value", "values", "data", "result", "item"}
        result += [last, name] if short else [name, last]
    return [name for name in result if name.isidentifier() and len(name) > 1 and name not in VAGUE]


def of_iterable(loop: ast.expr) -> list[str]:
    """Return the singular of the name of what is gone through."""
    match loop:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            single = singular(name.strip("_").lower())
            return [single] if single else []
        case ast.Call(
            func=ast.Name(id="sorted" | "reversed" | "list" | "tuple" | "set"), args=[first, *_]
        ):
            return of_iterable(first)
        case ast.Call(func=ast.Attribute(value=owner, attr="values" | "copy")):
            return of_iterable(owner)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            single = singular(name.strip("_").lower())
            return [single] if single and name not in {"items", "keys", "values"} else []
        case ast.Subscript(value=owner, slice=ast.Slice()):
            return of_iterable(owner)
        case ast.BoolOp(values=[first, *_]):
            return of_iterable(first)
        case _:
            return []


def of_type(old: str, kind: types.Type | None) -> list[str]:
    """Return names that say what a value of a type is."""
    if kind is None:
        return []
    proper = types.get_proper_type(kind)
    if isinstance(proper, types.UnionType):
        items = [types.get_proper_type(i) for i in proper.items]
        items = [i for i in items if not isinstance(i, types.NoneType)]
        return of_type(old, items[0]) if len(items) == 1 else []
    if isinstance(proper, types.TupleType):
        fallback = proper.partial_fallback.type
        if fallback.name != "tuple":
            new = SYMBOLS.get(fallback.fullname, fallback.name)
            return [SHORT.get(new, snake(new))]
        return ["pair"] if len(proper.items) == 2 else []
    if not isinstance(proper, types.Instance):
        return []
    name = proper.type.name
    if name in PLURALS and proper.args:
        inner = of_type(old, proper.args[0])
        element = types.get_proper_type(proper.args[0])
        if inner and not (isinstance(element, types.Instance) and element.type.name == "str"):
            return [many(item, proper.args[0]) for item in inner]
        if isinstance(element, types.Instance) and element.type.name == "str":
            return (
                ["names"] if old in {"known", "seen"} or name in {"set", "frozenset"} else ["texts"]
            )
        return []
    if name in MAPPINGS and len(proper.args) == 2:
        inner = of_type(old, proper.args[1])
        return (
            ["values"]
            if inner == ["text", "value"]
            else [many(item, proper.args[1]) for item in inner[:1]]
        )
    if name == "str":
        return ["text", "value"]
    if name in PLAIN:
        return []
    if name in {"Any", "function"}:
        return []
    new = SYMBOLS.get(proper.type.fullname, name)
    return [SHORT.get(new, snake(new))]


def texts(symbols: dict[str, str]) -> None:
    """Rename what texts name: classes in ``backquotes`` and roles, dotted names."""
    classes: dict[str, str | None] = {}
    for full, new in symbols.items():
        old = full.rpartition(".")[2]
        if old[:1].isupper():
            classes[old] = None if old in classes and classes[old] != new else new
    listed = subprocess.run(  # noqa: S603
        ["git", "ls-files", "*.py", "*.md", "*.toml", "*.txt", "Makefile"],  # noqa: S607
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    dotted = sorted(symbols, key=len, reverse=True)
    for name in listed:
        path = ROOT / name
        if name.startswith("tests/shape/") or name == "CHANGELOG.md" or not path.exists():
            continue
        text = before = path.read_text()
        for full in dotted:
            if full in text:
                text = re.sub(
                    rf"(?<![\w.]){re.escape(full)}(?!\w)",
                    f"{full.rpartition('.')[0]}.{symbols[full]}",
                    text,
                )
        if path.suffix == ".py":
            for old, unique in classes.items():
                if unique and old in text:
                    text = re.sub(
                        rf"(:class:`~?(?:[\w.]+\.)?){old}(?=[`.])", rf"\g<1>{unique}", text
                    )
                    text = re.sub(rf"``{old}(?=(\.\w+)?(\(\))?``)", f"``{unique}", text)
        if text != before:
            path.write_text(text)


def rename(*, variables: bool) -> int:
    """Rename everything."""
    sources, options = main.process_options(
        ["--config-file", str(ROOT / "pyproject.toml"), "--no-incremental"]
    )
    options.export_types = True
    options.preserve_asts = True
    result = build.build(sources, options)
    if result.errors:
        print(*result.errors[:20], sep="\n")
        return 1
    symbols = rows().symbols
    SYMBOLS.update(symbols)
    renamer = Renamer(result, symbols)
    renamer.run()
    if variables:
        chosen = Variables(renamer)
        chosen.run()
        print(dict(chosen.counts))
    edits = 0
    for file in renamer.files.values():
        if file.edits and file.path.parent != HERE:
            edits += len(file.edits)
            file.write()
    print(edits, "edits")
    texts(symbols)
    modules = [full for full in symbols if full in renamer.files]
    for full in modules:
        old = ROOT / (full.replace(".", "/") + ".py")
        subprocess.run(
            ["git", "mv", str(old), str(old.with_name(symbols[full] + ".py"))], check=True
        )  # noqa: S603, S607
    return 0


if __name__ == "__main__":
    sys.exit(rename(variables="--locals" in sys.argv))
