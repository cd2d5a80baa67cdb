"""Where a name is given its value: the file and the line (in the child)."""

from __future__ import annotations

import dis
import os
import sys
import types
from typing import Any, Optional, Tuple

from . import attributes

LIBRARIES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen", sys.base_prefix + os.sep + "lib")
PROBE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_users(path: Any) -> bool:
    """Tell whether a source file is neither of the standard library nor installed."""
    if type(path) is not str or not path or path.startswith((PROBE, *STANDARD)):
        return False
    return not any(part in path for part in LIBRARIES)


def line_of_name(code: types.CodeType, name: str) -> int:
    """Return the line where a function first sets one of its variables, else its own line."""
    return _first_store(code, name, "STORE_") or code.co_firstlineno


def of_attribute(classes: Tuple[type, ...], name: str) -> Optional[Tuple[str, int]]:
    """Return where a class of the user's first sets an attribute; None where none does."""
    for cls in classes:
        for function in list(attributes.class_dict(cls).values()):
            if type(function) is types.FunctionType:
                code = function.__code__
                if name in code.co_names and is_users(code.co_filename):
                    line = _first_store(code, name, "STORE_ATTR")
                    if line is not None:
                        return code.co_filename, line
    return None


def line_in_class(module: types.CodeType, name: str, attribute: str) -> Optional[int]:
    """Return where the body of a class of a module sets an attribute; None where it does not."""
    bodies = [
        one for one in module.co_consts if type(one) is types.CodeType and one.co_name == name
    ]
    return _first_store(bodies[0], attribute, "STORE_NAME") if bodies else None


def _first_store(code: types.CodeType, name: str, kind: str) -> Optional[int]:
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        number = getattr(step, "line_number", None) or step.starts_line
        if number is not None and not isinstance(number, bool):
            line = number
        if step.opname.startswith(kind):
            value = step.argval  # two names where Python 3.13 joined two steps
            if value == name or (isinstance(value, tuple) and name in value):
                return line
    return None


def module_name(name: str, path: Optional[str]) -> str:
    """Return how a module is called; the program itself is called like its file."""
    if name == "__main__" and path:
        return os.path.splitext(os.path.basename(path))[0]
    return name
