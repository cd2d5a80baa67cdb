"""Planted leaks and clean programs: is the right variable named?

``python -m tests.probe.planted [--kit plain|torch] [--runs 3] [--python PATH] [NAME ...]``: each
program of ``leaks.py`` is a job of its own. At least 18 of the 22 leaks are named rightly, no name
is wrong, and the 8 clean programs are silent.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.probe.leaks import CLEAN, CLEAN_TORCH, LEAKS, REPORTED

JOB = Path(__file__).with_name("leaks.py")
FEWEST_NAMED = 18


def inspected(
    name: str, kit: str, python: str, every_s: float, *, by_steps: bool = False
) -> dict[str, Any]:
    """Run one program and return what its inspection found.

    By steps of the program, where nothing else may depend on how busy the machine is.
    """
    job = JOB.with_name("reports.py") if name in (*REPORTED, *CLEAN_TORCH) else JOB
    command = [python, "-W", "error", str(job), name, "--kit", kit, "--every", str(every_s)]
    command += ["--by-steps"] * by_steps
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if "No module named 'numpy'" in answer.stderr:
        return {"error": "not run: no numpy", "groups": [], "pauses_ms": []}
    if answer.returncode or answer.stderr:
        raise RuntimeError(f"{name}: {answer.stderr or answer.returncode}")
    seen: dict[str, Any] = json.loads(answer.stdout)
    return seen


def verdict(name: str, seen: dict[str, Any]) -> str:
    """Return right, wrong, unnamed, missed or silent; or the error."""
    if seen["error"]:
        return str(seen["error"])
    names = [group["holder"]["name"] for group in seen["groups"] if group["holder"]]
    if name in (*CLEAN, *CLEAN_TORCH):
        return "wrong" if seen["groups"] else "silent"
    if name in REPORTED:
        right = [re.search(rf"\b{REPORTED[name]}\b", one) is not None for one in names]
    else:
        right = [one in LEAKS[name][1] for one in names]
    if not all(right):
        return "wrong"
    if names:
        return "right"
    return "unnamed" if seen["groups"] else "missed"


def bounded() -> int:
    """Print what bounds a holder of each kind; 1 where one is wrong."""
    from tests.probe import test_holders

    wrong = 0
    for kind, found in test_holders.holders_of_every_kind().items():
        wrong += found["bound"] != (test_holders.BOUND if kind in test_holders.BOUNDED else None)
        print(f"{kind}: {found['name']}, {found['kind']} of {found['len']}, bound {found['bound']}")
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.probe.planted", description=__doc__)
    parser.add_argument("names", nargs="*", default=[*LEAKS, *CLEAN])
    parser.add_argument("--reports", action="store_true", help="those of reports.py; needs torch")
    parser.add_argument("--clean", action="store_true", help="only the programs that do not leak")
    parser.add_argument("--bounded", action="store_true", help="what bounds a holder, of each kind")
    parser.add_argument("--kit", choices=["plain", "torch"], default="plain")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--every", type=float, default=0.3)
    parser.add_argument("--by-steps", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    chosen = parser.parse_args()
    if chosen.bounded:
        return bounded()
    clean = [*CLEAN, *CLEAN_TORCH] if chosen.kit == "torch" else [*CLEAN]
    chosen.names = [*REPORTED] if chosen.reports else clean if chosen.clean else chosen.names
    good = True
    for run in range(chosen.runs):
        seen = Counter[str]()
        for name in chosen.names:
            answer = inspected(
                name, chosen.kit, chosen.python, chosen.every, by_steps=chosen.by_steps
            )
            word = verdict(name, answer)
            seen[word] += 1
            if word not in {"right", "silent"} or len(chosen.names) < len(CLEAN):
                groups = [
                    (g["group"], g["counts"], g["sure"], g["holder"]) for g in answer["groups"]
                ]
                print(f"  {name}: {word} {groups} {answer['pauses_ms']}", flush=True)
        print(f"run {run + 1}: {dict(seen)}", flush=True)
        good = (
            good and not seen["wrong"] and seen["silent"] == sum(n in clean for n in chosen.names)
        )
        good = good and seen["right"] >= min(
            FEWEST_NAMED, sum(n not in clean for n in chosen.names)
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
