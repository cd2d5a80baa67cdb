"""The hooks that we ship, run by the channel itself: real shells, real curl, a pretended Slurm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Message
from gpuwatchd.notify.channels.command import CommandNotifier
from tests import making
from tests.children import shell_script
from tests.conftest import ROOT, need
from tests.notify.test_chat import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.model import Severity

HOOKS = ROOT / "contrib" / "hooks"
EVIL = "$(touch planted); `touch planted` \"; touch planted #' -x @/etc/passwd <b>"
MESSAGE = Message(
    id="m1",
    notice="firing",
    severity="critical",
    subject=f"GPU 0: {EVIL}",
    body=f"{EVIL}\nFull in 47 min.",
    command="gpuwatchctl explain 4711",
    cost="$4.20 so far",
    alert_key="leak:GPU-1/4711@5.0",
    finding=making.finding(),
)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that is first in PATH."""
    found = tmp_path / "bin"
    found.mkdir()
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return found


def fake(tools: Path, name: str, answer: str = "") -> Path:
    noted = tools / f"{name}.args"
    said = f'printf "%s\\0" "$@" >> "{noted}"; printf "\\n\\0" >> "{noted}"'
    shell_script(tools / name, f"{said}\n{answer}")
    return noted


def calls(noted: Path) -> list[list[str]]:
    if not noted.exists():
        return []
    found: list[list[str]] = [[]]
    for word in noted.read_text().split("\0")[:-1]:
        if word == "\n":
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


def send(hook: str, *arguments: str, message: Message = MESSAGE) -> str:
    return CommandNotifier([str(HOOKS / hook), *arguments], timeout=20).send(message)


def planted(tmp_path: Path) -> bool:
    return any(path.name == "planted" for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("hook", ["ntfy", "slurm", "journal"])
def test_each_is_a_shell_script_that_may_be_run(hook: str) -> None:
    path = HOOKS / hook
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/sh\n")
    assert subprocess.run(["/bin/sh", "-n", path], check=False).returncode == 0
    assert f"`{hook}`" in (HOOKS / "README.md").read_text()


def test_the_log_gets_one_line_and_no_options(tools: Path, tmp_path: Path) -> None:
    noted = fake(tools, "logger")
    send("journal", message=msgspec.structs.replace(MESSAGE, subject="--file=/etc/passwd"))
    send("journal")
    send("journal", message=msgspec.structs.replace(MESSAGE, notice="resolved", cost=""))
    first, second, third = calls(noted)
    head = ["--tag", "gpuwatchd-alert", "--priority", "daemon.crit", "--"]
    assert first == [*head, "--file=/etc/passwd (leak:GPU-1/4711@5.0), $4.20 so far"]
    assert second == [*head, f"{MESSAGE.subject} (leak:GPU-1/4711@5.0), $4.20 so far"]
    assert third[3] == "daemon.notice"
    assert not planted(tmp_path)


def test_the_real_logger_takes_the_same_arguments(tmp_path: Path) -> None:
    need(shutil.which("logger") is not None and sys.platform == "linux", "no logger of Linux")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        log.settimeout(10)
        options = ["--tag", "gpuwatchd-alert", "--priority", "daemon.crit"]
        subprocess.run(["logger", "--socket", tmp_path / "log", *options, "--", EVIL], check=True)
        line = log.recv(4096).decode()
    assert line.startswith("<26>")  # daemon (3 * 8) and crit (2)
    assert line.endswith(f"gpuwatchd-alert: {EVIL}")


_SCONTROL = """case "$1" in
pidjob) echo "Slurm job id 77 ends at Sat Nov 21 22:00:00 2026"; echo "slurm_get_rem_time is 5" ;;
requeue) exit ${REQUEUE:-0} ;;
esac"""


def test_a_job_is_annotated_and_requeued_only_on_request(tools: Path, tmp_path: Path) -> None:
    noted = fake(tools, "scontrol", _SCONTROL)
    send("slurm")
    comment = ["update", "JobId=77", f"Comment=gpuwatchd: {MESSAGE.subject}"]
    assert calls(noted) == [["pidjob", "4711"], comment]
    noted.unlink()
    send("slurm", "requeue", message=msgspec.structs.replace(MESSAGE, severity="warning"))
    send("slurm", "requeue", message=msgspec.structs.replace(MESSAGE, notice="resolved"))
    send("slurm", "requeue", message=msgspec.structs.replace(MESSAGE, notice="repeat"))
    assert not any("requeue" in call for call in calls(noted))
    send("slurm", "requeue", message=msgspec.structs.replace(MESSAGE, notice="escalated"))
    assert calls(noted)[-1] == ["requeue", "77"]
    assert not planted(tmp_path)


def test_what_is_no_job_is_left_alone(tools: Path) -> None:
    noted = fake(tools, "scontrol", "exit 1")
    send("slurm", "requeue")
    send("slurm", "requeue", message=msgspec.structs.replace(MESSAGE, finding=None))
    assert calls(noted) == [["pidjob", "4711"]]


def test_a_controller_that_does_not_answer_is_asked_again(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tools, "scontrol", _SCONTROL)
    monkeypatch.setenv("REQUEUE", "1")
    with pytest.raises(NotifyError) as caught:
        send("slurm", "requeue")
    assert not caught.value.permanent


@pytest.fixture
def topic() -> Iterator[Service]:
    need(shutil.which("curl") is not None, "no curl")
    found = Service()
    yield found
    found.close()


def settings_of(tmp_path: Path, topic: Service, mode: int = 0o600) -> str:
    file = tmp_path / "topic"
    file.write_text(
        f'url = "http://{topic.at}/gpu"\nheader = "Authorization: Bearer tk_secret"\n'
        'noproxy = "*"\n'
    )
    file.chmod(mode)
    return str(file)


def test_a_topic_is_told(tools: Path, tmp_path: Path, topic: Service) -> None:
    send("ntfy", settings_of(tmp_path, topic))
    ((_, headers, body),) = topic.got
    assert headers["Title"] == MESSAGE.subject
    assert (headers["Priority"], headers["Tags"]) == ("5", "rotating_light")
    assert headers["Authorization"] == "Bearer tk_secret"
    assert body.decode() == (
        f"{EVIL}\nFull in 47 min.\n$4.20 so far\n-> gpuwatchctl explain 4711\n"
    )
    assert not planted(tmp_path)


@pytest.mark.parametrize(
    ("severity", "shown"), [("info", ("2", "white_check_mark")), ("critical", ("4", "warning"))]
)
def test_a_topic_can_tell_a_recovery_from_a_crash(
    tools: Path, tmp_path: Path, topic: Service, severity: Severity, shown: tuple[str, str]
) -> None:
    over = msgspec.structs.replace(MESSAGE, notice="resolved", severity=severity)
    send("ntfy", settings_of(tmp_path, topic), message=over)
    ((_, headers, _),) = topic.got
    assert (headers["Priority"], headers["Tags"]) == shown


def test_a_topic_that_refuses_is_tried_again(tools: Path, tmp_path: Path, topic: Service) -> None:
    topic.status = 503
    with pytest.raises(NotifyError) as caught:
        send("ntfy", settings_of(tmp_path, topic))
    assert not caught.value.permanent
    assert "tk_secret" not in caught.value.message


def test_settings_that_others_can_read_are_refused(
    tools: Path, tmp_path: Path, topic: Service
) -> None:
    for file in (settings_of(tmp_path, topic, mode=0o640), str(tmp_path / "none")):
        with pytest.raises(NotifyError) as caught:
            send("ntfy", file)
        assert caught.value.permanent
    assert topic.got == []
