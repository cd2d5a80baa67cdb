"""Which GPU or process an address of the page means."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.core import text
from gpuwatchd.core.errors import GpuwatchdError, StoreError
from gpuwatchd.view.queries import history_query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.current_state import View

_BEGAN_S = 0.002
"""The page keeps milliseconds."""
_DIGITS = 16
"""Of milliseconds; more are no instant, and too many no number."""


def device(view: View, query: Mapping[str, str]) -> LiveDevice:
    """Return the GPU with the UUID that is asked for.

    Raises
    ------
    GpuwatchdError
        When it is not here.
    """
    uid = query.get("gpu", "")
    item = next((one for one in view.devices if text.clean(one.device.uid) == uid), None)
    if item is None:
        value = text.clean(uid, limit=80)
        hint = "the overview has those that are"
        raise GpuwatchdError(f"GPU {value} is not here", hint=hint, page="errors#no-such-gpu")
    return item


def process(item: LiveDevice, query: Mapping[str, str]) -> LiveProcess | None:
    """Return the process that is asked for; None where it is not on the GPU (any more)."""
    return next((one for one in item.processes or () if is_meant(one.info.key, query)), None)


def is_meant(key: ProcessKey, query: Mapping[str, str]) -> bool:
    """Say whether a process is the one with this pid that began at this instant."""
    if str(key.pid) != query.get("pid"):
        return False
    began = query.get("began", "-")
    if not began.isdecimal() or len(began) > _DIGITS:
        return True
    return key.started_at_s is None or abs(key.started_at_s - int(began) / 1000) < _BEGAN_S


def ended(history: Reader | None, query: Mapping[str, str]) -> ProcessInfo:
    """Return a process that is over.

    Raises
    ------
    GpuwatchdError
        When nothing is recorded of it.
    """
    processes = [] if history is None else history.processes()
    found = [one for one in processes if is_meant(one.key, query)]
    if not found:
        pid = text.clean(query.get("pid", ""), limit=20)
        why = f"process {pid} is not on this GPU, and there is no data of it"
        hint = "the overview has those that are"
        raise GpuwatchdError(why, hint=hint, page="errors#no-such-process")
    return max(found, key=lambda one: one.key.started_at_s or 0.0)


def on(history: Reader | None, query: Mapping[str, str]) -> Device | None:
    """Return a GPU as the history knows it."""
    devices = [] if history is None else history.devices()
    return next((one for one in devices if text.clean(one.uid) == query.get("gpu")), None)


def history() -> Reader | None:
    """Return the open history; None where there is none."""
    try:
        return history_query.reader()
    except StoreError:
        return None


def now_s(view: View) -> float:
    """Return now, or the newest sample where a simulation runs ahead of the clock."""
    return max(time.time(), view.taken_at_s)
