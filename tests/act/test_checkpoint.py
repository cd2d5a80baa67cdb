"""A job is asked to save only where it can answer, and nobody claims that it has."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.act.checkpoint import Checkpoint
from gpuwatchd.core.errors import ActionError, NotAllowed, TargetChanged, TargetGone
from gpuwatchd.core.model import Subject
from tests.act.children import booted_at_s, job, key_of
from tests.children import shell_script
from tests.conftest import ON_LINUX
from tests.making import finding
from tests.real.stage import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = ON_LINUX


asking = functools.partial(Checkpoint, booted_at_s=booted_at_s())


def test_the_signal_arrives_and_success_is_not_claimed(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with job(saved) as process:
        ask = asking(checkpoint="signal", signal="USR1")
        about = finding(subject=Subject(device_uid="GPU-1", process=key_of(process.pid)))
        assert ask.offered(key_of(process.pid))
        would = ask.run(about, dry_run=True)
        assert would.startswith("would ask")
        assert not saved.exists()
        said = ask.run(about, dry_run=False)
        assert said.endswith("to save by SIGUSR1, not confirmed")
        assert until(saved.exists)


def test_a_job_that_names_its_signal_is_asked_whatever_is_configured(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with job(saved, GPUWATCHD_CHECKPOINT_SIGNAL="USR1") as process:
        assert asking().offered(key_of(process.pid))
        asking(checkpoint="command", argv=["/nowhere"]).ask(key_of(process.pid), dry_run=False)
        assert until(saved.exists)
    for named in ("USR2", "KILL"):  # no handler for the one, and the other is none to save on
        with job(saved, GPUWATCHD_CHECKPOINT_SIGNAL=named) as process:
            assert not asking().offered(key_of(process.pid))


def test_a_job_without_a_handler_is_left_alone(tmp_path: Path) -> None:
    with job() as process:
        ask = asking(checkpoint="signal", signal="USR1")
        assert not ask.offered(key_of(process.pid))
        with pytest.raises(NotAllowed, match="no handler for SIGUSR1 and would be ended"):
            ask.ask(key_of(process.pid), dry_run=False)
        time.sleep(0.1)
        assert process.poll() is None


def test_where_handlers_cannot_be_known_nobody_is_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwatchd.act.checkpoint.Target.handles", lambda *_: None)
    saved = tmp_path / "saved"
    with job(saved) as process:
        with pytest.raises(NotAllowed, match="cannot be known here"):
            asking(checkpoint="signal").ask(key_of(process.pid), dry_run=False)
        time.sleep(0.1)
        assert not saved.exists()


def test_a_finding_about_no_process_asks_nobody() -> None:
    with pytest.raises(NotAllowed, match="no single process"):
        asking(checkpoint="signal").run(finding(subject=Subject(device_uid="GPU-1")), dry_run=False)
    assert not asking(checkpoint="signal").offered(None)


def test_a_program_is_told_as_json_and_not_through_a_shell(tmp_path: Path) -> None:
    got = tmp_path / "got"
    program = shell_script(tmp_path / "ask; touch hacked", f'cat > {got}; echo "$@" >> {got}.args')
    with job() as process:
        key = key_of(process.pid)
        ask = asking(checkpoint="command", argv=(program, "$(touch hacked)", "; x"))
        about = finding(subject=Subject(device_uid="GPU-1", process=key), reason="; touch hacked")
        assert ask.offered(key)
        assert "not confirmed" in ask.run(about, dry_run=False)
    told = json.loads(got.read_text())
    assert (told["schema_version"], told["ask"]) == (1, "checkpoint")
    assert told["process"]["pid"] == key.pid
    assert told["finding"]["reason"] == "; touch hacked"
    assert (tmp_path / "got.args").read_text() == "$(touch hacked) ; x\n"
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo 'no room' >&2; exit 3", "refused with 3: no room"),
        ("sleep 30", "did not end within 0.3 s"),
        ("sleep 30 & exit 0", ""),
        ("exec 0<&-; exit 0", ""),
    ],
)
def test_how_a_program_ends_is_told(tmp_path: Path, text: str, expected: str) -> None:
    ask = asking(checkpoint="command", argv=(shell_script(tmp_path / "ask", text),), timeout_s=0.3)
    began = time.monotonic()
    with job() as process:
        if expected:
            with pytest.raises(NotAllowed, match=expected):
                ask.ask(key_of(process.pid), dry_run=False)
        else:
            assert "not confirmed" in ask.ask(key_of(process.pid), dry_run=False)
    assert time.monotonic() - began < 5


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with job() as process:
        for argv in ((), (str(tmp_path / "none"),)):
            ask = asking(checkpoint="command", argv=argv)
            assert not ask.offered(key_of(process.pid))
            with pytest.raises(ActionError):
                ask.ask(key_of(process.pid), dry_run=True)


def test_nobody_is_asked_after_the_end(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with job() as process:
        key = key_of(process.pid)
    ask = asking(checkpoint="command", argv=(shell_script(tmp_path / "ask", f"touch {ran}"),))
    with pytest.raises(TargetGone):
        ask.ask(key, dry_run=False)
    assert not ran.exists()


def test_a_program_in_a_home_that_nobody_has_is_never_offered() -> None:
    with job() as process:
        ask = asking(checkpoint="command", argv=["~nobody-has-this-name/x"])
        assert not ask.offered(key_of(process.pid))
        with pytest.raises(NotAllowed, match="no such program"):
            ask.ask(key_of(process.pid), dry_run=False)


@pytest.mark.parametrize("way", ["signal", "command"])
def test_nobody_is_asked_where_the_time_of_boot_is_unknown(tmp_path: Path, way: str) -> None:
    saved, ran = tmp_path / "saved", tmp_path / "ran"
    argv = (shell_script(tmp_path / "ask", f"touch {ran}"),)
    with job(saved) as process:
        ask = Checkpoint(checkpoint=way, argv=argv, booted_at_s=None)  # type: ignore[arg-type]
        assert not ask.offered(key_of(process.pid))
        with pytest.raises(TargetChanged):
            ask.ask(key_of(process.pid), dry_run=False)
    assert not saved.exists()
    assert not ran.exists()


@pytest.mark.parametrize("anonymous", [True, False], ids=["in memory", "through a pipe"])
def test_a_program_is_told_without_any_file(
    anonymous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No directory for temporary files is of any use: full, read-only, or not there."""
    if not anonymous:
        monkeypatch.delattr("os.memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    got = tmp_path / "got"
    program = shell_script(tmp_path / "ask", f"cat > {got}; readlink /proc/$$/fd/0 > {got}.in")
    with job() as process:
        key = key_of(process.pid)
        ask = asking(checkpoint="command", argv=(program,))
        ask.ask(key, {"finding": {"reason": "x" * 300_000}}, dry_run=False)
    assert len(json.loads(got.read_text())["finding"]["reason"]) == 300_000
    expected = "/memfd:" if anonymous else "pipe:"
    assert (tmp_path / "got.in").read_text().startswith(expected)
    assert not (tmp_path / "none").exists()
