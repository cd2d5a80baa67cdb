"""``python -m tests.recordings write|compare``: see the package."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.recordings import frozen


def main() -> int:
    """Write the recordings, or compare them; the exit code is 1 where something differs.

    It is 2 where no item is meant.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.recordings")
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="every text, whole")
    parser.add_argument("--tenth", action="store_true", help="only a tenth of it, by hash")
    parser.add_argument("--only", default="", metavar="TEXT", help="only items with this in them")
    parser.add_argument("--slow", type=int, default=0, metavar="N", help="show the N slowest")
    wanted = parser.parse_args()
    to = None if wanted.to is None else wanted.to.absolute()
    # Of the same length everywhere: a path may be broken at the end of a line.
    root = Path(tempfile.mkdtemp(prefix="gpuwatchd-recordings-", dir="/tmp"))
    begun = frozen.elapsed_s()
    try:
        frozen.freeze(root)
        from tests.recordings import recording

        session = recording.Session(root, tenth=wanted.tenth, only=wanted.only)
        code = session.write(to) if wanted.what == "write" else session.compare(to)
        session.sum_up(frozen.elapsed_s() - begun, slowest=wanted.slow)
        if code == 0 and not session.made:
            print(f"no item has {wanted.only!r} in its name", file=sys.stderr)
            return 2
        if wanted.what == "compare" and code == 0:
            print("nothing differs")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
