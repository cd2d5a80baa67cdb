"""Questions to a Prometheus: whole answers or none, bounded in size and time, never redirected."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import zlib
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
import numpy as np

from gpuwatchd import __version__
from gpuwatchd.core import decoding
from gpuwatchd.core.errors import ConfigError, MetricsServerError
from gpuwatchd.core.text import clean
from gpuwatchd.fleet.config import is_local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.fleet.config import Fleet

_LONGEST_WAIT_S: Final = 300.0
_PART_BYTES: Final = 1 << 16
_WHOLE: Final = {"partial_response": "false", "dedup": "true", "max_source_resolution": "0s"}
"""For Thanos: all of the answer, and raw values."""
_NOW: Final = {"nocache": "1", "latency_offset": "1s"}
"""For VictoriaMetrics: the values of the last half minute too, not those before it in their place.

The first is for questions about an instant. The second is for steps below a minute, and not known
to all versions: there the last half minute of a first round repeats a value."""
_FORMS: Final[dict[str, dict[str, str]]] = {
    "prometheus": {},
    "mimir": {},
    "thanos": _WHOLE,
    "victoriametrics": _NOW,
    "": {**_WHOLE, **_NOW},
}
"""What is asked beside the question. Each ignores what is for others: one that is not known gets
all of it."""

Labels = dict[str, str]
Point = tuple[float, str]
_AT, _WORD = itemgetter(0), itemgetter(1)


class _Vector(msgspec.Struct, gc=False):
    metric: msgspec.Raw
    value: Point


class _Matrix(msgspec.Struct, gc=False):
    metric: Labels
    values: list[Point]


Kind = TypeVar("Kind")
Row = TypeVar("Row", _Vector, _Matrix)


class _Data(msgspec.Struct, Generic[Row]):
    result: list[Row]


class _Answer(msgspec.Struct, Generic[Row]):
    status: str
    data: _Data[Row] | None = None
    warnings: list[str] = []


class _Refusal(msgspec.Struct):
    error: str = ""


class _Build(msgspec.Struct):
    application: str = ""
    version: str = ""
    revision: str = ""


class _BuildInfo(msgspec.Struct):
    data: _Build


class RangeSeries(NamedTuple):
    """One series over time."""

    labels: Labels
    at_s: FloatArray
    values: FloatArray


class Client:
    """One server. Each question is a connection of its own, so that threads may ask at once."""

    def __init__(self, fleet: Fleet) -> None:
        section = fleet.section
        split = urlsplit(section.url)
        self._host, self._port = split.hostname or "", split.port
        self._prefix = split.path.rstrip("/")
        self._headers = fleet.headers
        self._limit_bytes, self._timeout_s = int(section.budget.answer), section.budget.timeout
        self._gzip = not is_local(section.url)
        """On the same machine packing costs more than sending."""
        self._context = _context(section.ca_file) if split.scheme == "https" else None
        self._reading = threading.Lock()
        """Of long answers: decoded they are several times as large, and two are read no faster."""
        self.backend: str = "" if section.backend == "auto" else section.backend
        """What answers; "" where that is not known."""

    def identify(self) -> None:
        """Ask what answers, unless that is known; a server that does not say is none the worse."""
        if not self.backend:
            with contextlib.suppress(MetricsServerError):
                content = self._ask("/api/v1/status/buildinfo", None)
                self.backend = _named(_decoded(content, _BuildInfo).data)

    def query(self, query: str, at_s: float) -> list[tuple[Labels, float]]:
        """Return the value of each series at an instant; what is no number is NaN.

        Raises
        ------
        MetricsServerError
            Unless there is a whole answer.
        """
        texts, values = self.query_texts(query, at_s)
        return list(zip(map(read_labels, texts), values.tolist(), strict=True))

    def query_texts(self, query: str, at_s: float) -> tuple[list[bytes], FloatArray]:
        """Return labels, as the server writes them, and values at an instant.

        A server writes those of a series the same each time: they need not be read again.

        Raises
        ------
        MetricsServerError
            Unless there is a whole answer.
        """
        form = {**_FORMS[self.backend], "query": query, "time": f"{at_s:.3f}"}
        rows = _rows(self._ask("/api/v1/query", form), _Answer[_Vector])
        return [bytes(row.metric) for row in rows], _numbers([row.value for row in rows])

    def query_range(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> list[RangeSeries]:
        """Return the values of each series from one instant to another, both included.

        Raises
        ------
        MetricsServerError
            Unless there is a whole answer.
        """
        span = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        content = self._ask("/api/v1/query_range", {**_FORMS[self.backend], "query": query, **span})
        with self._reading:
            return [
                RangeSeries(
                    row.metric,
                    np.fromiter(map(_AT, row.values), dtype=np.float64, count=len(row.values)),
                    _numbers(row.values),
                )
                for row in _rows(content, _Answer[_Matrix])
            ]

    def _ask(self, path: str, form: Mapping[str, str] | None) -> bytes:
        late = threading.Event()
        try:
            response, content = self._exchange(path, form, late)
        except ssl.SSLCertVerificationError:
            hint = "ca-file names the certificates to trust"
            raise self._error("its certificate is not to be trusted", hint=hint) from None
        except (OSError, HTTPException, ValueError, MetricsServerError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise self._error(f"no answer within {self._timeout_s:g} s") from None
            if isinstance(error, MetricsServerError):
                raise
            why = error.strerror if isinstance(error, OSError) and error.strerror else ""
            raise self._error(clean(why, limit=120) or type(error).__name__) from None
        if response.status != 200:
            raise self._refused(response, content)
        return content

    def _exchange(
        self, path: str, form: Mapping[str, str] | None, late: threading.Event
    ) -> tuple[HTTPResponse, bytes]:
        headers = {
            "User-Agent": f"gpuwatchd/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "gzip" if self._gzip else "identity",
            "Connection": "close",
            **self._headers,
        }
        body = None
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode(form).encode("ascii")
        connection = (
            HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            if self._context is None
            else HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._context
            )
        )
        timer = None
        try:
            connection.connect()
            timer = threading.Timer(self._timeout_s, _cut, [connection.sock, late])
            timer.daemon = True
            timer.start()
            method = "GET" if body is None else "POST"
            connection.request(method, self._prefix + path, body, headers)
            with contextlib.closing(connection.getresponse()) as response:
                return response, self._body(response)
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()

    def _body(self, response: HTTPResponse) -> bytes:
        """Return what was sent, unpacked; nothing beyond the limit is kept."""
        packed = response.headers.get("Content-Encoding", "").strip().lower() == "gzip"
        unpack = zlib.decompressobj(31) if packed else None
        parts: list[bytes] = []
        length = 0
        while part := response.read(_PART_BYTES):
            if unpack is not None:
                try:
                    part = unpack.decompress(part, self._limit_bytes - length + 1)
                except zlib.error:
                    raise self._error("its answer is damaged") from None
            parts.append(part)
            length += len(part)
            if length > self._limit_bytes:
                raise self._error(f"its answer is larger than {self._limit_bytes >> 10} KiB")
        if response.length or (unpack is not None and length and not unpack.eof):
            raise self._error("its answer was cut off")
        return b"".join(parts)

    def _refused(self, response: HTTPResponse, content: bytes) -> MetricsServerError:
        status = response.status
        if 300 <= status < 400:
            hint = "url must be the address that it redirects to"
            return self._error("it redirects, which is not followed", status=status, hint=hint)
        if status in {401, 403}:
            hint = "token-file or headers-file must hold what it asks for"
            return self._error(f"it refuses us ({status})", status=status, hint=hint)
        why = ""
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            why = clean(decoding.decode(content, _Refusal).error, limit=200)
        for secret in self._headers.values():
            # A proxy may print what it was sent.
            for word in (secret, *secret.split()):
                why = why.replace(word, "***")
        wait = response.headers.get("Retry-After", "")
        wait_s = min(float(wait), _LONGEST_WAIT_S) if wait.isascii() and wait.isdigit() else None
        return self._error(f"it answers {status} {why}".rstrip(), status=status, wait_s=wait_s)

    def _error(
        self, why: str, *, status: int | None = None, wait_s: float | None = None, hint: str = ""
    ) -> MetricsServerError:
        where = clean(self._host, limit=120)
        return MetricsServerError(f"{where}: {why}", status=status, wait_s=wait_s, hint=hint)


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        why = error.strerror or "holds no certificate"
        raise ConfigError(ca_file, "[fleet] ca-file", why) from None


def _cut(sock: socket.socket, late: threading.Event) -> None:
    """End a conversation: a server that sends a byte now and then passes every other limit."""
    late.set()
    with contextlib.suppress(OSError):
        # Of the plain socket: that of TLS is in use by the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _named(build: _Build) -> str:
    """Return which server is built so: only Mimir has a name, and VictoriaMetrics no revision."""
    if "mimir" in build.application.lower():
        return "mimir"
    if not build.revision:
        return "victoriametrics"
    return "thanos" if build.version.lstrip("v").startswith("0.") else "prometheus"


def read_labels(text: bytes) -> Labels:
    """Return labels of :meth:`Client.query_texts`.

    Raises
    ------
    MetricsServerError
        When they are none.
    """
    return _decoded(text, Labels)


def _decoded(content: bytes, kind: type[Kind]) -> Kind:
    try:
        return decoding.decode(content, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MetricsServerError(
            "the server's answer is none of a Prometheus, or cut off"
        ) from None


def _rows(content: bytes, kind: type[_Answer[Row]]) -> list[Row]:
    answer = _decoded(content, kind)
    if answer.status != "success" or answer.data is None:
        raise MetricsServerError("the server's answer is no success")
    if answer.warnings:
        why = clean(answer.warnings[0], limit=200)
        raise MetricsServerError(f"the server's answer may not be whole: {why}")
    return answer.data.result


def _numbers(points: list[Point]) -> FloatArray:
    """Return the values of some points; NaN for a word that is no number."""
    try:
        words = map(float, map(_WORD, points))
        return np.fromiter(words, dtype=np.float64, count=len(points))
    except ValueError:
        return np.array([_number(word) for _, word in points], dtype=np.float64)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")
