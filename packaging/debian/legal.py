"""The copyright file of the package, in Debian's form, from what each library says of itself."""

from __future__ import annotations

import re
from email.parser import HeaderParser
from typing import TYPE_CHECKING

import vendored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from email.message import Message
    from pathlib import Path

COMMON = {
    "Apache-2.0": re.compile(
        r"^\s*Apache License\s+Version 2\.0, January 2004.*?(?:END OF TERMS AND CONDITIONS"
        r"|any such warranty or additional liability\.)"
        r"(?:\s+APPENDIX: How to apply.*?identification within third-party archives\.)?",
        re.DOTALL | re.MULTILINE,
    ),
    "GPL-3": re.compile(
        r"^\s*GNU GENERAL PUBLIC LICENSE\s+Version 3, 29 June 2007.*?"
        r"(?:END OF TERMS AND CONDITIONS.*?why-not-lgpl\.html>\.|END OF TERMS AND CONDITIONS)",
        re.DOTALL | re.MULTILINE,
    ),
}
"""Licences that every Debian has; their text is not repeated."""
_NOTICE = re.compile(
    r"^\W*(?:Portions )?Copyright(?:\s*(?:\(c\)|©|:))+\s*(?P<marked>\w.*)$"
    r"|^\W*(?:Portions )?Copyright\s+(?P<dated>\d{4}.*)$",
    re.IGNORECASE,
)
_LICENCE_FILE = re.compile(r"licen[cs]e|copying|notice", re.IGNORECASE)
_SAID_SHORT = 60
"""A licence field longer than this holds a text and no name."""


def copyright_file(site: Path, package: str, lib: Path) -> str:
    """Return the copyright file for the libraries installed in ``site``.

    Parameters
    ----------
    site
        The folder of the libraries, each with its ``.dist-info``.
    package
        Name of our own library.
    lib
        Where the package has them, relative to the root.
    """
    infos = sorted(site.glob("*.dist-info"))
    ours = [info for info in infos if info.name.startswith(f"{package}-")]
    head = (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        f"Upstream-Name: {package}\n"
        "Comment: Written from the wheels in the package; each library keeps its own files of\n"
        f" terms in its .dist-info folder below /{lib}.\n"
    )
    inside = f"{lib}/lib/python*/site-packages"
    parts = [head, _own(ours[0])]
    parts += [_inside(one, ours[0], inside) for one in vendored.VENDORED]
    parts += [_of(_files(info, inside), info) for info in infos if info not in ours]
    return "\n".join(parts)


def _files(info: Path, inside: str) -> str:
    """Return the patterns of what a library has brought, by its list of them."""
    record = info / "RECORD"
    tops = {line.split("/", 1)[0] for line in record.read_text("utf-8").splitlines()}
    tops = {re.sub(r",.*", "", top) for top in tops if not top.startswith(("..", "__pycache__"))}
    found = [top for top in sorted(tops) if (info.parent / top).exists()]
    words = (f"{top}/*" if (info.parent / top).is_dir() else top for top in found)
    return "\n ".join(f"{inside}/{word}" for word in words)


def _own(info: Path) -> str:
    """Return the stanza of what is ours; what others made inside it has one of its own."""
    said = _said(info)
    others = {info / "licenses" / one.terms for one in vendored.VENDORED}
    words = licence(said).split(" AND ")
    kept = [one for one in words if one not in {each.licence for each in vendored.VENDORED}]
    texts = [text for file, text in _texts(info) if file not in others]
    return _stanza("*", said, " AND ".join(kept), texts)


def _inside(one: vendored.Vendored, info: Path, inside: str) -> str:
    """Return the stanza of files of others that lie in ours."""
    terms = info / "licenses" / one.terms
    texts = [text for file, text in _texts(info) if file == terms]
    said = {"Name": one.name, "Version": one.version()}
    return _stanza(f"{inside}/{one.terms.rpartition('.')[0]}.*", said, one.licence, texts)


def _of(files: str, info: Path) -> str:
    said = _said(info)
    return _stanza(files, said, licence(said), [text for _, text in _texts(info)])


def _said(info: Path) -> Message:
    return HeaderParser().parsestr((info / "METADATA").read_text("utf-8"))


def _stanza(files: str, said: Message | Mapping[str, str], named: str, texts: Sequence[str]) -> str:
    name, version = said["Name"], said["Version"]
    holders = list(dict.fromkeys(who for text in texts for who in _holders(text)))
    holders = holders or [said.get("Author") or f"The authors of {name}"]
    terms = "\n\n".join(texts) or f"{named}, as {name} {version} says of itself."
    return (
        f"Files: {files}\n"
        f"Copyright: {f'{chr(10)} '.join(holders)}\n"
        f"License: {_word(named)}\n"
        f"{_indented(terms)}\n"
        f"Comment: {name} {version}\n"
    )


def licence(said: Message) -> str:
    """Return the name of the licence that a library's metadata give."""
    expression = said["License-Expression"] or said["License"] or ""
    if expression and len(expression) <= _SAID_SHORT:
        return str(expression)
    for classifier in said.get_all("Classifier", []):
        if classifier.startswith("License :: "):
            return str(classifier.rsplit(" :: ", 1)[-1])
    return "as-stated"


def _word(name: str) -> str:
    """Return a licence's name as Debian's form wants it: one word, or words with and/or."""
    parts = re.split(r"\s+(AND|OR)\s+", name)
    return " ".join(
        part.lower() if part in {"AND", "OR"} else re.sub(r"[^\w.+-]+", "-", part).strip("-")
        for part in parts
    )


def _texts(info: Path) -> Iterator[tuple[Path, str]]:
    for file in sorted(info.rglob("*")):
        if file.is_file() and _LICENCE_FILE.search(file.name):
            text = file.read_text("utf-8", errors="replace").strip()
            for name, whole in COMMON.items():
                text = whole.sub(f"\n(The whole text: /usr/share/common-licenses/{name})\n", text)
            yield file, text.strip()


def _holders(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if found := _NOTICE.match(line):
            yield (found["marked"] or found["dated"]).strip()


def _indented(text: str) -> str:
    lines = (line.rstrip().replace("\f", "").replace("\t", "    ") for line in text.splitlines())
    return "\n".join(f" {line}" if line else " ." for line in lines)
