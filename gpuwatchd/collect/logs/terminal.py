"""What a terminal would show: captures of programs that redraw their screen, such as ``watch``.

Such a program writes a whole screen once and then only the cells that change, each after a move of
the cursor. pyte does this too, but would be one more dependency of everybody for one kind of log.
"""

from __future__ import annotations

import re

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\n]*\x07?|[()][A-Z0-9]|.)?")
_START = re.compile(r"\x1b\[(?:\?1049h|\d+;\d+r|\d+(?:;\d+)?[Hd])")
"""Only programs that redraw parts of a screen write these: a screen apart, a region, an address."""
_TOKEN = re.compile(rf"\x1b\[(\d*);?(\d*)([A-Za-z])|{ESCAPE.pattern}|[\r\n\b]|[^\x1b\r\n\b]+")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[()])?\Z")
_BLANK = re.compile(r"\A\n{2,}|\n{3,}")
_LINES, _COLUMNS = 200, 400
"""Of a screen; what lies beyond is no table."""
_STEPS = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1), "b": (0, 1)}
"""How far a command goes down and right; "b" writes the last character again."""
_MOST_CHARS = 64 << 20
"""Of all screens of a log: a few bytes that redraw a large one must not take all day."""


class Screen:
    """Turns the output of a program that draws on a terminal into its screens, as lines of text."""

    def __init__(self) -> None:
        self._on = False
        self._held = ""
        self._rows: list[str] = []
        self._row = self._column = 0
        self._changed = False
        self._last = ""
        self._room = _MOST_CHARS
        self.dropped = 0
        """Screens that were too much for one log."""

    def feed(self, text: str, *, final: bool = False) -> str:
        r"""Return the lines that more output gives; what does not address a screen stays as it is.

        A screen is taken when the cursor goes up again, as it does when the next one is drawn.

        Examples
        --------
        >>> Screen().feed("\x1b[1;9rused\x1b[2;1H841 MiB\x1b[1;1H\x1b[2;3H2", final=True)
        'used\n841 MiB\nused\n842 MiB\n'
        """
        text, self._held = self._held + text, ""
        if not final and (cut := _UNFINISHED.search(text)):
            text, self._held = text[: cut.start()], cut.group()
        out: list[str] = []
        at = 0
        while at < len(text):
            if self._on:
                at = self._draw(text, at, out)
                continue
            start = _START.search(text, at)
            end = len(text) if start is None else start.start()
            out.append(text[at:end])
            at, self._on = end, start is not None
        if final:
            self._take(out)
        return "".join(out)

    def _draw(self, text: str, at: int, out: list[str]) -> int:
        """Follow the output; return where the program gave the screen back, or its end."""
        for token in _TOKEN.finditer(text, at):
            first, second, command = token.groups()
            run = token.group()
            if command is not None:
                self._obey(command, int(first[:4] or 0), int(second[:4] or 0), out)
            elif run == "\x1b[?1049l":
                self._take(out)
                self._rows, self._row, self._column, self._on = [], 0, 0, False
                return token.end()
            elif run == "\r":
                self._column = 0
            elif run == "\n":
                self._next_row(out)
            elif run == "\b":
                self._obey("D", 1, 0, out)
            elif run[0] != "\x1b":
                self._put(run, self._column)
                self._column, self._last = min(self._column + len(run), _COLUMNS), run[-1]
        return len(text)

    def _next_row(self, out: list[str]) -> None:
        """Go one down; at the bottom the screen scrolls, and its first line is put out."""
        if self._row < _LINES - 1:
            self._row += 1
        elif self._rows:
            out.append(f"{self._rows.pop(0)}\n")

    def _obey(self, command: str, first: int, second: int, out: list[str]) -> None:
        count = max(first, 1)
        down, right = _STEPS.get(command, (0, 0))
        row, column = self._row + down * count, self._column + right * count
        if command in "Hf":
            row, column = count - 1, max(second, 1) - 1
        elif command == "d":
            row = count - 1
        elif command == "G":
            column = count - 1
        elif command == "b":
            self._put(self._last * count, self._column)
        elif command == "X":
            self._put(" " * count, column)
        elif command in "JK":
            self._erase(command, first, out)
        if row < self._row:
            self._take(out)
        self._row, self._column = min(max(row, 0), _LINES - 1), min(max(column, 0), _COLUMNS)

    def _erase(self, command: str, first: int, out: list[str]) -> None:
        if command == "J" and first > 1:
            self._take(out)
            self._rows = []
            return
        start, end = 0 if first else self._column, self._column + 1 if first == 1 else _COLUMNS
        self._put(" " * (end - start), start)
        if command == "J" and not first:
            del self._rows[self._row + 1 :]

    def _put(self, run: str, at: int) -> None:
        self._rows += [""] * (self._row + 1 - len(self._rows))
        line = self._rows[self._row]
        line = line[:at].ljust(at) + run + line[at + len(run) :]
        self._rows[self._row] = line[:_COLUMNS].rstrip()
        self._changed = True

    def _take(self, out: list[str]) -> None:
        """Put the screen out, if it is another one than last time."""
        if self._changed and self._room > 0:
            # A cursor that was set far down leaves hundreds of blank lines: one says the same.
            text = _BLANK.sub("\n\n", "\n".join(self._rows)) + "\n"
            out.append(text)
            self._room -= len(text)
        elif self._changed:
            self.dropped += 1
        self._changed = False
