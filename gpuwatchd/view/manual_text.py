"""A page of the manual as text: by rich, but for what reads badly in a pipe."""

from __future__ import annotations

import io
import re
import textwrap
from typing import TYPE_CHECKING, ClassVar, Final, cast

from rich import markdown
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from gpuwatchd.view.blocks import width_of

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.table import Table

_FENCED: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_IMAGE: Final = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
_LINK: Final = re.compile(r"\[((?:`[^`]*`|\[[^\[\]]*\]|[^\[\]])+)\]\(([^)\s]*)\)")
_UNDER: Final = {"h1": "=", "h2": "-"}
_CUT: Final = "\N{HORIZONTAL ELLIPSIS}"
# rich's own style of code has a black background, which light terminals show as bars.
_THEME: Final = Theme({"markdown.code": "bold cyan", "markdown.h2": "bold cyan"})


class _Heading(markdown.Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.color_system:
            yield from super().__rich_console__(console, options)
            return
        yield self.text
        if self.tag in _UNDER:
            yield Text(_UNDER[self.tag] * width_of(self.text.plain))


class _Table(markdown.TableElement):
    """A table; one with a column that is too narrow for a word is a list of its rows."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [] if self.header is None or self.header.row is None else self.header.row.cells
        rows = [] if self.body is None else [row.cells for row in self.body.rows]
        table = cast("Table", next(iter(super().__rich_console__(console, options))))
        lines = console.render_lines(table, options)
        shown = "".join(segment.text for line in lines for segment in line)
        cells = (cell.content.plain for row in (head, *rows) for cell in row)
        if shown.count(_CUT) == sum(cell.count(_CUT) for cell in cells):
            yield table
            return
        yield Text(" / ".join(cell.content.plain for cell in head if cell.content), "bold")
        for first, *others in rows:
            yield first.content
            for title, cell in zip(head[1:], others, strict=True):
                label = f"{title.content.plain}: " if len(head) > 2 and cell.content else ""
                yield Padding(Text.assemble(label, cell.content), (0, 0, 0, 4))


class _Markdown(markdown.Markdown):
    elements: ClassVar[dict[str, type[markdown.MarkdownElement]]] = {
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "table_open": _Table,
    }


def local(target: str) -> str:
    """Return a link inside the documentation as ``docs`` takes it; another as it is.

    Examples
    --------
    >>> local("../how-to/install.md#pip"), local("cli.md"), local("https://example.org")
    ('install#pip', 'cli', 'https://example.org')
    """
    if "://" in target or target.startswith("mailto:"):
        return target
    path, mark, anchor = target.partition("#")
    name = path.rpartition("/")[2]
    return f"{name.removesuffix('.md')}{mark}{anchor}"


def _linked(words: str) -> str:
    """Return Markdown with its links in words, "the page (install#pip)"; those within it bare."""

    def link_text(match: re.Match[str]) -> str:
        label, target = match[1], local(match[2])
        known = target.startswith("#") or target == label.strip("`")
        return label if known else f"{label} ({target})"

    return _LINK.sub(link_text, _IMAGE.sub(r"[picture: \1]", words.replace("<br>", "; ")))


def render(text: str, width: int, *, colour: bool = False) -> str:
    """Return Markdown of ours as text of so many columns, with colours for a terminal if wanted.

    Examples
    --------
    >>> print(render("**Read** `status` in [the list](cli.md#status)", 60), end="")
    Read status in the list (cli#status)
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        emoji=False,
        theme=_THEME,
        _environ={},
    )
    for number, part in enumerate(_FENCED.split(text)):
        if number % 2 and not colour:  # rich would break its lines: they are there to be copied
            code = textwrap.dedent(part).splitlines()[1:-1]
            out.write("\n".join(["", *(f"    {line}" for line in code), "", ""]))
        elif part.strip():
            words = part if number % 2 else _linked(part)
            console.print(_Markdown(words, code_theme="ansi_dark", hyperlinks=False))
    if colour:
        return out.getvalue()
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines()) + "\n"
