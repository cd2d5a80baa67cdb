"""The API answers what the verbs answer, writes what they write, and describes itself."""

from __future__ import annotations

import json
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.store import checked_connection, live
from gpuwatchd.web import openapi
from gpuwatchd.web import responses as answers
from gpuwatchd.web.openapi import ENDPOINTS, PREFIX
from tests.cli import recorded, shaped, world
from tests.web import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web.serving import Served

READ = (
    ("status", "status"), ("status?gpu=0&pid=4711", "status", "--gpu", "0", "--pid", "4711"),
    ("predict", "predict"), ("alerts", "alerts"),
    ("alerts?all=true&since=2d&severity=info", "alerts", "--all", "--since", "2d",
     "--severity", "info"),
    ("alerts/latest", "alerts", "show", "latest"), ("zombies", "zombies"),
    ("history?since=7200&bucket=600", "history", "--since", "2h", "--bucket", "600"),
    ("history?since=2h&events=1", "history", "--since", "2h", "--events"),
    ("cost?by=user", "cost", "--by", "user"), ("explain", "explain"),
    ("explain?target=4711", "explain", "4711"), ("pictures?since=2h", "plot", "--since", "2h"),
    ("snoozes?all=1", "snooze", "list", "--all"), ("feedback", "feedback", "list"),
)  # fmt: skip
_NOW = re.compile(
    r'"(generated_at|stale_s|until_at|from_at|now_at|begin_at|end_at|at)":("[^"]*"|[\d.]+|null)'
)


@pytest.fixture
def served() -> Iterator[Served]:
    """Return a server before a leak, an alert and an hour of history."""
    with _serve() as found:
        yield found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return one server of the same world for all that changes nothing in it."""
    with serving.directories(tmp_path_factory.mktemp("api")), _serve() as found:
        yield found


@contextmanager
def _serve() -> Iterator[Served]:
    recorded.record("gradual")
    world.write()
    world.remember(world.firing())
    with serving.serve() as found:
        yield found


def plain(said: dict[str, Any]) -> str:
    """Return an answer without what differs from one second to the next."""
    return _NOW.sub("", json.dumps(said, separators=(",", ":"), sort_keys=True))


def test_every_address_answers_what_its_verb_answers(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    moving = {"zombies", "plot", "cost", "explain", "alerts"}  # they count up to now
    for path, *words in READ:
        said = served.ask(f"/api/v1/{path}")
        assert said.status in {200, 404}, (path, said.body)
        shaped.must_fit(said.json)
        code = main([*words, "--json"])
        own = json.loads(capsys.readouterr().out)
        shape = ("data" in own, own["verb"])
        assert ("data" in said.json, said.json["verb"]) == shape, path
        if "data" not in own:
            assert said.json["error"] == own["error"]
        elif own["verb"] not in moving:
            assert plain(said.json) == plain(own), path
        if "data" in own:
            assert int(said.headers["gpuwatchctl-exit-code"]) in {code, 3}


def test_findings_are_in_the_exit_code_also_for_head(unchanged: Served) -> None:
    for path in ("status", "predict", "alerts"):
        said = unchanged.ask(f"/api/v1/{path}", "HEAD")
        assert (said.status, said.headers["gpuwatchctl-exit-code"]) == (200, "3")
        assert said.body == b""


def test_status_is_not_sent_twice(served: Served) -> None:
    first = served.ask("/api/v1/status")
    tag = first.headers["etag"]
    again = served.ask("/api/v1/status", If_None_Match=tag)
    assert (again.status, again.body) == (304, b"")
    assert served.ask("/api/v1/status?gpu=0", If_None_Match=tag).status == 200
    world.write()
    assert served.ask("/api/v1/status", If_None_Match=tag).status == 200


def test_a_snooze_is_set_listed_and_taken_back(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"alert": "latest", "for": "1h", "why": "known"}
    made = served.ask("/api/v1/snoozes", "POST", body)
    assert made.status == 201
    shaped.must_fit(made.json)
    assert main(["snooze", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["data"]
    assert [(one["id"], one["why"]) for one in listed] == [(made.json["data"][0]["id"], "known")]
    gone = served.ask(f"/api/v1/snoozes/{listed[0]['id']}", "DELETE")
    assert (gone.status, gone.json["data"][0]["state"]) == (200, "cleared")
    assert served.ask("/api/v1/snoozes").json["data"] == []
    assert served.ask("/api/v1/snoozes/77", "DELETE").status == 404


def test_a_rule_is_snoozed_as_the_verb_would(served: Served) -> None:
    body = {"user": "ali*", "kind": "leak", "for": "2d", "even_critical": True}
    made = served.ask("/api/v1/snoozes", "POST", body).json["data"][0]
    assert made["matcher"] == {"user": "ali*", "kind": "leak"}
    assert made["even_critical"] is True


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "for"), ({"for": "1h"}, "alert"), ({"alert": "latest", "for": "1h", "x": 1}, "x"),
        ({"alert": "latest", "for": "soon"}, "soon"), ({"alert": "latest", "for": "99d"}, "30d"),
        ({"alert": "latest", "for": "1h", "gpu": "0"}, "not both"), ([], "array"), (b"{", "JSON"),
        (b"\xff\xfe", "JSON"), ({"alert": "--all", "for": "1h"}, "no alert"),
        ({"alert": 5, "for": "1h"}, "str"), (b"[" * 9000, "array"),
        ({"alert": "--config=/etc/passwd", "for": "--debug"}, "--debug"),
    ],
    ids=range(13),
)  # fmt: skip
def test_what_cannot_be_snoozed_says_why(unchanged: Served, body: Any, words: str) -> None:
    said = unchanged.ask("/api/v1/snoozes", "POST", body)
    assert said.status in {400, 404}
    shaped.must_fit(said.json)
    assert words in said.json["error"]["message"]
    assert unchanged.ask("/api/v1/snoozes").json["data"] == []


def test_feedback_is_given_and_taken_back(served: Served) -> None:
    key = served.ask("/api/v1/alerts").json["data"][0]["key"]
    made = served.ask("/api/v1/feedback", "POST", {"alert": key, "word": "normal", "why": "cache"})
    assert made.status == 201
    assert served.ask("/api/v1/feedback").json["data"][0]["word"] == "normal"
    quoted = key.replace("/", "%2F").replace("@", "%40")
    assert served.ask(f"/api/v1/alerts/{quoted}").json["data"]["key"] == key
    assert served.ask(f"/api/v1/feedback/{quoted}", "DELETE").status == 200
    assert served.ask("/api/v1/feedback", "POST", {"alert": key, "word": "x"}).status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("status?pid=-1", 400), ("history?since=2h&since=3h", 400), ("cost?by=moon", 400),
        ("history?since=never", 400), ("history?since=1h&until=2h", 400), ("status?pid=9", 404),
        ("explain?target=--help", 404), ("status?gpu=--debug", 404), ("alerts/--help", 404),
        ("history?since=2001-01-01&until=2001-01-02", 404), ("status/", 404), ("", 404),
    ],
)  # fmt: skip
def test_wrong_questions_get_the_error_of_the_verbs(
    unchanged: Served, path: str, status: int
) -> None:
    said = unchanged.ask(f"/api/v1/{path}")
    assert said.status == status
    shaped.must_fit(said.json)
    assert said.json["error"]["exit_code"] == int(said.headers["gpuwatchctl-exit-code"])
    assert b"Traceback" not in said.body


def test_reading_changes_nothing(unchanged: Served) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert unchanged.ask("/api/v1/status", method, {}).status == 405
    assert unchanged.ask("/api/v1/snoozes/1").status == 405
    assert "POST" in unchanged.ask("/api/v1/snoozes", "DELETE").headers["allow"]


@pytest.mark.parametrize(
    ("trouble", "wrote"),
    [("nothing", 503), ("damaged", 503), ("newer", 503), ("busy", 503), ("dead", 201),
     ("broken-state", 201)],
)  # fmt: skip
def test_trouble_is_said_and_nothing_falls_over(
    trouble: str, wrote: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_connection, "BUSY_S", 1.5)
    recorded.record("gradual")
    world.write()
    file = config.state_dir() / "history.db"
    held: sqlite3.Connection | None = None
    if trouble == "nothing":
        file.unlink()
        (config.runtime_dir() / live.FILE_NAME).unlink()
    elif trouble == "damaged":
        file.write_bytes(b"no database" * 1000)
    elif trouble == "newer":
        with sqlite3.connect(file) as link:
            link.execute("PRAGMA user_version = 999")
        link.close()
    elif trouble == "busy":
        held = sqlite3.connect(file, isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
    elif trouble == "dead":
        world.write(stopped=True)
    else:
        world.write_raw(b'{"half')
    wish = {"gpu": "0", "for": "1h"}
    with serving.within(monkeypatch) as served, ThreadPoolExecutor(5) as pool:
        writing = pool.submit(served.ask, "/api/v1/snoozes", "POST", wish)
        assert served.ask("/api/v1/zombies").status in {200, 503}
        if held is not None:
            assert not writing.done(), "who waits to write keeps nobody from reading"
        paths = [f"/api/v1/{path}" for path, *_ in READ]
        for path, said in zip(paths, pool.map(served.ask, paths), strict=True):
            assert said.status in {200, 404, 503}, (path, said.body)
            shaped.must_fit(said.json)
        assert writing.result().status == wrote
        assert served.ask("/healthz").json == {"status": "ok"}
    if held is not None:
        held.close()


def test_the_document_is_unchanged_as_it_is_built(unchanged: Served) -> None:
    said = unchanged.ask("/api/v1/openapi.json", Authorization=None)
    assert said.json == json.loads(openapi.encoded())


def test_the_document_is_whole() -> None:
    document = openapi.document()
    known = {PREFIX + one.path for one in ENDPOINTS} | {"/healthz"}
    assert known <= set(document["paths"])
    text = json.dumps(document)
    for ref in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found: Any = document
        for part in ref.split("/"):
            found = found[part]
        assert found
    names = [one["operationId"] for each in document["paths"].values() for one in each.values()]
    assert len(names) == len(set(names))
    for path, each in document["paths"].items():
        for one in each.values():
            in_path = {p["name"] for p in one.get("parameters", []) if p["in"] == "path"}
            assert in_path == set(re.findall(r"\{(\w+)\}", path))
            assert one["summary"]
            assert one["responses"]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    bearer = document["components"]["securitySchemes"]["token"]
    assert (bearer["type"], bearer["scheme"]) == ("http", "bearer")


def test_every_refusal_is_in_the_document() -> None:
    document = openapi.document()
    refused = {str(code) for code in answers._REFUSALS}
    assert refused <= set(document["components"]["responses"])
    asked = [one for path, each in document["paths"].items() if path.startswith(PREFIX)
             for one in each.items()]  # fmt: skip
    assert refused == {code for _, one in asked for code in one["responses"] if code in refused}
    for method, one in asked:
        assert "405" in one["responses"]
        assert ("408" in one["responses"]) == (method == "post")


def test_the_document_keeps_the_rules_of_openapi() -> None:
    document = openapi.document()
    schemes = set(document["components"]["securitySchemes"])
    for named in document["components"].values():
        assert all(re.fullmatch(r"[\w.-]+", name, re.ASCII) for name in named)
    asked = [one for each in document["paths"].values() for one in each.items()]
    assert {method for method, _ in asked} == {"get", "post", "delete"}
    for method, one in asked:
        assert ("requestBody" in one) == (method == "post")
        assert {name for each in one.get("security", []) for name in each} <= schemes
        given = one.get("parameters", [])
        assert len({(each["name"], each["in"]) for each in given}) == len(given)
        for each in given:
            assert each["in"] in {"query", "header"} or each["required"] is True
            jsonschema.Draft202012Validator.check_schema(each["schema"])
            if "example" in each:
                jsonschema.validate(each["example"], each["schema"])
        for code, answer in one["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", code)
            assert "$ref" in answer or answer["description"]


def test_answers_fit_the_document(unchanged: Served) -> None:
    document = openapi.document()
    shared = {"components": document["components"]}
    for path, *_ in READ:
        name = path.partition("?")[0].replace("alerts/latest", "alerts/{id}")
        responses = document["paths"][f"{PREFIX}/{name}"]["get"]["responses"]
        said = unchanged.ask(f"/api/v1/{path}")
        assert said.status == 200, path
        schema = responses["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(said.json, {**schema, **shared})


def test_examples_fit_their_schemas() -> None:
    document = openapi.document()
    shared = {"components": document["components"]}
    bodies = [
        one["requestBody"]["content"]["application/json"]
        for each in document["paths"].values()
        for one in each.values()
        if "requestBody" in one
    ]
    assert len(bodies) == 3
    for body in bodies:
        jsonschema.validate(body["example"], {**body["schema"], **shared})
