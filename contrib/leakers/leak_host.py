# ruff: noqa: INP001, T201
"""A leak that no GPU tool shows: flat on the GPU, growing in the host's memory."""

from __future__ import annotations

import sys
import time

from _gpu import MB, Memory, parser, piped, plan


def main(argv: list[str] | None = None) -> int:
    """Run the leak; return the exit code."""
    flags = parser(
        str(__doc__),
        rate=100.0,
        rate_help="growth on the host (default %(default)g)",
        snapshot=False,
    ).parse_args(argv)

    def on_host(age_s: float) -> float:
        return float(flags.rate) * age_s / 60 * MB

    if flags.dry_run:
        plan(on_host, flags, where=f"the host, beside {flags.start:,.0f} MB on {flags.device}")
        return 0
    memory = Memory(flags.device)
    memory.hold(flags.start * MB)
    kept: list[bytearray] = []
    began_s, shown_s = time.monotonic(), -10.0
    try:
        while not flags.seconds or time.monotonic() - began_s < flags.seconds:
            age_s = time.monotonic() - began_s
            while len(kept) * MB < on_host(age_s):
                kept.append(bytearray(b"\1") * MB)  # written to: untouched pages are not held
            if age_s - shown_s >= 10.0:
                shown_s = age_s
                print(f"{age_s:7.0f} s  {len(kept):10,} MB held on the host", flush=True)
            time.sleep(0.5)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))
