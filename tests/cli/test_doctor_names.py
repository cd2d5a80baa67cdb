"""By which names ``doctor`` may be asked, and directories that are not what they seem."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import doctor, main
from gpuwatchd.cli.doctor import answer, places
from gpuwatchd.cli.verbs.doctor import command
from gpuwatchd.core.config import directories as where
from tests.cli.sick import Machine
from tests.cli.test_doctor_faults import PAGE
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CHECKS = tuple(doctor.CHECKS)
IDS = re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)


def _printed() -> set[str]:
    """Return every name that the code gives an answer in so many words."""
    found = set()
    for file in (ROOT / "gpuwatchd/cli/doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            at = {"ok": 0, "warning": 1, "failed": 1}.get(node.func.id)
            name = node.args[at] if at is not None and len(node.args) > at else None
            if isinstance(name, ast.Constant):
                found.add(str(name.value))
        found |= set(re.findall(r'^_NAME = "(.*)"$', file.read_text(), re.MULTILINE))
    around = (ROOT / "gpuwatchd/cli/environment.py").read_text()
    return found | set(re.findall(r'yield \(?\s*"([a-z ]+)", "(?:ok|warning)"', around))


@pytest.mark.parametrize("name", sorted(_printed()))
def test_what_is_printed_may_be_asked_for(name: str) -> None:
    assert answer.asked_for(name, CHECKS)
    assert name in _completed(name[:2])


@pytest.mark.parametrize("name", IDS)
def test_an_id_may_be_asked_for(name: str) -> None:
    assert answer.asked_for(name, CHECKS)
    assert name in _completed(name[:4])


def test_no_id_is_known_that_none_answers_with() -> None:
    assert {one for all_of in answer.FAULTS.values() for one in all_of} | {*answer.ANY} == {*IDS}


def test_the_answers_of_a_machine_are_asked_for_by_their_names(tmp_path: Path) -> None:
    answers = Machine(tmp_path).ask()
    assert len(answers) > 10
    for one in answers:
        for name in (one.name, one.id):
            meant = answer.asked_for(name, CHECKS)
            assert meant, name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("extras", ("program",)), ("disk", ("disk",)), ("check-hangs", CHECKS),
        ("source nvml", ("gpus",)), ("source simulate:one-leak", ("gpus",)),
        ("channel email", ("channels",)), ("GPU 0", ("gpus", "host")),
        ("MIG 3:0", ("gpus", "host")), ("server vLLM", ("host",)), ("nothing", ()), ("gpu-x", ()),
    ],
)  # fmt: skip
def test_a_name_means_its_check(name: str, meant: tuple[str, ...]) -> None:
    assert answer.asked_for(name, CHECKS) == meant


def test_it_is_asked_by_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "extras"]) in {0, 3}
    shown = capsys.readouterr().out
    assert "extras: installed" in shown
    assert "disk" not in shown


def test_a_relative_directory_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    machine = Machine(tmp_path)
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", "here")
    found = [one for one in machine.ask("disk") if one.name == "history directory"]
    assert [(one.level, one.id) for one in found] == [("warning", "directory-relative")]
    assert f"here it is {tmp_path}/here" in found[0].text
    assert f"export GPUWATCHD_STATE_DIR={tmp_path}/here" in found[0].hint


def test_who_has_no_home_is_told_to_set_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    directory = where.HOMELESS / ".local/state/gpuwatchd"
    found = places._directory("history directory", directory, "user", "GPUWATCHD_STATE_DIR")
    assert (found.id, found.level) == ("directory-closed", "failed")
    assert "export HOME=" in found.hint
    assert str(where.HOMELESS) not in found.hint + found.text


def _completed(incomplete: str) -> list[str]:
    (argument,) = (one for one in command.params if one.name == "names")
    found = argument.shell_complete(command.make_context("doctor", []), incomplete)
    return [item.value for item in found]
