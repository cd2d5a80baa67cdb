"""Frameworks and serving engines: which one a process runs, what to check, where it listens. Pure.

- :mod:`table` how each one shows itself; :mod:`recognition` the look-up,
- :mod:`advice` what to check when it leaks,
- :mod:`addresses` where a serving engine listens; :mod:`serving` what its answers amount to.
"""

from gpuwatchd.analysis.frameworks.recognition import loaded, recognise, role
from gpuwatchd.analysis.frameworks.table import APPS, GRAPHICS, LIBRARIES, PREALLOCATES
