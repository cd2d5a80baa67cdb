"""The probe: in a job's own process, it says what the job holds and which variable keeps it.

Importing it prepares the process, as ``gpuwatchctl run`` does without a change to the program.
Its code lies in ``boot``, apart from the rest: the job's interpreter runs it, from Python 3.8 on,
and nothing else of gpuwatchd is imported there.
"""

from __future__ import annotations

import os
import sys

_BOOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "boot")
sys.path.insert(0, _BOOT)
try:
    from _gpuwatchd_probe import report, span, start, watch
finally:
    sys.path.remove(_BOOT)

__all__ = ["report", "span", "start", "watch"]

start()
