"""The answers that the live page is drawn from: the words of the verbs, whatever there is."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from importlib import resources
from typing import Any

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.core.errors import GpuwatchdError, SourceUnavailable
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import live
from gpuwatchd.tui.widgets import gpus
from gpuwatchd.tui.widgets import process_table as table
from gpuwatchd.view.blocks import Flow, Page
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.query import Query
from gpuwatchd.web import pages
from gpuwatchd.web.pages import overview, parts, process
from tests import making
from tests.cli import recorded, shaped, world

VIEWS = ("overview", "predict", "alerts", "held", "help")
CARD = {"gpu": making.CARD.uid}
LEAKER = {**CARD, "pid": "4711", "began": "1000000"}
_ENDS = ("begin", "end")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def ask(name: str, **query: str) -> dict[str, Any]:
    """Return an answer as it travels."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(pages.ANSWERS[name](Query(), query)))
    return found


def crowd(count: int) -> live.LiveDevice:
    """Return a GPU that many processes are on."""
    many = tuple(
        msgspec.structs.replace(
            world.process(1000 + n, f"job{n}", 0.01 * (n % 7)),
            finding=world.leak(rate_bytes_per_s=float(n), tier="watch") if n % 50 == 0 else None,
        )
        for n in range(count)
    )
    return live.LiveDevice(
        device=making.CARD, reading=world.reading(making.CARD.uid, 70), processes=many, samples=9
    )


@pytest.mark.parametrize("name", [*VIEWS, "gpu", "process", "evidence"])
def test_hostile_words_are_clean_in_every_answer(name: str) -> None:
    alerts = (world.firing(title=world.HOSTILE),)
    world.write(msgspec.structs.replace(world.odd(world.HOSTILE), alerts=alerts))
    query = LEAKER if name in {"process", "evidence"} else CARD if name == "gpu" else {}
    said = list(shaped.texts(ask(name, **query)))
    assert [one for one in said if _CONTROL.search(one)] == []
    assert name == "help" or any("evil" in one for one in said)


def test_processes_are_in_the_order_of_the_live_screen_and_fit_the_same_words() -> None:
    world.write(devices=(crowd(120), *world.state().devices[1:]))
    view = current_state.load_view(Query())
    mine = overview.ordered(view.devices)
    theirs = table.ordered(table.entries(view), table.NATURAL, turned=False)
    assert mine == [tuple(one) for one in theirs]
    for wish in ("job1", "105", "alice", "watch", "a100 job", "gpu0", "nobody"):
        _, fitting = overview.table(mine, {"filter": wish, "all": "1"})
        assert fitting == len(table.matching(theirs, wish)), wish


def test_of_a_thousand_processes_two_hundred_are_sent_until_all_are_wanted() -> None:
    world.write(devices=(crowd(1000),))
    some, every = ask("overview"), ask("overview", all="1")
    assert (len(some["processes"]), some["fitting"], some["count"]) == (overview.ROWS, 1000, 1000)
    assert len(every["processes"]) == 1000
    assert some["processes"][0]["who"] == "job950[1950] of alice"
    assert len({one["key"] for one in every["processes"]}) == 1000
    narrow = ask("overview", filter="job999")
    assert [one["who"] for one in narrow["processes"]] == ["job999[1999] of alice"]


def test_the_lines_of_a_page_have_a_depth_and_no_columns() -> None:
    page = Page()
    page.line("all")
    page.line("   a ", "b ")
    page.line("  ")
    page.add(Flow(("c", "d"), first="    "))
    page.add(Flow(("e", "f"), gap=" "))
    assert [*parts.lines(page)] == [(0, "all"), (1, "a b"), (2, "c, d"), (0, "e f")]


def test_a_dead_daemon_is_told_of_and_nothing_is_called_live() -> None:
    world.write()
    assert ask("overview")["page"]["live"] is True
    world.write(pid=2**22 + 1, taken_at_s=time.time() - 400)
    page = ask("overview")["page"]
    assert page["live"] is False
    assert any(
        one["bad"] and "the daemon is not running" in one["text"] for one in page["warnings"]
    )
    assert page["daemon"] == "No daemon is running."


def test_without_a_gpu_the_error_of_status_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "replay")
    with pytest.raises(SourceUnavailable) as raised:
        ask("overview")
    assert raised.value.hint


def test_a_gpu_that_cannot_be_read_has_no_bar_and_says_why() -> None:
    lost = msgspec.structs.replace(
        world.state().devices[0], reading=None, faults=("the driver is gone",), recent_bytes=()
    )
    world.write(devices=(lost,))
    one = ask("overview")["devices"][0]
    assert one["verdict"]
    assert one["share"] is None
    assert one["spark"] == []
    assert one["badge"]["kind"] == "trouble"
    assert any("the driver is gone" in words for words in one["notes"])


@pytest.mark.parametrize(("user", "none"), [("alice", False), ("nobody", True)])
def test_a_gpu_says_where_the_users_that_are_asked_for_have_nothing(user: str, none: bool) -> None:
    world.write()
    answer = pages.ANSWERS["overview"](Query(user=[user]), {})
    notes = json.loads(msgspec.json.encode(answer))["devices"][0]["notes"]
    assert any(f"no process of {user}" in words for words in notes) is none


def test_gaps_of_a_small_curve_stay_gaps() -> None:
    item = msgspec.structs.replace(
        world.state().devices[0], recent_bytes=(10 * making.GIB, None, 20 * making.GIB)
    )
    assert overview.spark(item, 80 * making.GIB) == (0.0, None, 1.0)


def test_what_a_pool_breathes_is_small_on_every_small_curve() -> None:
    pool = [round(gib * making.GIB) for gib in (68.5, 71.5)] * 4
    total = round(79.6 * making.GIB)
    item = msgspec.structs.replace(world.state().devices[0], recent_bytes=tuple(pool))
    drawn = [one for one in overview.spark(item, total) if one is not None]
    assert max(drawn) - min(drawn) < 0.5
    device = msgspec.structs.replace(item.device, memory_total_bytes=total)
    world.write(devices=(msgspec.structs.replace(item, device=device),))
    marks = gpus.spark(item.recent_bytes, total, 8, ascii_only=False)
    assert marks in world.run("status", "--color=never").stdout
    assert not {"▁", "█"} & set(marks)


def test_addresses_lead_back_to_their_processes_and_strangers_to_an_error() -> None:
    world.write()
    row = ask("overview")["processes"][0]
    uid, pid, began = row["key"].split("/")
    found = ask("process", gpu=uid, pid=pid, began=began)
    assert found["who"] == row["who"]
    assert found["over"] == ""
    for wrong in ({"gpu": "no\x1b"}, {**CARD, "pid": "5", "began": "-"}, {},
                  {**CARD, "pid": "5", "began": "9" * 5000}):  # fmt: skip
        view = "process" if "pid" in wrong else "gpu"
        with pytest.raises(GpuwatchdError) as raised:
            ask(view, **wrong)
        assert "\x1b" not in raised.value.message


def test_a_process_without_a_known_beginning_is_found_by_its_pid() -> None:
    first = world.state().devices[0]
    alone = world.process(7)
    key = ProcessKey(pid=7, started_at_s=None)
    alone = msgspec.structs.replace(alone, info=msgspec.structs.replace(alone.info, key=key))
    world.write(devices=(msgspec.structs.replace(first, processes=(alone,)),))
    assert ask("overview")["processes"][0]["key"].endswith("/7/-")
    assert ask("process", **CARD, pid="7", began="-")["who"] == "python[7] of alice"


def test_an_open_alert_says_until_when_it_is_silent() -> None:
    world.write(silences=(world.silence(row=3),))
    assert ask("overview")["alerts"][0]["silent"].startswith("silent until ")
    shown = ask("alerts")
    assert shown["open"][0]["silence"]["id"] == 3
    assert shown["can"] is False, "without a history nothing can be snoozed"


def test_all_about_an_alert_is_what_the_verb_tells() -> None:
    world.write()
    listed = ask("alerts")["open"][0]
    one = ask("alert", id=listed["id"])
    shown = " ".join(world.run("alerts", "show", listed["id"]).stdout.split())
    assert one["about"]["process"] == "GPU-1/4711/1000000"
    for label, words in one["lines"]:
        assert " ".join(words.split()) in shown, label


def test_a_process_has_what_was_learned_inside_it() -> None:
    found = world.leak(holder=making.HOLDER, allocator=making.ALLOCATOR)
    live = world.process(finding=found)
    world.write(devices=(msgspec.structs.replace(world.state().devices[0], processes=(live,)),))
    facts = dict(ask("process", **LEAKER)["foreseen"][0]["facts"])
    lines = [line for part in ask("evidence", **LEAKER)["sections"] for line in part["lines"]]
    for label, words in wording.inside(found).items():
        assert facts[label.lower()] == words
        assert f"{label.lower()}: {words}" in lines


def test_the_usual_span_of_a_chart_begins_where_the_record_does() -> None:
    recorded.record("gradual")
    world.write()
    whole = ask("picture", **CARD, span="6h")
    tight = ask("picture", **CARD, span="6h", tight="1")

    def seen_s(said: dict[str, Any]) -> float:
        begin, end = (datetime.fromisoformat(said["picture"][f"{name}_at"]) for name in _ENDS)
        return (end - begin).total_seconds()

    assert seen_s(whole) == pytest.approx(6 * 3600.0)
    assert seen_s(tight) == pytest.approx(3600.0, rel=0.1)
    assert len(tight["picture"]["curve"]["at_s"]) > 10
    for said in (whole, tight):
        assert said["next_s"] == pytest.approx(seen_s(said) / process.POINTS)


FOLDER = resources.files("gpuwatchd.web") / "pages"
FILES = {
    one.name: one.read_text("utf-8")
    for one in sorted(FOLDER.iterdir(), key=lambda one: one.name)
    if one.name.endswith((".js", ".css", ".html"))
}
SCRIPTS = [name for name in FILES if name.endswith(".js")]
MADE = {"chart.js", "page.css"}
"""Put together from parts by `pictures.assets`."""


@pytest.mark.parametrize("name", FILES)
def test_it_is_short_and_asks_nothing_of_elsewhere(name: str) -> None:
    words = FILES[name]
    assert len(words.splitlines()) <= 400
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", words)) <= allowed
    assert "url(" not in words
    assert "@import" not in words


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_word_can_become_markup_or_a_program(name: str) -> None:
    forbidden = (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
        "srcdoc", "createContextualFragment", "DOMParser", "setHTML",
    )  # fmt: skip
    assert [word for word in forbidden if word in FILES[name]] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_it_imports_is_there_and_used(name: str) -> None:
    for names, other in re.findall(r'import \{([^}]*)\} from "\./([^"]+)"', FILES[name]):
        for one in (word.strip() for word in names.split(",")):
            exported = rf"export (?:async )?(?:function|class|const) {one}\b"
            assert re.search(exported, FILES[other]), f"{one} of {other}"
            assert len(re.findall(rf"\b{one}\b", FILES[name])) > 1, f"{one} is not used"


def test_what_is_exported_is_used_elsewhere() -> None:
    for name in SCRIPTS:
        others = "\n".join(words for other, words in FILES.items() if other != name)
        for one in re.findall(r"export (?:async )?(?:function|class|const) (\w+)", FILES[name]):
            asked = re.search(rf"\b{one}\b", others)
            assert asked, f"{one} of {name}"


def test_every_view_has_what_the_page_asks_of_it() -> None:
    views = re.findall(r"import \* as \w+ from \"\./(\w+\.js)\"", FILES["live.js"])
    assert len(views) == 7
    for name in views:
        for wanted in ("path", "title", "tree"):
            assert f"export function {wanted}(" in FILES[name], name


def test_the_page_names_files_that_are_served_and_runs_nothing_inline() -> None:
    page = FILES["index.html"]
    named = set(re.findall(r'"/static/([^"]+)"', page))
    assert named - MADE <= set(FILES)
    assert {*SCRIPTS, *MADE} - named == set(), "a browser would look for it late"
    assert not re.search(r"<script(?![^>]* src=)", page)
    assert "<style" not in page
    assert not re.search(r"\son\w+=|\sstyle=", page)
