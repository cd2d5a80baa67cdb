"""A corpus of programs, with what is known beside their curve.

Nobody who works on detection looks at single items of it, runs a detector on one family, or reads
the families: totals are reported, once for each state of the code. Families are thought out from
how frameworks, servers and users behave, and were written by somebody who knew no detector. The
older :mod:`tests.scenarios.blind` has been looked at too often for that and serves as validation.

Most harmless families reach their level within a minute, as jobs in the field do; those in
:data:`HARD` fill something for long. An item has the view of the device and of each process, and
beside it what people could know: arguments, environment and configuration files (a third of the
sizes is declared nowhere, some declare what is not on the card), the bound that a probe would read,
utilisation and power, and three earlier runs of the program, where there were any. Every item is a
function of (family, seed). ``python -m tests.scenarios.corpus`` prints the base rates;
``python -m tests.scenarios.bench --only blind --blind`` judges it, and with ``--only knowledge
--knowledge tests.scenarios.corpus_knowledge`` also with what is known beside the curve.
"""

from __future__ import annotations

from tests.scenarios.corpus.build import (
    BENIGN,
    FAMILIES,
    HARD,
    LEAKS,
    Item,
    ProcessView,
    build,
    simulate,
)

__all__ = [
    "BENIGN",
    "FAMILIES",
    "HARD",
    "LEAKS",
    "Item",
    "ProcessView",
    "build",
    "simulate",
]
