#!/usr/bin/env python3
"""Checks files of the format gpuwatchd-corpus: structure, bounds, and that nobody can be named.

    contrib/corpus/check.py [--any-licence] FILE...

Needs Python's standard library only. README.md beside it defines the format. It ends with 0 when
every file is in order, 1 when one is not, 3 when one holds what may name somebody, 5 when one
cannot be read, 2 when it was called wrongly; of several, the highest of 1, 3 and 5.
"""

from __future__ import annotations

import argparse
import getpass
import gzip
import itertools
import json
import re
import socket
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME, VERSION = "gpuwatchd-corpus", 1
MOST_LINE_BYTES, MOST_BYTES = 16 << 20, 2 << 30
MOST_DS = 10 * 366 * 86_400 * 10
"""Ten years, in tenths of a second."""
MOST_MIB = 1 << 30
LICENCES = {"CC0-1.0", "CC-BY-4.0"}
KINDS = {"device", "process", "unattributed"}
FRAMEWORKS = {
    *("vLLM", "SGLang", "Ollama", "llama.cpp", "Triton Server", "LM Studio", "MLX", "PyTorch"),
    *("Ray", "Blender", "display", "browser", "JAX", "TensorFlow", "TensorFlow or JAX", "ggml"),
    *("ONNX Runtime", "TensorRT", "CuPy", "Numba", "RAPIDS", "Triton kernels", "other"),
}
PATTERNS = {
    *("gradual", "step", "cyclic", "spike", "plateau", "sawtooth", "stable", "preallocated"),
    "unknown",
}
TIERS = {"none", "watch", "alert"}
FACTS = {
    *("declared-share", "declared-size", "engine-pool", "earlier-runs", "earlier-stages"),
    *("warm-up", "period", "probe-bound", "joined-or-left", "other"),
}
ENDINGS = {
    *("process-ended", "ended-near-limit", "fell-near-limit", "ran-out-of-memory", "below-limit"),
    *("ended-unobserved", "stopped-growing", "other-rank", "part-of-job", "holder-known"),
    *("holder-unknown", "pages-kept", "left-device", "instances-judged", "labelled-normal"),
    *("not-seen", "device-gone", "device-answers", "memory-released", "memory-owned", "at-work"),
    *("not-listed", "turned-off", "legacy"),
}
WORDS = {"normal", "leak"}
OUTCOMES = {"filled", "given-back", "plateaued", "ended", "open"}
CARD_WORD = re.compile(
    r"NVIDIA|AMD|Intel|Apple|Simulated|GeForce|Quadro|Tesla|TITAN|Radeon|Instinct|Arc|Iris|Xe|UHD"
    r"|Graphics|GRID|Jetson|Orin|Thor|Ada|Blackwell|Generation|Laptop|Mobile|GPU|GT|GTX|RTX|RX|XT"
    r"|XTX|GRE|Pro|PRO|Max|MAX|Ultra|FE|Ti|SUPER|Super|Xp|Q|PCIe|NVL|SXM|OAM|MIG|Server|Superchip"
    r"|Workstation|Edition|(?:[ABHKLMPTVW]|GB|GH|MI|RTX|GTX|HBM|SXM)?\d{1,5}(?:GB|[A-Z]{1,2}|e)?"
    r"|\d[cg]\.\d{1,3}(?:gb|g\.\d{1,3}gb)"
)
IDENTITY = {
    "an e-mail address": r"[\w.+-]+@[\w-]+\.\w+",
    "an IP address": r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])|(?:[0-9a-f]{0,4}:){3,}",
    "a UUID": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "a path": r"~/|[/\\][\w.-]+[/\\]|[a-z]:[/\\]|/(?:home|root|users|mnt|data)\b",
    "the name of a host": r"\b[\w-]+\.(?:local|lan|internal|com|org|net|edu|de|io)\b",
}
"""What names somebody -> what it looks like, in any case of letters."""
Check = Callable[[Any], bool]
OK, BAD, IDENTITY_FOUND, UNREADABLE = 0, 1, 3, 5


class Problem(NamedTuple):
    """What is wrong with a file, and the exit code that it asks for."""

    line: int
    why: str
    code: int = BAD


def whole(low: int, high: int) -> Check:
    """Return what allows whole numbers within bounds."""
    return lambda value: type(value) is int and low <= value <= high


def number(low: float, high: float) -> Check:
    """Return what allows numbers within bounds."""
    return lambda value: type(value) in {int, float} and low <= value <= high


def among(words: set[str]) -> Check:
    """Return what allows the words of a vocabulary."""
    return lambda value: isinstance(value, str) and value in words


def like(pattern: str) -> Check:
    """Return what allows a text of one form."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def optional(check: Check) -> Check:
    """Return what allows null, too."""
    return lambda value: value is None or check(value)


def is_card(value: Any) -> bool:
    """Say whether every part of a name is a word of models."""
    parts = re.split(r"[ -]", value) if isinstance(value, str) else []
    return value == "other" or (bool(parts) and all(map(CARD_WORD.fullmatch, parts)))


def course(low: int, high: int, *, rising: bool = False, empty: bool = False) -> Check:
    """Return what allows a list of differences whose sums lie within bounds."""

    def check(value: Any) -> bool:
        if not isinstance(value, list) or any(type(step) is not int for step in value):
            return False
        sums = list(itertools.accumulate(value))
        rises = not rising or all(step > 0 for step in value[1:])
        return rises and all(low <= each <= high for each in sums) and (empty or bool(sums))

    return check


def is_quantiles(value: Any) -> bool:
    """Say whether it is three numbers in order, the last of which may be open."""
    if not isinstance(value, list) or len(value) != 3 or None in value[:2]:
        return False
    known = [each for each in value if each is not None]
    return all(map(number(0, 10**10), known)) and known == sorted(known)


def every(fields: dict[str, Check]) -> Check:
    """Return what allows a list of objects with exactly these fields."""
    return lambda value: isinstance(value, list) and all(not wrong(each, fields) for each in value)


def wrong(value: Any, fields: dict[str, Check]) -> str:
    """Return what is wrong with an object; "" for nothing."""
    if not isinstance(value, dict):
        return "is no object"
    if value.keys() != fields.keys():
        odd = sorted(value.keys() ^ fields.keys())
        return f"fields missing or not known: {', '.join(odd)[:80]}"
    bad = [key for key, check in fields.items() if not check(value[key])]
    return f"not allowed: {', '.join(bad)}" if bad else ""


INSTANT = whole(-MOST_DS, MOST_DS)
HEADER: dict[str, Check] = {
    "format": among({NAME}),
    "version": whole(VERSION, VERSION),
    "made_by": like(r"gpuwatchd \d{1,3}(\.\d{1,4}){1,3}([a-z]{1,4}\d{0,3})?"),
    "licence": optional(among(LICENCES)),
    "subjects": whole(1, 10**6),
    "points": whole(1, 10**10),
    "span_s": whole(0, MOST_DS // 10),
    "interval_s": optional(is_quantiles),
}
FACT: dict[str, Check] = {
    "name": among(FACTS),
    "weight": number(0, 1),
    "level_mib": optional(whole(0, MOST_MIB)),
    "part_mib": optional(whole(0, MOST_MIB)),
}
VERDICT: dict[str, Check] = {
    **dict.fromkeys(("opened_ds", "judged_ds"), INSTANT),
    **dict.fromkeys(
        ("watch_ds", "alert_ds", "resolved_ds", "onset_ds", "outcome_ds"), optional(INSTANT)
    ),
    "pattern": among(PATTERNS),
    "tier": among(TIERS),
    "confidence": number(0, 1),
    "rate_bytes_per_s": optional(whole(-(10**14), 10**14)),
    "eta_s": optional(is_quantiles),
    "ended": optional(among(ENDINGS)),
    "feedback": optional(among(WORDS)),
    "outcome": optional(among(OUTCOMES)),
}
SUBJECT: dict[str, Check] = {
    "device": like(r"d[1-9]\d{0,5}"),
    "kind": among(KINDS),
    "process": optional(like(r"p[1-9]\d{0,5}")),
    "card": is_card,
    "total_bytes": optional(whole(1, 1 << 50)),
    "framework": optional(among(FRAMEWORKS)),
    "program": optional(like(r"[0-9a-f]{8}")),
    "t_ds": course(0, MOST_DS, rising=True),
    "used_mib": course(0, MOST_MIB),
    "breaks": lambda value: isinstance(value, list) and all(map(whole(1, 10**9), value)),
    "util_ds": course(0, MOST_DS, rising=True, empty=True),
    "util_pct": course(0, 100, empty=True),
    "facts": every(FACT),
    "verdicts": every(VERDICT),
    "full_at_end_ds": optional(INSTANT),
}


def contradiction(subject: dict[str, Any]) -> str:
    """Return what of a subject cannot be true together; "" for nothing."""
    count, total = len(subject["t_ds"]), subject["total_bytes"]
    breaks = subject["breaks"]
    if len(subject["used_mib"]) != count:
        return "t_ds and used_mib differ in length"
    if len(subject["util_ds"]) != len(subject["util_pct"]):
        return "util_ds and util_pct differ in length"
    if total is not None and max(itertools.accumulate(subject["used_mib"])) > total >> 20:
        return "more is used than there is"
    if breaks != sorted(set(breaks)) or any(at >= count for at in breaks):
        return "breaks are no ascending positions"
    if (subject["kind"] == "process") != (subject["process"] is not None):
        return "kind and process contradict each other"
    return ""


def texts(value: Any) -> Iterator[str]:
    """Yield every text of a value, the keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (key, *texts(each))
    elif isinstance(value, list):
        for each in value:
            if not isinstance(each, int):
                yield from texts(each)


def of_this_machine() -> set[str]:
    """Return what names this machine and its user, in lower case."""
    names = set()
    for ask in (socket.gethostname, getpass.getuser, lambda: Path.home().name):
        try:
            names.add(ask().lower().partition(".")[0])
        except (OSError, KeyError, RuntimeError):  # nobody has a name here
            continue
    return {re.escape(name) for name in names if len(name) > 2} - {"root", "localhost"}


VOCABULARY = (
    *(LICENCES | KINDS | FRAMEWORKS | PATTERNS | TIERS | FACTS | ENDINGS),
    *(WORDS | OUTCOMES | {NAME}),
    *(HEADER | SUBJECT | FACT | VERDICT),
)


def identity(value: Any, own: set[str]) -> str:
    """Return what may name somebody; "" for nothing. Words of the vocabulary do not."""
    names = {f"the name {name!r} of this machine or its user": rf"\b{name}\b" for name in own}
    for text in {*texts(value)} - {*VOCABULARY}:
        for what, pattern in () if is_card(text) else (IDENTITY | names).items():
            if re.search(pattern, text, re.IGNORECASE):
                return what
    return ""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; ValueError when a key comes twice."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a field comes twice")
    return dict(pairs)


def refuse(word: str) -> Any:
    """Refuse NaN and infinities."""
    raise ValueError(f"{word} is no number")


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; OSError, EOFError or zlib.error where it cannot be read."""
    left = MOST_BYTES
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        while line := stream.readline(MOST_LINE_BYTES + 1):
            left -= len(line)
            if len(line) > MOST_LINE_BYTES or left < 0:
                raise OSError("a line, or the file, is too long")
            yield line


def packed_by_name(path: Path) -> bool:
    """Say whether a file was compressed so that its old name or its time is kept in it."""
    with path.open("rb") as raw:
        head = raw.read(10)
    return head[:2] == b"\x1f\x8b" and (bool(head[3:4] > b"\0") or head[4:8] != bytes(4))


class File:
    """What is known of a file as far as it has been read."""

    def __init__(self, *, any_licence: bool) -> None:
        self._any_licence = any_licence
        self._own = of_this_machine()
        self._header: dict[str, Any] | None = None
        self._subjects: set[tuple[Any, ...]] = set()
        self._points = 0

    def line(self, at: int, line: bytes) -> Problem | None:
        """Take a line and return what is wrong with it; None for nothing."""
        try:
            value = json.loads(
                line.decode("ascii"), object_pairs_hook=unique, parse_constant=refuse
            )
        except (ValueError, RecursionError) as error:
            return Problem(at, f"no JSON of plain characters: {type(error).__name__}")
        if found := identity(value, self._own):
            return Problem(at, f"may name somebody: {found}", IDENTITY_FOUND)
        why = wrong(value, HEADER if at == 1 else SUBJECT)
        if not why:
            why = self._take_header(value) if at == 1 else self._take(value)
        return Problem(at, why) if why else None

    def end(self) -> Problem | None:
        """Return what is wrong with the whole; None for nothing."""
        if self._header is None:
            return Problem(1, "no header that can be used")
        if (self._header["subjects"], self._header["points"]) != (
            len(self._subjects),
            self._points,
        ):
            return Problem(1, "subjects or points are not those that follow")
        return None

    def _take_header(self, header: dict[str, Any]) -> str:
        self._header = header
        missing = header["licence"] is None and not self._any_licence
        return "no licence: export again with --licence" if missing else ""

    def _take(self, value: dict[str, Any]) -> str:
        if why := contradiction(value):
            return why
        self._points += len(value["t_ds"])
        subject = (value["device"], value["kind"], value["process"])
        if subject in self._subjects:
            return "this subject comes twice"
        self._subjects.add(subject)
        return ""


def problems_of(path: Path, *, any_licence: bool = False) -> list[Problem]:
    """Return what is wrong with a file.

    Raises
    ------
    OSError, EOFError, zlib.error
        It cannot be read.
    """
    file = File(any_licence=any_licence)
    found = [file.line(at, line) for at, line in enumerate(lines_of(path), 1)]
    if packed_by_name(path):
        why = "its compression keeps a name or a time: gzip -n"
        found.append(Problem(0, why, IDENTITY_FOUND))
    return [problem for problem in (*found, file.end()) if problem is not None]


def main(argv: list[str] | None = None) -> int:
    """Check files and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--any-licence", action="store_true", help="one without licence, too")
    options = parser.parse_args(argv)
    worst = OK
    for path in options.files:
        try:
            found = problems_of(path, any_licence=options.any_licence)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or str(error)
            found = [Problem(0, f"cannot be read: {why}", UNREADABLE)]
        for problem in found[:20]:
            sys.stdout.write(f"{path}:{problem.line}: {problem.why}\n")
        if not found:
            sys.stdout.write(f"{path}: in order\n")
        worst = max([worst, *(problem.code for problem in found)])
    return worst


if __name__ == "__main__":
    sys.exit(main())
