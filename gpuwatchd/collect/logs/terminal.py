"""What a terminal would show: captures of programs that redraw their screen, such as ``watch``.

Such a program writes a whole screen once and then only the cells that change, each after a move of
the cursor. pyte does this too, but would be one more dependency of everybody for one kind of log.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\x1b\[\d+(?:;\d+)?[Hd]")
"""A move to a numbered line: only programs that redraw parts of a screen write it."""
_BEGIN = re.compile(r"\x1b\[(?:\?1049h|[\d;]*[Hd])")
_TOKEN = re.compile(
    r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\n]*\x07?|\x1b[()][A-Z0-9]|\x1b.?|[\r\n\b]"
    r"|[^\x1b\r\n\b]+",
    re.DOTALL,
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[()])?\Z")
_MOST = 500
"""Lines and columns of a screen; what lies beyond is no table."""
_MOST_CHARS = 32 << 20
"""Of the screens of one block: a few bytes that redraw a large one must not fill the memory."""


class Screen:
    """Turns the output of a program that draws on a terminal into its screens, as lines of text."""

    def __init__(self) -> None:
        self._on = False
        self._held = ""
        self._rows: list[list[str]] = []
        self._row = self._column = 0
        self._changed = False
        self._last = " "
        self._room = 0
        self.dropped = 0
        """Screens that were too much for one block."""

    def feed(self, text: str, *, final: bool = False) -> str:
        r"""Return the lines that more output gives; what does not address a screen stays as it is.

        A screen is taken when the cursor goes up again, as it does when the next one is drawn.

        Examples
        --------
        >>> Screen().feed("\x1b[H\x1b[2Jused\x1b[2;1H841 MiB\x1b[1;1H\x1b[2;3H2", final=True)
        'used\n841 MiB\nused\n842 MiB\n'
        """
        text, self._held, self._room = self._held + text, "", _MOST_CHARS
        if not final and (cut := _UNFINISHED.search(text)):
            text, self._held = text[: cut.start()], cut.group()
        out: list[str] = []
        at = address = 0
        while at < len(text):
            if not self._on:
                if address <= at:
                    found = _ADDRESS.search(text, at)
                    address = len(text) + 1 if found is None else found.end()
                begin = _BEGIN.search(text, at) if address <= len(text) else None
                if begin is None or begin.start() >= address:
                    out.append(text[at:])
                    break
                out.append(text[at : begin.start()])
                at, self._on = begin.start(), True
            at = self._draw(text, at, out)
        if final:
            self._take(out)
        return "".join(out)

    def _draw(self, text: str, at: int, out: list[str]) -> int:
        """Follow the output; return where the program gave the screen back, or its end."""
        for token in _TOKEN.finditer(text, at):
            numbers, command = token.groups()
            if command is not None:
                if (numbers, command) == ("?1049", "l"):
                    self._take(out)
                    self._rows, self._row, self._column, self._on = [], 0, 0, False
                    return token.end()
                if not numbers.startswith("?"):
                    self._obey(command, [int(n or 0) for n in re.findall(r"\d{1,4}", numbers)], out)
            elif token.group() == "\r":
                self._column = 0
            elif token.group() == "\n":
                self._next_row(out)
            elif token.group() == "\b":
                self._column = max(self._column - 1, 0)
            elif token.group()[0] != "\x1b":
                self._write(token.group())
        return len(text)

    def _next_row(self, out: list[str]) -> None:
        """Go one down; at the bottom the screen scrolls, and its first line is put out."""
        if self._row < _MOST:
            self._row += 1
            return
        if self._changed:
            out.append(_text(self._rows[0]))
        del self._rows[:1]

    def _obey(self, command: str, numbers: list[int], out: list[str]) -> None:
        first = numbers[0] if numbers else 0
        count = max(first, 1)
        row, column = self._row, self._column
        if command in "Hf":
            row, column = count - 1, max(numbers[1] if len(numbers) > 1 else 1, 1) - 1
        elif command == "d":
            row = count - 1
        elif command == "G":
            column = count - 1
        elif command in "AB":
            row += count if command == "B" else -count
        elif command in "CD":
            column += count if command == "C" else -count
        elif command == "b":
            self._write(self._last * min(count, _MOST))
            return
        elif command == "J" and first >= 2:
            self._take(out)
            self._rows = []
        elif command in "JKXP@":
            self._erase(command, first)
        if row < self._row:
            self._take(out)
        self._row, self._column = min(max(row, 0), _MOST), min(max(column, 0), _MOST)

    def _write(self, run: str) -> None:
        line, end = self._line(), self._column + len(run)
        line += " " * (self._column - len(line))
        line[self._column : end] = run
        del line[_MOST:]
        self._column, self._last, self._changed = min(end, _MOST), run[-1:], True

    def _erase(self, command: str, first: int) -> None:
        line, at, count = self._line(), self._column, max(first, 1)
        if command in "JK":
            if first:
                line[: at + 1] = " " * (at + 1)
            if first != 1:
                del line[at:]
            if command == "J" and first == 0:
                del self._rows[self._row + 1 :]
        elif command == "X":
            line[at : at + count] = [" "] * len(line[at : at + count])
        elif command == "P":
            del line[at : at + count]
        elif at <= len(line):
            line[at:at] = " " * min(count, _MOST)
            del line[_MOST:]
        self._changed = True

    def _line(self) -> list[str]:
        while len(self._rows) <= self._row:
            self._rows.append([])
        return self._rows[self._row]

    def _take(self, out: list[str]) -> None:
        """Put the screen out, if it is another one than last time."""
        if self._changed and self._room > 0:
            lines = list(map(_text, self._rows))
            # A cursor that was set far down leaves hundreds of blank ones: one says the same.
            lines = [
                line
                for line, above in zip(lines, ["", *lines], strict=False)
                if line != "\n" or above != "\n"
            ]
            out += lines
            self._room -= sum(map(len, lines))
        elif self._changed:
            self.dropped += 1
        self._changed = False


def _text(line: list[str]) -> str:
    return "".join(line).rstrip() + "\n"
