# ruff: noqa: INP001
"""A staircase: something is kept at the end of every epoch, flat in between."""

from __future__ import annotations

import sys

from _gpu import MB, parser, piped, run


def main(argv: list[str] | None = None) -> int:
    """Run the leak; return the exit code."""
    flags_of = parser(str(__doc__), rate=100.0, rate_help="mean growth (default %(default)g)")
    flags_of.add_argument(
        "--every",
        type=float,
        default=180.0,
        metavar="S",
        help="length of an epoch (default %(default)g)",
    )
    flags = flags_of.parse_args(argv)
    if flags.every <= 0:
        flags_of.error("--every must be more than 0")

    def shape(age_s: float) -> float:
        kept = age_s // flags.every * flags.rate * flags.every / 60
        return float(flags.start + kept) * MB

    return run(shape, flags)


if __name__ == "__main__":
    sys.exit(piped(main))
