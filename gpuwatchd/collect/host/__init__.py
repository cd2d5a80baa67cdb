"""Who the processes on a GPU are, and how this process itself is doing."""

from gpuwatchd.collect.host.processes import BootAnchor, Host

__all__ = ["BootAnchor", "Host"]
