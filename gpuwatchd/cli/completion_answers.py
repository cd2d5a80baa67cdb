"""What TAB offers: read from the live state file alone, silent when there is none."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem, FishComplete, add_completion_class

from gpuwatchd.core import config, text
from gpuwatchd.store import live
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.store.live import LiveState

VARIABLE = "_GPUWATCHCTL_COMPLETE"
NAMES_ONLY = "words_complete"
"""What bash asks for: values without their meaning, since it has no place to show that."""


class Words(FishComplete):
    """Answers with values alone, to a line and the word under the cursor."""

    name = NAMES_ONLY.partition("_")[0]

    def format_completion(self, item: CompletionItem) -> str:
        """Return "plain,value"."""
        return f"{item.type},{item.value}"


def answer(arguments: list[str]) -> int:
    """Answer TAB and return 0: whatever breaks, nobody's line is spoilt by an error.

    Parameters
    ----------
    arguments
        Those of the process; the line itself is in the environment.
    """
    from gpuwatchd.cli import command_line  # noqa: PLC0415 - it takes its completions from here

    add_completion_class(Words)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123
            command_line.call(arguments)
    except (Exception, SystemExit):  # noqa: BLE001 - an incomplete line may be wrong in any way
        return 0
    return 0


def _state() -> LiveState | None:
    return live.read(state_location.runtime_dir())


def _offer(pairs: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    values: dict[str, str] = {}
    for value, help_text in pairs:
        if value.startswith(incomplete):
            # zsh separates value and help by a colon and a newline: neither may come from outside.
            values.setdefault(value, text.clean(help_text).replace(":", " "))
    return [CompletionItem(value, help=help_text) for value, help_text in values.items()]


def gpus(incomplete: str) -> list[CompletionItem]:
    """Return the indices (and, once a letter is typed, the UUIDs) of the GPUs."""
    state = _state()
    devices = [item.device for item in state.devices] if state is not None else []
    by_index = [(str(d.index), d.name) for d in devices if d.index is not None]
    return _offer([*by_index, *((d.uid, d.name) for d in devices if incomplete)], incomplete)


def pids(incomplete: str) -> list[CompletionItem]:
    """Return the pids on any GPU."""
    state = _state()
    devices = state.devices if state is not None else ()
    return _offer(
        (
            (str(process.info.key.pid), process.info.name)
            for item in devices
            for process in item.processes or ()
        ),
        incomplete,
    )


def alert_keys(incomplete: str) -> list[CompletionItem]:
    """Return the ids (and, once a letter is typed, the keys) of the open alerts."""
    state = _state()
    alerts = state.alerts if state is not None else ()
    keys = alerts if incomplete else ()
    return _offer(
        (*((alert.code, alert.title) for alert in alerts), *((key.key, key.title) for key in keys)),
        incomplete,
    )


def users(incomplete: str) -> list[CompletionItem]:
    """Return the users who have processes on a GPU, and "me"."""
    state = _state()
    pairs = (
        (process.info.user, "")
        for item in (state.devices if state is not None else ())
        for process in item.processes or ()
        if process.info.user
    )
    return _offer([("me", "your own"), *sorted(set(pairs))], incomplete)


def settings(incomplete: str, sections: Sequence[str] = ()) -> list[CompletionItem]:
    """Return the keys of the configuration, each with "=", its default as help.

    Parameters
    ----------
    incomplete
        What is typed so far; section and key, or the key alone.
    sections
        Only these; all when empty.
    """
    if "=" in incomplete:
        return []  # a value is anybody's guess
    known = [
        (key, str(default))
        for key, default in config.keys()  # noqa: SIM118 - a function, not a dict
        if not sections or key.partition(".")[0] in sections
    ]
    short = ((key.partition(".")[2], default) for key, default in known) if incomplete else ()
    pairs = [(f"{key}=", default) for key, default in (*known, *short)]
    return _offer(pairs, incomplete.replace("_", "-"))
