"""What TAB offers: read from the live state file alone, silent when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem, FishComplete

from gpuwatchd.core import config, text
from gpuwatchd.store import live
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.store.live import LiveDevice

VARIABLE = "_GPUWATCHCTL_COMPLETE"
NAMES_ONLY = "words_complete"
"""What bash asks for: values without their meaning, since it has no place to show that."""


class Words(FishComplete):
    """Answers with values alone, to a line and the word under the cursor."""

    name = NAMES_ONLY.partition("_")[0]

    def format_completion(self, item: CompletionItem) -> str:
        """Return "plain,value"."""
        return f"{item.type},{item.value}"


def _devices() -> tuple[LiveDevice, ...]:
    state = live.read(state_location.runtime_dir())
    return state.devices if state is not None else ()


def _processes() -> list[ProcessInfo]:
    return [process.info for item in _devices() for process in item.processes or ()]


def _offer(pairs: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    values: dict[str, str] = {}
    for value, help_text in pairs:
        if value.startswith(incomplete):
            # zsh separates value and help by a colon and a newline: neither may come from outside.
            values.setdefault(value, text.clean(help_text).replace(":", " "))
    return [CompletionItem(value, help=help_text) for value, help_text in values.items()]


def gpus(incomplete: str) -> list[CompletionItem]:
    """Return the indices (and, once a letter is typed, the UUIDs) of the GPUs."""
    devices = [item.device for item in _devices()]
    by_index = [(str(d.index), d.name) for d in devices if d.index is not None]
    return _offer([*by_index, *((d.uid, d.name) for d in devices if incomplete)], incomplete)


def processes(incomplete: str) -> list[CompletionItem]:
    """Return the pids on any GPU, and once a letter is typed their programs, users and jobs."""
    infos = _processes()
    by_pid = [(str(info.key.pid), info.name) for info in infos]
    shown = [
        (name.rpartition(" ")[2], info.attribution)
        for info in infos
        for name in (info.entry_point[1] or info.name, info.user, info.group or info.job)
        if name and incomplete
    ]
    return _offer([*by_pid, *shown], incomplete)


def subjects(incomplete: str) -> list[CompletionItem]:
    """Return what has a verdict: GPUs, processes, open alerts."""
    return [*gpus(incomplete), *processes(incomplete), *alert_keys(incomplete)]


def alert_keys(incomplete: str) -> list[CompletionItem]:
    """Return the ids (and, once a letter is typed, the keys) of the open alerts."""
    state = live.read(state_location.runtime_dir())
    alerts = state.alerts if state is not None else ()
    keys = [(alert.key, alert.title) for alert in alerts if incomplete]
    return _offer([*((alert.code, alert.title) for alert in alerts), *keys], incomplete)


def users(incomplete: str) -> list[CompletionItem]:
    """Return the users who have processes on a GPU, and "me"."""
    names = sorted({info.user for info in _processes() if info.user})
    return _offer([("me", "your own"), *((name, "") for name in names)], incomplete)


def settings(incomplete: str, sections: Sequence[str]) -> list[CompletionItem]:
    """Return the keys of some sections, each with "=", with its default as help."""
    if "=" in incomplete:
        return []  # a value is anybody's guess
    known = [
        (key, str(default))
        for key, default in config.keys()  # noqa: SIM118 - a function, not a dict
        if key.partition(".")[0] in sections
    ]
    short = ((key.partition(".")[2], default) for key, default in known) if incomplete else ()
    pairs = [(f"{key}=", default) for key, default in (*known, *short)]
    return _offer(pairs, incomplete.replace("_", "-"))
