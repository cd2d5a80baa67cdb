"""TOML text -> :class:`Config`: every key, its default and its meaning.

Layers, lowest first: the defaults below, ``/etc/gpuwatchd/config.toml``, the user's file,
``GPUWATCHD_*`` variables, flags. They are merged key by key; lists are replaced. An unknown key
is refused with the nearest valid one. ``snake_case`` spellings are accepted.
"""

from gpuwatchd.config.layers import SECRET_VARIABLES, Loaded, keys, load, parse
from gpuwatchd.config.places import SYSTEM_FILE, expanded, runtime_dir, state_dir, user_file
from gpuwatchd.config.sections import (
    ActSection,
    ChatSection,
    CheckpointsSection,
    CommandSection,
    Config,
    CostSection,
    DaemonSection,
    DesktopSection,
    DetectionSection,
    EmailSection,
    NotifySection,
    OverrideSection,
    PolicySection,
    ReplaySection,
    Seconds,
    Section,
    SimulateSection,
    Size,
    SourcesSection,
    StoreSection,
)

__all__ = [
    "SECRET_VARIABLES",
    "SYSTEM_FILE",
    "ActSection",
    "ChatSection",
    "CheckpointsSection",
    "CommandSection",
    "Config",
    "CostSection",
    "DaemonSection",
    "DesktopSection",
    "DetectionSection",
    "EmailSection",
    "Loaded",
    "NotifySection",
    "OverrideSection",
    "PolicySection",
    "ReplaySection",
    "Seconds",
    "Section",
    "SimulateSection",
    "Size",
    "SourcesSection",
    "StoreSection",
    "expanded",
    "keys",
    "load",
    "parse",
    "runtime_dir",
    "state_dir",
    "user_file",
]
