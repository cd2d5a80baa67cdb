"""Freeing idle memory by the API: shown, confirmed by what was shown, ended, asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.view.queries import reaping
from gpuwatchd.view.query import Query
from tests.cli import shaped
from tests.cli.test_reap import ACTIONS, CARD, OTHER, Stage, stage
from tests.conftest import ON_LINUX
from tests.store.world import rows
from tests.test_daemon import wait_for
from tests.web import serving

if TYPE_CHECKING:
    from tests.web.serving import Served

__all__ = ["stage"]


def post(served: Served, body: dict[str, object], **headers: str | None) -> int:
    return served.ask("/api/v1/reaps", "POST", body, **headers).status


def refused(served: Served, wish: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask in every way that must do nothing and write nothing."""
    assert post(served, wish, Authorization=None) == 401
    assert post(served, wish, Sec_Fetch_Site="cross-site") == 403
    assert post(served, {"pid": wish["pid"]}) == 400
    for grace in ("0s", "2h", "soon"):
        assert post(served, {**wish, "grace": grace}) == 400
    with monkeypatch.context() as patch:
        patch.setattr(reaping, "MOST_AT_ONCE", 0)
        assert post(served, wish) == 409


@ON_LINUX
@pytest.mark.usefixtures("own_pids")
@pytest.mark.slow
def test_the_process_that_was_shown_is_ended_and_nothing_waits_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        stage.holder("SIGTERM", "stay") as job,
        stage.daemon(),
        serving.within(monkeypatch) as served,
    ):
        stage.listed("idle")
        path = f"/api/v1/reaps/{job.pid}"
        shown = served.ask(path)
        shaped.must_fit(shown.json)
        data = shown.json["data"]
        assert (shown.status, data["result"], data["signals"]) == (200, None, ["SIGTERM"])
        wish = data["process"]
        refused(served, wish, monkeypatch)
        assert rows(stage.folder / "state", ACTIONS) == []
        other = {**wish, "started_at": "2001-01-01T00:00:00.000Z"}
        assert post(served, other) == 409
        assert job.poll() is None
        with stage.driver(job, CARD, OTHER):
            begun = served.ask("/api/v1/reaps", "POST", wish)
            shaped.must_fit(begun.json)
            assert (begun.status, begun.json["data"]["result"]) == (201, "under-way")
            assert post(served, wish) == 409
            assert served.ask("/api/v1/status").status == 200
            wait_for((stage.folder / "notes").exists)
            now = served.ask(f"{path}?anew=true").json["data"]
            assert (now["result"], now["sent"]) == ("under-way", ["SIGTERM"])
            job.kill()
            wait_for(lambda: served.ask(path).json["data"]["result"] != "under-way")
            done = served.ask(path)
        shaped.must_fit(done.json)
        assert done.headers["gpuwatchctl-exit-code"] == "0"
        assert (done.json["data"]["result"], done.json["data"]["still_held_bytes"]) == ("ended", 0)
        assert served.ask(f"{path}?anew=true").status == 404
    assert [row[:2] for row in rows(stage.folder / "state", ACTIONS)] == [
        ("refused", "process-changed"), ("asked", "idle"), ("done", "ended"),
    ]  # fmt: skip


@ON_LINUX
@pytest.mark.usefixtures("own_pids")
@pytest.mark.slow
def test_a_program_that_ends_meanwhile_writes_that_nobody_waits(stage: Stage) -> None:
    with stage.holder("SIGTERM", "stay") as job, stage.daemon():
        stage.listed("idle")
        with reaping.candidate(Query(), job.pid) as shown:
            process = shown.target.key
        run = reaping.begin(Query(), process)
        wait_for((stage.folder / "notes").exists)
        reaping.leave()
        assert [row[:2] for row in rows(stage.folder / "state", ACTIONS)] == [
            ("asked", "idle"), ("done", "interrupted"),
        ]  # fmt: skip
        with stage.driver(job, CARD, OTHER):
            pass
        run.outcome.result(60)


def test_what_is_no_process_to_be_ended_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving.within(monkeypatch) as served:
        for pid, status in (("0", 400), ("x", 400), ("9" * 30, 400), ("1", 503)):
            answer = served.ask(f"/api/v1/reaps/{pid}")
            shaped.must_fit(answer.json)
            assert answer.status == status, pid
        at = "2026-11-21T08:00:00.000Z"
        for wrong in (0, -1, 10**30, "4711"):
            assert post(served, {"pid": wrong, "started_at": at}) == 400
