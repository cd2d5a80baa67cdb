"""What the program answers on a stored history, with clock, zone, host and version held still.

``python -m tests.store.asking`` records it anew, and prints what it said otherwise before.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import gpuwatchd
from gpuwatchd.cli import main
from gpuwatchd.collect.host import procfs
from gpuwatchd.store.reader import Reader
from tests.store import released
from tests.store.world import Time, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW_S: Final = 1_795_014_060.0
"""When it is asked: a minute after the last sample, 18 November 2026, 15:01 UTC."""
HOST: Final = "gpu-box"
MACHINE_BYTES: Final = 256 << 30
COLUMNS: Final = 100
MONEY: Final = re.compile(r"\.(\w*_usd|cost|electricity|whole|ahead|usd|money)$")
VERBS: Final = (
    "cost",
    "cost --by user",
    "cost --by incident",
    "cost --by incident --json",
    "report",
    "report --json",
    "alerts",
    "alerts --all",
    "alerts --all --json",
    "history --since 6h",
    "history --since 6h --bucket 30m --json",
    "history --events",
    "history --events --json",
    "history --pid 4711 --bucket 30m --json",
    "snooze list --all",
    "snooze list --all --json",
    "feedback list --all",
    "feedback list --all --json",
)
"""What is asked beside ``explain`` of each alert."""


def loaded(directory: Path) -> Path:
    """Write v5-full.sql into a directory, and have today's daemon bring it up to date."""
    released.load_text(released.FULL, directory)
    opened(directory, Time(NOW_S)).close()
    return directory


@contextlib.contextmanager
def then(directory: Path) -> Iterator[None]:
    """Have it be that instant, on a machine of which nothing but a history is known."""
    with contextlib.ExitStack() as stack:
        stack.callback(time.tzset)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in list(os.environ):
            if name.startswith("GPUWATCHD_") or name in {"CLICOLOR_FORCE", "FORCE_COLOR"}:
                patch.delenv(name)
        for name, value in {
            "TZ": "UTC",
            "COLUMNS": str(COLUMNS),
            "HOME": str(directory / "home"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "GPUWATCHD_STATE_DIR": str(directory),
            "GPUWATCHD_RUNTIME_DIR": str(directory / "run"),
            # The built-in table of prices is brought up to date from time to time.
            "GPUWATCHD_COST_USD_PER_GPU_HOUR": "2.5",
            "GPUWATCHD_COST_CURRENCY": "EUR",
            "GPUWATCHD_COST_PER_USD": "0.92",
        }.items():
            patch.setenv(name, value)
        machine = os.uname()
        there = os.uname_result((machine.sysname, HOST, *machine[2:]))
        patch.setattr(os, "uname", lambda: there)
        patch.setattr(time, "time", lambda: NOW_S)
        free = procfs.Headroom(free_bytes=MACHINE_BYTES // 2, total_bytes=MACHINE_BYTES)
        patch.setattr(procfs, "headroom", lambda: free)
        time.tzset()
        yield


def answer(words: list[str]) -> Any:
    """Return the exit code and what a verb says: lines of text, or JSON."""
    said, beside = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(beside):
        code = main(words)
    text = said.getvalue().replace(gpuwatchd.__version__, "VERSION")
    found = _plain(json.loads(text)) if "--json" in words else text.splitlines()
    return {"code": code, "said": found, "beside": beside.getvalue().splitlines()}


def _plain(value: Any) -> Any:
    """Return an answer without its drawings, which are made of what else is in it."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key != "picture"}
    return [_plain(one) for one in value] if isinstance(value, list) else value


ANSWERS: Final = released.HISTORIES / "v5-full.answers.json.gz"
"""What dcd1649 answered on v5-full.sql. Compressed: it is compared by programs, never read."""


def recorded() -> dict[str, Any]:
    """Return the recorded answers."""
    found: dict[str, Any] = json.loads(gzip.decompress(ANSWERS.read_bytes()))
    return found


def record(found: dict[str, Any]) -> None:
    """Write answers down, and print what was otherwise before."""
    if ANSWERS.exists():
        print("\n".join(differences(recorded(), found)))
    ANSWERS.write_bytes(gzip.compress(json.dumps(found, sort_keys=True).encode(), mtime=0))


def differences(then: Any, now: Any, at: str = "") -> Iterator[str]:
    """Yield where an answer is not what was recorded; what has been added is no difference.

    Money is compared to the cent, other numbers as far as libraries agree on them.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        for key, one in then.items():
            if key in now:
                yield from differences(one, now[key], f"{at}.{key}")
            else:
                yield f"{at}.{key}: missing, was {one!r:.200}"
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, pair in enumerate(zip(then, now, strict=True)):
            yield from differences(*pair, f"{at}[{number}]")
    elif not _same(then, now, MONEY.search(at) is not None):
        yield f"{at}: {now!r:.300}, was {then!r:.300}"


def _same(then: Any, now: Any, money: bool) -> bool:
    numbers = (int, float)
    if type(then) in numbers and type(now) in numbers:
        return math.isclose(
            then, now, rel_tol=0.0 if money else 1e-6, abs_tol=0.005 if money else 1e-9
        )
    return bool(type(then) is type(now) and then == now)


def answers(directory: Path) -> dict[str, Any]:
    """Return what is answered to each question, by the question."""
    with then(directory):
        with Reader.open(directory) as history:
            codes = sorted({alert.code for alert in history.alerts()})
        asked = [*VERBS, *(f"explain {code} --json" for code in codes), f"explain {codes[0]}"]
        return {words: answer(words.split()) for words in asked}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        record(answers(loaded(Path(scratch))))
