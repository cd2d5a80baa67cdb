"""Tables of plug-ins: name -> "module:Class", imported on first use.

No entry points, no folder scanning, no decorators: a heavy or missing optional library hurts only
its own row.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType


def load(table: Mapping[str, str], name: str) -> Any:
    """Return the class that ``table`` names, importing its module now.

    Raises
    ------
    GpuwatchdError
        When the name is not in the table.

    Examples
    --------
    >>> load({"path": "pathlib:PurePath"}, "path").__name__
    'PurePath'
    """
    try:
        target = table[name]
    except KeyError:
        text = ", ".join(sorted(table))
        raise GpuwatchdError(
            f"{name!r} is not known here", hint=f"known: {text}", page="errors#unknown-name"
        ) from None
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def import_without(name: str, *absent: str) -> ModuleType:
    """Import a library as if others that it would load were not installed.

    What of those is loaded already stays so, and afterwards each can be imported as before.
    """
    masked = [other for other in absent if other not in sys.modules]
    sys.modules.update(dict.fromkeys(masked))  # type: ignore[arg-type]
    try:
        return importlib.import_module(name)
    finally:
        for other in masked:
            del sys.modules[other]
