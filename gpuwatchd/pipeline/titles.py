"""What devices and processes are called when people are told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.codes import NameKind, TitleRole
from gpuwatchd.core.model.alerts import Title, TitlePart
from gpuwatchd.core.model.findings import Clause, reason_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Device, Finding, ProcessInfo

_COLON = TitlePart(text=": ", role=TitleRole.DEVICE)


def device_title(device: Device) -> str:
    """Return "GPU 0 (A100-SXM4-80GB)".

    Examples
    --------
    >>> from gpuwatchd.core.model import Device
    >>> device_title(Device(uid="u", vendor="nvidia", index=0, name="NVIDIA A100-SXM4-80GB",
    ...                     memory_total_bytes=None))
    'GPU 0 (A100-SXM4-80GB)'
    """
    return str(of_device(device))


def _name(device: Device) -> str:
    return device.name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def process_title(device: Device, info: ProcessInfo) -> str:
    """Return "GPU 0 (A100): python[4711] of alice"."""
    return str(of_process(device, info))


def of_device(device: Device, of: TitlePart | None = None) -> Title:
    """Return the title of a device; ``of`` is what of it is meant."""
    name = _name(device)
    model = TitlePart(text=f" ({name})" if name else "", role=TitleRole.MODEL)
    parts = (TitlePart(text=device.label, role=TitleRole.DEVICE), model)
    return Title(parts if of is None else (*parts, _COLON, of))


def of_process(device: Device, info: ProcessInfo) -> Title:
    """Return the title of a process on a device."""
    return Title((*of_device(device).parts, _COLON, *_who(info)))


def host_title(info: ProcessInfo) -> Title:
    """Return "host memory of python[4711] of alice"."""
    return Title((TitlePart(text="host memory of "), *_who(info)))


def _who(info: ProcessInfo) -> Iterator[TitlePart]:
    owner = f" of {info.user}" if info.user else ""
    if info.name_kind is NameKind.STAND_IN:
        yield TitlePart(text=f"{info.numbered}{owner}")
        return
    flag, script = info.entry_point
    if script and not flag:
        yield TitlePart(text=f"{info.name} ", role=TitleRole.INTERPRETER)
        yield TitlePart(text=script)
    else:
        yield TitlePart(text=info.label or "process")
    yield TitlePart(text=f"[{info.key.pid}]", role=TitleRole.PID)
    yield TitlePart(text=owner, role=TitleRole.OWNER)


def of_host(finding: Finding) -> Finding:
    """Return a judgement on the host's memory with a reason that says so.

    Examples
    --------
    >>> from gpuwatchd.core.model import Finding, Subject
    >>> of_host(Finding(id="s", subject=Subject(device_uid="u", host=True), judged_at_s=0.0,
    ...                 pattern="stable", tier="none", severity="info", confidence=0.0, eta=None,
    ...                 rate_bytes_per_s=0.0, reason="flat at 2 MiB")).reason
    'host memory: flat at 2 MiB'
    """
    first, *others = finding.parts or (Clause(text=""),)
    about = "host memory " if first.verb else f"host memory: {first.about}"
    first = msgspec.structs.replace(first, about=about)
    reason = reason_fields(first, *others, code=finding.code, lead=finding.lead)
    return msgspec.structs.replace(finding, **reason)
