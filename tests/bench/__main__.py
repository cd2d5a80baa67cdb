"""``python -m tests.bench``: every benchmark of this folder, one after the other.

Each is also a program of its own (``python -m tests.bench.bench_daemon``). They print figures and
ratios of one run; nothing here asserts a time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run them; return 1 when one of them failed."""
    failed = []
    names = [file.stem for file in sorted(Path(__file__).parent.glob("bench_*.py"))]
    for name in (*names, "faults"):
        print(f"\n== {name.removeprefix('bench_')} ==", flush=True)
        done = subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
