"""From ``apt install`` to a purge that leaves nothing, on a Debian 12 that was really booted.

The tests tell one story in the order of this file: each goes on with the machine of the one before.
"""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.fleet import fake
from tests.real.machine.machine import until
from tests.real.machine.world import CONF, FLEET, MANY_S, QUICK, SOURCES, UNIT, World, publish

pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(900)]

FLEET_CONFIG = "/etc/gpuwatchd/fleet.toml"
CONFIG = "/home/mleng/.config/gpuwatchd/config.toml"
DROP_IN = "/home/mleng/.config/systemd/user/gpuwatchd.service.d/test.conf"
JOB = """
import os, signal, subprocess, sys
def save(*_):
    with open(os.path.expanduser("~/saved"), "a") as file:
        file.write("saved\\n")
signal.signal(signal.Signals["SIG" + sys.argv[1]], save)
subprocess.run(["sleep", "600"])
"""
"""A program that saves on a signal, and starts another one."""
STEP = """
import pathlib, re, sys
from gpuwatchd.act import reap, steps
from gpuwatchd.act.checkpoint import Checkpoint
from gpuwatchd.collect.host.process_identity import Registry
from gpuwatchd.collect.host.procfs import stat_of
from gpuwatchd.core.errors import ActionError
step, pid, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
proc = pathlib.Path("/proc")
booted_at_s = float(re.search("btime ([0-9]+)", (proc / "stat").read_text())[1])
# Not by Host: within systemd-nspawn it takes no pid for one that it may act on.
info = Registry(proc, booted_at_s).read(pid, stat_of(pid, proc)).info
manager = steps.manager_of(info)
print(manager.kind, "opted-in" if steps.opted_in(info, manager) else "not")
for _ in range(times):
    try:
        print(steps.take(
            steps.Request(step, info.key, manager), runner=(), grace_s=10.0,
            checkpoint=Checkpoint("signal", booted_at_s=booted_at_s),
            booted_at_s=booted_at_s, look=lambda: reap.Subject(info, frozenset()),
        ).result)
    except ActionError as error:
        print(error.page)
"""
"""Takes a step on a process, several times; writes who manages it, and what came of it."""
LEFT = ("/var/cache/apt", "/var/lib/apt", "/var/log", "/var/cache/debconf", "/home", "/root")
"""What apt and dpkg write of every package, and what belongs to users."""


def test_two_commands_install_it(debian: World) -> None:
    began = time.monotonic()
    update = debian.apt("update")
    assert (update.returncode, update.stderr) == (0, "")
    install = debian.apt("install", "-y", UNIT)
    assert install.returncode == 0, install.stderr
    print(f"apt update and install: {time.monotonic() - began:.1f} s")
    assert "-0~deb12" in debian.version()
    assert "1 newly installed" in install.stdout, "and no other package is needed"


def test_nothing_was_switched_on(debian: World) -> None:
    added = debian.machine.root.files() - debian.before
    wants = [path for path in added if ".wants/" in path or ".requires/" in path]
    assert wants == []
    assert not [path for path in added if path.startswith("/etc/systemd/")]
    for scope in (["--system"], ["--global"]):
        units = (UNIT, FLEET) if scope == ["--system"] else (UNIT,)
        seen = debian.machine.run("systemctl", *scope, "is-enabled", *units)
        assert seen.stdout == "disabled\n" * len(units)
    assert debian.state(user=None) == "inactive"
    assert not (debian.machine.files / "var/lib/gpuwatchd/history.db").exists()


def test_an_ordinary_user_switches_it_on(debian: World) -> None:
    debian.linger("mleng")
    debian.machine.write(CONFIG, QUICK, mode=0o600, owner="mleng")
    debian.serve_notifications()
    debian.leak("mleng")
    done = debian.systemctl("enable", "--now", UNIT)
    assert done.returncode == 0, done.stderr + debian.machine.journal()
    # Type=notify: the command has returned, so it watches.
    assert (debian.state(), debian.pid() > 0) == ("active", True)
    status = debian.ctl("service", "status")
    assert status.returncode == 0
    assert "running" in status.stdout
    assert "A100" in debian.ctl("status").stdout


def test_the_doctor_has_nothing_against_the_unit_of_the_package(debian: World) -> None:
    assert debian.service_is_well()


def test_the_manager_applies_the_hardening(debian: World) -> None:
    shown = debian.machine.show(
        UNIT, "Type", "NoNewPrivileges", "SystemCallFilter", "RestrictNamespaces",
        "RestrictSUIDSGID", "LockPersonality", "UMask", "MemoryMax", "TasksMax", "WatchdogUSec",
        "PrivateDevices", "Restart", "RestartPreventExitStatus", "OOMScoreAdjust", user="mleng",
    )  # fmt: skip
    calls = shown.pop("SystemCallFilter").split()
    assert "read" in calls
    assert "mount" not in calls
    assert shown == {
        "Type": "notify", "NoNewPrivileges": "yes", "RestrictNamespaces": "yes",
        "RestrictSUIDSGID": "yes", "LockPersonality": "yes", "UMask": "0077",
        "MemoryMax": str(256 << 20), "TasksMax": "64", "WatchdogUSec": "1min",
        "PrivateDevices": "no", "Restart": "on-failure", "RestartPreventExitStatus": "78",
        "OOMScoreAdjust": "0",
    }  # fmt: skip
    status = (debian.machine.files / f"proc/{debian.pid()}/status").read_text()
    in_force = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (in_force["NoNewPrivs"], in_force["Seccomp"]) == ("1", "2")
    judged = debian.machine.run(
        "systemd-analyze", "--user", "security", UNIT, "--no-pager", user="mleng", ok=True
    )
    print(judged.stdout.splitlines()[-1])
    assert "Overall exposure level" in judged.stdout


def test_steps_on_a_user_unit_go_through_the_users_manager(debian: World) -> None:
    machine, home = debian.machine, "/home/mleng"
    machine.write(f"{home}/job.py", JOB, owner="mleng")
    machine.write(f"{home}/step.py", STEP, owner="mleng")
    start = "/usr/bin/python3 -S %h/job.py"
    units = {
        "train": f"[Unit]\nX-GpuWatchd=act\n[Service]\nExecStart={start} USR1\n",
        "other\\x2done": f"[Service]\nExecStart={start} USR2\n",
        "asked": "[Service]\nEnvironment=GPUWATCHD_ACT=1\nExecStart=/bin/sleep 600\n",
    }
    for name, text in units.items():
        machine.write(f"{home}/.config/systemd/user/{name}.service", text, owner="mleng")
    assert debian.systemctl("daemon-reload").returncode == 0

    def main_pid(name: str, user: str | None = "mleng") -> int:
        return int(machine.show(f"{name}.service", "MainPID", user=user)["MainPID"])

    def step(name: str, pid: int, times: int = 1) -> list[str]:
        python = "/usr/lib/gpuwatchd/bin/python3"
        words = (python, "-I", "-B", f"{home}/step.py", name, str(pid), str(times))
        return machine.run(*words, user="mleng", ok=True, timeout=120).stdout.split()

    def child(name: str) -> int:
        """Start a unit; return the process that its main process has started."""
        assert debian.systemctl("start", f"{name}.service").returncode == 0
        place = machine.files / f"proc/{main_pid(name)}/task/{main_pid(name)}/children"
        return int(until(place.read_text, "a child"))

    pid, main = child("train"), main_pid("train")
    done = step("checkpoint", pid, 20)
    assert done == ["user-unit", "opted-in", *["asked"] * 20]
    until(lambda: machine.read(f"{home}/saved") == "saved\n" * 20, "saved twenty times")
    assert step("restart", pid) == ["user-unit", "opted-in", "restarted"]
    assert main_pid("train") not in {0, main}
    assert step("end", child("train")) == ["user-unit", "opted-in", "ended"]
    assert machine.show("train.service", "ActiveState", user="mleng") == {"ActiveState": "inactive"}
    pid, main = child("other\\x2done"), main_pid("other\\x2done")
    assert step("checkpoint", pid) == ["user-unit", "not", "errors#no-handler"]
    assert main_pid("other\\x2done") == main
    assert step("end", pid) == ["user-unit", "not", "ended"]
    assert debian.systemctl("start", "asked.service").returncode == 0
    assert step("end", main_pid("asked")) == ["user-unit", "opted-in", "ended"]
    run = ("systemd-run", "--uid=mleng", "--unit=systems", "sleep", "600")
    machine.run(*run, ok=True)
    for name in ("checkpoint", "restart", "end"):
        assert step(name, main_pid("systems", None)) == ["other", "not", "errors#managed"]
    machine.run("systemctl", "stop", "systems", ok=True)


def test_without_linger_it_ends_with_the_last_session(debian: World) -> None:
    machine = debian.machine
    script = "gpuwatchctl service install && touch ~/on && sleep 2"
    done = machine.run("su", "-", "reader", "-c", script, timeout=60)
    assert done.returncode == 0, done.stderr + machine.journal()
    assert "loginctl enable-linger reader" in done.stdout
    manager = f"user@{machine.uid('reader')}.service"
    until(lambda: machine.show(manager, "ActiveState")["ActiveState"] == "inactive", "logged out")
    before = debian.counts("/home/reader/.local/state/gpuwatchd")
    debian.linger("reader")
    pid = debian.running(user="reader")
    assert machine.run("su", "-", "reader", "-c", "gpuwatchctl service status").returncode == 0

    def more() -> bool:
        return debian.counts("/home/reader/.local/state/gpuwatchd")["segment"] > before["segment"]

    until(more, "it goes on with the same history")
    assert debian.pid("reader") == pid, "the end of a session is nothing to it now"
    assert debian.ctl("service", "uninstall", user="reader").returncode == 0


def test_an_administrator_switches_on_the_machines_own(debian: World) -> None:
    machine = debian.machine
    machine.write("/etc/gpuwatchd/config.toml", QUICK)
    machine.write(
        "/etc/systemd/system/gpuwatchd.service.d/gpus.conf",
        f"[Service]\nEnvironment=FAKE_NVML_CONF={CONF}\n",
    )
    machine.run("systemctl", "daemon-reload", ok=True)
    done = machine.run("systemctl", "enable", "--now", UNIT)
    assert done.returncode == 0, done.stderr + machine.journal("--unit=gpuwatchd")
    debian.running(user=None)
    assert machine.show(UNIT, "User", "Group") == {"User": UNIT, "Group": UNIT}
    for place in ("var/lib/gpuwatchd", "run/gpuwatchd"):
        assert oct((machine.files / place).stat().st_mode & 0o777) == "0o750"


def test_its_group_reads_it_and_nobody_else(debian: World) -> None:
    machine = debian.machine
    machine.run("usermod", "-aG", UNIT, "reader", ok=True)
    seen = debian.ctl("status", user="reader")
    assert seen.returncode == 0, seen.stdout + seen.stderr
    assert "A100" in seen.stdout
    assert debian.ctl("alerts", user="reader").returncode == 0
    refused = debian.ctl("status", user="stranger")
    assert "Traceback" not in refused.stderr
    assert "only members of its group may read" in refused.stdout + refused.stderr
    assert "usermod -aG gpuwatchd" in refused.stdout + refused.stderr


def test_the_worker_of_a_fleet_waits_for_its_settings(debian: World) -> None:
    machine, words = debian.machine, f"--config {FLEET_CONFIG} --dry-run"
    dropped = f"[Service]\nExecStart=\nExecStart=/usr/bin/gpuwatchd fleet {words}\n"
    machine.write(f"/run/systemd/system/{FLEET}.service.d/dry.conf", dropped)
    machine.run("systemctl", "daemon-reload", ok=True)
    assert machine.run("systemctl", "start", FLEET).returncode == 1

    def shown() -> dict[str, str]:
        return machine.show(FLEET, "Result", "ExecMainStatus", "NRestarts")

    expected = {"Result": "exit-code", "ExecMainStatus": "78", "NRestarts": "0"}
    until(lambda: shown() == expected, "it gives up at once")
    machine.run("systemctl", "reset-failed", FLEET, ok=True)


def test_the_worker_of_a_fleet_runs_as_nobody_and_has_its_token(debian: World) -> None:
    machine = debian.machine
    machine.write(f"/etc/credstore/{FLEET}.prometheus-token", "s3cret\n", mode=0o600)
    empty = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
    with fake.serve(fake.Reply(empty)) as server:
        token = f"/run/credentials/{FLEET}.service/prometheus-token"
        url = f"http://127.0.0.1:{server.port}"
        machine.write(FLEET_CONFIG, f'[fleet]\nurl = "{url}"\ntoken-file = "{token}"\n')
        machine.run("systemctl", "start", FLEET, ok=True)
        until(lambda: server.asked, f"it asks\n{machine.journal(f'--unit={FLEET}')}")
    assert server.asked[0]["Authorization"] == "Bearer s3cret"
    pid = machine.show(FLEET, "MainPID")["MainPID"]
    status = machine.read(f"/proc/{pid}/status")
    uid = int(re.findall(r"^Uid:\t(\d+)", status, re.MULTILINE)[0])
    assert 61184 <= uid <= 65519, "of those that systemd hands out"
    for place in ("var/lib/private", "run"):
        own = (machine.files / place / FLEET).stat()
        assert (own.st_uid, oct(own.st_mode & 0o777)) == (uid, "0o700")


def test_the_leak_is_found_and_told(debian: World) -> None:
    began = time.monotonic()
    (alert,) = until(debian.firing, "an alert", MANY_S, 1.0)
    print(f"alert after {time.monotonic() - began:.0f} s")
    assert alert["kind"] == "leak"
    told = until(debian.notes, f"a notification\n{debian.machine.journal()}", 20)
    assert len(told) == 1
    assert told[0]["program"] == "gpuwatchd"
    assert "GPU 0" in told[0]["summary"] + told[0]["body"]
    assert "leak" in (told[0]["summary"] + told[0]["body"]).lower()
    assert told[0]["hints"]["urgency"] in {"1", "2"}


def test_after_a_kill_it_is_back_and_knows_everything(debian: World) -> None:
    # Who is killed between telling and noting it tells again: better twice than never.
    until(lambda: debian.counts()["sent"], "noted as told")
    before, pid = debian.counts(), debian.pid()
    alerts = {one["id"] for one in debian.data("alerts")}
    debian.send(pid, signal.SIGKILL)
    debian.running(other_than=pid)
    shown = debian.machine.show(UNIT, "NRestarts", "Result", user="mleng")
    assert shown == {"NRestarts": "1", "Result": "success"}
    after = debian.counts()
    assert {table: n for table, n in after.items() if n < before[table]} == {}
    assert {one["id"] for one in debian.data("alerts")} >= alerts
    assert len(debian.notes()) == 1, "nobody is told twice"


def test_a_hang_is_noticed(debian: World) -> None:
    debian.machine.write(DROP_IN, "[Service]\nWatchdogSec=6\n", owner="mleng")
    debian.systemctl("daemon-reload")
    debian.systemctl("restart", UNIT)
    pid = debian.running()

    def ticked() -> bool:
        shown = debian.machine.show(UNIT, "WatchdogTimestampMonotonic", user="mleng")
        seen.add(int(shown["WatchdogTimestampMonotonic"]))
        return max(seen) - min(seen) > 6e6

    seen: set[int] = set()
    until(ticked, "it says for longer than the watchdog waits that it lives")
    assert debian.pid() == pid, "who ticks is left alone"
    debian.send(pid, signal.SIGSTOP)
    debian.running(other_than=pid)
    told = debian.machine.journal("--identifier=systemd", "_UID=1000")
    assert "Watchdog timeout" in told
    assert "Failed with result 'watchdog'" in told
    assert debian.machine.show(UNIT, "NRestarts", user="mleng")["NRestarts"] == "1"
    (debian.machine.files / DROP_IN[1:]).unlink()
    debian.systemctl("daemon-reload")


def test_a_reload_takes_new_settings_and_refuses_bad_ones(debian: World) -> None:
    pid = debian.running()
    debian.machine.write(CONFIG, QUICK.replace("1s", "0.5s", 1), mode=0o600, owner="mleng")
    assert debian.systemctl("reload", UNIT).returncode == 0

    journal = ("_UID=1000", "--identifier=gpuwatchd")
    until(lambda: "configuration reloaded" in debian.machine.journal(*journal), "a reload")
    debian.machine.write(CONFIG, "[daemon]\nintervall = 1\n", mode=0o600, owner="mleng")
    debian.systemctl("reload", UNIT)

    def complaint() -> bool:
        return "intervall" in debian.machine.show(UNIT, "StatusText", user="mleng")["StatusText"]

    until(complaint, "the manager shows that the file is refused")
    assert (debian.pid(), debian.state()) == (pid, "active")


def test_wrong_settings_at_the_start_are_not_tried_again(debian: World) -> None:
    debian.systemctl("restart", UNIT)
    until(lambda: debian.state() == "failed", "it gives up")
    shown = debian.machine.show(UNIT, "Result", "ExecMainStatus", "NRestarts", user="mleng")
    assert shown == {"Result": "exit-code", "ExecMainStatus": "78", "NRestarts": "0"}
    status = debian.ctl("service", "status")
    assert status.returncode == 3
    assert "configuration" in status.stdout
    debian.machine.write(CONFIG, QUICK, mode=0o600, owner="mleng")
    assert debian.ctl("service", "start").returncode == 0
    debian.running()


def test_an_upgrade_keeps_the_machines_settings_and_starts_its_worker_anew(debian: World) -> None:
    machine = debian.machine
    settings = "[policy]\nmax-per-hour = 19\n"
    machine.write("/etc/gpuwatchd/config.toml", settings)
    fleet, worker = machine.read(FLEET_CONFIG), machine.show(FLEET, "MainPID")
    publish(machine.root, *debian.builds)
    assert "NO_PUBKEY" in debian.apt("update").stderr, "a new key is not taken by itself"
    machine.write(SOURCES, machine.read("/srv/repo/bookworm.sources"))
    assert debian.apt("update").returncode == 0
    done = debian.apt("upgrade", "-y")
    assert done.returncode == 0, done.stderr
    assert "-1~deb12" in debian.version()
    assert machine.read("/etc/gpuwatchd/config.toml") == settings
    assert machine.read(FLEET_CONFIG) == fleet
    assert machine.show(FLEET, "MainPID") != worker
    assert machine.show(FLEET, "ActiveState") == {"ActiveState": "active"}


def test_a_step_back_is_asked_for(debian: World) -> None:
    newest = debian.version()
    older = newest.replace("-1~", "-0~")
    refused = debian.apt("install", "-y", f"{UNIT}={older}")
    assert refused.returncode == 100
    assert "downgrade" in refused.stderr.lower()
    assert debian.version() == newest
    done = debian.apt("install", "-y", "--allow-downgrades", f"{UNIT}={older}")
    assert done.returncode == 0, done.stderr
    debian.systemctl("restart", UNIT)
    debian.running()
    assert debian.data("alerts")
    assert debian.machine.read("/etc/gpuwatchd/config.toml") == "[policy]\nmax-per-hour = 19\n"


def test_uninstall_keeps_what_is_the_users(debian: World) -> None:
    done = debian.ctl("service", "uninstall")
    assert done.returncode == 0, done.stderr
    assert debian.state() == "inactive"
    assert debian.systemctl("is-enabled", UNIT).stdout == "disabled\n"
    assert debian.counts()["alert"] >= 1
    assert debian.machine.read(CONFIG) == QUICK
    assert debian.ctl("service", "uninstall").returncode == 0


def test_beside_the_machines_own_nobody_starts_one_unasked(debian: World) -> None:
    refused = debian.ctl("service", "install")
    assert refused.returncode != 0
    assert "--anyway" in refused.stderr
    assert debian.state() == "inactive"


def test_install_uses_the_unit_of_the_package(debian: World) -> None:
    for _ in range(2):
        done = debian.ctl("service", "install", "--anyway")
        assert done.returncode == 0, done.stderr + debian.machine.journal()
    own = debian.machine.files / "home/mleng/.config/systemd/user/gpuwatchd.service"
    assert not own.exists(), "the package's is used, no copy of it"
    assert debian.systemctl("is-enabled", UNIT).stdout == "enabled\n"
    debian.running()


def test_a_purge_leaves_nothing(debian: World) -> None:
    machine = debian.machine
    assert debian.state(user=None) == "active"
    machine.run("systemctl", "enable", FLEET, ok=True)
    done = debian.apt("purge", "-y", UNIT)
    assert done.returncode == 0, done.stderr
    until(lambda: not machine.run("pidof", "-x", UNIT).stdout, "no daemon runs on")
    own = (f"/etc/systemd/system/{UNIT}.service.d", "/etc/credstore", "/srv", "/usr/local",
           "/var/lib/systemd/linger")  # fmt: skip
    left = [
        path
        for path in sorted(machine.root.files() - debian.before)
        if not path.startswith((*LEFT, *own)) and not path.endswith("-old")
    ]
    assert left == []
    for place in ("run/gpuwatchd", "var/lib/gpuwatchd", "etc/gpuwatchd"):
        assert not (machine.files / place).exists()
    assert debian.accounts_now() == debian.accounts
    assert machine.show(UNIT, "LoadState")["LoadState"] in {"not-found", "bad-setting"}
    assert machine.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""
    history = machine.files / "home/mleng/.local/state/gpuwatchd/history.db"
    assert history.exists(), "users' own files are not the package's"
