"""Who the processes on a GPU are, and how this process itself is doing."""

from gpuwatchd.host.look import Host

__all__ = ["Host"]
