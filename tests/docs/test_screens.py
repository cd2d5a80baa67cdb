"""The pictures of the program are what it shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gpuwatchd.charts import drawing_process
from tests.conftest import ROOT, need
from tests.docs import plots, screens
from tests.notify import test_add, test_chat

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


TUTORIALS = ROOT / "docs" / "tutorial"
_STEP = re.compile(r"<!-- run(?: until: ([^>]*?))? -->\n```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PATIENCE_S = 90
SLACK = """
import sys
if {"add", "--interval"} & set(sys.orig_argv):
    from apprise.plugins.slack import NotifySlack
    NotifySlack.webhook_url = "http://%s"
"""
"""Where Slack is, for what sends messages: on loopback."""


def script(text: str) -> str:
    """Return the steps as one script; a step that waits is repeated until it shows the words."""
    lines = ["set -m"]
    assert len(_STEP.findall(text)) == text.count("```sh\n"), "a step is not run"
    for words, body in _STEP.findall(text):
        if words:
            lines += [
                f"for i in $(seq {_PATIENCE_S}); do",
                f"shown=$({body.strip()})",
                f"case \"$shown\" in *'{words}'*) break;; esac",
                "sleep 1; done",
                'echo "$shown"',
            ]
        else:
            lines.append(body)
    return "\n".join(lines)


def followed(page: str, folder: Path, **more: str) -> str:
    """Follow a tutorial in an empty folder; return what it prints. It leaves nothing there."""
    before = sorted(folder.iterdir())
    kept = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    done = subprocess.run(
        ["bash", "-c", script((TUTORIALS / page).read_text(encoding="utf-8"))],
        check=False, cwd=folder, capture_output=True, text=True, timeout=115,
        env={**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
             "LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
             **more},
    )  # fmt: skip
    assert (done.returncode, sorted(folder.iterdir())) == (0, before), done.stdout + done.stderr
    return done.stdout


def test_the_first_leak_is_caught_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "contrib").symlink_to(ROOT / "contrib")
    log, _, watched = followed("first-leak.md", tmp_path).partition("exit code 3")
    assert "alert firing: 50.0 MB/min" in log
    for words in ("nothing leaks", "critical since", "growth rate   +", "What to do",
                  "firing critical", "takes it back"):  # fmt: skip
        assert words in watched, words


@pytest.mark.real_prometheus
def test_an_alert_gets_to_slack_and_prometheus_as_the_page_says(tmp_path: Path) -> None:
    need(shutil.which("prometheus") and shutil.which("promtool"), "Prometheus is not installed")
    slack = test_chat.Service()
    (tmp_path / "webhook").write_text(test_add.HOOK)
    (tmp_path / "sitecustomize.py").write_text(SLACK % slack.at)
    shown = followed("to-slack-and-prometheus.md", tmp_path, PYTHONPATH=str(tmp_path))
    slack.close()
    tested, alert = (json.loads(got.body)["attachments"][0]["title"] for got in slack.got[:2])
    assert tested.startswith("Test:")
    assert alert.startswith("CRITICAL: GPU 0: finetune_lora.py[4200000]")
    assert "chat: delivered" in shown
    assert 'state="firing"' in shown
    assert re.search(r"gpuwatchd_oom_eta_seconds\{.*\} => \d+", shown)
