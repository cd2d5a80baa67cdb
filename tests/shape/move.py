"""Move the packages to their places: ``python -m tests.shape.move``, with Python 3.12 or later.

Reads ``places.txt``, moves each file with ``git mv`` and rewrites what names it: imports, dotted
names in strings and texts, paths in documents, and the names that a moved module has in the files
that import it. What imports do not show (the layers in pyproject.toml, say) is in
``by_hand.toml``. Kept until the house is in order, so that a branch that was begun before can be
moved as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = "gpuwatchd"
WIDTH = 100
TEXTS = (
    "*.py",
    "*.toml",
    "*.md",
    "*.yml",
    "*.cfg",
    "Makefile",
    ".ci/run",
    "packaging/*",
    "contrib/*",
)
UNTOUCHED = (
    "tests/shape/places.txt",
    "tests/shape/move.py",
    "tests/shape/by_hand.toml",
    "CHANGELOG.md",
)
FROM = re.compile(r"from (gpuwatchd[\w.]*) import (\w+(?:, \w+)*)(?![\w,(])")
"""An import within a string or a page: code for another interpreter, or an example."""
DOTTED = re.compile(r"(?<![\w./-])gpuwatchd((?:\.[A-Za-z_]\w*)+)")
SLASHED = re.compile(r"(?<![\w.~/-])gpuwatchd((?:/[A-Za-z_]\w*)+)((?:\.\w+)*)")


class Span(NamedTuple):
    """A stretch of a text, and what comes in its place."""

    start: int
    end: int
    text: str


class Places:
    """Where every module was and is."""

    def __init__(self, lines: list[str], modules: set[str], data: set[str]) -> None:
        rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
        self.table = {f"{PACKAGE}.{old}": f"{PACKAGE}.{new}" for old, new in rows}
        self.modules = modules
        self.shadowed = _shadowed(modules)
        self.data = data
        """Files of the package that are no modules."""

    def of(self, name: str) -> str:
        """Return the new name of a module; the longest entry that fits counts."""
        head, tail = name, ""
        while head not in self.table:
            head, _, last = head.rpartition(".")
            if not head:
                return name
            tail = f".{last}{tail}"
        return self.table[head] + tail

    def is_module(self, full: str) -> bool:
        """Say whether ``from parent import leaf`` gives a module, not another thing so named."""
        return full in self.modules and full not in self.shadowed

    def of_data(self, path: Path) -> Path:
        """Return the place of a file that is no module: within its package, as a rule."""
        for old, new in DATA.items():
            if path.is_relative_to(old):
                return Path(new) / path.relative_to(old)
        folder, inside = path.parent, Path()
        while ".".join(folder.parts) not in self.modules:
            folder, inside = folder.parent, Path(folder.name) / inside
        return Path(*self.of(".".join(folder.parts)).split(".")) / inside / path.name

    def of_dotted(self, name: str) -> str:
        """Return a dotted name, of a module or of something in one, as it is now."""
        head, rest = name, ""
        while head not in self.modules:
            head, _, last = head.rpartition(".")
            if not head:
                return name
            rest = f".{last}{rest}"
        return self.of(head) + rest


def _shadowed(modules: set[str]) -> set[str]:
    """Return the modules whose package has a function or class of the same name."""
    found = set()
    for name in modules:
        init = ROOT.joinpath(*name.split("."), "__init__.py")
        if init.exists():
            for node in ast.walk(ast.parse(init.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module != name:
                    found |= {f"{name}.{alias.asname or alias.name}" for alias in node.names}
    return found & modules


def _data() -> set[str]:
    """Return the files of the package that are no modules, and their folders."""
    files = {Path(one) for one in _git("ls-files", PACKAGE).split() if not one.endswith(".py")}
    folders = {file.parent for file in files if not (ROOT / file.parent / "__init__.py").exists()}
    return {str(one) for one in files | folders}


def modules_of(root: Path) -> set[str]:
    """Return the names of all modules and packages under a folder."""
    files = [file.relative_to(root.parent).with_suffix("") for file in root.rglob("*.py")]
    names = {".".join(file.parts) for file in files}
    return {name.removesuffix(".__init__") for name in names}


def rewrite_python(text: str, places: Places) -> str:
    """Return the text of a Python file with every module at its new place."""
    tree = ast.parse(text)
    offsets = _offsets(text)

    def at(line: int, column: int) -> int:
        start = offsets[line - 1]
        return start + len(text[start:].encode()[:column].decode())

    spans: list[Span] = []
    renamed: dict[str, str] = {}
    packages: dict[str, str] = {}
    taken, kept = _names(tree), _bound(tree, places)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module.split(".")[0] != PACKAGE:
                continue
            start = at(node.lineno, node.col_offset)
            end = at(node.end_lineno or 0, node.end_col_offset or 0)
            spans.append(Span(start, end, _from(node, places, renamed, taken, kept)))
            packages |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            inside = f"{packages.get(node.value.id, '')}.{node.attr}"
            if places.is_module(inside):
                end = at(node.end_lineno or 0, node.end_col_offset or 0)
                leaf = places.of(inside).rpartition(".")[2]
                spans.append(Span(end - len(node.attr), end, leaf))
        if isinstance(node, ast.Name) and node.id in renamed:
            start = at(node.lineno, node.col_offset)
            spans.append(Span(start, start + len(node.id), renamed[node.id]))
    return _apply(text, spans, places)


def _offsets(text: str) -> list[int]:
    offsets = [0]
    for line in text.split("\n"):
        offsets.append(offsets[-1] + len(line) + 1)
    return offsets


def _names(tree: ast.AST) -> set[str]:
    """Return every name that a file binds or uses."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def _bound(tree: ast.AST, places: Places) -> set[str]:
    """Return the names that a file gives to something beside one module of ours."""
    bound: set[str] = set()
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            bound.add(node.name)
        elif isinstance(node, ast.ExceptHandler):
            bound.add(node.name or "")
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            bound |= set(ast.literal_eval(node.value))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name, full = alias.asname or alias.name, f"{node.module}.{alias.name}"
                if imported.setdefault(name, full) != full or not places.is_module(full):
                    bound.add(name)
    return bound


def _from(
    node: ast.ImportFrom,
    places: Places,
    renamed: dict[str, str],
    taken: set[str],
    kept: set[str],
) -> str:
    parts: dict[str, list[str]] = {}
    module = node.module or ""
    for alias in node.names:
        full = f"{module}.{alias.name}"
        if not places.is_module(full):
            shown = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
            parts.setdefault(places.of(module), []).append(shown)
            continue
        parent, _, leaf = places.of(full).rpartition(".")
        shown = leaf
        if alias.asname is not None:
            shown = leaf if alias.asname == leaf else f"{leaf} as {alias.asname}"
        elif leaf != alias.name:
            if renamed.get(alias.name) == leaf:
                pass
            elif alias.name in kept or leaf in taken or leaf in renamed.values():
                shown = f"{leaf} as {alias.name}"
            else:
                renamed[alias.name] = leaf
        parts.setdefault(parent, []).append(shown)
    indent = " " * node.col_offset
    lines = [f"from {parent} import {', '.join(names)}" for parent, names in parts.items()]
    return f"\n{indent}".join(lines)


def _apply(text: str, spans: list[Span], places: Places) -> str:
    done, last = "", 0
    for span in sorted(spans):
        done += rewrite_text(text[last : span.start], places) + span.text
        last = span.end
    return done + rewrite_text(text[last:], places)


def rewrite_text(text: str, places: Places) -> str:
    """Return a text with the new dotted names and paths of our modules."""
    done, last = "", 0
    for match in FROM.finditer(text):
        done += _names_in(text[last : match.start()], places) + _from_in_text(match, places)
        last = match.end()
    return done + _names_in(text[last:], places)


def _from_in_text(match: re.Match[str], places: Places) -> str:
    parts: dict[str, list[str]] = {}
    for name in match.group(2).split(", "):
        full = f"{match.group(1)}.{name}"
        if not places.is_module(full):
            parts.setdefault(places.of(match.group(1)), []).append(name)
            continue
        parent, _, leaf = places.of(full).rpartition(".")
        parts.setdefault(parent, []).append(leaf if leaf == name else f"{leaf} as {name}")
    lines = [f"from {parent} import {', '.join(names)}" for parent, names in parts.items()]
    alone = match.string[: match.start()].rpartition("\n")[2] == ""
    return ("\n" if alone else "; ").join(lines)


def _names_in(text: str, places: Places) -> str:
    def dotted(match: re.Match[str]) -> str:
        return places.of_dotted(match.group())

    def slashed(match: re.Match[str]) -> str:
        name = (PACKAGE + match.group(1)).replace("/", ".")
        tail = match.group(2)
        parent, _, leaf = name.rpartition(".")
        if match.group() in places.data:
            return str(places.of_data(Path(match.group())))
        if tail not in {"", ".py"}:
            return match.group()
        if name in places.modules:
            return places.of(name).replace(".", "/") + tail
        if tail and parent in places.modules and parent != PACKAGE:
            return places.of(parent).replace(".", "/") + f"/{leaf}.py"
        return match.group()

    return SLASHED.sub(slashed, DOTTED.sub(dotted, text))


def reflow(text: str) -> str:
    """Return a Python file whose comments and docstrings keep within the width of a line."""
    if max(map(len, text.split("\n"))) <= WIDTH:
        return text
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose |= set(range(node.lineno, node.end_lineno or 0))
    lines = text.split("\n")
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if len(line) <= WIDTH or not (at in prose or line.lstrip().startswith("# ")):
            continue
        indent = line[: len(line) - len(line.lstrip())]
        prefix = indent + ("# " if line.lstrip().startswith("# ") else "")
        end = at + 1
        while end < len(lines) and _goes_on(lines[end], prefix):
            end += 1
        words = " ".join(one.removeprefix(prefix).strip() for one in lines[at:end])
        lines[at:end] = textwrap.wrap(
            words,
            WIDTH,
            initial_indent=prefix,
            subsequent_indent=prefix,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _goes_on(line: str, prefix: str) -> bool:
    return line.startswith(prefix) and line.removeprefix(prefix)[:1].isalpha()


def move_files(places: Places) -> None:
    """Move every file and make the packages that are new."""
    for file in _git("ls-files", "-z", PACKAGE).split("\0"):
        path = Path(file)
        if not file:
            continue
        if path.suffix == ".py":
            package = path.name == "__init__.py"
            name = ".".join((path.parent if package else path.with_suffix("")).parts)
            new = Path(*places.of(name).split("."))
            new = new / "__init__.py" if package else new.with_suffix(".py")
        else:
            new = places.of_data(path)
        if new != path:
            (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
            _git("mv", file, str(new))
    for folder in sorted({file.parent for file in (ROOT / PACKAGE).rglob("*.py")}):
        init = folder / "__init__.py"
        if not init.exists():
            init.write_text(PACKAGES[str(folder.relative_to(ROOT / PACKAGE))], "utf-8")
            _git("add", str(init))
    for folder in sorted((ROOT / PACKAGE).rglob("*"), reverse=True):
        if folder.is_dir() and not any(
            one for one in folder.rglob("*") if one.suffix not in {".pyc", ""}
        ):
            subprocess.run(["rm", "-r", str(folder)], check=True)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def main() -> int:
    """Move everything once."""
    if sys.version_info < (3, 12):
        print("needs Python 3.12 or later: earlier ones misplace names within f-strings")
        return 2
    places = Places(
        (HERE / "places.txt").read_text("utf-8").splitlines(),
        modules_of(ROOT / PACKAGE),
        _data(),
    )
    for file in sorted(set(_git("ls-files", "-z", *TEXTS).split("\0")) - {"", *UNTOUCHED}):
        path = ROOT / file
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        new = rewrite_python(text, places) if path.suffix == ".py" else rewrite_text(text, places)
        if new != text:
            path.write_text(new, "utf-8")
    move_files(places)
    for edit in tomllib.loads((HERE / "by_hand.toml").read_text("utf-8"))["edit"]:
        path = ROOT / edit["file"]
        text = path.read_text("utf-8")
        if edit["old"] not in text:
            print(f"{edit['file']}: not found: {edit['old'][:70]!r}")
            return 1
        path.write_text(text.replace(edit["old"], edit["new"]), "utf-8")
    tidy()
    return 0


def tidy() -> None:
    """Put imports in order and lines into form."""
    for command in (
        ("check", "--quiet", "--select", "I,F401", "--fix", "."),
        ("format", "--quiet", "."),
    ):
        subprocess.run([str(ROOT / ".venv/bin/ruff"), *command], cwd=ROOT, check=True)
    for file in _git("ls-files", "-z", "*.py").split("\0"):
        path = ROOT / file
        if file and path.is_file():
            text = path.read_text("utf-8")
            new = reflow(text)
            if new != text:
                path.write_text(new, "utf-8")


DATA = {f"{PACKAGE}/schemas": f"{PACKAGE}/cli/schemas"}
"""Folders of data that do not stay within their package."""
PACKAGES = {
    "view": '"""What people and machines see: questions and their answers."""\n',
    "core": '"""Values, quantities, safe text, errors, configuration, tables of plug-ins."""\n',
    "analysis": '"""From series of memory to findings. Pure: no clock, no files, no threads."""\n',
    "collect/nvml": '"""NVIDIA GPUs, through the library of the driver (NVML)."""\n',
    "collect/metal": '"""GPUs of a Mac."""\n',
    "collect/drm": '"""AMD and Intel GPUs on Linux."""\n',
    "collect/logs": '"""Reading logs that other programs wrote."""\n',
    "notify/channels": '"""One file or folder per channel."""\n',
    "notify/channels/desktop": '"""Pop-ups on the desktop."""\n',
    "notify/channels/email": '"""Mail, by SMTP."""\n',
    "daemon": '"""The program ``gpuwatchd``."""\n',
    "cli/verbs": '"""One verb of ``gpuwatchctl`` is one file."""\n',
    "tui/screens": '"""One screen of ``gpuwatchctl top`` is one file."""\n',
    "tui/widgets": '"""What screens are made of."""\n',
}
"""What is said of packages that are new."""
if __name__ == "__main__":
    sys.exit(main())
