"""Prints what the laboratory holds and how fast it is: ``python -m tests.scenarios.lab_speed``."""

from __future__ import annotations

import argparse
import time

from tests.scenarios import worlds


def measure(families: list[str], seeds: range) -> tuple[int, int, int, float]:
    """Return items, processes, samples, and the processor seconds that they took."""
    items = processes = samples = 0
    began = time.process_time()
    for family in families:
        for seed in seeds:
            item = worlds.build(family, seed)
            items += 1
            processes += len(item.processes)
            samples += item.series.t_s.size
            samples += sum(view.series.t_s.size for view in item.processes.values())
    return items, processes, samples, time.process_time() - began


def main() -> None:
    """Print the families and the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=8, help="items a family")
    parser.add_argument("--families", action="store_true", help="also say what each stands for")
    options = parser.parse_args()
    if options.families:
        for name, family in worlds.FAMILIES.items():
            kind = "leak" if name in worlds.LEAKS else "benign"
            part = "tuning" if name in worlds.TUNING else "validation"
            words = (family.__doc__ or "").strip().splitlines()[0]
            print(f"{name:20s} {kind:6s} {part:10s} {words}")
    for title, chosen in (("leaks", worlds.LEAKS), ("harmless", worlds.BENIGN)):
        items, processes, samples, spent = measure(list(chosen), range(options.items))
        print(
            f"{title:8s} {len(chosen):3d} families {items:5d} items {processes:6d} processes "
            f"{samples:9d} samples in {spent:6.2f} s: {items / spent:6.0f} items/s, "
            f"{(items + processes) / spent:6.0f} series/s, {samples / spent / 1e6:5.2f} M samples/s"
        )


if __name__ == "__main__":
    main()
