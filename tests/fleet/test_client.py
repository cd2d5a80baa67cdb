"""A whole answer or none, within bounds; secrets stay where they are."""

from __future__ import annotations

import gzip
import ssl
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from gpuwatchd.core.config import Seconds, Size
from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.daemon.main import main
from gpuwatchd.fleet.client import Client, read_labels
from tests.fleet.fake import Reply, fleet, serve
from tests.real.mailserver import certificates

if TYPE_CHECKING:
    from pathlib import Path


def body(*values: str, **more: object) -> bytes:
    result = [{"metric": {"UUID": f"GPU-{k}"}, "value": [60.0, v]} for k, v in enumerate(values)]
    data = {"resultType": "vector", "result": result}
    return msgspec.json.encode({"status": "success", "data": data, **more})


def refused(reply: Reply, **budget: Any) -> MetricsServerError:
    with serve(reply) as server, pytest.raises(MetricsServerError) as caught:
        Client(fleet(server.port, **budget)).query("up", 60.0)
    assert len(server.asked) == 1
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"
    return caught.value


def test_values_and_those_that_are_none() -> None:
    with serve(Reply(body("1024", "NaN", "+Inf", "soon"))) as server:
        found = Client(fleet(server.port)).query("up", 60.0)
    assert [labels["UUID"] for labels, _ in found] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    np.testing.assert_array_equal([value for _, value in found], [1024, np.nan, np.inf, np.nan])
    asked = server.asked[0]
    # On the same machine nothing is packed.
    assert (asked["Accept-Encoding"], asked["Authorization"]) == ("identity", "Bearer s3cret")


def test_labels_are_read_from_their_text() -> None:
    with serve(Reply(body("1024", "soon"))) as server:
        client = Client(fleet(server.port))
        texts, values = client.query_texts("up", 60.0)
        assert [read_labels(text) for text in texts] == [{"UUID": "GPU-0"}, {"UUID": "GPU-1"}]
        np.testing.assert_array_equal(values, [1024, np.nan])
        server.reply = Reply(body("1").replace(b'"GPU-0"', b"5"))
        with pytest.raises(MetricsServerError):
            read_labels(client.query_texts("up", 60.0)[0][0])


def test_what_is_packed_is_unpacked_within_the_same_limit() -> None:
    packed = (("Content-Encoding", "gzip"),)
    with serve(Reply(gzip.compress(body("1")), headers=packed)) as server:
        assert len(Client(fleet(server.port)).query("up", 60.0)) == 1
    bomb = gzip.compress(b" " * (64 << 20))
    assert refused(Reply(bomb, headers=packed), answer=Size(1 << 20)).status is None
    assert refused(Reply(gzip.compress(body("1"))[:-9], headers=packed)).status is None
    assert refused(Reply(b"no gzip", headers=packed)).status is None


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body("1"), length=1000),
        Reply(body("1")[:-1]),
        Reply(b"<html>"),
        Reply(b"[" * 100_000),
        Reply(b'{"status": "success", "data": {"result": [{"metric": {}}]}}'),
        Reply(msgspec.json.encode({"status": "error", "error": "x"})),
        Reply(body("1", warnings=["one store did not answer"])),
        Reply(body("1", warnings=["you sent Bearer s3cret to a store"])),
        Reply(b" " * 2_000_000),
    ],
)
def test_half_an_answer_is_none(reply: Reply) -> None:
    error = refused(reply, answer=Size(1 << 20))
    assert (error.status, error.busy, error.denied) == (None, True, False)


@pytest.mark.parametrize(
    ("reply", "elsewhere"),
    [
        (Reply(b"<html>"), True),
        (Reply(b""), True),
        (Reply(b"<html>", 404), True),
        (Reply(b"unsupported path requested", 400), True),
        (Reply(body("1")[:-1]), False),
        (Reply(b'{"status": "error", "error": "parse error"}', 400), False),
        (Reply(b"<html>", 503), False),
    ],
)
def test_what_is_no_prometheus_is_named_and_may_be_at_another_path(
    reply: Reply, elsewhere: bool
) -> None:
    error = refused(reply)
    assert error.message.startswith("127.0.0.1:")
    assert ("prefix" in error.hint) is elsewhere


@pytest.mark.parametrize(
    ("status", "busy", "denied"),
    [
        (401, False, True), (403, False, True), (400, False, False), (404, False, False),
        (422, True, False), (429, True, False), (500, True, False), (503, True, False),
    ],
)  # fmt: skip
def test_what_a_refusal_comes_to(status: int, busy: bool, denied: bool) -> None:
    words = msgspec.json.encode({"status": "error", "error": "you sent Bearer s3cret to us"})
    error = refused(Reply(words, status, headers=(("Retry-After", "7"),)))
    assert (error.status, error.busy, error.denied) == (status, busy, denied)
    assert error.wait_s == (None if denied else 7.0)


def test_a_redirect_is_not_followed() -> None:
    with serve(Reply(body("1"))) as other:
        to = f"http://127.0.0.1:{other.port}/api/v1/query"
        assert refused(Reply(b"", 307, headers=(("Location", to),))).status == 307
    assert other.asked == []


def test_a_server_that_sends_a_byte_now_and_then_is_left() -> None:
    begun = time.monotonic()
    error = refused(Reply(body("1") * 50, drip_s=0.2), timeout=Seconds(1))
    assert error.status is None
    assert time.monotonic() - begun < 30


def test_one_that_never_says_where_its_answer_ends_has_not_answered() -> None:
    reply = Reply(body("1") + b" " * 3000, length=-1, drip_s=0.002)
    assert refused(reply, timeout=Seconds(1)).status is None


def test_a_chunk_of_negative_length_is_not_all_that_ever_comes() -> None:
    chunk = Reply(b"-1\r\n" + b" " * (32 << 20), headers=(("Transfer-Encoding", "chunked"),))
    tracemalloc.start()
    try:
        assert refused(chunk, answer=Size(1 << 20)).status is None
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_nobody_there() -> None:
    with serve(Reply(b"")) as server:
        pass
    with pytest.raises(MetricsServerError) as caught:
        Client(fleet(server.port)).query("up", 60.0)
    assert caught.value.busy


def test_a_certificate_that_is_not_to_be_trusted_is_sent_nothing(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    for served, trusted in (
        ("good", "good"), ("other", "good"), ("wrong-name", "wrong-name"), ("good", ""),
    ):  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files[served], files[served].with_suffix(".key"))
        with serve(Reply(body("1")), context) as server:
            base = fleet(server.port)
            url, ca = f"https://127.0.0.1:{server.port}", str(files[trusted]) if trusted else ""
            section = replace(base.section, url=url, ca_file=ca)
            client = Client(replace(base, section=section))
            if served == trusted == "good":
                assert len(client.query("up", 60.0)) == len(server.asked) == 1
                continue
            with pytest.raises(MetricsServerError) as caught:
                client.query("up", 60.0)
            assert ("ca-file" in caught.value.hint, server.asked) == (True, [])


@pytest.mark.parametrize("status", [401, 403])
def test_once_ends_with_1_and_one_line_where_the_server_refuses(
    status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "token").chmod(0o600)
    with serve(Reply(b"who is s3cret?", status)) as server:
        file = tmp_path / "fleet.toml"
        file.write_text(f"[fleet]\nurl = 'http://127.0.0.1:{server.port}'\ntoken-file = 'token'\n")
        assert main(["fleet", "--config", str(file), "--once"]) == 1
    out, err = capfd.readouterr()
    assert (out, "s3cret" in err, len(err.splitlines())) == ("", False, 3)


@pytest.mark.parametrize(
    ("data", "backend"),
    [
        ({"version": "2.42.0", "revision": "225c61122d88", "goVersion": "go1.19.8"}, "prometheus"),
        # As its documentation describes it; not run.
        ({"version": "0.35.0", "revision": "9b6d4a1c2f11", "goVersion": "go1.21.9"}, "thanos"),
        # As its documentation describes it; not run.
        (
            {"application": "Grafana Mimir", "version": "2.12.0", "revision": "5bedc7a1"},
            "mimir",
        ),
        ({}, "victoriametrics"),
        ({"version": "2.24.0"}, "victoriametrics"),
        ({"version": 3}, ""),
        (None, ""),
    ],
)
def test_a_server_says_what_it_is(data: object, backend: str) -> None:
    with serve(Reply(msgspec.json.encode({"status": "success", "data": data}))) as server:
        client = Client(fleet(server.port))
        client.identify()
    assert client.backend == backend


@pytest.mark.parametrize("reply", [Reply(b"", 404), Reply(b"{}", 401), Reply(b"[" * 100_000)])
def test_one_that_does_not_say_is_asked_all_the_same(reply: Reply) -> None:
    with serve(reply) as server:
        client = Client(fleet(server.port))
        client.identify()
        server.reply = Reply(body("1"))
        assert (client.backend, len(client.query("up", 60.0))) == ("", 1)


def test_a_partial_answer_of_thanos_is_not_asked_for() -> None:
    with serve(Reply(body("1"))) as server:
        for backend in ("auto", "thanos", "prometheus"):
            Client(fleet(server.port, backend=backend)).query("up", 60.0)
    assert [
        (form.get("partial_response"), form.get("max_source_resolution"), form.get("nocache"))
        for form in server.forms
    ] == [("false", "0s", "1"), ("false", "0s", None), (None, None, None)]
