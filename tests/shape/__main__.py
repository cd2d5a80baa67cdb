"""Measure the code base: ``python -m tests.shape``; --write lowers the limits to what is there."""

from __future__ import annotations

import argparse
import sys

from tests.shape import figures, tree


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shape", description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="name each place that counts")
    parser.add_argument("--path", action="store_true", help="the path of a tick too (runs one)")
    parser.add_argument("--write", action="store_true", help="lower the limits, never raise one")
    parser.add_argument(
        "--reset", action="store_true", help="set the limits to what is there: at the start only"
    )
    chosen = parser.parse_args()
    modules = tree.package()
    found = figures.measured(modules)
    if chosen.path:
        from tests.shape.path import figures_of, incident

        found += figures_of(incident())
    limits = figures.read_limits()
    if chosen.reset:
        limits |= {one.key: one.value for one in found}
    if chosen.reset or chosen.write:
        limits = figures.lowered(found, limits)
        figures.write_limits(limits)
    if chosen.verbose:
        for one in found:
            for place in one.places:
                print(f"{one.key}: {place}")
        print(*figures.folders(modules), "", sep="\n")
    print(*figures.table(found, limits), sep="\n")
    above = [one.key for one in found if one.exceeds(limits)]
    if above:
        print(f"worse than it may be: {', '.join(above)}; see: make shape ARGS=--verbose")
        print(
            "where a new feature needs it, raise that limit in tests/shape/limits.json and say why"
        )
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
