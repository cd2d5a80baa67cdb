"""``python -m tests.campaign [PART ...] [--short]``: what must never happen, tried very often.

Each part prints its figures in one line; the exit code is 1 where one of them is not as it must be.
The short form runs in CI (tests/test_campaign.py).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.campaign import Part, acts, clock, disk, kills, line, logs, nvml, soak, store

PARTS = {
    "reuse": Part(acts.reused_pids, 10_000, 200),
    "never": Part(acts.never_ended, 20, 1),
    "checkpoint": Part(acts.checkpoints, 20, 2),
    "harmless": Part(acts.harmless_series, 0, 2),
    "countdown": Part(acts.countdowns, 500, 12),
    "store": Part(store.failing_calls, 0, 3),
    "kills": Part(kills.killed, 1_000, 0),
    "logs": Part(logs.mutated, 5_000, 150),
    "clock": Part(clock.stepped, 100, 3),
    "disk": Part(disk.filled, 0, 6),
    "soak": Part(soak.lasted, 60, 1),
    "nvml": Part(nvml.hostile, 200, 12),
    "fleet": Part(acts.fleet_worker, 40, 2),
    "libraries": Part(acts.libraries, 1, 0),
}


def main(argv: list[str] | None = None) -> int:
    """Run parts, by default all; return 1 when figures of one are not as they must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--short", action="store_true", help="as in CI")
    parser.add_argument("--count", type=int, metavar="N", help="how often, instead")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    wanted = parser.parse_args(argv)
    # What the daemons under test warn of is what is done to them here.
    logging.getLogger("gpuwatchd").setLevel(logging.CRITICAL)
    if unknown := set(wanted.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    code = 0
    for name in wanted.parts or PARTS:
        part, begun_s = PARTS[name], time.monotonic()
        count = part.short if wanted.short else part.full
        try:
            told = line(part.run(count if wanted.count is None else wanted.count, wanted.seed))
        except AssertionError as error:
            told, code = f"FAILED: {error}", 1
        print(f"{name:12} {told}; {time.monotonic() - begun_s:.1f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
