"""What devices and processes are called when people are told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.model import Device, ProcessInfo


def device_title(device: Device) -> str:
    """Return "GPU 0 (A100-SXM4-80GB)".

    Examples
    --------
    >>> from gpuwatchd.model import Device
    >>> device_title(Device(uid="u", vendor="nvidia", index=0, name="NVIDIA A100-SXM4-80GB",
    ...                     memory_total_bytes=None))
    'GPU 0 (A100-SXM4-80GB)'
    """
    name = device.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return f"{device.label} ({name})" if name else device.label


def process_title(device: Device, info: ProcessInfo) -> str:
    """Return "GPU 0 (A100): python[4711] of alice"."""
    owner = f" of {info.user}" if info.user else ""
    return f"{device_title(device)}: {info.label or 'process'}[{info.key.pid}]{owner}"
