"""Notices on macOS without an app bundle: by the script interpreter that every Mac has.

The pop-up library can do nothing there, and says that it could. Text is handed over as arguments of
the script, never as a part of it, so no name of a process can become a command. Such a notice has
no buttons and cannot be taken back; what is typed instead is in its text.

Not verified on hardware: the one call is :func:`_call`.
"""

from __future__ import annotations

import subprocess
from typing import Final

from gpuwatchd.core import text
from gpuwatchd.core.errors import NotifyError

PROGRAM: Final = "/usr/bin/osascript"
_SCRIPT: Final = (
    "on run argv",
    "display notification (item 2 of argv) with title (item 1 of argv)",
    "end run",
)
_HINT: Final = "use [notify.email] or a command"


def argv(title: str, body: str) -> list[str]:
    """Return the whole call.

    Examples
    --------
    >>> argv("-e", "b")[-2:]
    [' -e', 'b']
    """
    script = [word for line in _SCRIPT for word in ("-e", line)]
    # What begins with a dash would be taken for an option.
    return [PROGRAM, *script, *(f" {it}" if it.startswith("-") else it for it in (title, body))]


def show(title: str, body: str, timeout_s: float) -> str:
    """Show a notice; return what is known of it.

    Raises
    ------
    NotifyError
        Transient when it took too long, else permanent, so that another channel is used.
    """
    try:
        code, value = _call(argv(title, body), timeout_s)
    except subprocess.TimeoutExpired:
        raise NotifyError(
            "osascript did not answer in time", permanent=False, page="errors#pop-up"
        ) from None
    except OSError as error:
        why = text.clean(error.strerror or "cannot be run")
        raise NotifyError(
            f"osascript: {why}", permanent=True, hint=_HINT, page="errors#pop-up"
        ) from error
    if code:
        why = text.clean(value, limit=160).strip() or f"exit code {code}"
        raise NotifyError(
            f"macOS refused the notice: {why}", permanent=True, hint=_HINT, page="errors#pop-up"
        )
    return "accepted by macOS"


def _call(words: list[str], timeout_s: float) -> tuple[int, str]:
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stderr.decode("utf-8", "replace")
