"""The page of errors: prose by hand; ids, kinds and codes follow from where errors are raised."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from gpuwatchd.core import errors

PACKAGE = Path(errors.__file__).parent.parent
PAGE = PACKAGE.parent / "docs" / "reference" / "errors.md"
CLASSES = "Classes"
_SECTION = re.compile(r"^## (.+)$", flags=re.MULTILINE)
_TITLE = re.compile(r"^\*\*(.+)\.\*\* ", flags=re.MULTILINE)
_NAMED = re.compile(r"errors#([a-z-]+)")


def classes() -> dict[str, type[errors.GpuwatchdError]]:
    """Return name -> class of every error of ours."""
    return {
        name: found
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.GpuwatchdError)
    }


@cache
def raised() -> dict[str, frozenset[str]]:
    """Return id -> the classes that name it; every name of an id in the package is seen."""
    out: dict[str, set[str]] = {
        found.default_page.partition("#")[2]: {name} for name, found in classes().items()
    }
    for file in sorted(PACKAGE.rglob("*.py")):
        words = file.read_text(encoding="utf-8")
        if "errors#" not in words:
            continue
        tree = ast.parse(words)
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = _NAMED.fullmatch(node.value)
                if found and id(node) not in documentation:
                    out.setdefault(found[1], set())
            if isinstance(node, ast.Call):
                _of_call(node, out)
    return {name: frozenset(kinds) for name, kinds in out.items()}


def _of_call(node: ast.Call, out: dict[str, set[str]]) -> None:
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    if called not in classes():
        return
    for keyword in node.keywords:
        value = keyword.value
        if keyword.arg == "page" and isinstance(value, ast.Constant):
            found = _NAMED.fullmatch(str(value.value))
            if found:
                out.setdefault(found[1], set()).add(called)


def unnamed() -> list[str]:
    """Return where the root of the tree is raised without a section of its own."""
    out = []
    for file in sorted(PACKAGE.rglob("*.py")):
        words = file.read_text(encoding="utf-8")
        if "GpuwatchdError(" not in words:
            continue
        out += [
            f"{file.relative_to(PACKAGE)}:{node.lineno}"
            for node in ast.walk(ast.parse(words))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "GpuwatchdError"
            and not any(keyword.arg == "page" for keyword in node.keywords)
        ]
    return out


def _codes(kinds: frozenset[str]) -> str:
    known = classes()
    return " or ".join(sorted({str(known[kind].exit_code) for kind in kinds} or {"1"}))


def sections() -> dict[str, str]:
    """Return id -> the text of each section of an error."""
    _, *parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    texts.pop(CLASSES)
    return texts


def page() -> str:
    """Return docs/reference/errors.md with the lines that follow from the code as they must be."""
    kinds = raised()
    head, *parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))
    titles = {name: _TITLE.search(text) for name, text in sections().items()}
    index = [
        f"| [{name}](#{name}) | {title[1] if title else ''} |" for name, title in titles.items()
    ]
    out = [_with_rows(head, index)]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name == CLASSES:
            out.append(f"## {name}{_with_rows(text, _class_rows())}")
        elif not kinds.get(name):  # written by hand
            out.append(f"## {name}{text}")
        else:
            named = ", ".join(f"`{kind}`" for kind in sorted(kinds[name]))
            line = f"`kind`: {named}; exit code {_codes(kinds[name])}."
            out.append(f"## {name}{re.sub('^`kind`: .*$', line, text, flags=re.MULTILINE)}")
    return "".join(out)


def _with_rows(text: str, rows: list[str]) -> str:
    """Return a text with these rows in its table."""
    before, rule, after = text.rpartition("|---|\n")
    table = "".join(f"{row}\n" for row in rows)
    rest = after[after.rindex("|\n") + 2 :]
    return f"{before}{rule}{table}{rest}"


def _class_rows() -> list[str]:
    rows = []
    for name, kind in classes().items():
        text = (kind.__doc__ or "").strip().splitlines()[0]
        text = "the root of all" if name == "GpuwatchdError" else text
        anchor = kind.default_page.partition("#")[2]
        rows.append(f"| `{name}` | {text} | {kind.exit_code} | [{anchor}](#{anchor}) |")
    return rows
