"""Who the processes on a GPU are, and how this process itself is doing."""

from gpuwatchd.collect.host.processes import Host

__all__ = ["Host"]
