"""TOML text -> :class:`Config`: every key, its default and its meaning.

Layers, lowest first: the defaults below, ``/etc/gpuwatchd/config.toml``, the user's file,
``GPUWATCHD_*`` variables, flags. They are merged key by key; lists are replaced. An unknown key
is refused with the nearest valid one. ``snake_case`` spellings are accepted.
"""

from gpuwatchd.core.config import channels
from gpuwatchd.core.config.loading import (
    SECRET_VARIABLES,
    Loaded,
    keys,
    load,
    parse_as,
    read_file,
    toml_value,
)
from gpuwatchd.core.config.schema import (
    SENSITIVITY,
    ActSection,
    CheckpointsSection,
    CommandSection,
    Config,
    CostSection,
    DaemonSection,
    DetectionSection,
    EmailSection,
    MetricsSection,
    NotifySection,
    OverrideSection,
    PolicySection,
    ProbeSection,
    ReplaySection,
    Seconds,
    Section,
    SimulateSection,
    Size,
    SourcesSection,
    StoreSection,
    WebSection,
)
from gpuwatchd.core.directories import (
    SYSTEM_FILE,
    SYSTEM_GROUP,
    SYSTEM_RUNTIME_DIR,
    SYSTEM_STATE_DIR,
    expanded,
    runtime_dir,
    state_dir,
    user_file,
)
