"""The page of errors: written from the table of their sections and from where they are raised."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from gpuwatchd.cli.error_pages import ERROR_PAGES, ErrorPage
from gpuwatchd.core import errors

PACKAGE = Path(errors.__file__).parent.parent
_NAMED = re.compile(r"errors#([a-z-]+)")

INTRODUCTION = """\
An error is one line that says what is wrong, one that says what to do (`hint:`), and one that
names its section here:

```
gpuwatchctl: no GPU matches 7
hint: GPUs here: 0, 1
see: gpuwatchctl docs errors#no-such-gpu
```

With `--json` the object has `error` instead of `data`: `kind` (the class below), `message`, `hint`,
`exit_code` and `page`. Ids and classes are stable; messages may change. Errors of usage (a flag
that does not exist, exit code 2) name the help of their verb instead. The daemon says its errors
in the same way and ends with 78 where the configuration is at fault, else with 1; `check` says
every error as UNKNOWN, with 3. `--debug` shows where an error was raised.
"""


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
        if file.parent.name == "error_pages":
            continue
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


def _section(page: ErrorPage, kinds: frozenset[str]) -> list[str]:
    named = ", ".join(f"`{kind}`" for kind in sorted(kinds)) or "any exception"
    return [
        f"## {page.id}",
        "",
        f"**{page.title}.** {page.means}",
        "",
        "Usual causes:",
        "",
        *(f"* {cause}" for cause in page.causes),
        "",
        "What to do:",
        "",
        *(f"* {step}" for step in page.do),
        "",
        f"`kind`: {named}; exit code {_codes(kinds)}.",
        "",
    ]


def page() -> list[str]:
    """Return the lines of docs/reference/errors.md."""
    kinds = raised()
    lines = ["# Errors", "", INTRODUCTION, "| id | what it is |", "|---|---|"]
    lines += [f"| [{one.id}](#{one.id}) | {one.title} |" for one in ERROR_PAGES]
    lines.append("")
    for one in ERROR_PAGES:
        lines += _section(one, kinds.get(one.id, frozenset()))
    lines += [
        "## Classes",
        "",
        "What `kind` can be besides the name of an exception of Python:",
        "",
    ]
    lines += ["| kind | what it is | exit code | section |", "|---|---|---|---|"]
    for name, found in classes().items():
        said = (found.__doc__ or "").strip().splitlines()[0]
        said = "the root of all" if name == "GpuwatchdError" else said
        anchor = found.default_page.partition("#")[2]
        lines.append(f"| `{name}` | {said} | {found.exit_code} | [{anchor}](#{anchor}) |")
    return lines
