"""Where a serving engine listens, by command lines, and whether its KV cache is idle. Pure.

The process that holds GPU memory is often a child with a rewritten title ("VLLM::EngineCore"); the
port stands on the command line of the parent that it was started by.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis.frameworks.recognition import command_of, is_module, is_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import ServerReading

PORTS: Final[dict[str, int]] = {"Ollama": 11434, "vLLM": 8000, "SGLang": 30000, "llama.cpp": 8080}
"""Engines that can be asked, and the port on which each listens unless it is told otherwise."""

LOOPBACK: Final = "127.0.0.1"
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::", "[::]", "*"})  # noqa: S104 - read, not bound
_SCHEMES: Final = {"http": 80, "https": 443}
_LETTERS: Final = re.compile(r"[A-Za-z0-9.:%_-]{1,255}")
_IPV4: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_BLOB: Final = re.compile(r"/blobs/(sha256-[0-9a-f]{1,12})[0-9a-f]{0,64}$")
_SERVES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "Ollama": (("ollama serve",), ()),
    "vLLM": (("vllm serve",), ("vllm.entrypoints",)),
    "SGLang": (("sglang serve",), ("sglang.launch_server",)),
    "llama.cpp": (("llama-server", "server"), ()),
}


class Launch(NamedTuple):
    """How one process was started."""

    pid: int
    argv: tuple[str, ...]
    """The whole command line, as it is: not to be shown or stored."""
    variables: tuple[tuple[str, str], ...] = ()
    """The few variables of its environment that were asked for, where it may be read."""


VARIABLES: Final = ("OLLAMA_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_HOST")
"""The variables that say where an engine listens."""


class Address(NamedTuple):
    """Where an engine listens."""

    url: str
    """"http://127.0.0.1:8000", without a path."""
    pid: int | None = None
    """The process that listens."""
    model: str | None = None
    """What it was told to serve, for an engine that does not say it when asked."""
    pool_share: float | None = None
    """Share of the device that it was told to take."""


def address(kind: str, chain: Sequence[Launch]) -> Address | None:
    """Return where the engine of a process listens; None when it serves nobody over TCP.

    ``kind`` is a key of :data:`PORTS`; ``chain`` begins with the process that holds GPU memory,
    then come its ancestors, nearest first.

    Examples
    --------
    >>> address("vLLM", [Launch(2, ("VLLM::EngineCore",)),
    ...                  Launch(1, ("python", "/bin/vllm", "serve", "m", "--port", "8001"))]).url
    'http://127.0.0.1:8001'
    >>> address("vLLM", [Launch(2, ("VLLM::EngineCore",)), Launch(1, ("python", "batch.py"))])
    """
    server = next((launch for launch in chain if serves(kind, launch.argv)), None)
    if kind == "Ollama":
        starts = chain if server is None else (server, *chain)
        texts = (dict(start.variables).get("OLLAMA_HOST", "") for start in starts)
        url = ollama_url(next((text for text in texts if text), ""))
        if url is None or not _needs_no_look_up(url):
            return None
        return Address(url, server.pid if server else None)
    if server is None or option(server.argv, "--uds") is not None:
        return None
    said_of = dict(server.variables) if kind == "llama.cpp" else {}
    host = option(server.argv, "--host") or said_of.get("LLAMA_ARG_HOST", "")
    port = option(server.argv, "--port") or said_of.get("LLAMA_ARG_PORT", "")
    scheme = "https" if option(server.argv, "--ssl-keyfile", "--ssl-key-file") else "http"
    url = _url(scheme, host, port or str(PORTS[kind]))
    if url is None or not _needs_no_look_up(url):
        return None
    return Address(url, server.pid, _model(kind, server.argv), _pool_share(kind, server.argv))


def ollama_url(text: str) -> str | None:
    """Return where Ollama listens, as its variable OLLAMA_HOST says it; None for what is no host.

    Forms: host, host:port, :port, scheme://host:port. Without a port http means 80, https 443 and
    neither 11434. A server on every address is asked on the loopback one.

    Examples
    --------
    >>> ollama_url(""), ollama_url("0.0.0.0:9000")
    ('http://127.0.0.1:11434', 'http://127.0.0.1:9000')
    >>> ollama_url("https://gpu-box"), ollama_url("[::]")
    ('https://gpu-box:443', 'http://127.0.0.1:11434')
    """
    text = text.strip().strip("\"'")
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = "http", text
    scheme = scheme.lower()
    if scheme not in _SCHEMES:
        return None
    default = str(_SCHEMES[scheme] if mark else PORTS["Ollama"])
    host, port = _split(rest.partition("/")[0])
    return _url(scheme, host, port or default)


def runner_model(argv: Sequence[str]) -> str | None:
    """Return what an Ollama runner was started for: a name, or the short digest of its file.

    Examples
    --------
    >>> runner_model(["llama-server", "--model", "/m/blobs/sha256-3c168af1dea0a4142999", "-c", "1"])
    'sha256-3c168af1dea0'
    >>> runner_model(["ollama", "runner", "--mlx-engine", "--model", "qwen3:8b-mlx"])
    'qwen3:8b-mlx'
    """
    text = option(argv, "--model") or ""
    blob = _BLOB.search(text)
    if blob is not None:
        return blob.group(1)
    return text if text and "/" not in text else None


def configured(text: str) -> tuple[str, str] | None:
    """Return (kind, URL) of one entry of ``[endpoints] urls``; None when it is not understood.

    Examples
    --------
    >>> configured("vllm=http://127.0.0.1:8001/")
    ('vLLM', 'http://127.0.0.1:8001')
    >>> configured("http://127.0.0.1:8001")
    """
    name, mark, where = text.partition("=")
    kind = next((value for value in PORTS if value.lower() == name.strip().lower()), None)
    scheme, colon, rest = where.strip().partition("://")
    if not mark or kind is None or not colon or scheme.lower() not in _SCHEMES:
        return None
    host, port = _split(rest.partition("/")[0])
    url = _url(scheme.lower(), host, port or str(PORTS[kind]))
    return (kind, url) if url is not None and host else None


def misread(urls: Sequence[str]) -> tuple[str, ...]:
    """Return what is wrong with ``[endpoints] urls``, one sentence for each bad entry.

    Examples
    --------
    >>> misread(["vLLM=http://127.0.0.1:8001"])
    ()
    """
    return tuple(
        f"[endpoints] urls: {text!r} is not understood; write it as "
        f'"vLLM=http://127.0.0.1:8001" (kinds: {", ".join(PORTS)})'
        for text in urls
        if configured(text) is None
    )


def option(argv: Sequence[str], *names: str) -> str | None:
    """Return the value of an option on a command line; None when it is not there.

    Both "--port 80" and "--port=80" are understood, and "_" for "-" inside a name.

    Examples
    --------
    >>> option(["x", "--port=80"], "--port"), option(["x --port 81"], "--port")
    ('80', '81')
    """
    words = words_of(argv)
    for position, word in enumerate(words):
        name, mark, value = word.partition("=")
        if not word.startswith("-") or name.replace("_", "-") not in names:
            continue
        if mark:
            return value
        following = words[position + 1] if position + 1 < len(words) else ""
        return following if not following.startswith("-") else ""
    return None


def serves(kind: str, argv: Sequence[str]) -> bool:
    """Say whether a command line is that of a server of a kind in :data:`PORTS`."""
    programs, modules = _SERVES[kind]
    command = command_of(argv)
    return is_program(programs, command) or is_module(modules, command.module)


def words_of(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line that may be one long string (a rewritten title)."""
    words = [word for word in argv if word]
    return words[0].split() if len(words) == 1 and " " in words[0] else words


def _split(place: str) -> tuple[str, str]:
    """Return (host, port) of "host:port", "[::1]:port", "::1" or ":port"."""
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        return host, rest.removeprefix(":")
    if place.count(":") > 1:
        return place, ""
    host, _, port = place.partition(":")
    return host, port


def _url(scheme: str, host: str, port: str) -> str | None:
    host = LOOPBACK if host.strip() in _EVERYWHERE else host.strip()
    if not _LETTERS.fullmatch(host) or not (port.isascii() and port.isdigit() and len(port) < 6):
        return None
    number = int(port)
    if not 0 < number < 65536:
        return None
    return f"{scheme}://[{host}]:{number}" if ":" in host else f"{scheme}://{host}:{number}"


def _needs_no_look_up(url: str) -> bool:
    """Say whether a host is a number or this machine: anybody may start a program with any name."""
    host = url.partition("://")[2].rpartition(":")[0].strip("[]")
    return host == "localhost" or ":" in host or bool(_IPV4.fullmatch(host))


def _model(kind: str, argv: Sequence[str]) -> str | None:
    if kind != "llama.cpp":
        return None  # the others say it themselves
    text = option(argv, "--alias", "-a") or option(argv, "--model", "-m") or option(argv, "-hf")
    return text.rsplit("/", 1)[-1] if text else None


def _pool_share(kind: str, argv: Sequence[str]) -> float | None:
    if kind != "SGLang":
        return None
    try:
        share = float(option(argv, "--mem-fraction-static") or "")
    except ValueError:
        return None
    return share if 0.0 < share <= 1.0 else None


# What the answers of a serving engine amount to, over time.

COUNTS_LIVE: Final = frozenset({"vLLM", "SGLang"})
"""Engines whose share of KV in use leaves out what a prefix cache could give away at once."""
LEAST_S: Final = 600.0
"""Idle for less than this proves nothing: with split prefill and decode, blocks are held for
minutes until the other side has fetched them."""
LEAST_SHARE: Final = 0.01
LEAST_READINGS: Final = 4
_FALLING: Final = 0.9


class IdleKv(NamedTuple):
    """KV cache that is in use although nobody uses it."""

    since_s: float
    """Instant of the first answer of the idle time, epoch seconds."""
    for_s: float
    share: float
    """Least share of the KV cache in use during it, 0-1."""
    readings: int


def idle_kv(readings: Sequence[ServerReading], *, least_s: float = LEAST_S) -> IdleKv | None:
    """Return KV cache that stays in use while no request runs or waits; None when none does.

    Blocks of a request are given back when it ends, so that an idle engine uses (almost) nothing.
    A prefix cache that can be evicted at once does not count as used in the answers of vLLM and
    SGLang; llama.cpp keeps the last prompt of each slot on purpose, so that it is never judged.

    ``readings`` are of one server, oldest first; idle for less than ``least_s`` proves nothing.

    Notes
    -----
    A server that publishes its figures only while it works may go on showing the last ones: what
    is said of it should ask for one more request before anything is believed.
    """
    if not readings or readings[-1].kind not in COUNTS_LIVE:
        return None
    idle: list[ServerReading] = []
    shares: list[float] = []
    for reading in reversed(readings):
        if (
            not reading.ok
            or reading.running != 0
            or reading.waiting != 0
            or reading.kv_share is None
        ):
            break
        idle.append(reading)
        shares.append(reading.kv_share)
    if len(idle) < LEAST_READINGS:
        return None
    newest, for_s = shares[0], idle[0].at_s - idle[-1].at_s
    half = shares[len(shares) // 2]
    if for_s < least_s or min(shares) < LEAST_SHARE or newest < _FALLING * half:
        return None
    return IdleKv(idle[-1].at_s, for_s, min(shares), len(idle))


def only_model(reading: ServerReading) -> str | None:
    """Return the model that a server certainly has on the GPU: the only one that is loaded."""
    if not reading.ok or reading.models is None or len(reading.models) != 1:
        return None
    return reading.models[0].name or None
