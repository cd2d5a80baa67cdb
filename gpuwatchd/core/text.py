"""The one choke point that makes foreign text safe, and one escaper per sink.

Any user can name a process ``ESC[2J <b>``; a command line can hold a token. ``clean`` is applied
where a source or the host builds its record, so that nothing unclean exists further up.
"""

from __future__ import annotations

import re
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_CHARS = 256
MASK = "****"


class _Late:
    """A pattern that is not compiled yet: ``status`` masks nothing, and is quick."""

    def __init__(self, pattern: str, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._source), name)
        setattr(self, name, value)  # the next time it is found without coming here
        return value


def late(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled when it is first used."""
    return cast("re.Pattern[str]", _Late(pattern, flags))


_ESCAPES = late(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])?|\x9b[0-?]*[ -/]*[@-~]"
)
_BREAKS = late(r"[\t\n\v\f\r\x85\u2028\u2029]+")
# Controls, what is invisible or reorders what stands beside it, and halves of characters. Variation
# selectors and fillers stay: words of some languages are written with them.
_FORBIDDEN = late(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]"
)

_TELLING = (
    r"(?:token|passw(?:or)?d|passphrase|secret|credential|key|auth|signature"
    r"|(?<![a-z])pass(?![a-z])|pwd|cookie)"
)
_SECRET_NAME = late(_TELLING, re.IGNORECASE)
# What counts tokens or makes them is no secret, and hiding it would hide what a program does.
_NO_SECRET = late(
    r"tokeniz\w*|(?:max|min|num|new|total|batched|input|output|prompt|context)[-_a-z]*tokens?\b"
    r"|(?:stop|pad|eos|bos|unk|sep|mask|special|image)[-_]tokens?\b|tokens?[-_]ids?\b"
    r"|key(?:points?|frames?|board|words?)|key[-_](?:dims?|value[-_]heads?|padding)|authors?\b",
    re.IGNORECASE,
)
_BARE_NAME = late(r"(?:token|passw(?:or)?d|passphrase|secret|api[-_]?key)", re.IGNORECASE)
_ASSIGNED = late(r"(-{0,2}[\w.+-]+)=(.*)", re.DOTALL)
_PAIR_NAME = late(rf"{_TELLING}[\w.-]{{0,64}}\\?[\"']?\s*[:=]\s*", re.IGNORECASE)
_NAME_BEFORE = late(r"[\w.-]*\Z")
_PAIR_VALUE = late(r"\\\"[^\"]*\"?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|\S+")
_QUERY_VALUE = late(r"[^\s&#]+")
"""Name and value within something longer: an object, a query, a header, a connection string."""
_HEADER = late(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie)([\"']?\s*[:=]\s*[\"']?)[^\"']+", re.IGNORECASE
)
_BEARER = late(r"\b((?:bearer|basic)\s+)[^\s\"']+", re.IGNORECASE)
_USER_FLAG = late(r"(-u|--user|--proxy-user)=(.*)", re.DOTALL)
_USER_FLAGS = frozenset({"-u", "--user", "--proxy-user"})
# The last @ ends the login, which may hold one; a port with a path after it is no login.
_URL_LOGIN = late(
    r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)(?:[^/\s]*@|[^\s:/@]*:(?!\d+/)\S*@)", re.IGNORECASE
)
_BARE_LOGIN = late(r"(?<![\w.+-])([\w.+-]+:)[^\s/]+(@(?!sha256:)[\w.-]+(?:[:/].*)?)")
_KNOWN_TOKEN = late(
    r"(?<![A-Za-z0-9])(?:(?:hf|gsk|npm|r8|dckr_pat|pypi|nvapi)[_-][\w-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk[-_][\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|A(?:KI|SI)A[0-9A-Z]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
    r"|eyJ[\w-]{10,}\.[\w-]+(?:\.[\w-]*)?)"
)
_PLAIN = late(r"[A-Za-z0-9_./+-]*")
_SHORT_CHARS = 14
"""No token is as short as this."""
_LONG_WORD = late(r"[A-Za-z0-9_+=-]{32,}")
_BASE64 = late(r"[A-Za-z0-9+/]{32,}={0,2}")
# A string holds words: what is in quotes stays one.
_WORDS = late(r"(?:[^\s\"']|\"[^\"]*\"?|'[^']*'?)+")
_MAX_DEPTH = 4
_MASKED_CHARS = 4096
"""Of a word so much is looked at: what is cut first may have lost the shape of a secret."""


def clean(text: str | bytes, *, limit: int = MAX_CHARS) -> str:
    r"""Return text that is safe to store, print and send.

    Escape sequences, control characters, invisible format characters (bidi controls, tags,
    joiners) and lone surrogates go; a line break becomes a space; the rest is cut at ``limit``
    characters.

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
    if any(mark in word for mark in ".:"):
        return False
    if "/" in word or "+" in word:
        # A path of that length has words in it; in random letters every other is of another kind.
        kinds = ["a" if c.islower() else "A" if c.isupper() else "0" for c in word]
        changes = sum(text != other for text, other in pairwise(kinds))
        return bool(_BASE64.fullmatch(word)) and changes > 0.45 * len(word)
    if not _LONG_WORD.fullmatch(word):
        return False
    count = (
        any(c.islower() for c in word)
        + any(c.isupper() for c in word)
        + any(c.isdigit() for c in word)
    )
    hexadecimal = all(c in "0123456789abcdefABCDEF" for c in word)
    return hexadecimal or count == 3


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(_NO_SECRET.sub("", name)) is not None


def _mask_pairs(text: str) -> str:
    parts: list[str] = []
    begin = 0
    while match := _PAIR_NAME.search(text, begin):
        parts.append(text[begin : match.end()])
        begin = match.end()
        name = _NAME_BEFORE.search(text, max(0, match.start() - 32), match.start())
        start = name.start() if name else match.start()
        in_query = text[start - 1 : start] in {"?", "&"}
        value = (_QUERY_VALUE if in_query else _PAIR_VALUE).match(text, begin)
        if value and _is_secret(text[start : match.end()]):
            parts.append(MASK)
            begin = value.end()
    return "".join((*parts, text[begin:]))


def _mask_word(word: str) -> str:
    """Mask what is in one word, which has no blanks outside quotes."""
    if _PLAIN.fullmatch(word):
        word = _KNOWN_TOKEN.sub(MASK, word) if len(word) > _SHORT_CHARS else word
        return MASK if len(word) > _SHORT_CHARS and _looks_random(word) else word
    assigned = _ASSIGNED.fullmatch(word)
    name, value = (assigned[1], assigned[2]) if assigned else ("", word)
    if assigned and (_is_secret(name) or _looks_random(value)):
        return f"{name}={MASK}"
    if login := _USER_FLAG.fullmatch(word):
        return f"{login[1]}={login[2].partition(':')[0]}:{MASK}" if ":" in login[2] else word
    word = _URL_LOGIN.sub(rf"\1{MASK}@", word)
    word = _mask_pairs(_HEADER.sub(rf"\1\2{MASK}", word))
    word = _KNOWN_TOKEN.sub(MASK, _BARE_LOGIN.sub(rf"\1{MASK}\2", word))
    return MASK if _looks_random(word) else word


def _mask_string(text: str, depth: int) -> str:
    """Mask a string of several words: code, a shell's command, a title, an object."""
    assigned = _ASSIGNED.match(text)
    if assigned and _is_secret(assigned[1]):
        return f"{assigned[1]}={MASK}"
    text = _BEARER.sub(rf"\1{MASK}", _HEADER.sub(rf"\1\2{MASK}", text))
    words = _WORDS.findall(_mask_pairs(text))
    if depth >= _MAX_DEPTH:
        return MASK
    return " ".join(_mask_words(words, depth + 1))


def _mask_words(words: Iterable[str], depth: int) -> Iterator[str]:
    before = ""
    for word in words:
        hide = _hides_next(before) and not word.startswith("--")
        login = before in _USER_FLAGS and ":" in word
        before = "" if hide else word
        if hide:
            yield MASK
        elif login:  # as curl takes it
            yield f"{word.partition(':')[0]}:{MASK}"
        elif " " not in word:
            yield _mask_word(word)
        elif word[0] in "\"'" and word[-1] == word[0]:
            yield f"{word[0]}{_mask_string(word[1:-1], depth)}{word[0]}"
        else:
            yield _mask_string(word, depth)


def _hides_next(word: str) -> bool:
    if word.startswith("-"):
        return "=" not in word and _is_secret(word)
    return _BARE_NAME.fullmatch(word) is not None


def mask_argv(argv: Iterable[str], *, limit: int = 24) -> tuple[str, ...]:
    """Return a command line without its secrets, each word cleaned, at most ``limit`` words.

    Masked are: values of options or variables whose name speaks of a token, key, password, secret
    or signature (with ``=``, ``:`` or as the next word, in an object or a query too), logins in
    URLs, connection strings and after ``-u``, headers that authorize, tokens of well-known shapes,
    and long random-looking words. What follows a ``-p`` may be a port as well as a password, and
    a secret that looks like any word and stands alone cannot be told from one: both stay.

    Examples
    --------
    >>> mask_argv(["train.py", "--api-key", "abc", "--hf-token=x", "postgres://u:p@db/x"])
    ('train.py', '--api-key', '****', '--hf-token=****', 'postgres://****@db/x')
    >>> mask_argv(["vllm", "--tokenizer", "gpt2", "--max-tokens=8", "--env=HF_TOKEN=x"])
    ('vllm', '--tokenizer', 'gpt2', '--max-tokens=8', '--env=HF_TOKEN=****')
    """
    words = [clean(raw, limit=_MASKED_CHARS) for raw in islice(argv, limit + 1)]
    masked = [word[:MAX_CHARS] for word in _mask_words(words[:limit], 0)]
    return (*masked, "...") if len(words) > limit else tuple(masked)


def mask_title(title: str) -> str:
    """Return a name that a program gave itself, cleaned, without secrets.

    Examples
    --------
    >>> mask_title("serve --api-key abc --port 80"), mask_title("tmux: server ")
    ('serve --api-key **** --port 80', 'tmux: server ')
    """
    masked = mask_argv([title])[0]
    return masked if MASK in masked else clean(title)


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


def for_chat(text: str) -> str:
    """Return text that calls nobody and hides no link in a chat: no @everyone, no <!channel>.

    An invisible space breaks the marks; what is read stays the same.

    Examples
    --------
    >>> for_chat("@everyone <!here> [x](http://y)").replace(chr(0x200B), ".")
    '@.everyone <.!here> [x].(http://y)'
    """
    for mark in ("@", "](", "<!", "<@", "<#"):
        text = text.replace(mark, f"{mark[0]}\u200b{mark[1:]}")
    return text


def guess(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return which name was meant, as the end of a message; "" where none is near."""
    import difflib  # noqa: PLC0415 - only for mistakes; status must start quickly

    near = difflib.get_close_matches(word, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


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


def fit(text: str, width: int) -> str:
    r"""Return text that is safe, of at most ``width`` characters: :func:`clean`, then :func:`cut`.

    Examples
    --------
    >>> fit(" a long\x1b[2J name ", 6)
    'a lon…'
    """
    return cut(clean(text, limit=4 * width).strip(), width)


def cut_words(text: str, width: int, *, mark: str = "…") -> str:
    """Return text of at most ``width`` characters, cut after a whole word where it must be.

    Examples
    --------
    >>> cut_words("no driver is here", 12), cut_words("short", 6), cut_words("unbreakable", 6)
    ('no driver …', 'short', 'unbre…')
    """
    if len(text) <= width:
        return text
    words, space, _ = text[: max(0, width - len(mark))].rpartition(" ")
    return f"{words} {mark}" if space else cut(text, width, mark=mark)


METRIC_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
"""One label of a line for Prometheus: its name, and its value as it is escaped."""
_LABEL_ESCAPE = re.compile(r"\\(.)")


def unescaped(text: str) -> str:
    r"""Return the value of a label as it was before it was escaped, fit to be shown.

    Examples
    --------
    >>> unescaped(r'C:\\new \"big\"')
    'C:\\new "big"'
    """
    return clean(_LABEL_ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text))
