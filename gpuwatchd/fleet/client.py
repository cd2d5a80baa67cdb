"""Questions to a Prometheus: whole answers or none."""

from __future__ import annotations

import contextlib
import threading
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
import numpy as np

from gpuwatchd.core import decoding
from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.fleet.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.fleet.config import Fleet

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
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_ELSEWHERE: Final = (
    "url needs the prefix that the server has, such as /prometheus, and ends before /api/v1"
)

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
    """One server; threads may ask at once."""

    def __init__(self, fleet: Fleet) -> None:
        section = fleet.section
        self._server = Connection(
            section.url,
            fleet.headers,
            ca_file=section.ca_file,
            limit_bytes=int(section.budget.answer),
            timeout_s=section.budget.timeout,
        )
        self._reading = threading.Lock()
        """Of long answers: decoded they are several times as large, and two are read no faster."""
        self.backend: str = "" if section.backend == "auto" else section.backend
        """What answers; "" where that is not known."""

    def identify(self) -> None:
        """Ask what answers, unless that is known; a server that does not say is none the worse."""
        if not self.backend:
            with contextlib.suppress(MetricsServerError):
                content = self._ask("/api/v1/status/buildinfo")
                self.backend = _named(self._read(content, _BuildInfo).data)

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
        rows = self._rows(self._read(self._ask("/api/v1/query", form), _Answer[_Vector]))
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
                for row in self._rows(self._read(content, _Answer[_Matrix]))
            ]

    def _ask(self, path: str, form: Mapping[str, str] | None = None) -> bytes:
        body, kind = None, ""
        if form is not None:
            body, kind = urlencode(form).encode("ascii"), "application/x-www-form-urlencoded"
        reply = self._server.request(path, body, kind)
        if reply.status != 200:
            why = ""
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                why = decoding.decode(reply.content, _Refusal).error
            # What is no Prometheus, or is one at another path, has no reason in its form.
            hint = _ELSEWHERE if reply.status in {400, 404, 405} and not why else ""
            raise self._server.refused(reply, why, "token-file or headers-file", hint)
        return reply.content

    def _rows(self, answer: _Answer[Row]) -> list[Row]:
        if answer.status != "success" or answer.data is None:
            raise MetricsServerError("the server's answer is no success")
        if answer.warnings:
            why = self._server.shown(answer.warnings[0])
            raise MetricsServerError(f"the server's answer may not be whole: {why}")
        return answer.data.result

    def _read(self, content: bytes, kind: type[Kind]) -> Kind:
        try:
            return decoding.decode(content, kind)
        except _UNREADABLE:
            why = "its answer is none of a Prometheus, or cut off"
            hint = "" if content.lstrip().startswith(b"{") else _ELSEWHERE
            raise self._server.error(why, hint=hint) from None


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
    try:
        return decoding.decode(text, Labels)
    except _UNREADABLE:
        raise MetricsServerError("the server's answer has labels that are no text") from None


def _numbers(points: list[Point]) -> FloatArray:
    """Return the values of some points; NaN for a word that is no number."""
    try:
        return np.fromiter(map(float, map(_WORD, points)), dtype=np.float64, count=len(points))
    except ValueError:
        return np.array([_number(word) for _, word in points], dtype=np.float64)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")
