"""What every verb answers, validated with the schema that is shipped and with its strict shape."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest

from gpuwatchd.act.checkpoint import Checkpoint
from gpuwatchd.cli import COMMANDS, main
from gpuwatchd.cli.verbs import service
from gpuwatchd.core.model import Event, Message, ServiceState, Subject
from gpuwatchd.notify.channels import command as hook
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.answers import (
    alerts,
    base,
    current,
    explanation,
    fleet,
    history,
    inspection,
    report,
)
from gpuwatchd.view.answers import program as own
from gpuwatchd.view.answers import schema as by_verb
from gpuwatchd.view.answers.schema import schema
from tests import making
from tests.act.children import booted_at_s, job, key_of
from tests.cli import logs_of, recorded, shaped, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

GIB = making.GIB
# Line -> what it answers. In this order: some leave what the next ones list.
LINES: list[tuple[str, type[msgspec.Struct]]] = [
    ("status", current.Status),
    ("status --user alice", current.Status),
    ("watch -n 1", current.Watch),
    ("predict", current.Predict),
    ("explain 4711", explanation.Explain),
    ("explain GPU-2", explanation.Explain),
    ("zombies", current.IdleMemory),
    ("plot", history.Plot),
    ("history", history.History),
    ("history --events", history.History),
    ("history --since 2h --pid 4711", history.HistoryOfProcesses),
    ("history --sql", history.HistoryQueries),
    ("history --format ndjson --bucket 30m", history.DeviceRow),
    ("history --format ndjson --since 2h --bucket 30m --pid 4711", history.ProcessRow),
    ("history --format ndjson --events", history.EventRow),
    ("report", report.Report),
    ("report --since 2h --pid 4711 --all", report.Report),
    ("alerts", alerts.Alerts),
    ("alerts show 4711", alerts.AlertShown),
    ("snooze 4711 1h --why tests", alerts.Snooze),
    ("snooze --user bob --gpu 0 8h", alerts.Snooze),
    ("status", current.Status),
    ("alerts", alerts.Alerts),
    ("snooze list", alerts.Snooze),
    ("snooze clear --all", alerts.Snooze),
    ("feedback 4711 leak", alerts.Feedback),
    ("alerts show 4711", alerts.AlertShown),
    ("feedback list", alerts.Feedback),
    ("feedback undo 4711", alerts.Feedback),
    ("cost", report.Cost),
    ("cost --by user", report.Cost),
    ("checkpointed {self}", own.Checkpointed),
    ("hold {job} 2h", own.ProcessHolds),
    ("hold", own.ProcessHolds),
    ("hold clear {job}", own.ProcessHolds),
    ("ask-checkpoint {job}", own.AskCheckpoint),
    ("ask-checkpoint {job} --yes", own.AskCheckpoint),
    ("analyze {csv}", history.Analyze),
    ("analyze {empty}", history.Analyze),
    ("backtest --since 2h", history.Backtest),
    ("export --anonymous --yes --force {corpus}", history.Export),
    ("doctor config prices", own.Doctor),
    ("config path", own.ConfigPath),
    ("config print", own.ConfigPrint),
    ("--config {new} config init", own.ConfigInit),
    ("config validate {new}", own.ConfigValidate),
    (
        "--config {new} notify add email --to a@example.org --host localhost --no-test",
        alerts.NotifyAdded,
    ),
    ("policy show", alerts.PolicyShown),
    ("policy test", alerts.PolicyTested),
    ("policy test", alerts.PolicyTested),
    ("notify list", alerts.Notify),
    ("notify test command --dry-run", alerts.Notify),
    ("notify test command", alerts.Notify),
    ("notify digest --dry-run", alerts.NotifyDigest),
    ("check", own.Check),
    ("check --mode used -w 50 -c 99", own.Check),
    ("service print --system", own.ServicePrint),
    ("service install --dry-run", own.ServiceDone),
    ("service status", own.ServiceStatus),
    ("completion zsh", own.Completion),
    ("docs errors#no-gpu", own.PageShown),
    ("docs --list", own.Pages),
    ("docs --search leak", own.PagesFound),
    ("schema", own.Schemas),
    ("web --token", own.Web),
    ("status --gpu 77", base.Failure),
    ("status --frobnicate", base.Failure),
    ("metrics", own.Metrics),
    ("check --frobnicate", base.Failure),
    ("nonsense", base.Failure),
]
ELSEWHERE = {
    current.Reap,
    own.DriverRelease,
    own.DemoBegins,
    own.DemoGoesOn,
    own.DemoEnds,
    inspection.Inspect,
    by_verb.CommandInput,
    by_verb.AskInput,
    *(fleet.FleetRound, fleet.FleetStatus, fleet.FleetExplain),
}


def _rich() -> None:
    """Write a history and a live state with everything in it that an answer can hold."""
    recorded.record("gradual", host=lambda t: GIB + t * making.MIB)
    first, second = world.odd().devices
    piece = LiveDevice(
        device=msgspec.structs.replace(
            making.CARD, uid="MIG-1", index=0, parent_uid=making.CARD.uid, parent_index=0
        ),
        reading=world.reading("MIG-1", 4),
        processes=(),
    )
    hung = msgspec.structs.replace(
        second,
        device=msgspec.structs.replace(world.SECOND, uid="GPU-3", index=2),
        reading=world.unread("GPU-3", "hung"),
        events=(Event(at_s=time.time() - 9, kind="gpu-hung", text="no answer"),),
    )
    finding = making.finding(judged_at_s=time.time())
    first = msgspec.structs.replace(first, finding=finding)
    odd = world.odd()
    world.write(
        msgspec.structs.replace(odd, devices=(first, second, piece, hung), problems=("a problem",))
    )


def _name_of(said: dict[str, Any]) -> str:
    if "verb" not in said:
        return "history-ndjson"
    return said["verb"] if said["verb"] in by_verb.ANSWERS else "error"


def _wrong(said: dict[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """Return what is wrong with one answer."""
    validator = jsonschema.Draft202012Validator(
        schema(_name_of(said)), format_checker=jsonschema.FormatChecker()
    )
    found = [error.message[:200] for error in validator.iter_errors(said)]
    return found + shaped.strictly(json.dumps(said).encode(), [kind])


@pytest.mark.slow
def test_every_verb_answers_as_its_schema_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    _rich()
    monkeypatch.setenv("GPUWATCHD_ACT_CHECKPOINT", "signal")
    monkeypatch.setenv("GPUWATCHD_NOTIFY_COMMAND_ARGV", '["/nonexistent/program"]')
    monkeypatch.setattr(service, "_running_manager", lambda **_: _Manager())
    log, empty = tmp_path / "log.csv", tmp_path / "empty.csv"
    log.write_text(logs_of.cards(90))
    empty.write_text("")
    wrong, answered = [], set()
    with job(tmp_path / "saved") as process:
        places = {
            "self": os.getpid(), "job": process.pid, "csv": log, "empty": empty,
            "corpus": tmp_path / "x.gz", "new": tmp_path / "new.toml",
        }  # fmt: skip
        for line, kind in LINES:
            words = line.format(**places).split()
            shown = ctl.both(*words if "ndjson" in words else [*words, "--json"], code=None)
            out = shown.out.splitlines()
            assert out, f"{line}: {shown.err}"
            answered.add(kind)
            for one in out:
                wrong += [f"{line}: {why}" for why in _wrong(json.loads(one), kind)]
    assert not wrong, "\n".join(wrong)
    every = {kind for kinds in (by_verb.ANSWERS | by_verb.OTHERS).values() for kind in kinds}
    assert every == answered | ELSEWHERE, "every answer is that of a line of LINES"


class _Manager:
    name = "systemd"

    def status(self) -> ServiceState:
        return ServiceState(state="running", text="running", pid=9, since_at_s=time.time())


@pytest.mark.parametrize("finding", [None, making.finding()])
@pytest.mark.requirement("W13")
def test_a_program_of_the_command_channel_reads_what_is_written_down(finding: Any) -> None:
    message = Message(
        id="x@gpuwatchd", notice="firing", severity="warning", subject="s", body="b",
        facts={"GPU": "0"}, finding=finding, also=("k",),
    )  # fmt: skip
    content = hook.payload(message)
    said = json.loads(content)
    jsonschema.Draft202012Validator(schema("command")).validate(said)
    again = json.loads(msgspec.json.encode(msgspec.json.decode(content, type=by_verb.CommandInput)))
    assert again["message"].pop("finding") is None
    assert again == said


@pytest.mark.parametrize("with_finding", [False, True])
def test_a_program_that_asks_a_job_reads_what_is_written_down(
    with_finding: bool, tmp_path: Path
) -> None:
    program, got = tmp_path / "ask", tmp_path / "got"
    program.write_text(f"#!/bin/sh\ncat > {got}\n")
    program.chmod(0o755)
    ask = Checkpoint(checkpoint="command", argv=(str(program),), booted_at_s=booted_at_s())
    with job() as process:
        key = key_of(process.pid)
        leak = making.finding(subject=Subject(device_uid="GPU-1", process=key))
        if with_finding:
            ask.run(leak, dry_run=False)
        else:
            ask.ask(key, dry_run=False)
    said = json.loads(got.read_text())
    jsonschema.Draft202012Validator(schema("ask")).validate(said)
    read = msgspec.json.decode(got.read_bytes(), type=by_verb.AskInput)
    assert json.loads(msgspec.json.encode(read)) == said
    assert ("finding" in said) is with_finding


def test_a_key_too_many_and_a_key_too_few_are_noticed(ctl: Ctl) -> None:
    world.write()
    said = ctl.json("status", code=None)
    assert _wrong(said, current.Status) == []
    del said["data"][0]["used_bytes"]
    assert len(_wrong(said, current.Status)) == 2
    said["data"][0]["used_bytes"] = 1
    said["data"][0]["mood"] = "good"
    # A reader must take it; a test must not.
    (why,) = _wrong(said, current.Status)
    assert "mood" in why
    said["data"][0].pop("mood")
    said["data"][0]["used_bytes"] = -1
    assert len(_wrong(said, current.Status)) == 2


@pytest.mark.parametrize("name", [*by_verb.ANSWERS, *by_verb.OTHERS])
def test_a_schema_is_one(name: str) -> None:
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$id"] == f"gpuwatchd:{name}:{base.SCHEMA_VERSION}"
    assert main(["schema", name]) == 0


SCREENS = {"top", "run"}
"""What is looked at, and refuses `--json` with the name of the verb that has it; and `run`."""


def test_every_verb_has_a_schema() -> None:
    assert set(by_verb.ANSWERS) | SCREENS == set(COMMANDS), f"rows of ANSWERS, {by_verb.__file__}"
    assert not set(by_verb.ANSWERS) & SCREENS


def test_the_schemas_are_listed_and_an_unknown_one_names_them(ctl: Ctl) -> None:
    listed = [line.split()[0] for line in ctl("schema").splitlines()]
    assert listed == sorted([*by_verb.ANSWERS, *by_verb.OTHERS])
    assert "known: alerts, analyze" in ctl.err("schema moods", code=2)


NUMBERS_WITHOUT_UNIT = {
    "r_squared", "p_value", "growth_events", "value", "min", "max", "facts", "cost", "electricity",
    "whole", "ahead", "known_cost", "known_ahead", "engineer", "per_usd", "per_hour",
    "whole_per_hour", "precision", "default", "weight", "f1",
}  # fmt: skip
"""Figures without a unit, and amounts in the currency that the answer names."""
UNITS = (
    "_bytes",
    "_s",
    "_pct",
    "_c",
    "_w",
    "_j",
    "_usd",
    "_hours",
    "_per_day",
    "share",
    "confidence",
)


def _structs() -> dict[str, type[base.Shape]]:
    modules = (own, base, history, current, explanation, alerts)
    return {
        name: found
        for module in modules
        for name, found in vars(module).items()
        if isinstance(found, type) and issubclass(found, base.Shape)
    }


def test_the_names_of_keys_keep_the_conventions() -> None:
    odd = []
    for name, kind in _structs().items():
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        if "pid" in fields and not {"started_at", "since_at"} & set(fields):
            odd.append(f"{name}: a pid without its start")
        for key, value in fields.items():
            words = str(value)
            if key.endswith("_at_s"):
                odd.append(f"{name}.{key}: an epoch number")
            if key.endswith("_at") and "T[0-9]" not in words:
                odd.append(f"{name}.{key}: no instant")
            if "float" in words and not key.endswith(UNITS) and key not in NUMBERS_WITHOUT_UNIT:
                odd.append(f"{name}.{key}: a number without its unit")
    assert not odd, "\n".join(odd)
