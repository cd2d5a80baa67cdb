"""The probe: in a job's own process, it says what the job holds and which variable keeps it.

Importing it prepares the process, as ``gpuwatchctl run`` does without a change to the program.
Its code lies in ``boot``, apart from the rest: the job's interpreter runs it, from Python 3.8 on,
and nothing else of gpuwatchd is imported there.
"""

from __future__ import annotations

import sys

if "_gpuwatchd_probe" not in sys.modules:  # `gpuwatchctl run` has put it there: one copy
    from gpuwatchd.probe.boot import _gpuwatchd_probe

    sys.modules["_gpuwatchd_probe"] = _gpuwatchd_probe

__all__ = ["start"]

start = sys.modules["_gpuwatchd_probe"].start
start()
