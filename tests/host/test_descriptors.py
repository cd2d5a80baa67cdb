"""Without a descriptor to spare nothing is known of a process; it has not ended by that."""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.children import Child
from tests.conftest import ROOT, ran
from tests.host.world import STARTED, host_of, linux

if TYPE_CHECKING:
    import subprocess

    from tests.host.world import FakeProc

SCENE = """
import json, os, resource, sys
from gpuwatchd.collect.host import Host
how, pid, other = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
host = Host(watch=how, contained=False)
before = host.processes([pid])[pid]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
taken = []
try:
    while True:
        taken.append(os.open("/", os.O_RDONLY))
except OSError:
    pass
during = host.processes([pid, other])
states = host.states([pid])
for each in taken:
    os.close(each)
after = host.processes([pid, other])
print(json.dumps([
    pid in during and during[pid].key == before.key,
    host.gone(pid) is None,
    other in during and during[other].key.started_at_s is None,
    [name for name in (during[other].name,) if "descriptor" in name] if other in during else [],
    after[pid].key == before.key and after[pid].name == before.name,
    after[other].key.started_at_s is not None and after[other].name == before.name,
]))
"""


@linux
@pytest.mark.parametrize("how", ["read", "stat", "pidfd"])
def test_a_process_of_ours_does_not_end_by_our_lack_of_descriptors(
    child: subprocess.Popen[bytes], how: str
) -> None:
    with Child(["sleep", "600"]) as other:
        done = ran(
            [sys.executable, "-c", SCENE, how, str(child.pid), str(other.pid)],
            check=True,
            cwd=ROOT,
            timeout=60,
        )
        other.kill()
    known, not_gone, met, named, still_known, met_at_last = json.loads(done.stdout)
    assert (known, not_gone, still_known) == (True, True, True)
    assert met is True
    assert named
    assert met_at_last is True


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_every_kind_of_lack_is_no_end(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    proc.process(7, starttime=STARTED)
    host = host_of(proc)
    first = host.processes([7])
    really = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("/7/stat"):
            raise OSError(code, os.strerror(code))
        return really(path, flags, *rest, **more)

    monkeypatch.setattr("gpuwatchd.collect.host.procfs.os.open", refuse)
    assert host.processes([7]) == first
    assert host.gone(7) is None
    (proc.folder / "7/stat").unlink()
    (proc.folder / "7").rename(proc.folder / "gone")
    assert host.processes([7]) == {}
    host.close()
