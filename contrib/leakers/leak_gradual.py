# ruff: noqa: INP001
"""A steady leak: so many megabytes a minute, never given back."""

from __future__ import annotations

import sys

from _gpu import MB, parser, piped, run


def main(argv: list[str] | None = None) -> int:
    """Run the leak; return the exit code."""
    flags = parser(str(__doc__), rate=50.0, rate_help="growth (default %(default)g)").parse_args(
        argv
    )

    def shape(age_s: float) -> float:
        return float(flags.start + flags.rate * age_s / 60) * MB

    return run(shape, flags)


if __name__ == "__main__":
    sys.exit(piped(main))
