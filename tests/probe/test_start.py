"""A job that is started with `run` is the job as it was: on each interpreter, however it begins."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING, Any

import pytest
from _gpuwatchd_probe import mailbox

from gpuwatchd.core import directories
from tests.cli import world
from tests.conftest import ON_LINUX, not_here
from tests.probe import gate

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = ON_LINUX
INTERPRETERS = gate.interpreters() or {"own": sys.executable}
PREPARED = "'_gpuwatchd_probe' in sys.modules"
INJECTOR = """
import os, sys
print("injector")
here = os.path.dirname(os.path.abspath(__file__))
sys.path = [place for place in sys.path if os.path.abspath(place) != here]
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = own
sys.path.insert(0, here)
"""
CHILDREN = f"""
import multiprocessing, os, sys, threading
import cupy

def work(number):
    return number, {PREPARED}, threading.active_count()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        print(pool.map(work, range(3)))
    if sys.argv[1] == "fork":
        pid = os.fork()
        if not pid:
            os._exit(threading.active_count())
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if sys.version_info > (3, 9) else 1)
"""


def ran(*command: Any, prepared: bool = True, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with `run` or without it."""
    front: list[Any] = [world.PROGRAM, "run", "--"] if prepared else []
    return subprocess.run(
        [*front, *command], capture_output=True, check=False, env={**os.environ, **environ}
    )


@pytest.mark.parametrize("version", INTERPRETERS)
@pytest.mark.parametrize(
    ("flags", "prepared"),
    [(("-W", "error"), True), (("-P",), True), (("-I",), False), (("-E",), False)],
)
def test_output_is_the_same_to_the_byte(
    version: str, flags: tuple[str, ...], prepared: bool
) -> None:
    if flags == ("-P",) and version in {"3.8", "3.9", "3.10"}:
        not_here("this Python has no -P")
    python = INTERPRETERS[version]
    code = (
        "import sys, threading; print(sys.argv, sys.flags, threading.active_count());"
        "assert not {'torch', 'ctypes', 'typing', 're', 'json'} & set(sys.modules); 1 / 0"
    )
    plain, with_run = (
        ran(python, *flags, "-c", code, "x", prepared=prepared) for prepared in (False, True)
    )
    assert (with_run.stdout, with_run.stderr) == (plain.stdout, plain.stderr)
    assert (with_run.returncode, plain.returncode) == (1, 1)
    answer = ran(python, *flags, "-c", f"import sys; print({PREPARED})")
    assert answer.stdout == f"{prepared}\n".encode()


@pytest.mark.parametrize("version", INTERPRETERS)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_every_kind(version: str, method: str, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("__version__ = '9'")
    (tmp_path / "job.py").write_text(CHILDREN)
    answer = ran(INTERPRETERS[version], "-W", "error", tmp_path / "job.py", method)
    rows = str([(number, True, 1) for number in range(3)])
    last = ["1"] if method == "fork" else []
    # A forked child has no thread of ours; a spawned one gets its own, its module being imported.
    seen = answer.stdout.decode().replace("True, 2", "True, 1").splitlines()
    assert (seen, answer.stderr) == ([rows, *last], b"")


@pytest.mark.parametrize("first", [True, False])
def test_another_injector_and_the_users_own(first: bool, tmp_path: Path) -> None:
    for name, code in {"injector": INJECTOR, "own": "print('own')"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(code)
    injector, own = tmp_path / "injector", tmp_path / "own"
    places = f"{injector}:$PYTHONPATH:{own}" if first else f"$PYTHONPATH:{injector}:{own}"
    code = f"import sys; print({PREPARED})"
    # In a shell, for gpuwatchctl is a Python program too and would run them itself.
    answer = ran("sh", "-c", f'PYTHONPATH={places} exec {sys.executable} -c "{code}"')
    assert (answer.stdout, answer.stderr) == (b"injector\nown\nTrue\n", b"")


def test_a_virtual_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    code = f"import sys; print({PREPARED}, sys.prefix, *sys.path, sep='\\n')"
    answer = ran(tmp_path / "venv/bin/python", "-W", "error", "-c", code)
    prepared, prefix, *places = answer.stdout.decode().splitlines()
    assert (prepared, prefix) == ("True", f"{tmp_path}/venv")
    assert all("site-packages" not in place or place.startswith(prefix) for place in places)


@pytest.mark.parametrize("named", ["XDG_RUNTIME_DIR", "GPUWATCHD_STATE_DIR", "XDG_STATE_HOME"])
def test_the_import_alone_writes_where_gpuwatchctl_looks(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no login made a runtime directory: under cron, su, in a container."""
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path), named: str(tmp_path)})
    directories.state_dir().mkdir(parents=True, exist_ok=True)
    assert mailbox.directory() == str(directories.runtime_dir() / "probe")
