"""A reader of a plug-in's answer, written against the guidelines and not against our writer."""

from __future__ import annotations

import contextlib
import io
import re
from typing import NamedTuple

from gpuwatchd.cli import main


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


def call(*arguments: str) -> tuple[int, Output]:
    """Return the exit code and what is written."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["check", *arguments])
    assert err.getvalue() == ""
    answer = read(out.getvalue())
    assert answer.state == ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code]
    return code, answer
