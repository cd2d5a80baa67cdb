"""The one choke point that makes foreign text safe, and one escaper per sink.

Any user can name a process ``ESC[2J <b>``; a command line can hold a token. ``clean`` is applied
where a source or the host builds its record, so that nothing unclean exists further up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CHARS = 256
MASK = "****"

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])?|\x9b[0-?]*[ -/]*[@-~]"
)
_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ud800-\udfff]"
)

_SECRET_NAME = re.compile(
    r"(?i)(?:token|passw(?:or)?d|passphrase|secret|credential|api[-_]?key|auth|key|\bpass\b|pwd)"
)
_SECRET_PAIR = re.compile(
    r"(?i)((?:token|passw(?:or)?d|passphrase|secret|api[-_]?key|credentials?)[\"']?\s*:\s*[\"']?)"
    r"[^\s\"',}]+"
)
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[^\s\"']+")
_USER_FLAGS = frozenset({"-u", "--user", "--proxy-user"})
_URL_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@")
_KNOWN_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{12,}|eyJ[\w-]{10,}\.[\w-]+\.?[\w-]*)"
)
_LONG_WORD = re.compile(r"[A-Za-z0-9_+=-]{32,}")


def clean(text: str | bytes, *, limit: int = MAX_CHARS) -> str:
    r"""Return text that is safe to store, print and send.

    Escape sequences, control characters, bidi controls and lone surrogates go; a line break
    becomes a space; the rest is cut at ``limit`` characters.

    Examples
    --------
    >>> clean("python\x1b[2J\nevil\u202e")
    'python evil'
    >>> clean(b"caf\xc3")
    'caf\ufffd'
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    # Cut before the regular expressions: a hostile command line may be megabytes long.
    text = text[: limit * 16]
    if text.isascii() and text.isprintable():
        return text[:limit]
    text = _ESCAPES.sub("", text)
    text = _BREAKS.sub(" ", text)
    return _FORBIDDEN.sub("", text)[:limit]


def _looks_random(word: str) -> bool:
    if any(mark in word for mark in "/.:") or not _LONG_WORD.fullmatch(word):
        return False
    kinds = (
        any(c.islower() for c in word)
        + any(c.isupper() for c in word)
        + any(c.isdigit() for c in word)
    )
    hexadecimal = all(c in "0123456789abcdefABCDEF" for c in word)
    return hexadecimal or kinds == 3


def _mask_word(word: str) -> str:
    name, mark, value = word.partition("=")
    if mark and _SECRET_NAME.search(name):
        return f"{name}={MASK}"
    word = _URL_LOGIN.sub(rf"\1{MASK}@", word)
    word = _KNOWN_TOKEN.sub(MASK, word)
    if mark and _looks_random(value):
        return f"{name}={MASK}"
    return MASK if _looks_random(word) else word


def mask_argv(argv: Iterable[str], *, limit: int = 24) -> tuple[str, ...]:
    """Return a command line without its secrets, each word cleaned, at most ``limit`` words.

    Masked are: values of options or variables whose name speaks of a token, key, password or
    secret (with ``=``, ``:`` or as the next word), logins in URLs and after ``-u``, tokens of
    well-known shapes, and long random-looking words.

    Examples
    --------
    >>> mask_argv(["train.py", "--api-key", "abc", "--hf-token=x", "postgres://u:p@db/x"])
    ('train.py', '--api-key', '****', '--hf-token=****', 'postgres://****@db/x')
    """
    words: list[str] = []
    hide_next = False
    before = ""
    for position, raw in enumerate(argv):
        if position >= limit:
            words.append("...")
            break
        word = _BEARER.sub(rf"\1{MASK}", _SECRET_PAIR.sub(rf"\1{MASK}", clean(raw)))
        if before in _USER_FLAGS and ":" in word:  # as curl takes a login
            word = f"{word.partition(':')[0]}:{MASK}"
        before = word
        if hide_next and not word.startswith("--"):
            words.append(MASK)
            hide_next = False
            continue
        hide_next = word.startswith("-") and "=" not in word and bool(_SECRET_NAME.search(word))
        # One long string without NULs (setproctitle) still holds "--token abc" pairs.
        words.append(" ".join(mask_argv(word.split(" "))) if " " in word else _mask_word(word))
    return tuple(words)


def for_pango(text: str) -> str:
    """Escape for a notification body, which servers may read as Pango markup.

    Examples
    --------
    >>> for_pango("<b>a & b")
    '&lt;b&gt;a &amp; b'
    """
    return clean(text, limit=4096).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def for_html(text: str) -> str:
    """Escape for HTML text and attribute values.

    Examples
    --------
    >>> for_html('<a href="x">')
    '&lt;a href=&quot;x&quot;&gt;'
    """
    import html  # noqa: PLC0415 - one sink of many; status must start quickly

    return html.escape(text, quote=True)


def for_csv(text: str) -> str:
    """Defuse a cell that a spreadsheet would run as a formula.

    Examples
    --------
    >>> for_csv("=HYPERLINK()"), for_csv("python")
    ("'=HYPERLINK()", 'python')
    """
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t"} else text


def cut(text: str, width: int, *, mark: str = "…") -> str:
    """Return text of at most ``width`` characters, marked where it was cut.

    Examples
    --------
    >>> cut("a long name", 6), cut("short", 6)
    ('a lon…', 'short')
    """
    if len(text) <= width:
        return text
    return text[: max(0, width - len(mark))] + mark
