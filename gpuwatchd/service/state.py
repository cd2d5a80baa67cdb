"""What systemd says of the unit, as a :class:`~gpuwatchd.core.model.ServiceState`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from gpuwatchd.core import text, units
from gpuwatchd.core.model import ServiceState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.service.systemctl import Systemctl

PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "Result",
    "UnitFileState", "ActiveEnterTimestamp", "InactiveEnterTimestamp", "ExecMainStatus",
    "MemoryCurrent", "MemoryMax", "WatchdogUSec", "FragmentPath", "DropInPaths", "NeedDaemonReload",
)  # fmt: skip
_State: TypeAlias = Literal["running", "starting", "stopping", "stopped", "failed", "not-installed"]
_STATES: dict[str, _State] = {
    "active": "running",
    "reloading": "running",
    "activating": "starting",
    "deactivating": "stopping",
    "inactive": "stopped",
    "failed": "failed",
}
_EXEC, _CONFIG, _CREDENTIALS, _GROUP, _USER = 203, 78, 243, 216, 217
_NEVER = 2**63
"""Sizes from here on are no limits: systemd writes 2**64 - 1 where there is none."""


def of(values: Mapping[str, str], ctl: Systemctl) -> ServiceState:
    """Return the state that these properties tell.

    Parameters
    ----------
    shown
        ``PROPERTIES`` as ``systemctl show`` writes them; {} where it does not answer.
    ctl
        Whose commands the hints name.
    """
    loaded = values.get("LoadState", "not-found")
    if loaded == "not-found":
        install = (ctl.own("install"),)
        return ServiceState(state="not-installed", text="not installed", hints=install)
    state = _STATES.get(values.get("ActiveState", ""), "stopped")
    result = values.get("Result", "success")
    code = _whole(values.get("ExecMainStatus"))
    pid = _whole(values.get("MainPID"))
    since = "ActiveEnterTimestamp" if state == "running" else "InactiveEnterTimestamp"
    service_state = ServiceState(
        state=state,
        text="",
        enabled={"enabled": True, "enabled-runtime": True, "disabled": False}.get(
            values.get("UnitFileState", "")
        ),
        since_at_s=_instant(values.get(since)),
        pid=pid or None,
        restarts=_whole(values.get("NRestarts")),
        result="" if result == "success" else text.clean(result),
        exit_code=code if result == "exit-code" else None,
        memory_bytes=_size(values.get("MemoryCurrent")),
        memory_max_bytes=_size(values.get("MemoryMax")),
        watchdog_s=_span(values.get("WatchdogUSec")),
        file=text.clean(values.get("FragmentPath", ""), limit=4096),
        beside=tuple(text.clean(value) for value in values.get("DropInPaths", "").split()),
        hints=tuple(_hints(values, state, code, ctl)),
    )
    masked = ["masked"] if loaded == "masked" else []
    value = ""
    if state in {"running", "starting"}:
        value = text.cut_words(text.clean(values.get("StatusText", ""), limit=4096), text.MAX_CHARS)
    words = ", ".join([*masked, *_words(service_state), *([value] if value else [])])
    return msgspec.structs.replace(service_state, text=words)


def _words(state: ServiceState) -> list[str]:
    parts: list[str] = [state.state]
    if state.pid is not None:
        parts.append(f"pid {state.pid}")
    if state.result:
        code = "" if state.exit_code is None else f" {state.exit_code}"
        parts.append(f"last result: {state.result}{code}")
    if state.restarts:
        parts.append(f"restarts: {state.restarts}")
    return parts


def _hints(values: Mapping[str, str], state: _State, code: int | None, ctl: Systemctl) -> list[str]:
    hints = []
    result = values.get("Result", "success")
    if values.get("LoadState") == "masked":
        return [f"{ctl.shown} unmask gpuwatchd"]
    if values.get("LoadState") in {"bad-setting", "error"}:
        return [f"systemd refuses the unit: {ctl.own('install')} writes it anew"]
    if state == "failed" or (state == "starting" and result != "success"):
        hints += _why_failed(result, code, ctl)
    elif state == "stopped":
        hints.append(ctl.own("start"))
    if values.get("NeedDaemonReload") == "yes":
        hints.append(f"its unit was changed: {ctl.shown} daemon-reload && {ctl.own('restart')}")
    if values.get("UnitFileState") == "disabled" and state == "running":
        hints.append(f"it does not start by itself: {ctl.own('install')}")
    return hints


def _why_failed(result: str, code: int | None, ctl: Systemctl) -> list[str]:
    by_code = {
        _CONFIG: "its configuration is wrong: gpuwatchctl config validate",
        _EXEC: f"its program is gone: {ctl.own('install')}",
        _CREDENTIALS: f"a credential file is gone: {ctl.own('install')} --credential NAME=FILE",
        _GROUP: f"its group is gone: {ctl.own('install')}",
        _USER: f"its user is gone: {ctl.own('install')}",
    }
    if result == "exit-code" and code in by_code:
        return [by_code[code]]
    values = {
        "watchdog": "it hung: look for a GPU that does not answer (gpuwatchctl doctor)",
        "oom-kill": "it needed more than MemoryMax: see the log, and please report it",
        "start-limit-hit": f"it failed ten times within ten minutes: {ctl.own('logs')}",
        "timeout": "no GPU answered in time, or the disk is stuck: gpuwatchctl doctor",
    }
    return [values.get(result, ctl.own("logs"))]


def _whole(word: str | None) -> int | None:
    return int(word) if word and word.isascii() and word.isdigit() else None


def _instant(word: str | None) -> float | None:
    at_s = _whole(word.removeprefix("@")) if word else None
    return float(at_s) if at_s else None


def _size(word: str | None) -> int | None:
    size = _whole(word)
    return size if size is not None and size < _NEVER else None


def _span(word: str | None) -> float | None:
    """Return seconds of "1min", "1min 30s" or "infinity"; None for off."""
    try:
        seconds = units.parse_duration((word or "").replace("min", "m").replace(" ", ""))
    except ValueError:
        return None
    return seconds if seconds and math.isfinite(seconds) else None
