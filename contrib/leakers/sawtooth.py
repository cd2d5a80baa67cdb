# ruff: noqa: INP001
"""No leak: rises and falls back to the same floor, as batches do. Must not alert."""

from __future__ import annotations

import sys

from _gpu import MB, parser, piped, run


def main(argv: list[str] | None = None) -> int:
    """Run the sawtooth; return the exit code."""
    flags_of = parser(
        str(__doc__), rate=1000.0, rate_help="growth within a tooth (default %(default)g)"
    )
    flags_of.add_argument(
        "--period",
        type=float,
        default=120.0,
        metavar="S",
        help="length of a tooth (default %(default)g)",
    )
    flags = flags_of.parse_args(argv)
    if flags.period <= 0:
        flags_of.error("--period must be more than 0")

    def shape(age_s: float) -> float:
        return float(flags.start + flags.rate * (age_s % flags.period) / 60) * MB

    return run(shape, flags)


if __name__ == "__main__":
    sys.exit(piped(main))
