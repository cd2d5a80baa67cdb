"""``gpuwatchctl service`` on a Debian 12 that was really booted, without a package.

The program lies in /opt, as an administrator puts it there. The tests go on with the machine of the
one before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import need
from tests.packaging import debs
from tests.real.machine import booted, root, why_not
from tests.real.machine.machine import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.machine import Machine

pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(600)]

PROGRAM = "/usr/local/bin/gpuwatchctl"
HOME = "home/mleng"
UNIT = f"{HOME}/.config/systemd/user/gpuwatchd.service"
CONFIG = f"/{HOME}/.config/gpuwatchd/config.toml"
QUICK = '[daemon]\ninterval = "1s"\n'


def _put_into_opt(tree: Path, scratch: Path) -> None:
    """Lay the program of the package where no package lies."""
    subprocess.run(["dpkg-deb", "-x", str(debs.deb("bookworm")), str(scratch)], check=True)
    shutil.move(scratch / "usr/lib/gpuwatchd", tree / "opt/gpuwatchd")
    for name in ("gpuwatchctl", "gpuwatchd"):
        script = tree / "opt/gpuwatchd/bin" / name
        first, _, rest = script.read_text().partition("\n")
        assert first.startswith("#!")
        script.write_text(f"#!/opt/gpuwatchd/bin/python3\n{rest}")
        (tree / "usr/local/bin" / name).symlink_to(f"/opt/gpuwatchd/bin/{name}")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need(not why_not(), why_not())
    with root("bookworm") as tree:
        _put_into_opt(tree.path, tmp_path_factory.mktemp("unpacked"))
        with booted(tree) as found:
            # As the package and pip do; else every call compiles all of it anew.
            lexers = ("-x", "/pygments/lexers/[a-z]")
            compiled = ("-I", "-m", "compileall", "-q", "-j", "0", *lexers, "/opt/gpuwatchd/lib")
            found.run("/opt/gpuwatchd/bin/python3", *compiled, timeout=120, ok=True)
            found.run("loginctl", "enable-linger", "mleng", ok=True)
            bus = found.files / f"run/user/{found.uid('mleng')}/bus"
            until(bus.exists, "the user's manager")
            yield found


class _Answer:
    """What ``gpuwatchctl service`` said, and how it ended."""

    def __init__(self, machine: Machine, words: str, user: str | None) -> None:
        done = machine.run(PROGRAM, "service", *words.split(), user=user, timeout=90)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        assert "Traceback" not in self.err, self.err


def _service(machine: Machine, words: str, *, user: str | None = "mleng") -> _Answer:
    return _Answer(machine, words, user)


def _state(machine: Machine, *, user: str | None = "mleng") -> dict[str, Any]:
    words = f"status --json{'' if user else ' --system'}"
    told: dict[str, Any] = json.loads(_service(machine, words, user=user).out)["data"]
    return told


def test_where_nothing_is_installed(machine: Machine) -> None:
    assert _service(machine, "status").code == 4
    assert _service(machine, "uninstall").out == "not installed\n"
    dry = _service(machine, "install --dry-run")
    assert (dry.code, f"would write /{UNIT}" in dry.out) == (0, True)
    assert not (machine.files / UNIT).exists()


def test_without_a_user_manager_the_way_out_is_named(machine: Machine) -> None:
    refused = _service(machine, "install", user="stranger")
    assert refused.code == 1


def test_install_twice(machine: Machine) -> None:
    machine.write(CONFIG, QUICK, owner="mleng")
    done = _service(machine, "install")
    assert done.code == 0, done.err + machine.journal()
    first = _state(machine)
    assert (first["running"], first["enabled"], first["watchdog_s"]) == (True, True, 60.0)
    assert _service(machine, "install").code == 0
    assert _state(machine)["pid"] == first["pid"]
    assert _service(machine, "status").code == 0


def test_a_job_is_a_unit_that_systemd_starts_anew(machine: Machine) -> None:
    ran = machine.files / HOME / "ran"
    job = ["sh", "-c", "echo $0 $PWD >> ran; exit 3", "a$b"]
    words = [PROGRAM, "run", "--unit", "night", "--restart", "2", "--", *job]
    done = machine.run("env", "-C", f"/{HOME}", *words, user="mleng", timeout=60)
    assert (done.returncode, done.stdout) == (0, "night.service\n"), done.stderr
    again = machine.run(*words, user="mleng", timeout=60)  # there is one of that name
    assert (again.returncode, "Traceback" in again.stderr) == (1, False)
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 3, "three starts")
    time.sleep(6)
    assert ran.read_text() == f"a$b /{HOME}\n" * 3
    refused = machine.run("env", "-u", "XDG_RUNTIME_DIR", *words, user="stranger", timeout=60)
    assert (refused.returncode, "enable-linger" in refused.stderr) == (1, True), refused.stderr


def test_an_older_unit_is_written_anew_and_drop_ins_stay(machine: Machine) -> None:
    unit = machine.read(UNIT)
    machine.write(UNIT, unit.replace("MemoryMax=256M", "MemoryMax=128M"), owner="mleng")
    machine.write(f"{UNIT}.d/override.conf", "[Service]\nTasksMax=63\n", owner="mleng")
    before = _state(machine)["pid"]
    assert _service(machine, "install").code == 0
    assert machine.read(UNIT) == unit
    assert machine.show("gpuwatchd", "TasksMax", user="mleng") == {"TasksMax": "63"}
    assert _state(machine)["pid"] != before


def test_a_credential_reaches_the_daemon_alone(machine: Machine) -> None:
    machine.write(f"/{HOME}/secret", "hunter2\n", mode=0o644, owner="mleng")
    words = f"install --credential smtp-password=/{HOME}/secret"
    assert "chmod 600" in _service(machine, words).err
    machine.write(f"/{HOME}/secret", "hunter2\n", mode=0o600, owner="mleng")
    assert _service(machine, words).code == 0
    place = machine.files / f"run/user/{machine.uid('mleng')}/credentials/gpuwatchd.service"
    assert (place / "smtp-password").read_text() == "hunter2\n"
    assert place.stat().st_mode & 0o077 == 0


def test_a_wrong_configuration_is_told_in_the_daemon_s_words(machine: Machine) -> None:
    machine.write(CONFIG, "nokey = 1\n", owner="mleng")
    refused = _service(machine, "restart")
    assert refused.code == 1
    assert "[nokey]: unknown key" in refused.err
    found = _state(machine)
    assert (found["state"], found["exit_code"]) == ("failed", 78)
    assert any("nokey" in line for line in found["log"])
    assert _service(machine, "status").code == 3
    machine.write(CONFIG, QUICK, owner="mleng")
    assert _service(machine, "start").code == 0


def test_logs_by_level_and_for_those_who_may_not_read(machine: Machine) -> None:
    shown = _service(machine, "logs --lines 200")
    assert (shown.code, "INFO start" in shown.out) == (0, True)
    shown = _service(machine, "logs --lines 200 --level warning")
    assert (shown.code, "INFO start" in shown.out) == (0, False)
    refused = _service(machine, "logs --system")
    assert refused.code == 1


def test_a_purge_asks_and_then_leaves_nothing_but_what_is_the_user_s(machine: Machine) -> None:
    _service(machine, "uninstall --purge")
    assert _state(machine)["running"]
    done = _service(machine, "uninstall --purge --yes")
    assert done.code == 0, done.err
    left = [
        str(path.relative_to(machine.files / HOME))
        for path in (machine.files / HOME).rglob("*")
        if "gpuwatchd" in path.name
    ]
    assert left == [".config/systemd/user/gpuwatchd.service.d"]
    assert not (machine.files / f"run/user/{machine.uid('mleng')}/gpuwatchd").exists()
    assert _service(machine, "status").code == 4


def test_the_machine_s_service_from_a_directory_of_root_s(machine: Machine) -> None:
    refused = _service(machine, "install --system")
    assert refused.code == 1
    library = next((machine.files / "opt/gpuwatchd/lib").glob("python3*/site-packages/gpuwatchd"))
    library.chmod(0o777)
    assert "others can write" in _service(machine, "install --system", user=None).err
    library.chmod(0o755)
    done = _service(machine, "install --system", user=None)
    assert done.code == 0, done.err + machine.journal()
    assert _service(machine, "status --system").code == 0
    for place, mode in (("var/lib", 0o750), ("run", 0o750), ("etc", 0o755)):
        status = (machine.files / place / "gpuwatchd").stat()
        assert (place, status.st_mode & 0o777) == (place, mode)
        assert (status.st_uid == machine.uid("gpuwatchd")) is (place != "etc")


def test_it_may_do_nothing_and_its_secrets_come_from_the_credential_store(machine: Machine) -> None:
    machine.write("/etc/credstore/gpuwatchd.smtp-password", "s3\n", mode=0o600)
    assert _service(machine, "restart --system", user=None).code == 0
    pid = machine.show("gpuwatchd", "MainPID")["MainPID"]
    told = dict(line.split(":\t", 1) for line in machine.read(f"proc/{pid}/status").splitlines())
    assert (told["CapEff"].strip("0"), told["CapBnd"].strip("0")) == ("", "")
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
    place = machine.files / "run/credentials/gpuwatchd.service"
    assert (place / "smtp-password").read_text() == "s3\n"


def test_beside_it_one_s_own_wants_a_word(machine: Machine) -> None:
    refused = _service(machine, "install")
    assert refused.code == 1
    assert _service(machine, "install --anyway").code == 0
    assert _service(machine, "uninstall --purge --yes").code == 0


def test_the_machine_s_purge_takes_the_account_along(machine: Machine) -> None:
    done = _service(machine, "uninstall --system --purge --yes", user=None)
    assert done.code == 0, done.err
    for place in ("var/lib", "run", "etc", "etc/systemd/system"):
        assert not list((machine.files / place).glob("gpuwatchd*"))
    assert "gpuwatchd" not in machine.read("/etc/passwd") + machine.read("/etc/group")
    assert _service(machine, "status --system", user=None).code == 4
    assert machine.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""
