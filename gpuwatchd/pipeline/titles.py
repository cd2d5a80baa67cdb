"""What devices and processes are called when people are told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gpuwatchd.core.model import Device, Finding, ProcessInfo


def device_title(device: Device) -> str:
    """Return "GPU 0 (A100-SXM4-80GB)".

    Examples
    --------
    >>> from gpuwatchd.core.model import Device
    >>> device_title(Device(uid="u", vendor="nvidia", index=0, name="NVIDIA A100-SXM4-80GB",
    ...                     memory_total_bytes=None))
    'GPU 0 (A100-SXM4-80GB)'
    """
    name = device.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return f"{device.label} ({name})" if name else device.label


def process_title(device: Device, info: ProcessInfo) -> str:
    """Return "GPU 0 (A100): python[4711] of alice"."""
    owner = f" of {info.user}" if info.user else ""
    return f"{device_title(device)}: {info.numbered}{owner}"


def host_title(info: ProcessInfo) -> str:
    """Return "host memory of python[4711] of alice"."""
    owner = f" of {info.user}" if info.user else ""
    return f"host memory of {info.numbered}{owner}"


def of_host(finding: Finding) -> Finding:
    """Return a judgement on the host's memory with a reason that says so.

    Examples
    --------
    >>> from gpuwatchd.core.model import Finding, Subject
    >>> of_host(Finding(id="s", subject=Subject(device_uid="u", host=True), judged_at_s=0.0,
    ...                 pattern="stable", tier="none", severity="info", confidence=0.0, eta=None,
    ...                 rate_bytes_per_s=0.0, reason="memory is flat")).reason
    'host memory is flat'
    """
    reason = finding.reason.removeprefix("memory ")
    joint = "" if reason != finding.reason or reason.startswith(("grows", "rises")) else ": "
    return msgspec.structs.replace(finding, reason=f"host memory{joint or ' '}{reason}")
