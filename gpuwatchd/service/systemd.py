"""The daemon as a systemd user service: no root, one unit per user."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd import config, text
from gpuwatchd.errors import ServiceError
from gpuwatchd.model import Availability
from gpuwatchd.service.runner import CommandRunner, Done, Runner, daemon_argv, show
from gpuwatchd.service.runner import write_atomically as write
from gpuwatchd.service.unit import SYSTEM_VARIABLES, UNIT, escape, for_package, render

if TYPE_CHECKING:
    from collections.abc import Mapping

HOMEBREW_UNIT = "homebrew.gpuwatchd.service"
_START_S = 200.0
_SHOWN = "LoadState,ActiveState,SubState,StatusText,MainPID,NRestarts,Result"
_LOGS_HINT = "gpuwatchctl service logs"


class Systemd:
    """``systemctl --user`` for one unit.

    Parameters
    ----------
    run
        Runs a command; by default for real.
    environ
        Environment that paths are taken from; by default our own.
    executable
        Python that runs the daemon.
    system
        The service of the whole machine instead of one user's.
    """

    name = "systemd"

    def __init__(
        self,
        *,
        run: Runner | None = None,
        environ: Mapping[str, str] | None = None,
        executable: str = sys.executable,
        system: bool = False,
    ) -> None:
        self._system = system
        self._environ = _with_runtime_dir(os.environ if environ is None else environ)
        self._run = run or CommandRunner(self._environ)
        self._executable = executable

    def probe(self) -> Availability:
        """Say whether this user's manager can be reached."""
        if shutil.which("systemctl", path=self._environ.get("PATH")) is None:
            return Availability(ok=False, reason="systemctl is not here")
        done = self._systemctl("show-environment")
        if done.code:
            return Availability(
                ok=False, reason=f"no user manager: {done.last_line}", hint=self._login_hint
            )
        return Availability(ok=True, reason="the user manager answers")

    def render(self, packaged: str = "") -> str:
        """Return the unit for this installation, or for a package with this daemon.

        Raises
        ------
        ServiceError
            When a path cannot stand in a unit.
        """
        if packaged:
            return for_package(packaged, system=self._system)
        variables = SYSTEM_VARIABLES if self._system else self._paths()
        return render(daemon_argv(self._executable), variables, system=self._system)

    def install(self, *, dry_run: bool, linger: bool) -> list[str]:
        """Write, enable and start the unit; return what was done.

        Raises
        ------
        ServiceError
            When the manager cannot be reached, refuses, or the daemon does not come up.
        """
        content = self.render()
        manager = self._manager_environment(needed=not dry_run)
        unit = self._unit_file(manager)
        self._refuse_second_service()
        changed = _read(unit) != content
        if dry_run:
            return self._planned(unit, changed=changed, linger=linger)
        said: list[str] = []
        if changed:
            self._write(unit, content)
            self._must("daemon-reload")
            said.append(f"wrote {unit}")
        else:
            said.append(f"{unit} is up to date")
        self._must("enable", UNIT)
        said.append("enabled: it starts when you log in")
        if changed or not self.status()[0]:
            self._must("restart", UNIT, timeout_s=_START_S, hint=_LOGS_HINT)
            said.append("started")
        else:
            said.append("already running")
        return said + self._linger(want=linger)

    def uninstall(self, *, dry_run: bool) -> list[str]:
        """Stop, disable and remove the unit; history and configuration stay.

        Raises
        ------
        ServiceError
            When the manager cannot be reached or refuses.
        """
        unit = self._unit_file(self._manager_environment(needed=not dry_run))
        known = unit.exists() or self._property("LoadState") == "loaded"
        if not known:
            return ["not installed"]
        if dry_run:
            return [
                f"would run systemctl --user disable --now {UNIT}",
                *([f"would remove {unit}"] if unit.exists() else []),
                "would run systemctl --user daemon-reload",
            ]
        self._must("disable", "--now", UNIT)
        said = ["stopped and disabled"]
        if unit.exists():
            unit.unlink()
            said.append(f"removed {unit}")
        self._must("daemon-reload")
        self._systemctl("reset-failed", UNIT)
        said.append(f"history and configuration stay ({config.state_dir(self._environ)})")
        return said

    def start(self) -> None:
        """Start the service and wait until it watches."""
        self._must("start", UNIT, timeout_s=_START_S, hint=_LOGS_HINT)

    def stop(self) -> None:
        """Stop the service."""
        self._must("stop", UNIT)

    def restart(self) -> None:
        """Restart the service and wait until it watches."""
        self._must("restart", UNIT, timeout_s=_START_S, hint=_LOGS_HINT)

    def status(self) -> tuple[bool, str]:
        """Return whether it runs, and what the manager says about it."""
        done = self._systemctl("show", UNIT, f"--property={_SHOWN}")
        if done.code:
            return False, f"no user manager: {done.last_line}"
        shown = dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)
        if shown.get("LoadState") == "not-found":
            return False, "not installed"
        state = shown.get("ActiveState", "unknown")
        parts = [state if state != "active" else "running"]
        if shown.get("MainPID", "0") != "0":
            parts.append(f"pid {shown['MainPID']}")
        if shown.get("Result", "success") != "success":
            parts.append(f"last result: {shown['Result']}")
        if shown.get("NRestarts", "0") != "0":
            parts.append(f"restarts: {shown['NRestarts']}")
        if shown.get("StatusText"):
            parts.append(text.clean(shown["StatusText"]))
        return state in {"active", "reloading"}, ", ".join(parts)

    def logs(self, *, lines: int, follow: bool) -> int:
        """Show the journal of the unit; return the viewer's exit code."""
        argv = ["journalctl", "--user", f"--unit={UNIT}", f"--lines={lines}", "--no-pager"]
        return show([*argv, "--follow"] if follow else argv, self._environ)

    def _systemctl(self, *words: str, timeout_s: float = 30.0) -> Done:
        return self._run(["systemctl", "--user", *words], timeout_s=timeout_s)

    def _must(self, *words: str, timeout_s: float = 30.0, hint: str = "") -> Done:
        done = self._systemctl(*words, timeout_s=timeout_s)
        if done.code:
            command = " ".join(("systemctl --user", *words))
            raise ServiceError(self.name, command, done.last_line, hint=hint or self._login_hint)
        return done

    def _property(self, name: str) -> str:
        done = self._systemctl("show", UNIT, f"--property={name}", "--value")
        return done.output if done.code == 0 else ""

    def _manager_environment(self, *, needed: bool) -> dict[str, str]:
        """Return the manager's own variables; it looks for units by them, not by the shell's."""
        done = self._systemctl("show-environment")
        if done.code and needed:
            raise ServiceError(
                self.name,
                "systemctl --user",
                f"no user manager: {done.last_line}",
                hint=self._login_hint,
            )
        if done.code:
            return {}
        return dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)

    @property
    def _login_hint(self) -> str:
        return (
            "log in as this user itself (ssh or a console, not su or sudo),"
            f" or have it run without a login: sudo loginctl enable-linger {_user()}"
        )

    def _refuse_second_service(self) -> None:
        done = self._systemctl("is-active", HOMEBREW_UNIT)
        if done.code == 0 and done.output == "active":
            raise ServiceError(
                self.name,
                "service install",
                "the Homebrew service of gpuwatchd is running already",
                hint="brew services stop gpuwatchd",
            )

    def _write(self, unit: Path, content: str) -> None:
        try:
            write(unit, content.encode())
        except OSError as error:
            why = error.strerror or "cannot be written"
            raise ServiceError(self.name, f"writing {unit}", why) from error

    def _planned(self, unit: Path, *, changed: bool, linger: bool) -> list[str]:
        plan = [f"would write {unit}"] if changed else [f"{unit} is up to date"]
        commands = ["daemon-reload"] if changed else []
        commands += [f"enable {UNIT}", f"restart {UNIT}" if changed else f"start {UNIT}"]
        plan += [f"would run systemctl --user {command}" for command in commands]
        if linger:
            plan.append(f"would run loginctl enable-linger {_user()}")
        return plan

    def _linger(self, *, want: bool) -> list[str]:
        """Return what is to be said about running without a login; enable it when wanted."""
        user = _user()
        done = self._run(["loginctl", "show-user", user, "--property=Linger", "--value"])
        if done.code == 0 and done.output == "yes":
            return ["it also runs while you are logged out (linger)"]
        if not want:
            return [f"it stops when you log out; to keep it: loginctl enable-linger {user}"]
        done = self._run(["loginctl", "enable-linger", user])
        if done.code:
            return [f"linger could not be enabled ({done.last_line}): sudo loginctl enable-linger"]
        return ["linger enabled: it also runs while you are logged out"]

    def _unit_file(self, manager: Mapping[str, str]) -> Path:
        home = self._environ.get("HOME") or str(Path.home())
        base = manager.get("XDG_CONFIG_HOME") or f"{home}/.config"
        return Path(base) / "systemd" / "user" / UNIT

    def _paths(self) -> dict[str, str]:
        """Return the variables that make daemon and command line agree on their directories."""
        environ = self._environ
        runtime = str(config.runtime_dir(environ))
        own = environ.get("XDG_RUNTIME_DIR")
        if own and runtime == str(Path(own) / "gpuwatchd"):
            runtime = "%t/gpuwatchd"
        paths = {
            "GPUWATCHD_STATE_DIR": escape(str(config.state_dir(environ))),
            "GPUWATCHD_RUNTIME_DIR": runtime if runtime.startswith("%t") else escape(runtime),
        }
        for name in ("GPUWATCHD_CONFIG", "XDG_CONFIG_HOME"):
            if environ.get(name):
                paths[name] = escape(os.path.abspath(environ[name]))  # noqa: PTH100
        return paths


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _with_runtime_dir(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the usual XDG_RUNTIME_DIR: a shell of cron or su has none."""
    usual = Path(f"/run/user/{os.getuid()}")
    if environ.get("XDG_RUNTIME_DIR") or not usual.is_dir():
        return dict(environ)
    return {**environ, "XDG_RUNTIME_DIR": str(usual)}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
