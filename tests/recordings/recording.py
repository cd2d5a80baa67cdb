"""Making the items, and holding them against those that were made before."""

from __future__ import annotations

import difflib
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from tests.recordings import calling, frozen
from tests.recordings.index import EXPECTED, INDEX, Index, file_of, in_tenth, mark_of, read
from tests.recordings.items import every
from tests.recordings.worlds import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.recordings.items import Item

_WHOLE_BYTES: Final = 6000
"""A longer text is kept as a hash."""
_DIFF_LINES: Final = 40
_LONGEST_S: Final = 60.0
"""For one item; the machine may be busy."""
LEFT_OUT: Final = (
    "the entity tag of /api/v1/status: it is made of the inode of the state file",
    "date and part boundary of a mail: drawn anew each time",
    "pictures by Matplotlib (plot --output, PNG in a mail): of a child with a clock of its own",
    "doctor's look at a session bus, and all that a driver of NVIDIA would say: there is none here",
)
"""What cannot be recorded, and why."""


class Session:
    """One run: of all items, of those whose name hashes to a tenth, or has ``only`` in it."""

    def __init__(self, root: Path, *, tenth: bool = False, only: str = "") -> None:
        self._root = root
        self._stage = Stage(root)
        self._tenth = tenth
        self._only = only
        self._took: list[tuple[float, str]] = []
        self._bytes = 0
        self.failed: dict[str, str] = {}
        self.made: dict[str, str] = {}
        self._whole: set[str] = set()
        signal.signal(signal.SIGALRM, _too_long)

    def _chosen(self, name: str) -> bool:
        return self._only in name and (not self._tenth or in_tenth(name))

    def _make(self) -> None:
        for item in every(self._stage):
            if not self._chosen(item.name):
                continue
            if item.name in self.made:
                self.failed[item.name] = "there are two of this name"
            begun = frozen.elapsed_s()
            try:
                self.made[item.name] = self._text(item)
            except Exception as error:  # noqa: BLE001 - each is told, and the others go on
                self.failed[item.name] = (
                    str(error)
                    if isinstance(error, calling.Failed)
                    else traceback.format_exc(limit=-3)
                )
                continue
            self._bytes += len(self.made[item.name])
            if item.whole and len(self.made[item.name].encode()) <= _WHOLE_BYTES:
                self._whole.add(item.name)
            self._took.append((frozen.elapsed_s() - begun, item.name))

    def _text(self, item: Item) -> str:
        calling.begin(item.name)
        signal.setitimer(signal.ITIMER_REAL, _LONGEST_S)
        try:
            return calling.settled(item.make(), self._root)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def write(self, to: Path | None) -> int:
        """Record everything; ``to`` gets every text whole."""
        self._make()
        if to is not None:
            to.mkdir(parents=True, exist_ok=True)
            for name, text in self.made.items():
                (to / file_of(name)).write_text(text, "utf-8", newline="")
        if not self._tenth and not self._only:
            EXPECTED.mkdir(exist_ok=True)
            for old in EXPECTED.iterdir():
                old.unlink()
            for name in self._whole:
                (EXPECTED / file_of(name)).write_text(self.made[name], "utf-8", newline="")
            index = Index(
                tools=frozen.tools(),
                items={name: mark_of(text) for name, text in sorted(self.made.items())},
            )
            written = msgspec.json.format(msgspec.json.encode(index), indent=1)
            INDEX.write_bytes(written + b"\n")
        return 1 if self._say_failed() else 0

    def compare(self, to: Path | None) -> int:
        """Say what differs from what was recorded, with a difference where there is a text."""
        known = read()
        self._make()
        wanted = {name for name in known.items if self._chosen(name)}
        differing = [
            name
            for name, text in self.made.items()
            if name in wanted and mark_of(text) != known.items[name]
        ]
        for name in differing:
            print(f"differs: {name}\n{self._difference(name, to)}")
        for name in sorted(wanted - self.made.keys() - self.failed.keys()):
            print(f"gone: {name}")
        for name in sorted(self.made.keys() - wanted):
            print(f"new: {name}")
        other = {
            name: f"{known.tools.get(name)} -> {version}"
            for name, version in frozen.tools().items()
            if known.tools.get(name) != version
        }
        if other:
            print(f"made with other versions: {other}")
        for reason in LEFT_OUT:
            print(f"left out: {reason}")
        same = wanted == self.made.keys() and not differing
        if not same:
            print("is it meant? then: python -m tests.recordings write")
        return 1 if self._say_failed() or not same else 0

    def _difference(self, name: str, to: Path | None) -> str:
        for folder in (to, EXPECTED):
            file = None if folder is None else folder / file_of(name)
            if file is not None and file.is_file():
                before = file.read_bytes().decode().splitlines()
                lines = list(
                    difflib.unified_diff(before, self.made[name].splitlines(), lineterm="", n=1)
                )
                more = [f"... {len(lines) - _DIFF_LINES} more"] if len(lines) > _DIFF_LINES else []
                return "\n".join(lines[:_DIFF_LINES] + more)
        return "  (no text of it; write one at the earlier commit: write --to FOLDER)"

    def _say_failed(self) -> bool:
        for name, why in self.failed.items():
            print(f"FAILED: {name}\n{why}", file=sys.stderr)
        return bool(self.failed)

    def sum_up(self, seconds: float, *, slowest: int = 0) -> None:
        """Say how much was made, in how long."""
        for took_s, name in sorted(self._took)[::-1][:slowest]:
            print(f"{took_s:6.2f} s {name}")
        print(
            f"{len(self.made)} items, {self._bytes / 1e6:.1f} MB, {seconds:.1f} s;"
            f" {len(self.failed)} failed"
        )


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError(f"it did not end within {_LONGEST_S:g} s")
