"""What launchd would not like about a property list: Debian has no judge of its own for them."""

from __future__ import annotations

import plistlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

KEYS: dict[str, type | tuple[type, ...]] = {
    "Label": str,
    "ProgramArguments": list,
    "RunAtLoad": bool,
    "KeepAlive": (bool, dict),
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "LimitLoadToSessionType": (str, list),
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "Umask": int,
    "EnvironmentVariables": dict,
}
"""Keys of launchd.plist(5) that we use, and their types."""
PROCESS_TYPES = {"Background", "Standard", "Adaptive", "Interactive"}
SESSIONS = {"Aqua", "Background", "LoginWindow", "StandardIO", "System"}
KEEP_ALIVE = {"SuccessfulExit", "Crashed"}
_SECRET = re.compile(r"(?i)pass|secret|token|credential|key$|urls")


def complaints(file: Path) -> list[str]:
    """Return what is wrong with a property list, one sentence each."""
    try:
        wanted: dict[str, Any] = plistlib.loads(file.read_bytes())
    except (plistlib.InvalidFileException, ValueError) as error:
        return [f"no property list: {error}"]
    said = [f"{name}: unknown key" for name in wanted if name not in KEYS]
    for name, kind in KEYS.items():
        value = wanted.get(name)
        # A truth value is an int to Python, and none to launchd.
        mistaken = isinstance(value, bool) and kind is int
        if value is not None and (not isinstance(value, kind) or mistaken):
            said.append(f"{name}: {type(value).__name__}")
    if said:
        return said
    return [*_program(wanted, file), *_life(wanted), *_surroundings(wanted)]


def _program(wanted: dict[str, Any], file: Path) -> list[str]:
    said = []
    if wanted.get("Label") != file.name.removesuffix(".plist"):
        said.append("Label: not the name of the file")
    words = wanted.get("ProgramArguments") or [""]
    if not all(isinstance(word, str) for word in words):
        said.append("ProgramArguments: not all words")
    elif not words[0].startswith("/"):
        said.append("ProgramArguments: the program is not absolute")
    elif any(set(word) & set("~$") for word in words):
        said.append("ProgramArguments: no shell fills in ~ or $")
    return said


def _life(wanted: dict[str, Any]) -> list[str]:
    said = []
    if wanted.get("RunAtLoad") is not True:
        said.append("RunAtLoad: it would not start at login")
    keep = wanted.get("KeepAlive", False)
    if isinstance(keep, dict) and not set(keep) <= KEEP_ALIVE:
        said.append("KeepAlive: unknown condition")
    if isinstance(keep, dict) and not all(isinstance(value, bool) for value in keep.values()):
        said.append("KeepAlive: a condition is true or false")
    if keep is False:
        said.append("KeepAlive: it would not come back")
    if wanted.get("ThrottleInterval", 10) < 10:
        said.append("ThrottleInterval: launchd takes no less than 10")
    if wanted.get("ProcessType", "Standard") not in PROCESS_TYPES:
        said.append("ProcessType: unknown")
    sessions = wanted.get("LimitLoadToSessionType", "Aqua")
    if not set([sessions] if isinstance(sessions, str) else sessions) <= SESSIONS:
        said.append("LimitLoadToSessionType: unknown")
    return said


def _surroundings(wanted: dict[str, Any]) -> list[str]:
    said = []
    for name in ("StandardOutPath", "StandardErrorPath"):
        path = wanted.get(name, "/dev/null")
        if not path.startswith("/") or set(path) & set("~$"):
            said.append(f"{name}: not absolute")
    variables = wanted.get("EnvironmentVariables", {})
    for name, value in variables.items():
        if not isinstance(value, str):
            said.append(f"EnvironmentVariables: {name} is no text")
        if _SECRET.search(name):
            said.append(f"EnvironmentVariables: {name} looks like a secret")
    if not 0 <= wanted.get("Umask", 0) <= 0o777:
        said.append("Umask: no mode")
    return said
