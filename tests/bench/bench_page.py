"""How long a month takes to be seen on the live page: ``python -m tests.bench.bench_page``.

Thirty days of eight GPUs are served by ``gpuwatchctl web``; Chromium opens the page of one GPU
over all of them, anew each time, and is waited for until its chart is drawn. Printed are the best
and the middle of the tries.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec

from tests import histories
from tests.browser import harness, live_world

TRIES = 8
BUDGET_S = 1.0
"""Within which a month should be seen."""


def measure(program: str, address: str, tries: int) -> list[float]:
    """Return seconds from asking for the page until its chart is drawn, of each try."""
    from playwright.sync_api import sync_playwright

    took = []
    with sync_playwright() as drive:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = drive.chromium.launch(executable_path=program, args=options)
        for _ in range(tries):
            page = browser.new_context().new_page()
            begun_s = time.perf_counter()
            page.goto(address)
            page.wait_for_selector(".chart-live canvas")
            took.append(time.perf_counter() - begun_s)
            page.context.close()
        browser.close()
    return took


def main() -> int:
    """Print the figures; without a browser say so."""
    parser = argparse.ArgumentParser(description="a month on the live page")
    parser.add_argument("--tries", type=int, default=TRIES)
    asked = parser.parse_args()
    program = harness.chromium()
    if program is None or find_spec("playwright") is None:
        print("Chromium or Playwright is not here: nothing is measured")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GPUWATCHD_STATE_DIR": folder, "GPUWATCHD_RUNTIME_DIR": f"{folder}/run"}
        live_world.month()
        with live_world.serve() as served:
            view = f"/gpu/{histories.uid(0)}?span=30d"
            took = measure(program, f"{served.url}&view={view}", max(1, asked.tries))
    print(
        f"{histories.DAYS} days x {histories.GPUS} GPUs, page of one opened until drawn: "
        f"best {min(took):.2f} s, median {statistics.median(took):.2f} s of {len(took)} "
        f"(should be below {BUDGET_S:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
