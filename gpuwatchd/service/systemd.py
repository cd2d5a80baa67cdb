"""The daemon under systemd: one user's service without root, or the machine's for an admin."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import __version__
from gpuwatchd.core import config, text
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.core.model import Availability, ServiceState
from gpuwatchd.service import account, other_instances, removal, systemctl, unit_files
from gpuwatchd.service.systemctl import NAME, START_S, Systemctl, user_name
from gpuwatchd.service.unit_files import (
    SYSTEM_VARIABLES,
    UNIT,
    CommandRunner,
    Runner,
    daemon_argv,
    for_package,
    render,
    show,
)
from gpuwatchd.store import live

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOMEBREW_UNIT = "homebrew.gpuwatchd.service"


class Systemd:
    """``systemctl`` for one unit, of a user or of the whole machine (``system``).

    The machine's files lie in ``root``; ``executable`` is the Python that runs the daemon.
    """

    name = NAME

    def __init__(
        self,
        *,
        run: Runner | None = None,
        environ: Mapping[str, str] | None = None,
        executable: str = sys.executable,
        system: bool = False,
        root: Path = Path("/"),
    ) -> None:
        self._environ = unit_files.with_runtime_dir(os.environ if environ is None else environ)
        self._run = run or CommandRunner(self._environ)
        self._executable = executable
        self._system = system
        self._root = root
        self._ctl = Systemctl(self._run, system=system, path=self._environ.get("PATH"))

    def probe(self) -> Availability:
        """Say whether the manager can be reached."""
        if self._find("systemctl") is None:
            return Availability(ok=False, reason="systemctl is not installed")
        why = self._ctl.unreachable()
        if why:
            return Availability(ok=False, reason=why, hint=self._ctl.login_hint)
        whose = "system" if self._system else "user"
        return Availability(ok=True, reason=f"the {whose} manager answers")

    def render(self, packaged: str = "") -> str:
        """Return the unit for this installation, or for a package with this daemon.

        Raises
        ------
        ServiceError
            When a path cannot stand in a unit.
        """
        if packaged:
            return for_package(packaged, system=self._system)
        chosen = SYSTEM_VARIABLES if self._system else unit_files.user_variables(self._environ)
        return render(daemon_argv(self._executable), chosen, system=self._system)

    def install(
        self,
        *,
        dry_run: bool,
        linger: bool = False,
        anyway: bool = False,
        credentials: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        """Write, enable and start the unit; return what was done.

        A package's unit of this very daemon is used as it is, instead of one of ours.

        Raises
        ------
        ServiceError
            When the manager cannot be reached or refuses, another instance runs, the unit is not
            ours, or the daemon does not come up.
        """
        unit, brought = self._units(needed=not dry_run)
        argv = daemon_argv(self._executable)
        if self._system:
            if not dry_run:
                self._need_root("install")
            account.refuse_unsafe(argv)
        unit_files.need_ours(unit, self._ctl.shown)
        before = self.status()
        other_instances.refuse(self._rival(before), self.name, anyway=anyway)
        files = self._files(unit, brought, credentials)
        changed = [file for file, content in files.items() if unit_files.read(file) != content]
        texts = self._told_of_units(unit, brought, changed)
        if dry_run:
            return texts + self._planned(unit, files, changed, linger=linger)
        # Enabling loads the units anew, and with them what was changed beside ours.
        stale = self._ctl.show("NeedDaemonReload").get("NeedDaemonReload") == "yes"
        texts = self._made_for_the_machine() + self._place(files, changed) + texts
        self._ctl.must("enable", UNIT)
        when = "the machine starts" if self._system else "you log in"
        texts.append(f"enabled: it starts when {when}")
        live_state = live.read(self._runtime_dir)
        other = live_state is not None and live_state.version != __version__
        if changed or stale or not before.running or other:
            self._bring_up("restart")
            texts.append("started")
        else:
            texts.append("already running")
        return texts + (
            [account.readers()] if self._system else linger_advice(self._run, want=linger)
        )

    def _files(
        self, unit: Path, brought: Path | None, credentials: Sequence[tuple[str, str]]
    ) -> dict[Path, str | None]:
        """Return what our files are to hold; None: the file is to go."""
        files: dict[Path, str | None] = {unit: None if brought else self.render()}
        if credentials:
            file = unit_files.drop_in(unit, unit_files.CREDENTIALS)
            files[file] = unit_files.credentials(credentials)
        if not self._system:
            odd = unit_files.unusual_variables(self._environ) if brought else {}
            file = unit_files.drop_in(unit, unit_files.DIRECTORIES)
            files[file] = unit_files.directories(odd) if odd else None
        return files

    def _told_of_units(self, unit: Path, brought: Path | None, changed: list[Path]) -> list[str]:
        texts = []
        if brought is not None:
            texts.append(f"{brought} exists already and is not overwritten")
        elif unit in changed and unit.exists():
            count = len(unit_files.difference(unit_files.read(unit) or "", self.render()))
            texts.append(f"it was of another version: {count} lines differ")
        elif unit not in changed:
            texts.append(f"{unit} is up to date")
        return texts + [
            f"{file} stays in force"
            for file in unit_files.drop_ins(unit)
            if not unit_files.ours(file)
        ]

    def _place(self, files: Mapping[Path, str | None], changed: list[Path]) -> list[str]:
        texts = []
        for file in changed:
            content = files[file]
            if content is not None:
                unit_files.write(file, content)
                texts.append(f"wrote {file}")
            else:
                if file.name == UNIT:  # its link would go on pointing at the file that goes
                    self._ctl.must("disable", UNIT)
                file.unlink(missing_ok=True)
                texts.append(f"removed {file}")
        if changed:
            self._ctl.must("daemon-reload")
        return texts

    def _planned(
        self, unit: Path, files: Mapping[Path, str | None], changed: list[Path], *, linger: bool
    ) -> list[str]:
        made = account.commands(self._find) if self._system and not account.exists() else []
        plan = [" ".join(("would run", *argv)) for argv in made]
        for file in changed:
            content = files[file]
            plan.append(f"would {'write' if content is not None else 'remove'} {file}")
            if content is not None and file == unit and file.exists():
                plan += unit_files.difference(unit_files.read(file) or "", content)
        commands = ["daemon-reload"] if changed else []
        commands += [f"enable {UNIT}", f"restart {UNIT}" if changed else f"start {UNIT}"]
        value = self._ctl.shown.removeprefix("sudo ")
        plan += [f"would run {value} {command}" for command in commands]
        if linger and not self._system:
            plan.append(f"would run loginctl enable-linger {user_name()}")
        return plan

    def _made_for_the_machine(self) -> list[str]:
        if not self._system:
            return []
        account.make_settings(self._directories()[2])
        return account.make(self._run, self._find)

    def _find(self, program: str) -> str | None:
        return shutil.which(program, path=self._environ.get("PATH"))

    def uninstall(self, *, dry_run: bool, purge: bool = False) -> list[str]:
        """Stop, disable and remove the unit; history and configuration stay unless purged.

        Raises
        ------
        ServiceError
            When the manager cannot be reached or refuses, or a directory cannot be removed.
        """
        if not dry_run:
            self._need_root("uninstall")
        unit, brought = self._units(needed=not dry_run)
        files = [unit] if unit.exists() and unit_files.ours(unit) else []
        files += [file for file in unit_files.drop_ins(unit) if unit_files.ours(file)]
        before = self.status()
        # A package's unit that neither runs nor is enabled is as good as none.
        idle = brought is not None and before.state == "stopped" and before.enabled is False
        known = bool(files) or (before.state != "not-installed" and not idle)
        # The configuration of the machine goes with the package that brought it.
        places = self._directories()[: 2 if self._system and brought else None]
        gone, paths = removal.plan(places, self._environ) if purge else ([], [])
        if not known and not gone and not paths:
            return ["not installed"]
        if dry_run:
            plan = self._planned_removal(files) if known else ["not installed"]
            own_account = purge and self._system and brought is None and account.exists()
            return plan + removal.planned(gone, paths, account.GROUP if own_account else "")
        if purge and before.pid is None:
            other_instances.refuse_purge(self._runtime_dir, self.name, self._ctl.own("uninstall"))
        texts = self._remove_unit(files, brought) if known else ["not installed"]
        if purge:
            texts += removal.remove(gone) + removal.left(paths)
            if self._system and brought is None:
                texts += account.remove(self._run)
        else:
            texts.append(f"history and configuration are kept ({self._directories()[0]})")
        return texts + self._lasting(unit, brought)

    def _remove_unit(self, files: list[Path], brought: Path | None) -> list[str]:
        self._ctl.must("disable", "--now", UNIT)
        texts = ["stopped and disabled"]
        for file in files:
            file.unlink(missing_ok=True)
            texts.append(f"removed {file}")
            if file.name != UNIT and not any(file.parent.iterdir()):
                file.parent.rmdir()
        self._ctl.must("daemon-reload")
        self._ctl.ask("reset-failed", UNIT)
        if brought is not None:
            texts.append(f"{brought} belongs to a package, which removes it")
        return texts

    def _planned_removal(self, files: list[Path]) -> list[str]:
        value = self._ctl.shown.removeprefix("sudo ")
        return [
            f"would run {value} disable --now {UNIT}",
            *(f"would remove {file}" for file in files),
            f"would run {value} daemon-reload",
        ]

    def _lasting(self, unit: Path, brought: Path | None) -> list[str]:
        """Return what an uninstalled service leaves behind, and how that goes."""
        texts = [f"{file} is yours and is kept" for file in unit_files.drop_ins(unit)]
        if self._system and brought is not None:
            texts.append("account and configuration go with the package: sudo apt purge gpuwatchd")
        if not self._system and _lingers(self._run):
            texts.append(
                "linger stays enabled, other services may need it; if none does:"
                f" loginctl disable-linger {user_name()}"
            )
        return texts

    def start(self) -> None:
        """Start the service and wait until it watches."""
        self._need_root("start")
        self._bring_up("start")

    def stop(self) -> None:
        """Stop the service."""
        self._need_root("stop")
        self._ctl.must("stop", UNIT)

    def restart(self) -> None:
        """Restart the service and wait until it watches."""
        self._need_root("restart")
        self._bring_up("restart")

    def _need_root(self, verb: str) -> None:
        if self._system:
            account.need_root(verb, self._environ.get("PATH"))

    def _bring_up(self, verb: str) -> None:
        """Start or restart it; where it does not come up, say why in the daemon's own words."""
        done = self._ctl.ask(verb, UNIT, timeout_s=START_S)
        if not done.code:
            return
        service_state = self.status()
        own = [line for line in service_state.log if line.startswith("gpuwatchd: ")]
        jobs = [line for line in done.output.splitlines() if line.startswith("Job for")]
        why = text.clean([done.last_line, *jobs[:1], *own][-1])
        hint = (
            service_state.hints[0]
            if service_state.result and service_state.hints
            else self._ctl.own("logs")
        )
        command = f"{self._ctl.shown.removeprefix('sudo ')} {verb} {UNIT}"
        raise ServiceError(self.name, command, why, hint=hint)

    def status(self) -> ServiceState:
        """Return what the manager says of the service, with its last lines where it failed."""
        why = self._ctl.unreachable()
        if why:
            return ServiceState(state="not-installed", text=why, hints=(self._ctl.login_hint,))
        service_state = systemctl.service_state(self._ctl.show(*systemctl.PROPERTIES), self._ctl)
        if service_state.state == "failed" or (
            service_state.state == "starting" and service_state.result
        ):
            lines = systemctl.last_lines(self._run, system=self._system)
            service_state = msgspec.structs.replace(service_state, log=lines)
        holder = None if service_state.pid else other_instances.lock_holder(self._runtime_dir)
        if holder is not None and service_state.state not in {"starting", "stopping"}:
            hand = other_instances.by_hand(holder, self._ctl.own("install"))
            service_state = msgspec.structs.replace(
                service_state, hints=(f"{hand.why}: {hand.hint}",)
            )
        return service_state

    def logs(
        self, *, lines: int, follow: bool, since_at_s: float | None = None, level: str = "debug"
    ) -> int:
        """Show the journal of the unit; return the viewer's exit code.

        Raises
        ------
        ServiceError
            When the journal may not be read.
        """
        argv = ["journalctl", *systemctl.selection(system=self._system)]
        probe = self._run([*argv, "--lines=1"])
        if systemctl.refused(probe) or (probe.code and probe.output):
            raise systemctl.unreadable(probe, system=self._system)
        # Quiet: that lines of others are not shown is no news here.
        argv += ["--quiet", f"--lines={lines}"]
        if since_at_s is not None:
            argv.append(f"--since=@{since_at_s:.0f}")
        if level != "debug":
            argv.append(f"--priority={systemctl.PRIORITIES[level]}")
        return show([*argv, "--follow"] if follow else argv, self._environ)

    def _rival(self, before: ServiceState) -> other_instances.Rival | None:
        done = self._ctl.ask("is-active", HOMEBREW_UNIT)
        if done.code == 0 and done.output == "active":
            return other_instances.HOMEBREW
        holder = other_instances.lock_holder(self._runtime_dir)
        if holder is not None and before.state in {"stopped", "failed", "not-installed"}:
            return other_instances.by_hand(holder, self._ctl.own("install"))
        if before.running or before.enabled:
            return None  # what is in use already is no second instance; a package's unit is not yet
        if not self._system:
            done = self._run(["systemctl", "--system", "is-active", UNIT])
            if done.code == 0 and done.output == "active":
                return other_instances.of_the_machine(user_name(), account.GROUP)
        keg = other_instances.in_a_keg(daemon_argv(self._executable)[0])
        return other_instances.KEG if keg else None

    @property
    def _runtime_dir(self) -> Path:
        if self._system:
            return self._root / str(config.SYSTEM_RUNTIME_DIR).lstrip("/")
        return config.runtime_dir(self._environ)

    def _directories(self) -> list[Path]:
        """Return where the service keeps its files, the history first."""
        if self._system:
            return removal.of_the_machine(self._root)
        return removal.of_a_user(self._environ)

    def _units(self, *, needed: bool) -> tuple[Path, Path | None]:
        """Return where our unit belongs, and a package's unit of our daemon."""
        manager = self._ctl.environment(needed=needed)
        if self._system:
            unit = self._root / "etc" / "systemd" / "system" / UNIT
        else:
            home = self._environ.get("HOME") or str(Path.home())
            base = manager.get("XDG_CONFIG_HOME") or f"{home}/.config"
            unit = Path(base) / "systemd" / "user" / UNIT
        usual = unit_files.usual_path(system=self._system, root=self._root)
        folders = self._ctl.unit_path() or usual
        return unit, unit_files.packaged(folders, unit, daemon_argv(self._executable))


# Whether a user's services go on without a login.


def _lingers(run: Runner) -> bool:
    """Say whether this user lingers."""
    done = run(["loginctl", "show-user", user_name(), "--property=Linger", "--value"])
    return done.code == 0 and done.output == "yes"


def linger_advice(run: Runner, *, want: bool) -> list[str]:
    """Return what is to be said about running without a login; enable it when wanted."""
    user = user_name()
    if _lingers(run):
        return ["it also runs while you are logged out (linger)"]
    if not want:
        return [f"it stops when you log out; to keep it: loginctl enable-linger {user}"]
    done = run(["loginctl", "enable-linger", user])
    if done.code:
        why = done.last_line
        return [f"linger could not be enabled ({why}): sudo loginctl enable-linger {user}"]
    return ["linger enabled: it also runs while you are logged out"]
