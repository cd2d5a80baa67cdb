"""Real servers of metrics on loopback, filled with the past by remote write."""

from __future__ import annotations

import contextlib
import struct
import urllib.request
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tests.children import Child
from tests.real.mailserver import free_port
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray

BINARIES: Final = {"prometheus": "prometheus", "victoriametrics": "victoria-metrics"}
SLICE_STEPS: Final = 30
"""Prometheus takes nothing that is an hour older than the newest."""
_SERIES_EACH: Final = 4000
_SAMPLE: Final = np.dtype(
    [("head", "V3"), ("value", "<f8"), ("tag", "u1"), ("at", "u1", (6,))], align=False
)
"""A sample of remote write: value, and instant in ms, which takes 6 bytes from 2004 to 2109."""


class Server(NamedTuple):
    """One that answers."""

    backend: str
    url: str
    pid: int

    @property
    def write_url(self) -> str:
        """Where samples are sent."""
        return f"{self.url}/api/v1/write"


@contextlib.contextmanager
def running(backend: str, folder: Path) -> Iterator[Server]:
    """Run one without any data, its files in a folder, until the block is left."""
    port, log = free_port(), folder / f"{backend}.log"
    url = f"http://127.0.0.1:{port}"
    if backend == "prometheus":
        (folder / "prometheus.yml").write_text("scrape_configs: []\n")
        words = [
            f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/prometheus",
            f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver",
        ]  # fmt: skip
    else:
        words = [
            f"-storageDataPath={folder}/victoriametrics", f"-httpListenAddr=127.0.0.1:{port}",
        ]  # fmt: skip
    with log.open("wb") as file, Child([BINARIES[backend], *words], stdout=file, stderr=file) as c:
        assert until(lambda: healthy(url)), log.read_text(errors="replace")[-2000:]
        yield Server(backend, url, c.pid)


def healthy(url: str) -> bool:
    """Say whether a server of metrics is ready."""
    try:
        # VictoriaMetrics has this address too.
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def fill(
    server: Server,
    labels: Sequence[Mapping[str, str]],
    at_s: FloatArray,
    values: FloatArray,
) -> None:
    """Write the past of many series (S, n) at instants (n,), in order of time; NaN is no sample."""
    heads = [b"".join(_label(name, one[name]) for name in sorted(one)) for one in labels]
    for first in range(0, at_s.size, SLICE_STEPS):
        span = slice(first, first + SLICE_STEPS)
        for row in range(0, len(heads), _SERIES_EACH):
            rows = slice(row, row + _SERIES_EACH)
            _send(server, heads[rows], at_s[span], values[rows, span])
    if server.backend == "victoriametrics":
        # Else it is seen seconds later.
        _post(f"{server.url}/internal/force_flush", b"")


def _send(server: Server, heads: Sequence[bytes], at_s: FloatArray, values: FloatArray) -> None:
    ms = np.rint(at_s * 1000).astype(np.int64)
    digits = (ms[:, None] >> (7 * np.arange(6))) & 0x7F
    digits[:, :5] |= 0x80
    samples = np.zeros(values.shape, dtype=_SAMPLE)
    samples["head"] = np.void(b"\x12\x10\x09")
    samples["value"], samples["tag"], samples["at"] = values, 0x10, digits
    there = ~np.isnan(values)
    parts = []
    for head, row, kept in zip(heads, samples, there, strict=True):
        if kept.any():
            body = head + row[kept].tobytes()
            parts.append(b"\x0a" + _varint(len(body)) + body)
    body = b"".join(parts)
    if not body:
        return
    # Snappy of a single literal: packing is not what is measured.
    packed = _varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body
    _post(server.write_url, packed)


def _post(url: str, body: bytes) -> None:
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120):
        pass


def _label(name: str, value: str) -> bytes:
    parts = b"".join(
        tag + _varint(len(word)) + word.encode()
        for tag, word in ((b"\x0a", name), (b"\x12", value))
    )
    return b"\x0a" + _varint(len(parts)) + parts


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
