"""Builds HTML from values: whatever is put in as text comes out as text.

There is no way to write markup but :func:`element`, whose children and attributes are escaped;
what could run a program or load from elsewhere (``onclick``, ``style``, ``javascript:``) is
refused, since pages have a policy that forbids it anyway.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from gpuwatchd.core import text
from gpuwatchd.core.design import LOOKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.design import Kind


class Markup(str):
    """Markup that :func:`element` made; nothing else may make it."""

    __slots__ = ()


Node: TypeAlias = "Markup | str | Iterable[Node] | None"
"""Text, an element, nothing, or several."""
Attribute: TypeAlias = "str | int | float | bool | None"

_NAME = re.compile(r"[a-z][a-zA-Z0-9-]*", re.ASCII)
_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*", re.ASCII)
_VOID: Final = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})
_RAW: Final = frozenset({"script", "style"})
_ADDRESSES: Final = frozenset(
    {"href", "src", "action", "formaction", "data", "poster", "xlink:href"}
)
_SAFE_ADDRESS = re.compile(r"#|/(?!/)|https?://|data:image/(?:png|svg\+xml)[;,]", re.IGNORECASE)


def element(name: str, attributes: dict[str, Attribute] | None = None, *children: Node) -> Markup:
    """Return one element.

    Parameters
    ----------
    name
        Of the element, such as ``"p"``.
    attributes
        None and False leave one out, True writes its name alone.
    children
        Text is escaped; an iterable stands for its items.

    Raises
    ------
    ValueError
        For a name that is none, for ``script`` and ``style``, and for an attribute that could run
        a program or loads from an address of an unknown kind.

    Examples
    --------
    >>> element("p", {"class": "a", "hidden": True}, "1 < 2", element("br"))
    '<p class="a" hidden>1 &lt; 2<br></p>'
    """
    if not _NAME.fullmatch(name) or name.lower() in _RAW:
        raise ValueError(f"{name!r} is no element for a page")
    head = name + "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if name in _VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{join(children)}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    if not _ATTRIBUTE.fullmatch(key) or key.lower().startswith("on") or key.lower() == "style":
        raise ValueError(f"{key!r} is no attribute for a page")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {key}"
    said = str(value)
    if key.lower() in _ADDRESSES and not _SAFE_ADDRESS.match(said):
        raise ValueError(f"{key}={said[:40]!r} is no address for a page")
    return f' {key}="{_escaped(said)}"'


def _escaped(value: str) -> str:
    return text.for_html(value.replace("\x00", "\ufffd"))


def join(nodes: Node) -> Markup:
    """Return several nodes as one.

    Examples
    --------
    >>> join(["a < b", None, [element("b", None, "c")]])
    'a &lt; b<b>c</b>'
    """
    if nodes is None:
        return Markup("")
    if isinstance(nodes, Markup):
        return nodes
    if isinstance(nodes, str):
        return Markup(_escaped(nodes))
    return Markup("".join(join(node) for node in nodes))


def badge(kind: Kind, word: str | None = None) -> Markup:
    """Return a verdict at a glance: its mark, its word, its colour.

    Examples
    --------
    >>> badge("leak", "gradual")
    '<span class="badge badge-leak"><span aria-hidden="true">▲</span>gradual</span>'
    """
    look = LOOKS[kind]
    mark = element("span", {"aria-hidden": "true"}, look.mark)
    return element("span", {"class": f"badge badge-{kind}"}, mark, word or look.word)


def facts(rows: Iterable[tuple[str, Node]]) -> Markup:
    """Return names with what they are: a description list."""
    parts = ([element("dt", None, name), element("dd", None, value)] for name, value in rows)
    return element("dl", {"class": "facts"}, *parts)


def table(
    head: Sequence[str], rows: Iterable[Sequence[Node]], *, caption: str,
    numbers: Iterable[int] = (), stack: bool = True,
) -> Markup:  # fmt: skip
    """Return a table whose first column names its rows.

    Parameters
    ----------
    head
        Of each column.
    rows
        As many cells each.
    caption
        What the table tells; read out, and shown above it.
    numbers
        Columns that are set to the right.
    stack
        On a phone every row becomes a card; without it the table scrolls in its own frame.
    """
    right = frozenset(numbers)

    def cell(tag: str, column: int, content: Node, extra: dict[str, Attribute]) -> Markup:
        found: dict[str, Attribute] = {"class": "number" if column in right else None, **extra}
        return element(tag, found, content)

    titles = [
        cell("th", n, title, {"scope": "col", "role": "columnheader"})
        for n, title in enumerate(head)
    ]
    body = []
    for row in rows:
        cells = []
        for n, content in enumerate(row):
            label: dict[str, Attribute] = {"data-label": head[n] if stack and n else None}
            first: dict[str, Attribute] = {"scope": "row", "role": "rowheader", **label}
            cells.append(
                cell("td" if n else "th", n, content, {"role": "cell", **label} if n else first)
            )
        body.append(element("tr", {"role": "row"}, cells))
    inner = element(
        "table",
        {"role": "table", "class": "stack" if stack else None},
        element("caption", None, caption),
        element("thead", {"role": "rowgroup"}, element("tr", {"role": "row"}, titles)),
        element("tbody", {"role": "rowgroup"}, body),
    )
    if stack:
        return inner
    frame: dict[str, Attribute] = {
        "class": "scroll",
        "tabindex": 0,
        "role": "region",
        "aria-label": caption,
    }
    return element("div", frame, inner)
