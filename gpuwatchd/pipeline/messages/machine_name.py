"""What this machine is called when people are told of it."""

from __future__ import annotations

import functools
import os

from gpuwatchd.core import text

HOST_CHARS = 40


def name(host: str | None) -> str:
    """Return a given name made safe; by default what this machine calls itself, undotted."""
    return _own() if host is None else text.clean(host, limit=HOST_CHARS).strip()


@functools.cache
def _own() -> str:
    return text.clean(os.uname().nodename.partition(".")[0], limit=HOST_CHARS)
