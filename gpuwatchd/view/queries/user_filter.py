"""``--user``: what a look shows of some users' processes alone, on a machine that others use too.

GPUs stay, since they are shared: what everybody else holds there is one sum beside them. Processes,
verdicts, alerts, idle memory and servers are those users' only.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.queries import state_location
from gpuwatchd.view.queries.current_view import OtherUsers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import Alert, Finding, ProcessInfo, ProcessKey
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.tables import Checkpoint, Phase
    from gpuwatchd.view.queries.current_view import View

ME = "me"


class People:
    """The users that were named, by name, glob, number, or "me"; everybody where none was."""

    def __init__(self, wishes: Sequence[str]) -> None:
        self._everybody = not wishes
        self._numbers = {int(wish) for wish in wishes if units.is_number(wish)}
        if any(wish.lower() == ME for wish in wishes):
            self._numbers.add(os.getuid())
        names = {wish.lower() for wish in wishes if wish.lower() != ME}
        # The history knows names only.
        self._names = names | {state_location.name_of(number).lower() for number in self._numbers}
        self.named = ", ".join(text.clean(wish, limit=80) for wish in wishes)

    def has(self, user: str | None, uid: int | None = None) -> bool:
        """Say whether a user is one of them; one that is not known is not."""
        if self._everybody or (uid is not None and uid in self._numbers):
            return True
        return bool(user) and any(fnmatchcase((user or "").lower(), name) for name in self._names)

    def own(self, info: ProcessInfo | None) -> bool:
        """Say whether a process is one of theirs."""
        return self._everybody or (info is not None and self.has(info.user, info.uid))


def others(rest: Sequence[LiveProcess], named: str) -> OtherUsers:
    """Return what the processes of other users hold on one GPU."""
    known = [item.used_bytes for item in rest if item.used_bytes is not None]
    return OtherUsers(len(rest), sum(known), len(known) == len(rest), named)


def only(view: View, wishes: Sequence[str]) -> None:
    """Leave in a view what is those users', and what they share with others."""
    people = People(wishes)
    infos = {
        process.info.key: process.info for item in view.devices for process in item.processes or ()
    } | {
        holding.process.key: holding.process
        for holding in view.holdings
        if holding.process is not None
    }
    here = {
        item.device.uid
        for item in view.devices
        if any(people.own(process.info) for process in item.processes or ())
    }
    view.others = {
        item.device.uid: others(
            [one for one in item.processes or () if not people.own(one.info)], people.named
        )
        for item in view.devices
        if item.processes is not None
    }
    view.devices = tuple(_device(item, people) for item in view.devices)
    view.keep_alerts(lambda alert: concerns(alert, people, infos, here))
    view.holdings = tuple(holding for holding in view.holdings if people.own(holding.process))
    pids = {key.pid for key, info in infos.items() if people.own(info)}
    view.servers = tuple(server for server in view.servers if server.pid in pids)
    keys = {alert.key for alert in view.alerts}
    view.untold = tuple(key for key in view.untold if key in keys)
    # Of what is over only the title is left, which may name anybody.
    view.lost = ()
    view.silences = tuple(
        silence
        for silence in view.silences
        if silence.matcher.key in keys
        or (silence.matcher.user and people.has(silence.matcher.user))
    )


def _device(item: LiveDevice, people: People) -> LiveDevice:
    mine = tuple(process for process in item.processes or () if people.own(process.info))
    keys = {one.info.key for one in mine}
    return msgspec.structs.replace(
        item,
        processes=None if item.processes is None else mine,
        finding=item.finding if _about(item.finding, keys) else None,
    )


def _about(finding: Finding | None, keys: set[ProcessKey]) -> bool:
    """Say whether a judgement is on one of these processes, or lays most of it at one's door."""
    if finding is None:
        return False
    if finding.subject.process is not None or not finding.blame:
        return finding.subject.process in keys
    return max(finding.blame, key=lambda blame: blame.share).process in keys


def concerns(
    alert: Alert, people: People, infos: Mapping[ProcessKey, ProcessInfo], here: set[str]
) -> bool:
    """Say whether an alert is about a process of these users, or about a GPU that they are on.

    Parameters
    ----------
    infos
        Who processes are, beside what the alert itself says.
    here
        UUIDs of GPUs with processes of theirs: its hardware concerns them.
    """
    subject = alert.subject
    if alert.about is not None and alert.about.user:
        return people.has(alert.about.user)
    if subject.process is not None:
        return people.own(infos.get(subject.process))
    if alert.kind == "gpu":
        return subject.device_uid in here
    blame = alert.finding.blame
    chief = max(blame, key=lambda one: one.share).process if blame else None
    return chief is not None and people.own(infos.get(chief))


# Who is asking: the user whose word is written down.


def write_action(
    verb: str, key: ProcessKey, phase: Phase, result: str, *, code: str = ""
) -> list[tuple[str, str]]:
    """Write down what this user does to a process; return what is to be said where that fails."""
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - 32 ms: SQLite comes with it

    row = tables.Action(
        at_s=time.time(),
        verb=verb,
        process=key,
        phase=phase,
        code=code,
        result=text.clean(result),
        who=user(),
    )
    try:
        with state_location.writing() as place:
            checked_connection.transaction(place.state_dir, tables.write_action, row)
    except GpuwatchdError as error:
        return [("not-written-down", f"it is not written down: {error.message}")]
    return []


def write_checkpoint(key: ProcessKey, saved_at_s: float, detail: str = "") -> Checkpoint:
    """Write down that a process has saved its work, and which; return the row.

    Raises
    ------
    GpuwatchdError
        There is no history, or this user may not write to it.
    """
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - 32 ms: SQLite comes with it

    row = tables.Checkpoint(
        process=key, saved_at_s=saved_at_s, said_by=user(), detail=text.clean(detail)
    )
    with state_location.writing() as place:
        return checked_connection.transaction(place.state_dir, tables.write_checkpoint, row)


def own_process(pid: int, verb: str, what: str) -> ProcessInfo:
    """Return who a process is, for a verb that speaks for it; ``what`` it may do, for a refusal.

    Raises
    ------
    GpuwatchdError
        There is no such process, or it is another user's and we are not root.
    """
    from gpuwatchd.collect.host import BootAnchor, Host  # noqa: PLC0415 - 60 ms, no view needs it

    anchor = BootAnchor(state_location.state_dir() / "boot.json", writes=False)
    with closing(Host(anchor=anchor)) as host:
        info = host.processes([pid]).get(pid)
    if info is None or info.foreign:
        raise GpuwatchdError(
            f"no process {pid} on this machine",
            hint="gpuwatchctl status",
            page="errors#no-such-process",
        )
    if os.geteuid() != 0 and info.uid != os.getuid():
        raise GpuwatchdError(
            f"process {pid} is not yours: only its owner or root may {what}",
            hint=f"sudo gpuwatchctl {verb} {pid}",
            page="errors#not-yours",
        )
    return info


def user() -> str:
    """Return the name of the user who runs this program, or its number where it has none."""
    return text.clean(state_location.name_of(os.getuid()))
