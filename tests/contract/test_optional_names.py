"""An optional attribute is asked for by a string: a rename must not leave that string behind."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "gpuwatchd"
OF_LIBRARIES = {
    "O_PATH",
    "O_TMPFILE",
    "secure_protocol",
    "SO_PEERCRED",
    "_backend",
    "backup_dir",
    "body_maxlen",
    "call_get_capabilities",
    "call_get_server_information",
    "connected",
    "errno",
    "log_dir",
    "ipv4_mapped",
    "malloc_trim",
    "mallopt",
    "memfd_create",
    "nvmlEventSetWait",
    "nvmlEventSetWait_v2",
    "pidfd_open",
    "pidfd_send_signal",
    "sched_getaffinity",
    "strerror",
    "type",
}
"""Attributes of the standard library, pynvml, apprise, click, desktop-notifier and its D-Bus."""


def test_every_optional_attribute_is_defined_somewhere() -> None:
    asked: set[str] = set()
    defined: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if "probe" in path.parts:
            continue  # it asks frameworks of every version for what they have
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    defined.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                    defined.add(name)
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr"),
                    args=[_, ast.Constant(value=str(name)), *_],
                ):
                    asked.add(name)
                case _:
                    pass
    assert {"on_action", "release_driver"} <= asked
    assert asked - defined == OF_LIBRARIES
