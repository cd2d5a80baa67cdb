"""A whole Debian with systemd as its first process, for tests of what is installed there.

It runs in systemd-nspawn, in mount namespaces of its own: nothing that is mounted for it is ever
seen outside, and all of it is gone with the last of its processes, however they end.
"""

from __future__ import annotations

from tests.real.machine.machine import Machine, booted, why_not
from tests.real.machine.roots import Root, root

__all__ = ["Machine", "Root", "booted", "root", "why_not"]
