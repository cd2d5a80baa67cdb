"""Frameworks and serving engines: which one a process runs, what to check, where it listens. Pure.

- :mod:`recognition` how each one shows itself, and the look-up,
- :mod:`advice` what to check when it leaks,
- :mod:`engine_addresses` where a serving engine listens, and what its answers amount to.
"""

from gpuwatchd.analysis.frameworks.recognition import (
    APPS,
    GRAPHICS,
    LIBRARIES,
    POOL_SHARE,
    PREALLOCATES,
    loaded,
    recognise,
    role,
)
