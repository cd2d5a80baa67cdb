"""What ``service uninstall --purge`` removes beside the service: everything that it ever wrote."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.core import config
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.store.private_files import LOCK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OURS = "gpuwatchd"
_WRITTEN = (
    "history.db", "boot.json", "run", "state.json", "release.json", "popups.json", "bell",
    "started-anew", LOCK_NAME,
)  # fmt: skip
"""Beginnings of the names in our directories; those of the configuration are its user's own."""


def of_a_user(environ: Mapping[str, str]) -> list[Path]:
    """Return the directories of history, live state and configuration of one user."""
    home = environ.get("HOME")
    if home:  # what is not set lies below the home of this environment, which may not be ours
        usual = {"XDG_CONFIG_HOME": f"{home}/.config", "XDG_STATE_HOME": f"{home}/.local/state"}
        environ = usual | {name: value for name, value in environ.items() if value}
    return _unique(
        [config.state_dir(environ), config.runtime_dir(environ), config.user_file(environ).parent]
    )


def of_the_machine(root: Path = Path("/")) -> list[Path]:
    """Return those of the machine's service; its configuration is every user's lowest layer."""
    places = (config.SYSTEM_STATE_DIR, config.SYSTEM_RUNTIME_DIR, config.SYSTEM_FILE.parent)
    return [root / str(place).lstrip("/") for place in places]


def _unique(paths: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for path in paths:
        # One that lies in another goes with it.
        if not any(path == other or other in path.parents for other in kept):
            kept.append(path)
    return kept


def removable(path: Path, *, given: bool = False) -> bool:
    """Say whether a directory is surely ours: one of another name may hold more than our files.

    One ``given`` by the user may be called gpuwatchd for another reason, a checkout, say.
    """
    if path.name != _OURS or not path.is_dir() or path.is_symlink():
        return False
    try:
        return not given or all(one.name.startswith(_WRITTEN) for one in path.iterdir())
    except OSError:  # not even for us to look into
        return False


def plan(
    paths: Iterable[Path], environ: Mapping[str, str] | None = None
) -> tuple[list[Path], list[Path]]:
    """Return which directories there are to remove, and which are left to the user.

    In ``environ`` the user may have named directories.
    """
    names = ("GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR")
    given = [Path(environ[name]) for name in names if environ and environ.get(name)]
    there = [path for path in paths if path.is_dir()]
    mine = [path for path in there if removable(path, given=path in given)]
    return mine, [path for path in there if path not in mine]


def remove(paths: Iterable[Path]) -> list[str]:
    """Remove the directories with all that is in them; return what was done.

    Raises
    ------
    ServiceError
        When one cannot be removed.
    """
    texts = []
    for path in paths:
        try:
            shutil.rmtree(path)
        except OSError as error:
            why = error.strerror or "cannot be removed"
            raise ServiceError("removal", str(error.filename or path), why) from error
        texts.append(f"removed {path}")
    return texts


def planned(gone: Iterable[Path], paths: Iterable[Path], group: str) -> list[str]:
    """Return what would be done: directories, and a user with its group where one is named."""
    plan = [f"would remove {path} with all that is in it" for path in gone]
    return plan + ([f"would remove the user and the group {group}"] if group else []) + left(paths)


def left(paths: Iterable[Path]) -> list[str]:
    """Return what is said of directories that are not surely ours."""
    return [f"{path} may hold other files, too: remove it yourself" for path in paths]
