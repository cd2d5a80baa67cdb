"""The pictures of the program are what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gpuwatchd.charts import drawing_process
from tests.conftest import ROOT, need
from tests.docs import plots, screens

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", screens.PICTURES)
def test_a_picture_is_what_the_program_shows(name: str) -> None:
    there = (screens.FOLDER / name).read_text(encoding="utf-8")
    assert there == screens.picture(name), "run make docs"


@pytest.mark.parametrize("name", screens.PICTURES)
def test_a_picture_is_sound_and_loads_nothing(name: str) -> None:
    text = (screens.FOLDER / name).read_text(encoding="utf-8")
    root = ET.fromstring(text)
    words = {child.tag.rpartition("}")[2]: child.text for child in root}
    assert (words["title"] or "").startswith("gpuwatchctl")
    assert len(words["desc"] or "") > 40
    assert re.findall(r"(?:href|url|@import|@font-face)", text) == []
    assert len(text) < 30_000
    assert "daemon was stopped" not in text


def test_the_picture_of_the_mail_is_of_the_message_that_is_sent() -> None:
    file = screens.FOLDER / "alert-mail.png"
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert file.stat().st_size <= 150_000
    shown = re.search(
        r'alert-mail\.png"[^>]*alt="A mail: ([^;]*);', (ROOT / "README.md").read_text("utf-8")
    )
    assert shown
    sent = screens.message()
    assert sent.subject == f"{shown[1]} (lab3)", "draw the mail anew, see tests/docs/screens.py"
    assert sent.chart is not None


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_file_says_what_the_program_draws(name: str) -> None:
    need(drawing_process.available(), "the extra charts is not installed")
    there = (plots.FOLDER / name).read_text(encoding="utf-8")
    assert plots.said(there) == plots.said(plots.picture(name)), "run make docs"
    assert re.findall(r"href=\"(?!#)|@import|@font-face|<script", there) == []
    assert len(there) < 80_000


PAGE = ROOT / "docs" / "tutorial" / "first-leak.md"
_STEP = re.compile(r"<!-- run(?: until: ([^>]*?))? -->\n```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PATIENCE_S = 90


def script(text: str) -> str:
    """Return the steps as one script; a step that waits is repeated until it shows the words."""
    lines = ["set -m"]
    for words, body in _STEP.findall(text):
        if words:
            lines += [
                f"for i in $(seq {_PATIENCE_S}); do",
                f"shown=$({body.strip()})",
                f'case "$shown" in *"{words}"*) break;; esac',
                "sleep 1; done",
                'echo "$shown"',
            ]
        else:
            lines.append(body)
    return "\n".join(lines)


def test_every_step_does_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "contrib").symlink_to(ROOT / "contrib")
    programs = Path(sys.executable).parent
    kept = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    done = subprocess.run(
        ["bash", "-c", script(PAGE.read_text(encoding="utf-8"))],
        check=False, cwd=tmp_path, capture_output=True, text=True, timeout=115,
        env={**kept, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8",
             "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    log, _, watched = shown.partition("exit code 3")
    assert "alert firing: 50.0 MB/min" in log
    for words in (
        "nothing leaks", "critical since", "growth rate   +", "What to do", "firing critical",
    ):  # fmt: skip
        assert words in watched, words
    assert "takes it back" in watched
    assert sorted(file.name for file in tmp_path.iterdir()) == ["contrib"]


def test_every_step_that_can_be_run_here_is_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(_STEP.findall(text)) == text.count("```sh\n") == 6
