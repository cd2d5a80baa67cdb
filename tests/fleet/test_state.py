"""The state that a worker leaves, the verbs that read it, and the page about its rounds."""

from __future__ import annotations

import http.client
import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from gpuwatchd.core import units
from gpuwatchd.core.config import listening
from gpuwatchd.core.errors import Ambiguous, GpuwatchdError, MetricsServerError
from gpuwatchd.core.state_log import StateLog
from gpuwatchd.daemon.main import main
from gpuwatchd.fleet import main as fleet_main
from gpuwatchd.fleet.config import Shard
from gpuwatchd.fleet.judging import Judge
from gpuwatchd.fleet.state import Metrics, StateFile, round_state
from gpuwatchd.view.answers.fleet import FleetExplain, FleetStatus
from gpuwatchd.view.answers.schema import schema
from gpuwatchd.view.queries import fleet_state
from tests.children import Child
from tests.cli import shaped
from tests.cli.calls import Ctl
from tests.conftest import need
from tests.fleet.fake import Reply, fleet, serve
from tests.fleet.test_config import LOCAL, write
from tests.fleet.test_rounds import START, at, begun, flat, leak

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.fleet.config import Fleet


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Ctl:
    return Ctl(capsys)


def settings(folder: Path, **changes: Any) -> Fleet:
    base = fleet()
    section = replace(base.section, state=str(folder / "fleet.json"))
    return replace(base, section=section, **changes)


@pytest.fixture
def left(tmp_path: Path) -> StateFile:
    """Return the file of a worker with a leak that fires, and a calm GPU."""
    worker, _ = begun({("GPU-aa-1", "n1", "train"): leak(), ("GPU-ab-2", "n1", "p"): flat()})
    judge, file = Judge(fleet().detection, fleet().policy), StateFile(settings(tmp_path))
    for minute in range(400, 412):
        worker.round(at(minute))
        judge.round(worker.rings)
    found = round_state(worker, judge)
    file.after_round(worker, judge, found, round_s=0.5, due_at_s=time.time() + 60)
    return file


def test_status_and_explain_answer_as_their_schema_says(left: StateFile, ctl: Ctl) -> None:
    def answer(line: str, kind: type[msgspec.Struct]) -> Any:
        said = ctl(f"fleet {line} --state {left.path} --json")
        jsonschema.Draft202012Validator(schema("fleet")).validate(json.loads(said))
        assert shaped.strictly(said.encode(), [kind]) == []
        return json.loads(said)["data"]

    (worker,) = answer("status", FleetStatus)["workers"]
    assert (worker["running"], worker["round"]["gpus"], worker["shard"]) == (True, 2, "1/1")
    assert [one["state"] for one in worker["round"]["verdicts"]] == ["firing"]
    leaking = answer("explain GPU-aa", FleetExplain)
    assert leaking["worker"]["round"]["gpus"] == 1
    assert (leaking["id"], leaking["alert"]["state"]) == ("GPU-aa-1", "firing")
    assert leaking["verdict"]["verdict"]["leak"]
    calm = answer("explain ab-2", FleetExplain)
    assert (calm["verdict"], calm["alert"]) == (None, None)
    assert calm["calm_since_at"] == units.instant((START + 400) * 60.0)


def test_people_see_what_is_open_first(left: StateFile, ctl: Ctl) -> None:
    shown = ctl(f"fleet status --state {left.path}").splitlines()
    assert "firing" in next(line for line in shown if "GPU-aa-1" in line)
    assert ctl(f"fleet status --state {left.path} --exit-code", code=3)
    assert "firing" in ctl(f"fleet explain GPU-aa --state {left.path}")
    assert "calm" in ctl(f"fleet explain GPU-ab --state {left.path}")


def test_what_was_open_before_a_restart_is_shown_before_it_is_judged(
    tmp_path: Path, ctl: Ctl
) -> None:
    worker, _ = begun({("GPU-a", "n1", "p"): flat()})
    judge, file = Judge(fleet().detection, fleet().policy), StateFile(settings(tmp_path))
    judge.restore(worker.rings, 0, "critical", "gradual", at(390))
    found = round_state(worker, judge)
    file.after_round(worker, judge, found, round_s=0.5, due_at_s=time.time() + 60)
    for line in ("status", "explain GPU-a"):
        assert "firing" in ctl(f"fleet {line} --state {file.path}")
        said = json.loads(ctl(f"fleet {line} --state {file.path} --json"))
        jsonschema.Draft202012Validator(schema("fleet")).validate(said)


def test_which_gpu_is_meant(left: StateFile, ctl: Ctl) -> None:
    workers, _ = fleet_state.load([left.path])
    with pytest.raises(Ambiguous):
        fleet_state.find(workers, "GPU-a")
    assert len(ctl.err(f"fleet explain GPU-a --state {left.path}", code=2).splitlines()) == 3
    assert len(ctl.err(f"fleet explain GPU-zz --state {left.path}").splitlines()) == 3
    gpu = replace(workers[0].state.round.verdicts[0], gpu="2")
    found = replace(workers[0].state, round=fleet_state.FleetRoundState(verdicts=(gpu,)))
    assert fleet_state.find([workers[0]._replace(state=found)], "N1/2")[1] is gpu
    many = tuple(replace(gpu, id=f"GPU-{k}") for k in range(9))
    found = replace(found, round=fleet_state.FleetRoundState(verdicts=many))
    with pytest.raises(Ambiguous) as caught:
        fleet_state.find([workers[0]._replace(state=found)], "n1/2")
    assert "4 more" in caught.value.hint
    # Two files of one shard, such as one from before a rename: the newer counts.
    old = workers[0]._replace(state=replace(workers[0].state, written_at_s=1.0))
    assert fleet_state.find([workers[0], old], "GPU-aa")[0] is workers[0]


def test_a_worker_that_stopped_or_does_nothing_any_more_is_said(left: StateFile, ctl: Ctl) -> None:
    line = f"fleet status --state {left.path} --json"
    ((found,), _), state = fleet_state.load([left.path]), fleet_state.read(left.path)
    assert (found.running(state.due_at_s + 100), found.process_runs) == (True, True)
    assert not found.running(state.due_at_s + 1000)
    for changed in (replace(state, due_at_s=1.0), replace(state, stopped=True)):
        left.path.write_bytes(msgspec.json.encode(changed))
        (worker,) = json.loads(ctl(line, code=1))["data"]["workers"]
        assert not worker["running"]
        assert "!" in ctl(f"fleet status --state {left.path}", code=1)
        assert "!" in ctl(f"fleet explain GPU-aa --state {left.path}", code=1)


def test_a_worker_whose_process_has_ended_is_not_there_at_once(left: StateFile, ctl: Ctl) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        mark = fleet_state.process_mark(process.pid)
        killed = replace(left.state, pid=process.pid, process=mark)
        elsewhere = replace(killed, host="elsewhere")
        in_container = replace(killed, process="pid:[1] 5")
        unknown = replace(killed, process="")
        later = replace(killed, process=f"{mark}1")

        def runs(state: fleet_state.FleetState) -> bool | None:
            left.path.write_bytes(msgspec.json.encode(state))
            return fleet_state.load([left.path])[0][0].process_runs

        others = (elsewhere, in_container, unknown)
        assert (runs(killed), runs(later), *map(runs, others)) == (True, False, None, None, None)
        process.kill()
        process.wait()
        assert (runs(killed), *map(runs, others)) == (False, None, None, None)
        runs(killed)
    (worker,) = json.loads(ctl(f"fleet status --state {left.path} --json", code=1))["data"][
        "workers"
    ]
    assert (worker["running"], worker["process_runs"]) == (False, False)
    assert str(process.pid) in ctl(f"fleet status --state {left.path}", code=1)


def test_of_a_dry_run_it_is_said_that_nothing_is_sent(left: StateFile, ctl: Ctl) -> None:
    sent = ctl(f"fleet explain GPU-aa --state {left.path}")
    left.path.write_bytes(msgspec.json.encode(replace(left.state, dry_run=True)))
    assert "its alert is firing" in sent
    for line in ("status", "explain GPU-aa"):
        assert "dry run" in ctl(f"fleet {line} --state {left.path}")
        assert "its alert is" not in ctl(f"fleet {line} --state {left.path}")
    assert '"dry_run":true' in ctl(f"fleet status --state {left.path} --json")


@pytest.mark.parametrize(
    ("wish", "ids"),
    [
        ("GPU-aa", ["GPU-aa-1"]),
        ("gpu-AA-1", ["GPU-aa-1"]),
        ("n1/*", ["GPU-aa-1"]),
        ("GPU-a*", ["GPU-aa-1"]),
        ("GPU-ab", []),
    ],
)
def test_one_gpu_is_asked_for(left: StateFile, ctl: Ctl, wish: str, ids: list[str]) -> None:
    said = json.loads(ctl(f"--gpu {wish} fleet status --state {left.path} --json"))
    (worker,) = said["data"]["workers"]
    assert [gpu["id"] for gpu in worker["round"]["verdicts"]] == ids
    code = 3 if ids else 0
    ctl(f"fleet status --gpu {wish} --state {left.path} --exit-code", code=code)
    if wish != "GPU-ab":
        assert "GPU-aa-1" in ctl(f"fleet explain GPU-a --gpu GPU-aa --state {left.path}")
    # What is counted is what was asked for, of two that there are.
    many = 2 if wish in {"n1/*", "GPU-a*"} else 1
    assert worker["round"]["gpus"] == many


def test_a_gpu_that_no_worker_has_is_refused(left: StateFile, ctl: Ctl) -> None:
    for wish in ("GPU-zz", "9", "n2/*", "n1"):
        assert len(ctl.err(f"fleet status --gpu {wish} --state {left.path}").splitlines()) == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format":1}', b'{"format":2}', b'{"pid":1}', b"\xff\x00", b"[" * 99999],
    ids=range(8),
)
def test_a_state_that_is_none_is_one_line(tmp_path: Path, ctl: Ctl, content: bytes) -> None:
    file = tmp_path / "fleet.json"
    file.write_bytes(content)
    assert len(ctl.err(f"fleet status --state {file}").splitlines()) == 3
    assert len(ctl.err(f"fleet status --state {tmp_path}").splitlines()) in {2, 3}
    assert len(ctl.err(f"fleet status --state {tmp_path / 'none'}").splitlines()) in {2, 3}


def test_a_cut_state_is_none_at_any_length(left: StateFile) -> None:
    content = left.path.read_bytes()
    for end in range(0, len(content), 97):
        left.path.write_bytes(content[:end])
        with pytest.raises(GpuwatchdError):
            fleet_state.read(left.path)


def test_without_files_those_of_the_user_and_of_the_unit_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl, left: StateFile
) -> None:
    unit, own = tmp_path / "unit", tmp_path / "own"
    monkeypatch.setattr(fleet_state, "SYSTEM_DIRECTORIES", (unit,))
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(own))
    for key in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY"):
        monkeypatch.delenv(key, raising=False)
    assert len(ctl.err("fleet status").splitlines()) == 3
    mine = fleet_state.default_file("fleet")
    monkeypatch.setenv("STATE_DIRECTORY", f"{unit}:/other")
    units = fleet_state.default_file("fleet")
    for file in (mine, units):
        file.parent.mkdir(parents=True)
        file.write_bytes(left.path.read_bytes())
    (own / "fleet" / "damaged.json").write_bytes(b"{")
    said = json.loads(ctl("fleet status --json"))
    assert [one["file"] for one in said["data"]["workers"]] == [str(mine), str(units)]
    assert [one["code"] for one in said["warnings"]] == ["fleet-state"]


def test_shards_on_one_machine_have_a_file_each(tmp_path: Path) -> None:
    files = {StateFile(settings(tmp_path, shard=Shard(k, 3))).path for k in (1, 2, 3)}
    assert len(files) == 3
    assert {file.parent for file in files} == {tmp_path}


def test_a_place_that_cannot_be_written_costs_the_file_alone_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker, _ = begun({("GPU-a", "n1", "p"): flat()})
    judge = Judge(fleet().detection, fleet().policy)
    judge.round(worker.rings)
    base = settings(tmp_path)
    for place in ("/dev/full/x.json", str(tmp_path / "missing" / "x.json")):
        section = replace(base.section, state=place)
        file = StateFile(replace(base, section=section))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                found = round_state(worker, judge)
                file.after_round(worker, judge, found, round_s=0.1, due_at_s=0.0)
        assert len(caplog.records) == 1


def test_a_state_is_bounded(
    left: StateFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    curves = {(f"GPU-{k}", "n1", "p"): leak() if k < 4 else flat() for k in range(9)}
    worker, _ = begun(curves)
    judge = Judge(fleet().detection, fleet().policy)
    judge.round(worker.rings)
    monkeypatch.setattr(fleet_state, "MOST_VERDICTS", 3)
    monkeypatch.setattr(fleet_state, "MOST_CALM", 2)
    file = StateFile(settings(tmp_path))
    file.after_round(worker, judge, round_state(worker, judge), round_s=0.1, due_at_s=0.0)
    state = fleet_state.read(file.path)
    assert (len(state.round.verdicts), len(state.calm), state.left_out) == (3, 2, 4)
    assert file.path.stat().st_mode & 0o777 == 0o600
    # What is in force is the whole file: nothing else lies beside it.
    assert [one.name for one in tmp_path.iterdir()] == ["fleet.json"]
    assert left.path == file.path


def test_a_server_that_fails_is_in_the_state_and_the_last_round_stays(left: StateFile) -> None:
    found = replace(left.state.round, failures={"round 503": 2})
    left.after_failure("it answers 503", found, time.time() + 300)
    state = fleet_state.read(left.path)
    assert (state.error, state.round.failures) == ("it answers 503", {"round 503": 2})
    assert [gpu.state for gpu in state.round.verdicts] == ["firing"]
    left.close()
    assert fleet_state.read(left.path).stopped


def test_rounds_leave_a_state_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need(importlib.util.find_spec("prometheus_client"), "prometheus_client is missing")
    worker, played = begun({("GPU-a", "n1", "p"): leak(), ("GPU-b", "n1", "p"): flat()})
    judge, stop = Judge(fleet().detection, fleet().policy), fleet_main.Stop()
    place = tmp_path / "m.sock"
    address = listening.parse(f"unix:{place}", remote=False)
    chosen = settings(tmp_path, listen=address)
    file, metrics = StateFile(chosen), Metrics(chosen)
    pages: list[str] = []
    minutes = iter(range(401, 410))

    def pause(_: float) -> bool:
        pages.append(page(str(place)))
        minute = next(minutes)
        played.fails = [MetricsServerError("busy", status=503)] if minute == 404 else []
        monkeypatch.setattr("time.time", lambda: at(minute))
        if minute == 406:
            stop.set()
        return False

    monkeypatch.setattr(stop, "wait", pause)
    monkeypatch.setattr("time.time", lambda: at(401))
    with metrics.served():
        fleet_main._rounds(worker, judge, file, metrics, stop)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    state = fleet_state.read(file.path)
    assert (len(lines), state.rounds) == (4, 4)
    values = dict(line.rsplit(" ", 1) for line in pages[-1].splitlines() if line[0] != "#")
    assert values['gpuwatchd_fleet_gpus{data="fresh"}'] == "2.0"
    assert values["gpuwatchd_fleet_rounds_total"] == "4.0"
    assert values['gpuwatchd_fleet_failures_total{kind="round 503"}'] == "1.0"
    assert 'gpuwatchd_fleet_failures_total{kind="round 503"} 0.0' in pages[0].splitlines()
    assert 'gpuwatchd_fleet_dropped_total{reason="blank"} 0.0' in pages[0].splitlines()
    assert sum(float(v) for k, v in values.items() if k.startswith("gpuwatchd_fleet_alerts")) == 1
    assert not place.exists()


def page(place: str) -> str:
    """Return what is served at a socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(place)
        asking.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = http.client.HTTPResponse(asking)
        answer.begin()
        assert answer.status == 200
        return answer.read().decode()


def test_the_server_is_in_the_log_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    changes = StateLog()
    errors = [MetricsServerError(f"busy for {k} s", status=503) for k in range(3)]
    with caplog.at_level(logging.INFO):
        for error in (None, *errors, None, None, errors[0]):
            fleet_main._log_server(changes, error, 15.0)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO", "WARNING"]


def test_a_worker_logs_its_start_what_it_read_and_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, played = begun({("GPU-a", "n1", "p"): flat(), ("GPU-b", "n2", "p"): flat()})
    monkeypatch.setattr(fleet_main, "Client", lambda _: played)
    stop, minutes = fleet_main.Stop(), iter((402, 403))
    monkeypatch.setattr("time.time", lambda: at(401))

    def pause(_: float) -> None:
        minute = next(minutes, None)
        if minute is None:
            stop.set()
        else:
            monkeypatch.setattr("time.time", lambda: at(minute))

    monkeypatch.setattr(stop, "wait", pause)
    with caplog.at_level(logging.INFO):
        fleet_main._serve(settings(tmp_path), stop, send=False)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["start", "past", "stopped"]
    assert "gpus=2" in lines[1]
    assert fleet_state.read(tmp_path / "fleet.json").dry_run


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_second_worker_on_one_state_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dry_run: tuple[str, ...],
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    place = f"state = '{tmp_path}/fleet.json'\nalertmanagers = ['http://127.0.0.1:9']\n"
    file = write(tmp_path, f"[fleet]\n{LOCAL}{place}")
    state = StateFile(settings(tmp_path))
    with state.held():
        state.begin()
        before = state.path.read_bytes()
        assert main(["fleet", "--config", str(file), *dry_run]) == 1
        said = capsys.readouterr().err
        assert str(os.getpid()) in said
        assert "hint" in said
        # What the first one has left is as it was.
        assert state.path.read_bytes() == before
    with StateFile(settings(tmp_path)).held():
        pass


def test_before_its_first_round_a_worker_is_no_success(tmp_path: Path, ctl: Ctl) -> None:
    state = StateFile(settings(tmp_path))
    state.begin()
    line = f"fleet status --state {state.path}"
    assert _codes(ctl, line, 1) == ["no-round"]
    for error in ("it refuses us (401)", "no answer within 20 s"):
        state.after_failure(error, state.state.round, time.time() + 60)
        assert _codes(ctl, line, 1) == ["no-round"]
        shown = ctl(line, code=1).splitlines()
        assert error in shown[0]
        assert "matchers" not in "".join(shown)


def _codes(ctl: Ctl, line: str, code: int) -> list[str]:
    said = json.loads(ctl(f"{line} --json", code=code))
    jsonschema.Draft202012Validator(schema("fleet")).validate(said)
    return [one["code"] for one in said["warnings"]]


def test_a_member_that_takes_no_alerts_is_no_success(left: StateFile, ctl: Ctl) -> None:
    line = f"fleet status --exit-code --state {left.path}"
    member = fleet_state.FailingMember(name="am:9093", error="am:9093: refused", since_s=at(410))

    def write_state(**changes: Any) -> None:
        found = replace(left.state.round, failures={"am:9093 post no answer": 4})
        state = replace(left.state, round=found, failed_at_s=at(411), **changes)
        left.path.write_bytes(msgspec.json.encode(state))

    write_state(failing_members=(member,))
    assert _codes(ctl, line, 1) == ["alertmanager"]
    assert any(one.startswith("! ") and "am:9093" in one for one in ctl(line, code=1).splitlines())
    # What is over is counted, and is no fault of now.
    write_state()
    assert _codes(ctl, line, 3) == []
    shown = ctl(line, code=3)
    assert "! " not in shown
    assert "4 messages" in shown


def test_no_gpu_with_a_value_is_no_success(left: StateFile, ctl: Ctl) -> None:
    for gpus in (0, 2):
        found = fleet_state.FleetRoundState(gpus=gpus, no_data=gpus)
        left.path.write_bytes(msgspec.json.encode(replace(left.state, round=found)))
        assert _codes(ctl, f"fleet status --state {left.path}", 1) == ["no-series"]


def test_a_configuration_is_not_taken_for_a_state(left: StateFile, ctl: Ctl) -> None:
    for line in ("status", "explain GPU-aa"):
        ctl.err(f"fleet {line} --state {left.path} --config {left.path}", code=2)


def test_what_a_watch_waits_for_is_said(tmp_path: Path, ctl: Ctl) -> None:
    worker, _ = begun({("GPU-a", "n1", "p"): leak()})
    judge, file = Judge(fleet().detection, fleet().policy), StateFile(settings(tmp_path))
    judge.round(worker.rings)
    found = round_state(worker, judge)
    (gpu,) = found.verdicts
    assert gpu.alert is not None
    alert = replace(gpu.alert, state="watch", alert_confirmations=2, evidence=0.0)
    found = replace(found, verdicts=(replace(gpu, alert=alert),))
    file.after_round(worker, judge, found, round_s=0.5, due_at_s=time.time() + 60)
    shown = ctl(f"fleet explain GPU-a --state {file.path}")
    assert f"2 of {fleet().policy.confirm}" in shown
    assert "50 %" in shown


@pytest.mark.parametrize(
    "words", ["0.0.0.0:9752", "[::]:9752", "192.0.2.1:9752", "host:1", "unix:x", "70000"]
)
def test_metrics_are_for_this_machine_alone(tmp_path: Path, words: str) -> None:
    file = write(tmp_path, f"[fleet]\n{LOCAL}[metrics]\nlisten = '{words}'")
    assert main(["fleet", "--config", str(file), "--dry-run"]) == 78


def test_without_its_library_or_its_address_there_are_no_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    words = f"[fleet]\n{LOCAL}[metrics]\nlisten = 'unix:{tmp_path}/none/m.sock'"
    file = write(tmp_path, words)
    assert main(["fleet", "--config", str(file), "--dry-run"]) == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["fleet", "--config", str(file), "--dry-run"]) == 1
    assert "gpuwatchd[metrics]" in capsys.readouterr().err


def test_the_service_manager_hears_of_it_and_a_closed_pipe_ends_it_in_order(tmp_path: Path) -> None:
    empty = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
    place, file = str(tmp_path / "notify"), tmp_path / "state.json"
    with serve(Reply(empty)) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        url = f"url = 'http://127.0.0.1:{server.port}'"
        write(tmp_path, f"[fleet]\n{url}\nstate = '{file}'\nstep = '1h'\nwindow = '40h'\n")
        ear.bind(place)
        ear.settimeout(30)
        words = ("-m", "gpuwatchd", "fleet", "--dry-run", "--config")
        told = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "100000"}

        def worker(out: Any) -> Child[bytes]:
            command = (sys.executable, *words, tmp_path / "fleet.toml")
            return Child(command, stdout=out, env={**os.environ, **told})

        with worker(subprocess.DEVNULL) as child:
            heard = ""
            # More often than a round looks at it: also in the wait for the next hour.
            while heard.count("WATCHDOG=1") < 12 or "0 GPUs" not in heard:
                heard += ear.recv(4096).decode() + "\n"
            child.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in heard:
                heard += ear.recv(4096).decode() + "\n"
            assert child.wait(30) == 0
        assert heard.startswith("READY=1\n")
        file.unlink()
        reads, writes = os.pipe()
        os.close(reads)
        with worker(writes) as child:
            assert child.wait(30) == 141
        os.close(writes)
    assert fleet_state.read(file).stopped


def test_a_signal_at_any_instant_of_a_wait_ends_it() -> None:
    seen = 0

    def run(stop: fleet_main.Stop, nth: int) -> None:
        def handler(*_: object) -> None:
            nonlocal seen
            seen += 1
            if seen == nth:
                stop.set()

        sys.setprofile(handler)
        stop.wait(0.01)
        sys.setprofile(None)

    for nth in range(1, 100):
        seen, stop = 0, fleet_main.Stop()
        thread = threading.Thread(target=run, args=(stop, nth), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        if seen < nth:
            break
        assert stop.is_set()
    else:
        raise AssertionError(seen)
