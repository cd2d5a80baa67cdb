"""What TAB offers: read from the live state file alone, silent when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from gpuwatchd import config, text
from gpuwatchd.store import live

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.store.live import LiveState


def _state() -> LiveState | None:
    return live.read(config.runtime_dir())


def _offer(pairs: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    seen: dict[str, str] = {}
    for value, help_text in pairs:
        if value.startswith(incomplete):
            # zsh separates value and help by a colon and a newline: neither may come from outside.
            seen.setdefault(value, text.clean(help_text).replace(":", " "))
    return [CompletionItem(value, help=help_text) for value, help_text in seen.items()]


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
        (*((one.code, one.title) for one in alerts), *((one.key, one.title) for one in keys)),
        incomplete,
    )
