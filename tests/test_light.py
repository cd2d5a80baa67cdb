"""What a daemon that has nothing to tell does without."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core import decoding, run_program
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = (
    *("apprise", "dbus_fast", "desktop_notifier", "keyring", "matplotlib", "rich", "smtplib"),
    *("textual", "urllib.request", "ssl", "_hashlib", "numpy"),
)


def test_a_daemon_with_nothing_to_tell_loads_nothing_to_tell_it_with() -> None:
    script = (
        "import sys; from gpuwatchd.core import config; "
        "from gpuwatchd.daemon import main as daemon; daemon.own_process.spare_openssl();"
        "daemon.HistoryChores().start();"
        "from gpuwatchd.notify.outbox import dispatcher as outbox;"
        "made = outbox.build(config.NotifySection(), ('desktop', 'command'));"
        f"print(*sorted(made), *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["command", "desktop"]


ALONE = {"keyring_ask.py", "credentials.py", "matplotlib_renderer.py"}
"""Programs of their own, or what speaks with them: in one thread."""
RACE = """
import sys, threading
import msgspec
from gpuwatchd.core import decoding

sys.setswitchinterval(1e-6)
KINDS = '''
class A{n}(msgspec.Struct):
    a: int
    b: "dict[str, B{n}]"
    c: "tuple[B{n}, ...]" = ()
class B{n}(msgspec.Struct):
    x: "int | None" = None
    y: "A{n} | None" = None
'''
CONTENT = b'{"a": 1, "b": {"q": {"x": 1, "y": {"a": 1, "b": {}}}}, "c": [{"x": 2}]}'
for n in range(400):
    exec(KINDS.format(n=n))
    kind, part = globals()[f"A{n}"], globals()[f"B{n}"]
    begin = threading.Barrier(4)
    def ask():
        begin.wait()
        ASK
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for one in threads: one.start()
    for one in threads: one.join()
print("done")
"""


@pytest.mark.slow
def test_threads_that_ask_at_once_do_not_crash_the_program() -> None:
    asked = "decoding.decode(CONTENT, kind); decoding.decode(b'{}', part)"
    done = subprocess.run(
        [sys.executable, "-c", RACE.replace("ASK", asked)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_nothing_is_decoded_past_it() -> None:
    asking = re.compile(r"msgspec\.(json\.decode|json\.Decoder|convert)\(.*\w")
    past = {
        file.name
        for file in (ROOT / "gpuwatchd").rglob("*.py")
        if any(asking.search(line) for line in file.read_text("utf-8").splitlines())
        and not file.samefile(str(decoding.__file__))
    }
    assert past == ALONE


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_one_that_not_even_sigkill_ends_yet_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an uninterruptible call into a driver that hangs; here signals do not arrive."""
    file = tmp_path / "pid"
    code = f"import os,time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(20)"
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda *_: None)
        ended = run_program.run([sys.executable, "-c", code], b"", environ={}, timeout_s=3.0)
    pid = int(file.read_text())
    try:
        assert ended.code is None
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it still runs"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
