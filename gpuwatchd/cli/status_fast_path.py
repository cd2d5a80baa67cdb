"""The short way into ``status``: its plain forms are read here, without a command-line parser.

Half of what ``status`` costs would be click. What is not understood here, mistakes included, goes
the long way; a test holds the two together.
"""

from __future__ import annotations

import gc

from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.core import registry, units

_SWITCHES = {
    "--json": "json",
    "--ascii": "ascii",
    "-q": "quiet",
    "--quiet": "quiet",
    "-v": "verbose",
    "--verbose": "verbose",
    "--debug": "debug",
}
_COLOURS = {"auto", "always", "never"}


class StatusRequest:
    """One understood command line."""

    __slots__ = ("exit_code", "flags", "pids")

    def __init__(self) -> None:
        self.flags = Globals()
        self.flags.verb = "status"
        self.pids: list[int] = []
        self.exit_code = False


def read(arguments: list[str]) -> StatusRequest | None:
    """Return what a plain ``status`` line wants, None when it is not one.

    Examples
    --------
    >>> wish = read(["--gpu", "0", "status", "--json"])
    >>> wish is not None and (wish.flags.gpu, wish.flags.json)
    (['0'], True)
    >>> read(["status", "--help"]) is None
    True
    """
    if "status" not in arguments:
        return None
    wish = StatusRequest()
    words = iter(arguments)
    verbs = 0
    for word in words:
        if word == "status":
            verbs += 1
        elif word in _SWITCHES:
            setattr(wish.flags, _SWITCHES[word], True)
        elif word == "--exit-code" and verbs:
            wish.exit_code = True
        elif word == "--wide" and verbs:
            wish.flags.wide = True
        elif word == "--all" and verbs:
            wish.flags.every = True
        elif not _valued(wish, word, next(words, ""), after_verb=verbs > 0):
            return None
    return wish if verbs == 1 else None


def _valued(wish: StatusRequest, word: str, value: str, *, after_verb: bool) -> bool:
    if not value or value.startswith("-"):
        return False
    if word == "--gpu":
        wish.flags.gpu.append(value)
    elif word == "--user" and after_verb and value.strip():
        wish.flags.user.append(value)
    elif word == "--color" and value in _COLOURS:
        wish.flags.color = value
    elif word == "--pid" and after_verb and units.is_number(value) and int(value) > 0:
        wish.pids.append(int(value))
    else:
        return False
    return True


def run(wish: StatusRequest | None) -> int:
    """Do it, and return the exit code; None is the bare command, without a verb."""
    gc.disable()  # one look makes many objects and no garbage: collecting is 10 % of it
    try:
        registry.import_without("msgspec", "typing_extensions")  # which would be 10 ms
        from gpuwatchd.cli import status_output  # noqa: PLC0415 - importing is most of the work

        if wish is None:
            return status_output.run_brief(Globals())
        return status_output.run(wish.flags, wish.pids, exit_code=wish.exit_code)
    finally:
        gc.enable()
