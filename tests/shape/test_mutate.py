"""The sampler of faults, on an invented package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.shape import mutate
from tests.shape.imports import graph
from tests.shape.tree import parsed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TEXT = '''"""More than 1."""
from typing import Annotated, TYPE_CHECKING
if TYPE_CHECKING:
    import os
__all__ = ["f"[0:]]
A: Annotated[int, 3] = 4
def f(a: "int" = 5) -> Annotated[int, 6]:
    """Return 7."""
    log.debug(8 if True else a + 1)
    # é: bytes and characters are not the same
    if not (a < 1 or "é" in a) and a:
        g(f"{9}",
          10)
    return a + 2
'''


def test_what_is_changed_and_what_is_not() -> None:
    found = {(one.kind, one.old, one.new) for one in mutate.mutants("a.py", TEXT)}
    whole = 'not (a < 1 or "é" in a) and a'
    assert {old for kind, old, _ in found if kind == "constant"} == {"4", "5", "1", "10", "2"}
    assert {(old, new) for kind, old, new in found if kind == "not"} == {
        (whole.removesuffix(" and a"), "(a < 1 or 'é' in a)")
    }
    assert {new for kind, old, new in found if kind == "condition"} == {"True", "False"}
    assert ("arithmetic", "a + 2", "(a - 2)") in found
    assert ("return", "a + 2", "None") in found
    assert ("comparison", "a < 1", "(a <= 1)") in found
    assert [new for kind, _, new in found if kind == "call"] == ["pass"]
    for one in mutate.mutants("a.py", TEXT):
        compile(one.applied(TEXT.encode()), "a.py", "exec")


def test_the_order_is_that_of_the_seed() -> None:
    found = [*mutate.mutants("a.py", TEXT)]
    first = [*mutate.drawn(found, "1")]
    assert sorted(first) == sorted(found)
    assert first == [*mutate.drawn(reversed(found), "1")] != [*mutate.drawn(found, "2")]


def test_tests_are_found_by_imports_and_names() -> None:
    package = parsed({"gpuwatchd/ring.py": "def add(): pass", "gpuwatchd/all.py": ""})
    tests = {
        "tests/test_all.py": "import gpuwatchd.all",
        "tests/test_adds.py": "import gpuwatchd.all\nadd()",
        "tests/test_none.py": "",
        "tests/test_ring.py": "import gpuwatchd.ring",
        "tests/test_near.py": "import gpuwatchd.ring",
    }
    files = parsed(tests)
    edges = graph(package | files) | {"gpuwatchd.all": {"gpuwatchd.ring"}}
    found = mutate.tests_of(package["gpuwatchd.ring"], files, edges)
    assert found == [f"tests/test_{name}.py" for name in ("ring", "adds", "near", "all")]


def test_one_fault_is_noticed_and_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
        "gpuwatchd/__init__.py": "",
        "gpuwatchd/web/__init__.py": "",
        "gpuwatchd/web/toy.py": "def more(a):\n    return a + a\ndef less():\n    return True\n",
        "tests/test_toy.py": "from gpuwatchd.web import toy\ndef test(): assert toy.more(2) == 4",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    argv = ["--package", "web", "--count", "5", "--at-least"]
    assert mutate.main([*argv, "0.7"], tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "survived: gpuwatchd/web/toy.py:4: return: True -> None tests/test_toy.py"
    assert lines[2].split() == ["web", "3", "2", "1", "0"]
    assert (tmp_path / "gpuwatchd/web/toy.py").read_text() == files["gpuwatchd/web/toy.py"]
