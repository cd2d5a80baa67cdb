"""Each measure counts what it should, on invented source."""

from __future__ import annotations

import textwrap

import pytest

from tests.shape import classes, imports, names, prose, sizes
from tests.shape.tree import Module, Tree, parsed


def tree(**sources: str) -> Tree:
    """Return modules of a package of ours: ``a__b`` is gpuwatchd/a/b.py, ``a__`` the package a."""
    files = {name.replace("__", "/"): textwrap.dedent(text) for name, text in sources.items()}
    ends = {True: "__init__.py", False: ".py"}
    return parsed({f"gpuwatchd/{n}{ends[n.endswith('/')]}": text for n, text in files.items()})


def module(text: str, name: str = "a") -> Module:
    return next(iter(tree(**{name: text}).values()))


def test_cycles_count_imports_for_types_and_inside_functions() -> None:
    edges = imports.graph(
        tree(
            a="from gpuwatchd import b",
            b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpuwatchd.c import x",
            c="def f():\n    import gpuwatchd.a",
            d="import gpuwatchd.a, os",
            e="from gpuwatchd import f",
            f="from gpuwatchd.e import x",
        )
    )
    assert edges["gpuwatchd.d"] == {"gpuwatchd.a"}
    assert imports.cycles(edges) == [
        ["gpuwatchd.a", "gpuwatchd.b", "gpuwatchd.c"],
        ["gpuwatchd.e", "gpuwatchd.f"],
    ]


def test_lazy_imports_need_a_measured_reason() -> None:
    text = """
    import os
    def f():
        import json
        def g():
            import re  # noqa: PLC0415 - comes later
        # 40 ms at every start
        import rich
        import click  # noqa: PLC0415 - 30 ms, for terminals only
    """
    assert imports.lazy(module(text)) == [4, 6]
    assert imports.lazy(module(text, "registry")) == []
    assert imports.lazy(module(text, "cli__main")) == []


def _class(text: str) -> tuple[int, set[str]]:
    node = next(module(text).classes)
    return classes.parameters(node), classes.attributes(node)


def test_parameters_and_attributes_of_a_class() -> None:
    parameters, attributes = _class("""
    class A:
        kept: int
        CONSTANT = 1
        def __init__(self, a, b=1, *args, c, **rest):
            self.x, self.y = a, b
            self.z: int = c
            a.other = 1
        def f(self):
            self.late += 1
            self.x = 2
            self.x.inner = 3
    """)
    assert parameters == 3
    assert attributes == {"kept", "x", "y", "z", "late"}


def test_records_and_classes_that_settings_call_are_exempt() -> None:
    found = classes.exempt(
        tree(
            a="import msgspec\nclass Value(msgspec.Struct):\n    x: int\nclass Plain:\n    pass",
            b="from gpuwatchd.a import Value, Plain\nclass Kept(Value):\n    y: int\n"
            "class Same(Plain):\n    pass",
            c="class Value:\n    pass",
            d='NOTIFIERS: dict[str, str] = {"mail": "gpuwatchd.e:Mail"}',
            e="class Mail:\n    pass",
        )
    )
    assert found == {
        ("gpuwatchd.a", "Value"),
        ("gpuwatchd.b", "Kept"),
        ("gpuwatchd.e", "Mail"),
    }


def test_assignments_to_objects_that_were_made_elsewhere() -> None:
    text = """
    class A:
        def f(self, other):
            self.a = 1
            self.child.b = 2
            other.c = 3
            own = Thing()
            own.d = 4
            opened = store.Thing.open()
            opened.e = 5
            got = other.find()
            got.f += 6
            with Thing() as held:
                held.g = 7
            def inner():
                own.h: int = 8
            one, other.i = 9, 9
    """
    assert classes.assigned_outside(module(text)) == [5, 6, 12, 16, 17]


@pytest.mark.parametrize(
    ("name", "lines", "small"),
    [
        ("a", 59, True),
        ("a", 60, False),
        ("a__", 3, False),
        ("analysis__detectors__spike", 3, False),
        ("detector__spike", 3, True),
    ],
)
def test_small_files_are_those_outside_families(name: str, lines: int, small: bool) -> None:
    found = next(iter(tree(**{name: "x = 1\n" * lines}).values()))
    assert sizes.small(found) is small


@pytest.mark.parametrize(
    ("name", "where", "allowed"),
    [
        ("Herald", "gpuwatchd.a", False),
        ("old_herald_of", "gpuwatchd.a", False),
        ("Heraldry", "gpuwatchd.a", True),
        ("told", "gpuwatchd.a", False),
        ("told_at_s", "gpuwatchd.a", True),
        ("LettingGo", "gpuwatchd.a", False),
        ("Words", "gpuwatchd.store.a", False),
        ("Words", "gpuwatchd.a", True),
        ("HTTPShelf2", "gpuwatchd.a", False),
    ],
)
def test_names_are_judged_by_whole_words(name: str, where: str, allowed: bool) -> None:
    assert (names.instead(name, where) is None) is allowed


def test_names_of_modules_classes_and_public_functions() -> None:
    sources = tree(
        past="class _Told:\n    def say(self): ...\n    def _tell(self): ...\n",
        cli__verbs__zombies="def command(): ...\n",
        ok="told = 1\n",
    )
    assert [(m.name, line) for m, line, _ in names.forbidden(sources)] == [
        ("gpuwatchd.past", 1),
        ("gpuwatchd.past", 1),
        ("gpuwatchd.past", 2),
    ]


DECIDES = [
    'a == "it stopped growing"',
    'a not in {"it stopped", "gone"}',
    "a == STOPPED",
    "a == endings.STOPPED",
    "a in ENDINGS",
    "a in {endings.STOPPED, other}",
    "ENDINGS.get(alert.ended)",
    "WORDS[alert.ended]",
    "alert.ended == before",
    '"memory" in report.why',
    'alert.finding.reason.startswith("collecting")',
    'finding.reason.split("; ")',
    '(one.error or "").endswith(x)',
    'text.clean(finding.reason).partition(";")',
    'title.rpartition(": ")',
    'name.startswith(f"pid {pid} (")',
    "PATTERN.search(line)",
    're.match(r"\\d+ ranks of", line)',
    'NUMBER.sub("#", problem)',
    'message.subject.removeprefix("Now ").removeprefix("CRITICAL: ")',
]
DECIDES_NOT = [
    'a == "ended"',
    'segment.reason == "clock-step"',
    "segment.reason in CODES",
    'alert.ended != ""',
    "alert.ended is None",
    "alert.opened_at_s == alert.ended_at_s",
    'line.split(" ")',
    'finding.reason.split(" ")',
    'name.removeprefix("NVIDIA ")',
    'framework == "Triton Server"',
    "CODES.get(segment.reason)",
    'print("it stopped growing")',
    'NUMBER.sub("[a picture]", line)',
]
CONSTANTS = """
import re
from gpuwatchd import endings
from gpuwatchd.endings import STOPPED
ENDINGS = {STOPPED: 1, "gone": 2}
WORDS = {"it stopped growing": "ok"}
CODES = {"clock-step": "a step", "boot": "a start"}
PATTERN = re.compile(r"\\d+ ranks of")
NUMBER = re.compile(r"\\d+")
"""


def _decided(expression: str, name: str = "a") -> int:
    sources = tree(
        **{
            name: f"{CONSTANTS}\nfound = {expression}\n",
            "endings": 'STOPPED = "it stopped growing"',
        }
    )
    return len(list(prose.decided(sources)))


@pytest.mark.parametrize("expression", DECIDES)
def test_decisions_by_text_for_people(expression: str) -> None:
    assert _decided(expression) == 1
    assert _decided(expression, "collect__logs__formats__dmon") == 0
    assert _decided(expression, "store__legacy_text") == 0


@pytest.mark.parametrize("expression", DECIDES_NOT)
def test_what_is_no_decision_by_text_for_people(expression: str) -> None:
    assert _decided(expression) == 0
