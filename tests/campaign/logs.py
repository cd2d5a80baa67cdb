"""Damaged logs: ``analyze`` ends with a documented code, one line and a hint, within bounds.

Each log is looked at by a fork of its own, which may take so much memory and time and no more. The
seeds are the logs in tests/data/logs and, where they are, real ones beside the project.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import random
import re
import resource
import sys
import tempfile
import unicodedata
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.cli import main
from gpuwatchd.collect.replay import LogFile, LogOptions, read_log
from gpuwatchd.core.text import clean
from tests.campaign import Figures, require
from tests.conftest import ROOT, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable

LOGS = sorted((ROOT / "tests/data/logs").iterdir())
MOST_SEED_BYTES = 64 << 10
CODES = frozenset({0, 1, 2, 3, 5})
"""Documented for ``analyze``: docs/reference/exit-codes.md."""
ROOM_BYTES = 768 << 20
"""Above what this process has mapped before it forks."""
LIMIT_S = 20
OPTIONS: tuple[tuple[str, ...], ...] = (
    (), ("--json",), ("--all",), ("--interval", "5"), ("--memory-total", "8GiB"),
    ("--date-order", "dmy"), ("--columns", "timestamp,index,memory.used,memory.total"),
    ("--tz", "Europe/Berlin"), ("--fail-on", "never"),
)  # fmt: skip
HUGE = (b"9" * 400, b"1e999", b"-1", b"nan", b"inf", b"18446744073709551616", b"0x10", b"")
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")


def _flipped(data: bytes, chance: random.Random) -> bytes:
    content = bytearray(data)
    for _ in range(chance.randint(1, 20)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(content)


def _piece(data: bytes, chance: random.Random, change: Callable[[bytes], bytes]) -> bytes:
    """Return the data with a piece of up to 200 bytes changed."""
    at = chance.randrange(len(data))
    end = min(len(data), at + chance.randint(1, 200))
    return data[:at] + change(data[at:end]) + data[end:]


def _numbers(data: bytes, chance: random.Random) -> bytes:
    """Return the data with some numbers that are too large, or none."""
    share, value = chance.choice((0.01, 0.1, 1.0)), chance.choice(HUGE)
    return _NUMBER.sub(lambda found: value if chance.random() < share else found[0], data)


def _lines(data: bytes, chance: random.Random) -> bytes:
    """Return the data with its lines, and so its times, in another order, or twice."""
    lines = data.split(b"\n")
    at, end = sorted(chance.randrange(len(lines) + 1) for _ in range(2))
    part = lines[at:end]
    shuffled = chance.sample(part, len(part))
    changed = chance.choice((part[::-1], part * 2, shuffled, part[:1] * min(500, len(part)), []))
    return b"\n".join(lines[:at] + changed + lines[end:])


def _columns(data: bytes, chance: random.Random) -> bytes:
    """Return the data with two columns exchanged, dropped or joined, in all lines or in some."""
    separator = chance.choice((b",", b"|", b" ", b":"))
    one, two, share = chance.randrange(6), chance.randrange(6), chance.choice((0.2, 1.0))
    lines = []
    for text in data.split(b"\n"):
        cells = text.split(separator)
        if len(cells) > max(one, two) and chance.random() < share:
            cells[one], cells[two] = cells[two], cells[one] if one % 2 else b""
        lines.append(separator.join(cells))
    return b"\n".join(lines)


def _encoded(data: bytes, chance: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    how = chance.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037", "cp1252"))
    return text.encode(how, "replace")


def _zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("log.csv", data)
    return file.getvalue()


def _packed(data: bytes, chance: random.Random) -> bytes:
    """Return the data packed, as often as not cut, or behind the mark of a Parquet file."""
    how = chance.choice((gzip.compress, bz2.compress, lzma.compress, _zipped, b"PAR1".__add__))
    packed = how(data)
    return packed[: chance.randrange(1, len(packed))] if chance.random() < 0.5 else packed


def _other(data: bytes, chance: random.Random) -> bytes:
    """Return the data with the beginning of another log before or after it."""
    more = chance.choice(LOGS).read_bytes()
    return chance.choice((data + more, more[: chance.randrange(len(more) + 1)] + b"\n" + data))


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": _flipped,
    "cut": lambda data, chance: data[: chance.randrange(len(data) + 1)],
    "removed": lambda data, chance: _piece(data, chance, lambda _: b""),
    "repeated": lambda data, chance: _piece(data, chance, lambda piece: piece * 3),
    "noise": lambda data, chance: _piece(data, chance, lambda _: chance.randbytes(40)),
    "nul": lambda data, chance: _piece(data, chance, lambda piece: bytes(len(piece)) + piece),
    "joined": lambda data, chance: _piece(data, chance, lambda x: x.replace(b"\n", b"")),
    "numbers": _numbers, "lines": _lines, "columns": _columns, "encoded": _encoded,
    "packed": _packed, "other": _other,
}  # fmt: skip


def check(log: LogFile) -> None:
    """Raise AssertionError where a log was read to something that cannot be."""
    assert log.bad_rows == sum(log.skipped.values()) <= log.rows
    assert all(count > 0 for count in log.skipped.values())
    assert log.series or log.error, "silence is not an answer"
    for series in log.series:
        t, used = series.t_s, series.used_bytes
        assert t.size == used.size > 0
        assert np.isfinite(t).all()
        assert (np.diff(t) > 0).all()
        assert np.isfinite(used).all()
        assert (used >= 0).all()
        if series.total_bytes is not None:
            assert (used <= series.total_bytes).all()
        assert series.limit_bytes is None or np.isfinite(series.limit_bytes)
        assert all(0 < at < t.size for at in series.breaks)
        assert series.device.name == clean(series.device.name)
        assert series.process is None or series.process.name == clean(series.process.name)
    subjects = [(series.subject.id, series.run) for series in log.series]
    assert len(subjects) == len(set(subjects)), "a subject is told once per run"


class Look(NamedTuple):
    """How a fork ended that looked at one log."""

    status: int
    cpu_s: float
    rss_bytes: int
    out: str
    err: str

    def wrong(self) -> list[str]:
        """Return what must not be."""
        lines = self.err.splitlines()
        code = os.waitstatus_to_exitcode(self.status)
        wrong = []
        if code not in CODES:
            wrong.append(f"exit {code}")
        if "Traceback" in self.err or "internal error" in self.err:
            wrong.append("traceback")
        said = len(lines) <= 3 and "hint: " in self.err
        if code in {1, 2, 5} and not (said or '"hint":' in self.out):
            wrong.append(f"{len(lines)} lines, no hint" if lines else "nothing said")
        odd = {sign for sign in self.out + self.err if unicodedata.category(sign) == "Cc"}
        if odd - {"\n", "\t"}:
            wrong.append(f"control characters {odd}")
        return wrong


def looked_at(path: Path, options: tuple[str, ...], *, reads: bool) -> Look:
    """Let a fork analyse a log, or read it and check what was read."""
    outputs = [path.with_name(name) for name in ("out", "err")]
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            for number, output in enumerate(outputs, start=1):
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
            resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM_BYTES,) * 2)
            if reads:
                check(read_log(path, LogOptions()))
                code = 0
            else:
                code = main(["analyze", str(path), *options])
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException as error:  # noqa: BLE001 - a fork must end here
            os.write(2, f"Traceback: {error!r}".encode())
        finally:
            os._exit(code)
    _, status, usage = os.wait4(pid, 0)
    out, err = (output.read_text("utf-8", "replace") for output in outputs)
    return Look(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, out, err)


def seeds() -> list[Path]:
    """Return the logs that are damaged."""
    real = SHARED.rglob("*") if SHARED.is_dir() else ()
    return LOGS + sorted(
        path for path in real if path.is_file() and 0 < path.stat().st_size <= MOST_SEED_BYTES
    )


def mutated(count: int, seed: int) -> Figures:
    """Analyse so many damaged logs; each has one to three kinds of damage."""
    chance, files = random.Random(seed), seeds()
    codes: Counter[int] = Counter()
    figures: Counter[str] = Counter(logs=count, seeds=len(files), wrong=0)
    most = dict.fromkeys(("cpu_s", "rss_mib"), 0.0)
    with contextlib.redirect_stdout(io.StringIO()):
        main(["analyze", str(LOGS[1]), "--json"])  # so that no fork need import all of it
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            file = files[number % len(files)]
            kinds = chance.choices([*CHANGES], k=chance.randint(1, 3))
            data = file.read_bytes()
            for kind in kinds:
                data = CHANGES[kind](data, chance) if data else b""
            path = Path(folder, f"log{chance.choice((file.suffix, '.csv', '.gz', ''))}")
            path.write_bytes(data)
            options = chance.choice(OPTIONS)
            look = looked_at(path, options, reads=number % 3 == 2)
            codes[os.waitstatus_to_exitcode(look.status)] += 1
            most["cpu_s"] = max(most["cpu_s"], look.cpu_s)
            most["rss_mib"] = max(most["rss_mib"], look.rss_bytes / 2**20)
            if wrong := look.wrong():
                figures["wrong"] += 1
                kept = Path(tempfile.gettempdir(), f"campaign-log-{seed}-{number}{path.suffix}")
                kept.write_bytes(data)
                what = f"{file.name} {kinds} {' '.join(options)}: {'; '.join(wrong)}"
                print(f"  {kept}: {what}: {look.err[-300:]}", file=sys.stderr, flush=True)
            path.unlink()
    ends = {f"exit_{code}": count for code, count in sorted(codes.items())}
    return require({**figures, **ends, **most}, wrong=0)
