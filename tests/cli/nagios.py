"""A reader of a plug-in's answer, written against the guidelines and not against our writer."""

from __future__ import annotations

import os
import re
import subprocess
from typing import NamedTuple

from tests.cli import world


class Datum(NamedTuple):
    """One value of the performance data as a monitoring system reads it."""

    value: float | None
    unit: str
    warn: str
    crit: str
    low: str
    high: str


class Output(NamedTuple):
    state: str
    line: str
    perf: dict[str, Datum]
    more: list[str]


_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_RANGE = rf"@?(?:(?:~|{_NUMBER})?:)?(?:{_NUMBER})?"
_DATUM = re.compile(
    rf"'([^'=]+)'=(U|{_NUMBER})(s|us|ms|%|B|KB|MB|TB|c|)"
    rf"(?:;({_RANGE})(?:;({_RANGE})(?:;({_NUMBER})?(?:;({_NUMBER})?)?)?)?)?(?: |$)"
)


def read(stdout: str) -> Output:
    """Read an answer strictly: what is left over fails the test."""
    assert stdout.endswith("\n")
    first, *more = stdout[:-1].split("\n")
    match = re.fullmatch(r"GPUWATCHD (OK|WARNING|CRITICAL|UNKNOWN) - ([^|]+)(?:\| (.+))?", first)
    assert match, first
    perf: dict[str, Datum] = {}
    rest = match.group(3) or ""
    while rest:
        datum = _DATUM.match(rest)
        assert datum, rest
        label, value, unit, warn, crit, low, high = datum.groups()
        assert label not in perf
        assert value != "U" or not unit
        number = None if value == "U" else float(value)
        perf[label] = Datum(number, unit, warn or "", crit or "", low or "", high or "")
        rest = rest[datum.end() :]
    assert not [line for line in more if "|" in line]
    assert "\x1b" not in stdout
    return Output(match.group(1), match.group(2).strip(), perf, more)


def call(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, Output]:
    """Run it as a scheduler does: an argument list, no terminal, no environment to speak of."""
    bare = {
        name: os.environ[name]
        for name in ("GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR", "PATH", "HOME")
        if name in os.environ
    }
    done = subprocess.run(
        [world.PROGRAM, "check", *arguments],
        env={**bare, "LC_ALL": "C", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    answer = read(done.stdout)
    assert answer.state == ("OK", "WARNING", "CRITICAL", "UNKNOWN")[done.returncode]
    return done.returncode, answer
