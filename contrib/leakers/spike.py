# ruff: noqa: INP001
"""No leak: one jump that stays, as a model that is loaded. Must not alert."""

from __future__ import annotations

import sys

from _gpu import MB, parser, piped, run


def main(argv: list[str] | None = None) -> int:
    """Run the jump; return the exit code."""
    flags_of = parser(str(__doc__), rate=8000.0, rate_help="MB of the jump (default %(default)g)")
    flags_of.add_argument(
        "--after",
        type=float,
        default=300.0,
        metavar="S",
        help="when it comes (default %(default)g)",
    )
    flags = flags_of.parse_args(argv)

    def shape(age_s: float) -> float:
        return float(flags.start + (flags.rate if age_s >= flags.after else 0.0)) * MB

    return run(shape, flags)


if __name__ == "__main__":
    sys.exit(piped(main))
