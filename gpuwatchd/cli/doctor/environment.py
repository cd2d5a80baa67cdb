"""What ``doctor`` sees around us: device files, other people's processes, container, servers."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor.checks import Check, ok, warning
from gpuwatchd.collect.host.procfs import inside_container
from gpuwatchd.core import units
from gpuwatchd.view.text import device_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpuwatchd.cli.doctor.checks import CheckContext
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import ServerReading
    from gpuwatchd.store.live import LiveDevice

_NODES = ("dev/nvidiactl", "dev/nvidia[0-9]*", "dev/dri/render*", "dev/kfd")
_HIDING = {"1", "2", "4", "noaccess", "invisible", "ptraceable"}
_INSIDE = (
    "inside one: the driver's pids are those of the host; foreign ones stay unnamed and are never "
    "signalled (a daemon on the host names them)"
)


def check(around: CheckContext) -> Iterator[Check]:
    """Yield what is around us, in order."""
    yield from device_files(around.root)
    yield from processes(around.root)
    yield from container(around.root)
    state, _ = around.state
    if state is None or not around.alive:
        yield from servers(around.settings, ())
        return
    for item in state.devices:
        yield from device(item, now_s=state.taken_at_s)
    yield from servers(around.settings, state.servers, now_s=state.taken_at_s)
    if around.settings.endpoints.enabled and not state.servers:
        yield ok("servers", "no serving engine is seen to run here")


def device_files(root: Path) -> Iterator[Check]:
    """Yield whether the files of GPUs may be opened; nothing where there are none."""
    paths = sorted(node for pattern in _NODES for node in root.glob(pattern))
    closed = [node for node in paths if not os.access(node, os.R_OK | os.W_OK)]
    if not paths:
        return
    if not closed:
        names = ", ".join(str(node) for node in paths[:4])
        more = f" and {len(paths) - 4} more" if len(paths) > 4 else ""
        yield ok("device files", f"may be opened: {names}{more}")
        return
    group = _group(closed[0])
    hint = f"sudo usermod -aG {group} $USER" if group else f"ls -l {closed[0]}"
    names = ", ".join(str(node) for node in closed[:4])
    yield warning("device-files", "device files", f"may not be opened by you: {names}", hint)


def _group(node: Path) -> str:
    """Return the group that may open a file; "" when none may, or it is root's own."""
    import grp  # noqa: PLC0415 - only where a file is closed

    try:
        about = node.stat()
        if not about.st_mode & stat.S_IWGRP or about.st_gid == 0:
            return ""
        return grp.getgrgid(about.st_gid).gr_name
    except (OSError, KeyError):
        return ""


def processes(root: Path) -> Iterator[Check]:
    """Yield how much of other people's processes can be read."""
    hiding = hidden(root)
    if hiding is None:
        return
    if hiding:
        yield warning(
            "processes-hidden",
            "processes",
            "those of other users are hidden (hidepid): they are shown as mere pids",
            "ask for the group that /proc names (gid=), or run the daemon as root",
        )
    elif os.geteuid() == 0:
        yield ok("processes", "all can be read")
    else:
        yield ok(
            "processes",
            "others' are named; their libraries cannot be read: their frameworks are guesses",
        )


def hidden(root: Path) -> bool | None:
    """Say whether /proc hides the processes of others (hidepid); None where there is no /proc.

    Root sees them all the same.
    """
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        left, _, right = line.partition(" - ")
        point, kind = left.split()[4:5], right.split()[:1]
        if point != ["/proc"] or kind != ["proc"]:
            continue
        for option in right.split()[-1].split(","):
            name, _, value = option.partition("=")
            if name == "hidepid":
                return value in _HIDING and os.geteuid() != 0
    return False


def container(root: Path) -> Iterator[Check]:
    """Yield whether the driver's pids are not ours."""
    if not (root / "proc/self").exists():
        return
    if inside_container(root / "proc", root):
        yield ok("container", _INSIDE)


def device(item: LiveDevice, *, now_s: float) -> Iterator[Check]:
    """Yield what keeps the daemon from reading a device, and why its processes are unknown."""
    label = item.device.label
    parts = device_facts.state(item, now_s=now_s)
    reading = item.reading
    if parts:
        texts = [part if isinstance(part, str) else part[0] for part in parts[:2]]
        calm = reading is not None and reading.state in {"asleep", "released"}
        sentence = "; ".join(text for text in texts if text)
        if calm:
            yield ok(label, sentence)
        else:
            yield warning("gpu-unread", label, sentence, device_facts.remedy(reading))
    unknown = device_facts.processes(item)
    if unknown and not parts:
        yield warning("gpu-unread", label, unknown, "compare with what nvidia-smi lists")


def servers(
    settings: Config, found: Iterable[ServerReading], *, now_s: float = 0.0
) -> Iterator[Check]:
    """Yield whether the serving engines that were found answer."""
    if not settings.endpoints.enabled:
        yield ok("servers", "serving engines are not asked (endpoints.enabled)")
        return
    for server in found:
        name = f"server {server.kind}"
        if server.ok:
            ago = units.duration(max(0.0, now_s - server.at_s))
            yield ok(name, f"{server.url} answered {ago} ago")
        else:
            yield warning(
                "server-silent",
                name,
                f"{server.url} does not answer: {server.why or 'no reason given'}",
                f"curl -v {server.url}, or name its address in [endpoints] urls",
            )
