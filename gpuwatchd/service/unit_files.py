"""Unit files (ours, a package's, what lies beside them), and how a manager's tools are run."""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpuwatchd.core import config, text
from gpuwatchd.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


NOT_FOUND = 127
TIMED_OUT = 124


class Done(NamedTuple):
    """How a command ended."""

    code: int
    """Exit code; 127 when there is no such program, 124 when it took too long."""
    output: str
    """Both streams, stripped."""

    @property
    def last_line(self) -> str:
        """The last line that says something, safe to print."""
        texts = [line for line in self.output.splitlines() if line.strip()]
        return text.clean(texts[-1].strip()) if texts else f"exit code {self.code}"


class Runner(Protocol):
    """Runs a command and returns how it ended; never raises for a failure of the command."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Done:
        """Run and return exit code and output."""


class CommandRunner:
    """Runs commands for real, in an environment that asks for messages in English."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {**environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"}

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Done:
        """Run and return exit code and output."""
        try:
            done = subprocess.run(
                argv,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            return Done(NOT_FOUND, f"{argv[0]}: not found")
        except subprocess.TimeoutExpired:
            return Done(TIMED_OUT, f"no answer within {timeout_s:g} s")
        except OSError as error:
            return Done(NOT_FOUND, f"{argv[0]}: {error.strerror}")
        return Done(done.returncode, done.stdout.decode("utf-8", "replace").strip())


def show(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a viewer on our own terminal and return its exit code (127: not there)."""
    try:
        return subprocess.run(argv, env=dict(environ), check=False).returncode
    except FileNotFoundError:
        return NOT_FOUND


def daemon_argv(executable: str = sys.executable) -> tuple[str, ...]:
    """Return the absolute command of the daemon: the script beside our Python, else the module.

    The path is not resolved: the target of a virtual environment's link is another Python.
    """
    python = Path(os.path.abspath(executable))  # noqa: PTH100 (resolve() would follow the link)
    script = python.with_name("gpuwatchd")
    if script.is_file() and os.access(script, os.X_OK):
        return (str(script),)
    return str(python), "-m", "gpuwatchd"


class NewFile(NamedTuple):
    """A file that is to be written."""

    path: Path
    content: bytes
    mode: int = 0o644
    owner: tuple[int, int] | None = None
    """User and group, where root writes it for somebody else."""


def write_atomically(*files: NewFile) -> None:
    """Write files, each of them whole, and none where one of them cannot be written.

    Raises
    ------
    OSError
        When one cannot be written.
    """
    beside: list[Path] = []
    try:
        for file in files:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=file.path.parent, prefix=f".{file.path.name}.")
            beside.append(Path(name))
            with os.fdopen(handle, "wb") as stream:
                stream.write(file.content)
                os.fchmod(stream.fileno(), file.mode)
                if file.owner is not None:
                    os.fchown(stream.fileno(), *file.owner)
        for written, file in zip(beside, files, strict=True):
            written.replace(file.path)
    except OSError:
        for written in beside:
            with contextlib.suppress(OSError):
                written.unlink()
        raise


_NAME = "systemd"
_USUAL = ("/etc/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
# What the manager makes for the moment is no unit of a package.
_FLEETING = "/run/"
CREDENTIALS, DIRECTORIES = "credentials.conf", "directories.conf"
"""Our files among a unit's drop-ins; those of "systemctl edit" are called otherwise."""
CREDENTIAL_NAMES = ("smtp-password", "chat-urls")


def usual_path(*, system: bool, root: Path = Path("/")) -> list[Path]:
    """Return where units of packages and admins lie, for when the manager is not asked."""
    return [root / base.lstrip("/") / ("system" if system else "user") for base in _USUAL]


def packaged(folders: Iterable[Path], own: Path, argv: Sequence[str]) -> Path | None:
    """Return the unit file that somebody else brought and that starts this very daemon.

    The manager looks into ``folders``, the first wins; ``own``, where we write ours, does not
    count.
    """
    ours = os.path.realpath(argv[0])
    for folder in folders:
        file = folder / UNIT
        if file == own or str(folder).startswith(_FLEETING) or not file.is_file():
            continue
        program = _program(read(file) or "")
        return file if program and os.path.realpath(program) == ours else None
    return None


def _program(unit: str) -> str:
    """Return the program that a unit starts; "" when that cannot be told."""
    for line in unit.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "ExecStart":
            try:
                words = shlex.split(value)
            except ValueError:
                return ""
            return words[0].replace("%%", "%").replace("$$", "$") if words else ""
    return ""


def read(path: Path) -> str | None:
    """Return a text file; None when it is not there or no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def need_ours(unit: Path, edit: str) -> None:
    """Refuse to touch a unit that somebody wrote without us.

    Raises
    ------
    ServiceError
        When there is one, or a link in its place (a masked unit is one to /dev/null).
    """
    if unit.is_symlink():
        target = unit.readlink()
        masked = str(target) == os.devnull
        why = "the unit is masked" if masked else f"{unit} is a link to {target}"
        hint = f"{edit} unmask {UNIT}" if masked else f"remove the link: rm {unit}"
        raise ServiceError(_NAME, "service install", why, hint=hint)
    before = read(unit)
    if (before is not None and MARK not in before) or (before is None and unit.exists()):
        raise ServiceError(
            _NAME,
            "service install",
            f"{unit} was not written by gpuwatchctl",
            hint=f"move it away; changes of yours belong in: {edit} edit gpuwatchd",
        )


def difference(before: str, after: str) -> list[str]:
    """Return the lines that change, ``-`` before the old and ``+`` before the new ones."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [f"  {line}" for line in lines if not line.startswith(("---", "+++", "@@"))]


def write(path: Path, content: str) -> None:
    """Write a unit or a drop-in.

    Raises
    ------
    ServiceError
        When it cannot be written.
    """
    try:
        write_atomically(NewFile(path, content.encode()))
    except OSError as error:
        why = error.strerror or "cannot be written"
        raise ServiceError(_NAME, f"writing {path}", why) from error


def credentials(wanted: Sequence[tuple[str, str]]) -> str:
    """Return the drop-in that hands secrets (one of ``CREDENTIAL_NAMES``, file) to the daemon.

    Raises
    ------
    ServiceError
        When a file is not there or others can read it: the service would not start, or the secret
        were none.
    """
    lines = [f'# {MARK} --credential"; again with others replaces it.', "[Service]"]
    for name, given in wanted:
        file = Path(os.path.abspath(Path(given).expanduser()))  # noqa: PTH100
        try:
            mode = file.stat().st_mode
        except OSError as error:
            raise ServiceError(
                _NAME, f"credential {name}", f"{file}: {error.strerror}", hint="write it first"
            ) from None
        if mode & 0o077:
            raise ServiceError(
                _NAME,
                f"credential {name}",
                f"{file}: others can read it (mode {mode & 0o777:04o})",
                hint=f"chmod 600 {file}",
            )
        # Words of this line are not unquoted: only a percent sign means something.
        escape(str(file))
        lines.append(f"LoadCredential={name}:{str(file).replace('%', '%%')}")
    return "\n".join([*lines, ""])


def directories(variables: Mapping[str, str]) -> str:
    """Return the drop-in that gives a package's unit the directories of one user."""
    lines = [f'Environment="{name}={value}"' for name, value in variables.items()]
    return "\n".join([f'# {MARK}", since your shell sets these.', "[Service]", *lines, ""])


def drop_in(unit: Path, name: str) -> Path:
    """Return where a drop-in of a unit belongs."""
    return Path(f"{unit}.d") / name


def drop_ins(unit: Path) -> list[Path]:
    """Return the drop-ins beside a unit of ours, in order."""
    try:
        return sorted(Path(f"{unit}.d").glob("*.conf"))
    except OSError:
        return []


def ours(file: Path) -> bool:
    """Say whether we wrote this file."""
    return MARK in (read(file) or "")


# The variables that make the daemon of a service and the command line agree on directories.


def user_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a user's unit, as systemd reads them.

    Raises
    ------
    ServiceError
        When a path holds a control character.
    """
    runtime = str(config.runtime_dir(environ))
    own = environ.get("XDG_RUNTIME_DIR")
    made = own and runtime == str(Path(own) / "gpuwatchd")
    paths = {
        "GPUWATCHD_STATE_DIR": escape(absolute(config.state_dir(environ))),
        "GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME if made else escape(absolute(runtime)),
    }
    for name in ("GPUWATCHD_CONFIG", "XDG_CONFIG_HOME"):
        if environ.get(name):
            paths[name] = escape(absolute(environ[name]))
    return paths


def unusual_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of a user's unit that a service does not have by itself."""
    usual = {
        "GPUWATCHD_STATE_DIR": escape(str(config.state_dir({}))),
        "GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME,
        "XDG_CONFIG_HOME": escape(str(Path.home() / ".config")),
    }
    values = user_variables(environ)
    return {name: value for name, value in values.items() if usual.get(name) != value}


def absolute(path: str | Path) -> str:
    """Return an absolute path, links and all."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links


def with_runtime_dir(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the usual XDG_RUNTIME_DIR: a shell of cron or su has none."""
    usual = Path(f"/run/user/{os.getuid()}")
    if environ.get("XDG_RUNTIME_DIR") or not usual.is_dir():
        return dict(environ)
    return {**environ, "XDG_RUNTIME_DIR": str(usual)}


# The text of the systemd units: of one user, and of a whole machine.

UNIT = "gpuwatchd.service"
MARK = 'Written by "gpuwatchctl service install'
"""In the first lines of every unit of ours."""
OWN_RUNTIME = "%t/gpuwatchd"
"""The runtime directory that systemd makes for the service."""
SYSTEM_VARIABLES = {
    "GPUWATCHD_STATE_DIR": "%S/gpuwatchd",
    "GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME,
    "GPUWATCHD_DAEMON_READERS": "group",
}
# No state directory: %S of a user manager is ~/.config in systemd 252 and ~/.local/state in 257,
# whereas the daemon's own choice is the same everywhere.
PACKAGED_VARIABLES = {"GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME}
_NOT_A_PROGRAM = set("$'\"\\")
"""What systemd refuses in the path of a program, or keeps doubled, even where it is quoted."""
_THROUGH_A_SHELL = ("/bin/sh", "-c", 'exec "$0" "$@"')
_PAGES = "Documentation=man:gpuwatchd(8) man:gpuwatchctl(1)\n"
_RUNTIME = (
    "\n# The live state outlives a restart: gpuwatchctl reads it while the daemon is stopped.\n"
    "RuntimeDirectory=gpuwatchd\nRuntimeDirectoryMode=0700\nRuntimeDirectoryPreserve=yes\n"
)


def render(
    argv: Sequence[str],
    variables: Mapping[str, str],
    *,
    system: bool = False,
    packaged: bool = False,
) -> str:
    """Return a unit; one that is ``packaged`` names the manual pages that a package brings along.

    Values of variables are as systemd reads them (``%t`` allowed, see :func:`escape`). A runtime
    directory below ``%t`` is made by systemd.

    Raises
    ------
    ServiceError
        When the command is not absolute, or a word holds a control character.
    """
    if not argv or not argv[0].startswith("/"):
        raise ServiceError("systemd", "rendering the unit", "the daemon needs an absolute path")
    name = "gpuwatchd-system.service.in" if system else "gpuwatchd.service.in"
    template = resources.files("gpuwatchd.service").joinpath(name).read_text("utf-8")
    made = variables.get("GPUWATCHD_RUNTIME_DIR", OWN_RUNTIME) == OWN_RUNTIME
    environment = "\n".join(f'Environment="{name}={value}"' for name, value in variables.items())
    words = (*_THROUGH_A_SHELL, *argv) if set(argv[0]) & _NOT_A_PROGRAM else argv
    command = " ".join(f'"{escape(word).replace("$", "$$")}"' for word in words)
    return (
        template.replace("@DOCUMENTATION@", _PAGES if packaged else "")
        .replace("@EXEC_START@", command)
        .replace("@ENVIRONMENT@", environment)
        .replace("@RUNTIME@", _RUNTIME if made else "")
    )


def for_package(command: str, *, system: bool) -> str:
    """Return the unit that a package brings: it names no directory of one user."""
    variables = SYSTEM_VARIABLES if system else PACKAGED_VARIABLES
    return render((command,), variables, system=system, packaged=True)


def escape(value: str) -> str:
    r"""Return a value for the inside of double quotes in a unit.

    Raises
    ------
    ServiceError
        When it holds a line break or another control character.

    Examples
    --------
    >>> escape('/a b/100%/"x"')
    '/a b/100%%/\\"x\\"'
    """
    if not value.isprintable():
        raise ServiceError("systemd", "rendering the unit", "a path holds a control character")
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
