"""Who is asking: the user whose word is written down."""

from __future__ import annotations

import os
import pwd

from gpuwatchd.core import text


def user() -> str:
    """Return the name of the user who runs this program, or its number where it has none."""
    try:
        return text.clean(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return str(os.getuid())
