# ruff: noqa: INP001
"""No leak: a rise that slows down and ends, as caches and autotuning do. Must not alert."""

from __future__ import annotations

import math
import sys

from _gpu import MB, parser, piped, run


def main(argv: list[str] | None = None) -> int:
    """Run the warm-up; return the exit code."""
    flags_of = parser(
        str(__doc__), rate=600.0, rate_help="growth at the very start (default %(default)g)"
    )
    flags_of.add_argument(
        "--tau", type=float, default=300.0, metavar="S",
        help="time after which 63 %% of the rise is over (default %(default)g)",
    )  # fmt: skip
    flags = flags_of.parse_args(argv)
    if flags.tau <= 0:
        flags_of.error("--tau must be more than 0")

    def shape(age_s: float) -> float:
        gain = flags.rate * flags.tau / 60
        return float(flags.start + gain * (1 - math.exp(-age_s / flags.tau))) * MB

    return run(shape, flags)


if __name__ == "__main__":
    sys.exit(piped(main))
