# ruff: noqa: INP001
"""A leak below a sawtooth: batches rise and fall, and the floor between them creeps up."""

from __future__ import annotations

import sys

from _gpu import MB, parser, piped, run


def main(argv: list[str] | None = None) -> int:
    """Run the leak; return the exit code."""
    flags_of = parser(
        str(__doc__), rate=200.0, rate_help="growth of the floor (default %(default)g)"
    )
    flags_of.add_argument(
        "--swing", type=float, default=3000.0, metavar="MB", help="height of a tooth"
    )
    flags_of.add_argument(
        "--period", type=float, default=60.0, metavar="S", help="length of a tooth"
    )
    flags = flags_of.parse_args(argv)
    if flags.period <= 0:
        flags_of.error("--period must be more than 0")

    def shape(age_s: float) -> float:
        # Every tooth keeps what one period leaks; within a tooth only the swing rises.
        floor = flags.rate / 60 * flags.period * (age_s // flags.period)
        return float(flags.start + floor + flags.swing * (age_s % flags.period) / flags.period) * MB

    return run(shape, flags)


if __name__ == "__main__":
    sys.exit(piped(main))
