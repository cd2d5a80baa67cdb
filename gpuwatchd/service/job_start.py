"""Starting a job under limits: variables of its framework, and a unit of the user's systemd.

Nothing here stays beside the job: frameworks keep to their variables, restarts and logs are
systemd's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core import text, units
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.service.systemctl import NAME, Systemctl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import Device
    from gpuwatchd.service.unit_files import Runner

_TORCH: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_TORCH_KEY: Final = "per_process_memory_fraction"
_JAX: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNIT = re.compile(r"[A-Za-z0-9:_.@-]{1,200}")
_OF_THIS_UNIT: Final = frozenset(
    {"INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_PID", "MAINPID", "NOTIFY_SOCKET"}
)
"""Variables that systemd sets for one unit; another must not get them."""
RESTART_S: Final = 5


class Limited(NamedTuple):
    """What keeps a job to some memory."""

    variables: dict[str, str]
    fraction: float
    """Of the largest card that it may use, so that it is as much on none."""
    total_bytes: int
    """Memory of that card."""


def visible(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """Return the devices that a job may use, as far as ``CUDA_VISIBLE_DEVICES`` tells.

    Numbers count by CUDA's own order, fastest first, unless the job asks for the order of the bus:
    without that a number says nothing of which of several different cards it is.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return list(devices)
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    same = len({device.memory_total_bytes for device in devices}) <= 1
    found: list[Device] = []
    for word in (one.strip() for one in value.split(",")):
        if word.isdecimal() and int(word) < len(devices):
            if not (by_bus or same):
                return list(devices)
            found += [one for one in devices if one.index == int(word)]
            continue
        named = [one for one in devices if word.startswith("GPU-") and one.uid.startswith(word)]
        if len(named) != 1:
            break  # as CUDA does: what follows a name that is none is not seen either
        found += named
    return found


def limited(vram_bytes: int, devices: Sequence[Device], environ: Mapping[str, str]) -> Limited:
    """Return the variables that have PyTorch and JAX keep to ``vram_bytes`` on every device.

    Raises
    ------
    ValueError
        Where it is more than the smallest device has, no device tells its size, or a variable says
        something else already; the text names which.
    """
    totals = [one.memory_total_bytes for one in devices if one.memory_total_bytes]
    if not totals:
        raise ValueError("no GPU that this job may use tells how much memory it has")
    if vram_bytes > min(totals):
        raise ValueError(
            f"{units.size(vram_bytes)} is more than the {units.size(min(totals))} of the GPU"
        )
    share = f"{int(vram_bytes / max(totals) * 1e4) / 1e4:.4f}"
    if float(share) <= 0.0:
        raise ValueError(f"{units.size(vram_bytes)} is too little to be a share of the GPU")
    variables: dict[str, str] = {}
    for name in [one for one in _TORCH if environ.get(one)] or _TORCH[:1]:
        words = [word for word in environ.get(name, "").split(",") if word.strip()]
        values = [
            w.partition(":")[2].strip() for w in words if w.partition(":")[0].strip() == _TORCH_KEY
        ]
        _refuse_other(name, values, share)
        variables[name] = ",".join([*words, *([] if values else [f"{_TORCH_KEY}:{share}"])])
    _refuse_other(_JAX, [environ[_JAX]] if environ.get(_JAX) else [], share)
    return Limited(variables | {_JAX: share}, float(share), max(totals))


def _refuse_other(name: str, values: Sequence[str], share: str) -> None:
    for value in values:
        if not value.replace(".", "", 1).isdecimal() or abs(float(value) - float(share)) > 1e-4:
            raise ValueError(f"{name} says {text.clean(value, limit=40)!r} already; unset it")


def is_unit_name(name: str) -> bool:
    """Say whether a name can be that of a service."""
    return _UNIT.fullmatch(name) is not None


def start_unit(
    run: Runner, name: str, command: Sequence[str], environ: Mapping[str, str], *, restarts: int
) -> str:
    """Start a command as a service of the user's systemd; return the name of its unit.

    It has the present folder and these variables; systemd starts it anew ``restarts`` times at
    most after it has failed, and keeps what it prints in the journal.

    Raises
    ------
    ServiceError
        Where there is no user manager, or it refuses, with its last words.
    """
    manager = Systemctl(run, system=False)
    if why := manager.unreachable():
        raise ServiceError(NAME, "systemd-run --user", why, hint=manager.login_hint)
    unit = f"{name.removesuffix('.service')}.service"
    limits = [
        *("-p", "Restart=on-failure", "-p", f"RestartSec={RESTART_S}"),
        *("-p", f"StartLimitBurst={restarts + 1}", "-p", "StartLimitIntervalSec=infinity"),
    ]
    # By name: a value on a command line could be read by everybody. Those two are the runner's own.
    passed = [
        f"--setenv={key}={value}" if key in {"LC_ALL", "SYSTEMD_COLORS"} else f"--setenv={key}"
        for key, value in environ.items()
        if _NAME.fullmatch(key) and key not in _OF_THIS_UNIT
    ]
    done = run(
        [
            *("systemd-run", "--user", f"--unit={unit}", "--collect", "--same-dir", "--quiet"),
            *(limits if restarts else []),
            *passed,
            "--",
            # systemd would put variables in.
            *(word.replace("$", "$$") for word in command),
        ],
        timeout_s=30.0,
    )
    if done.code:
        raise ServiceError(NAME, f"systemd-run --user --unit={unit}", done.last_line)
    return unit
