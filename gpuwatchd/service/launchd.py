"""The daemon as a launchd agent of one user on macOS. Not verified on hardware.

An agent of the graphical session: only there can it show notifications. What is done is a list of
``launchctl`` commands; the tests check them against a stand-in.
"""

from __future__ import annotations

import contextlib
import os
import plistlib
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpuwatchd.core import config, text
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.core.model import Availability, ServiceState
from gpuwatchd.service import other_instances, removal, unit_files
from gpuwatchd.service.unit_files import NOT_FOUND, CommandRunner, Done, Runner, daemon_argv, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

LABEL = "org.gpuwatchd.daemon"
HOMEBREW_LABEL = "homebrew.mxcl.gpuwatchd"
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_UNLOAD_TRIES = 50
_UNLOAD_WAIT_S = 0.2
_FIELD = re.compile(r"^\s*(state|pid|last exit code|last exit reason) = (.+?)\s*$", re.MULTILINE)
_NO_DAEMON = (
    "on macOS it runs per user: outside of a graphical session it could neither notify nor see"
    " the owners of processes"
)
_AGENT = "gpuwatchctl service install"
_LOGS_HINT = "gpuwatchctl service logs"


class Launchd:
    """``launchctl`` for one agent of a user; a service of the whole machine is refused.

    ``sleep`` waits between two looks at an agent that is being unloaded.
    """

    name = "launchd"

    def __init__(
        self,
        *,
        run: Runner | None = None,
        environ: Mapping[str, str] | None = None,
        executable: str = sys.executable,
        sleep: Callable[[float], None] = time.sleep,
        system: bool = False,
    ) -> None:
        if system:
            raise ServiceError(self.name, "a service of the whole machine", _NO_DAEMON, hint=_AGENT)
        self._environ = dict(os.environ if environ is None else environ)
        self._run = run or CommandRunner(self._environ)
        self._executable = executable
        self._sleep = sleep
        self._home = Path(self._environ.get("HOME") or Path.home())

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _target(self) -> str:
        return f"{self._domain}/{LABEL}"

    @property
    def _file(self) -> Path:
        return self._home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    @property
    def _log(self) -> Path:
        return self._home / "Library" / "Logs" / "gpuwatchd" / "gpuwatchd.log"

    def probe(self) -> Availability:
        """Say whether this user's graphical session has a launchd domain."""
        if shutil.which("launchctl", path=self._environ.get("PATH")) is None:
            return Availability(ok=False, reason="launchctl is not installed")
        if self._launchctl("print", self._domain).code:
            return Availability(
                ok=False,
                reason="no graphical session of this user",
                hint="log in at the screen; over ssh alone there is no such session",
            )
        return Availability(ok=True, reason="launchd answers")

    def render(self, packaged: str = "") -> str:
        """Return the property list for this user and this installation.

        Raises
        ------
        ServiceError
            For a package: an agent needs absolute paths below its user's home.
        """
        if packaged:
            raise ServiceError(
                self.name,
                "a property list for a package",
                "an agent names directories of its user",
                hint="Homebrew makes its own from the formula; else gpuwatchctl service install",
            )
        return plistlib.dumps(self._properties(), sort_keys=False).decode()

    def _properties(self) -> dict[str, Any]:
        return {
            "Label": LABEL,
            "ProgramArguments": list(daemon_argv(self._executable)),
            "RunAtLoad": True,
            # Exit 0 is a wish (stop); everything else is a fault, also a traceback.
            "KeepAlive": {"SuccessfulExit": False},
            # A fault that stays is retried at this pace.
            "ThrottleInterval": 30,
            "ExitTimeOut": 15,
            "ProcessType": "Background",
            # Notifications exist in the graphical session only.
            "LimitLoadToSessionType": "Aqua",
            "StandardOutPath": str(self._log),
            "StandardErrorPath": str(self._log),
            "Umask": 0o077,
            # An agent does not see the shell's variables: directories are fixed here. No secrets.
            "EnvironmentVariables": self._variables(),
        }

    def _variables(self) -> dict[str, str]:
        variables = {
            "PATH": _PATH,
            "GPUWATCHD_STATE_DIR": unit_files.absolute(config.state_dir(self._environ)),
            "GPUWATCHD_RUNTIME_DIR": unit_files.absolute(config.runtime_dir(self._environ)),
            # One thread per core at the import of a numerical library helps nobody here.
            "OPENBLAS_NUM_THREADS": "1",
        }
        if self._environ.get("GPUWATCHD_CONFIG"):
            variables["GPUWATCHD_CONFIG"] = unit_files.absolute(self._environ["GPUWATCHD_CONFIG"])
        return variables

    def install(
        self,
        *,
        dry_run: bool,
        linger: bool = False,
        anyway: bool = False,
        credentials: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        """Write, load and start the agent; return what was done.

        Raises
        ------
        ServiceError
            Without a graphical session, when another instance runs, or when launchd refuses.
        """
        if credentials:
            raise ServiceError(
                self.name,
                "a credential",
                "launchd has none",
                hint="password-file (mode 600) or password-keyring in [notify.email]",
            )
        content = self.render().encode()
        changed = not self._file.is_file() or self._file.read_bytes() != content
        note = ["launchd has no linger: the agent runs while you are logged in"] if linger else []
        if dry_run:
            return self._planned(changed=changed) + note
        available = self.probe()
        if not available.ok:
            raise ServiceError(self.name, "service install", available.reason, hint=available.hint)
        before = self.status()
        other_instances.refuse(self._rival(before), self.name, anyway=anyway)
        if not changed and before.running:
            return [f"{self._file} is up to date", "already running", *note]
        self._write(content)
        self._unload()
        # A disabled agent cannot be loaded, so this comes first.
        self._must("enable", self._target)
        self._must("bootstrap", self._domain, str(self._file))
        self._must("kickstart", self._target, hint=_LOGS_HINT)
        self._must("print", self._target, hint=_LOGS_HINT)
        return [f"wrote {self._file}", "enabled: it starts when you log in", "started", *note]

    def uninstall(self, *, dry_run: bool, purge: bool = False) -> list[str]:
        """Stop, unload and remove the agent; history and configuration stay unless purged.

        Raises
        ------
        ServiceError
            When the agent does not go, or a directory cannot be removed.
        """
        loaded = self._loaded()
        places = [*removal.of_a_user(self._environ), self._log.parent]
        gone, paths = removal.plan(places, self._environ) if purge else ([], [])
        known = loaded or self._file.exists()
        if not known and not gone and not paths:
            return ["not installed"]
        if dry_run:
            plan = [f"would run launchctl bootout {self._target}"] if loaded else []
            plan += [f"would remove {self._file}"] if self._file.exists() else []
            return plan + removal.planned(gone, paths, "")
        if purge and not loaded:
            runtime_dir = config.runtime_dir(self._environ)
            other_instances.refuse_purge(runtime_dir, self.name, "gpuwatchctl service uninstall")
        texts = [] if known else ["not installed"]
        if loaded:
            self._unload()
            texts.append("stopped and unloaded")
        if self._file.exists():
            self._file.unlink()
            texts.append(f"removed {self._file}")
        if purge:
            return texts + removal.remove(gone) + removal.left(paths)
        return [*texts, f"history and configuration are kept ({config.state_dir(self._environ)})"]

    def start(self) -> None:
        """Start the agent."""
        self._must("kickstart", self._target, hint="gpuwatchctl service install")

    def stop(self) -> None:
        """Stop the agent: it ends with 0, so launchd leaves it stopped until the next login."""
        self._must("kill", "SIGTERM", self._target)

    def restart(self) -> None:
        """End the agent and start it again."""
        self._must("kickstart", "-k", self._target, hint="gpuwatchctl service install")

    def status(self) -> ServiceState:
        """Return what launchd says of the agent."""
        done = self._launchctl("print", self._target)
        file = str(self._file) if self._file.exists() else ""
        if done.code:
            load = "gpuwatchctl service install"
            if not file:
                return ServiceState(state="not-installed", text="not installed", hints=(load,))
            return ServiceState(state="stopped", text="not loaded", file=file, hints=(load,))
        # The first of equal names wins: nested sections repeat some.
        fields: dict[str, str] = dict(reversed(_FIELD.findall(done.output)))
        value = fields.get("state", "unknown")
        parts = [value]
        if "pid" in fields:
            parts.append(f"pid {fields['pid']}")
        code = fields.get("last exit code", "0")
        failed = code not in {"0", "(never exited)"}
        if failed:
            parts.append(f"last exit code: {code}")
        running = value == "running"
        down: Literal["failed", "stopped"] = "failed" if failed else "stopped"
        return ServiceState(
            state="running" if running else down,
            text=", ".join(text.clean(part) for part in parts),
            enabled=self._enabled(),
            pid=int(fields["pid"]) if fields.get("pid", "").isdigit() else None,
            exit_code=int(code) if code.isdigit() else None,
            file=file,
            log=last_lines(self._log) if failed and not running else (),
            hints=() if running else (_LOGS_HINT if failed else "gpuwatchctl service start",),
        )

    def _enabled(self) -> bool | None:
        """Return whether launchd may load it at login; None where that is not said."""
        done = self._launchctl("print-disabled", self._domain)
        match = re.search(rf'"{re.escape(LABEL)}" => (\w+)', done.output)
        if done.code:
            return None
        # "true" and "disabled" are the same in older and newer versions.
        return match is None or match[1] in {"false", "enabled"}

    def logs(
        self, *, lines: int, follow: bool, since_at_s: float | None = None, level: str = "debug"
    ) -> int:
        """Show the log file; return the viewer's exit code."""
        argv = ["tail", "-n", str(lines), *(["-F"] if follow else []), str(self._log)]
        if since_at_s is None and level == "debug":
            return show(argv, self._environ)
        try:
            with self._log.open(encoding="utf-8", errors="replace") as log:
                texts = deque(chosen(log, since_at_s=since_at_s, level=level), maxlen=lines)
        except OSError as error:
            why = error.strerror or "impossible"
            raise ServiceError(self.name, f"reading {self._log}", why) from error
        sys.stdout.writelines(texts)
        sys.stdout.flush()
        if not follow:
            return 0
        return _follow(self._log, self._environ, since_at_s=since_at_s, level=level)

    def _launchctl(self, *words: str) -> Done:
        return self._run(["launchctl", *words], timeout_s=30.0)

    def _must(self, *words: str, hint: str = "") -> None:
        done = self._launchctl(*words)
        if done.code:
            command = " ".join(("launchctl", *words))
            raise ServiceError(self.name, command, done.last_line, hint=hint)

    def _loaded(self) -> bool:
        return self._launchctl("print", self._target).code == 0

    def _rival(self, before: ServiceState) -> other_instances.Rival | None:
        for domain, hint in ((self._domain, ""), ("system", "sudo ")):
            if self._launchctl("print", f"{domain}/{HOMEBREW_LABEL}").code == 0:
                homebrew = other_instances.HOMEBREW
                return homebrew._replace(hint=f"{hint}{homebrew.hint}")
        holder = other_instances.lock_holder(config.runtime_dir(self._environ))
        if holder is not None and not before.running:
            return other_instances.by_hand(holder, "gpuwatchctl service install")
        new = before.state == "not-installed"
        keg = new and other_instances.in_a_keg(daemon_argv(self._executable)[0])
        return other_instances.KEG if keg else None

    def _unload(self) -> None:
        """Unload, and wait until it is gone: loading again too early fails with error 5."""
        self._launchctl("bootout", self._target)
        for _ in range(_UNLOAD_TRIES):
            if not self._loaded():
                return
            self._sleep(_UNLOAD_WAIT_S)
        raise ServiceError(
            self.name, f"launchctl bootout {self._target}", "the agent is still loaded"
        )

    def _write(self, content: bytes) -> None:
        try:
            self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unit_files.write_atomically(unit_files.NewFile(self._file, content))
        except OSError as error:
            why = error.strerror or "cannot be written"
            raise ServiceError(self.name, f"writing {self._file}", why) from error

    def _planned(self, *, changed: bool) -> list[str]:
        plan = [f"would write {self._file}"] if changed else [f"{self._file} is up to date"]
        commands = (
            f"bootout {self._target}",
            f"enable {self._target}",
            f"bootstrap {self._domain} {self._file}",
            f"kickstart {self._target}",
        )
        return plan + [f"would run launchctl {command}" for command in commands]


# The daemon's log where it is a file of its own: from an instant and a level on.

LAST_LINES = 5
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_STAMP = "%Y-%m-%d %H:%M:%S"
_TAIL_BYTES = 65536


def chosen(lines: Iterable[str], *, since_at_s: float | None, level: str) -> Iterator[str]:
    """Yield the lines of a log from an instant and a level on.

    One that does not begin with time and level belongs to the one before it.

    Examples
    --------
    >>> log = ["2026-11-22 01:20:17,123 INFO a", "2026-11-22 01:20:18,000 ERROR b", "  more of b"]
    >>> list(chosen(log, since_at_s=None, level="warning"))
    ['2026-11-22 01:20:18,000 ERROR b', '  more of b']
    """
    least = _LEVELS.index(level.upper())
    wanted = False
    for line in lines:
        stamp, _, rest = line.partition(",")
        word = rest[4:].partition(" ")[0]
        with contextlib.suppress(ValueError, OverflowError):
            at_s = time.mktime(time.strptime(stamp, _STAMP))
            if word in _LEVELS:
                recent = since_at_s is None or at_s >= int(since_at_s)
                wanted = recent and _LEVELS.index(word) >= least
        if wanted:
            yield line


def last_lines(file: Path) -> tuple[str, ...]:
    """Return the last lines, safe to print; none where there is no log."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            lines = log.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(text.clean(line) for line in lines[-LAST_LINES:])


def _follow(file: Path, environ: Mapping[str, str], *, since_at_s: float | None, level: str) -> int:
    try:
        viewer = subprocess.Popen(
            ["tail", "-n", "0", "-F", str(file)],
            env=dict(environ), stdout=subprocess.PIPE, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except FileNotFoundError:
        return NOT_FOUND
    try:
        for line in chosen(viewer.stdout or (), since_at_s=since_at_s, level=level):
            sys.stdout.write(line)
            sys.stdout.flush()
        return viewer.wait()
    finally:
        viewer.terminate()
