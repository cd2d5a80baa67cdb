"""``docs``: the manual in the terminal, from the files that came with the program."""

from __future__ import annotations

import sys

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view import manual
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.program import Pages, PagesFound, PageShown, PageText

_WIDEST = 100
"""Columns: longer lines of prose are hard to read."""


def complete_page(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Offer pages, and after "#" the sections of one; silent where the pages are missing."""
    try:
        paths = manual.files(manual.folder())
        name, mark, _rest = incomplete.partition("#")
        if mark and name in paths:
            sections = manual.read(paths[name]).sections()
            offered = [f"{name}#{section.anchor}" for section in sections]
        else:
            offered = list(paths)
    except Exception:  # noqa: BLE001 - nobody's line is spoilt by an error
        return []
    return [word for word in offered if word.startswith(incomplete)]


@click.command(
    "docs",
    epilog=options.examples("docs install", "docs errors#no-gpu", "docs quiet hours"),
)
@click.argument("words", nargs=-1, metavar="[PAGE[#SECTION]]", shell_complete=complete_page)
@click.option("--list", "listed", is_flag=True, help="All pages, with their titles.")
@click.option("--search", is_flag=True, help="Sections in which all these words occur.")
def command(words: tuple[str, ...], listed: bool, search: bool) -> int:  # noqa: FBT001
    """Show a page of the manual; without one, what there is to read.

    What is no page is searched for. The pages are part of the program: no network access.
    """
    if listed and (search or words):
        raise click.UsageError("--list stands alone")
    paths = manual.files(manual.folder())
    if listed:
        return _list([manual.read(file) for file in paths.values()])
    if search:
        if not " ".join(words).split():
            raise click.UsageError("which words? docs --search quiet hours")
        return _search([manual.read(file) for file in paths.values()], " ".join(words).split())
    name, anchor = manual.wanted(" ".join(words) or manual.FRONT)
    if name not in paths:
        pages = [manual.read(file) for file in paths.values()]
        if not anchor and manual.search(pages, name.split()):
            return _search(pages, name.split())
        raise click.UsageError(
            f"no such page: {name}{_nearest(name, list(paths))}; docs --list names them all"
        )
    return _show(manual.read(paths[name]), anchor)


def _nearest(word: str, names: list[str]) -> str:
    import difflib  # noqa: PLC0415 - only for mistakes

    near = [text for text in names if word and word in text][:3]
    near = near or difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _show(page: manual.Page, anchor: str) -> int:
    try:
        words = page.part(anchor) if anchor else page.text
    except KeyError:
        names = [section.anchor for section in page.sections()]
        raise click.UsageError(
            f"no section {anchor} in {page.name}{_nearest(anchor, names)}"
        ) from None
    from gpuwatchd.view import manual_text  # noqa: PLC0415 - 90 ms: rich

    flags = options.current()
    out = output.Out(flags)
    width = min(out.width, _WIDEST)
    if flags.json:
        shown = manual_text.render(words, _WIDEST)
        data = fill(PageText, page, section=anchor, sections=page.sections(), text=shown)
        output.emit_answer(PageShown, data, source="files")
    elif out.colour and not out.ascii:
        sys.stdout.write(manual_text.render(words, width, colour=True))
    else:
        for line in manual_text.render(words, width).splitlines():
            out.raw(out.safe(line))
    return 0


def _list(found: list[manual.Page]) -> int:
    flags = options.current()
    if flags.json:
        output.emit_answer(Pages, found, source="files")
        return 0
    out = output.Out(flags)
    widest = max(len(page.name) for page in found)
    kind = None
    for page in found:
        if page.kind != kind and page.kind:
            out.line()
            out.line((page.kind, "bold"))
        kind = page.kind
        out.flow([f"{page.name:<{widest}}", page.title], first="  " if kind else "")
    return 0


def _search(found: list[manual.Page], words: list[str]) -> int:
    hits = manual.search(found, words)
    flags = options.current()
    if flags.json:
        output.emit_answer(PagesFound, hits, source="files")
        return 0 if hits else 1
    out = output.Out(flags)
    for hit in hits:
        out.flow([(f"{hit.page}#{hit.anchor}", "bold"), hit.title])
        if hit.line:
            out.prose(hit.line, first="    ", rest="    ")
    if not hits and not flags.quiet:
        out.line(f"no page has all of: {' '.join(words)}")
    return 0 if hits else 1
