"""Who started a process: its ancestors, nearest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.collect.host.files import full_name, parse_stat, read_bytes, read_some, words_of
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv, mask_title

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.collect.host.files import Stat

MOST: Final = 8
"""Ancestors told at most."""
_BEYOND: Final = frozenset(
    {
        *("systemd", "(sd-pam)", "init", "sshd", "sshd-session", "login", "launchd", "cron"),
        *("containerd-shim", "containerd-shim-runc-v2", "conmon", "dockerd", "lxc-start"),
    }
)
"""What starts everything says nothing about whose work something is."""
_ARGV_BYTES: Final = 1024
_WORDS: Final = 8
_WORD_CHARS: Final = 128
"""The beginning of a command line says what runs; a shell's may be a whole script."""


class Ancestor(NamedTuple):
    """One process that started another."""

    pid: int
    starttime: int
    """Clock ticks since boot."""
    name: str
    argv: tuple[str, ...]
    """How its command line begins, secrets masked."""

    @property
    def label(self) -> str:
        """Name with the script that it runs, and pid: "torchrun[4700]"."""
        key = ProcessKey(pid=self.pid, started_at_s=None)
        label = ProcessInfo(key=key, name=self.name, argv=self.argv).label
        return f"{clean(label, limit=48)}[{self.pid}]"


def ancestors(proc: Path, pid: int, stat: Stat) -> tuple[Ancestor, ...]:
    """Return the ancestors of a process, nearest first.

    Up to the shell of a terminal, and never what starts everything: init, a login, the runtime of
    a container. A parent that began after its child is another process with a reused number.

    Parameters
    ----------
    proc
        Where /proc is.
    pid, stat
        Whose ancestors, and what its stat says.
    """
    chain: list[Ancestor] = []
    met = {pid}
    while len(chain) < MOST and not stat.leads_terminal:
        pid, born = stat.parent_pid, stat.starttime
        if pid <= 1 or pid in met:
            break
        met.add(pid)
        found = parse_stat(read_bytes(f"{proc}/{pid}/stat"))
        if found is None or found.starttime > born:
            break
        stat = found
        argv = words_of(read_some(f"{proc}/{pid}/cmdline", _ARGV_BYTES))
        name = mask_title(full_name(stat.name, argv))
        if name in _BEYOND:
            break
        begin = mask_argv((word[:_WORD_CHARS] for word in argv), limit=_WORDS)
        chain.append(Ancestor(pid, stat.starttime, name, begin))
    return tuple(chain)
