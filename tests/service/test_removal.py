"""What a purge removes, and what stays."""

from __future__ import annotations

from pathlib import Path

from gpuwatchd.service.systemd import Systemd
from gpuwatchd.service.unit_files import UNIT
from tests.service.conftest import NOT_FOUND, USER, Tools


def test_a_purge_removes_what_was_written_and_nothing_else(manager: Systemd, tools: Tools) -> None:
    state = Path(tools.environ["XDG_STATE_HOME"]) / "gpuwatchd"
    settings = tools.home / ".config" / "gpuwatchd"
    runtime = Path(tools.environ["XDG_RUNTIME_DIR"]) / "gpuwatchd"
    for folder in (state, settings, runtime):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    manager.install(dry_run=False)
    said = manager.uninstall(dry_run=True, purge=True)
    assert f"would remove {state} with all that is in it" in said
    assert state.exists()
    said = manager.uninstall(dry_run=False, purge=True)
    assert [f"removed {folder}" in said for folder in (state, settings, runtime)] == [True] * 3
    assert not [folder for folder in (state, settings, runtime) if folder.exists()]
    assert state.parent.exists()
    assert manager.uninstall(dry_run=False, purge=True) == ["not installed"]


def purged(tools: Tools, state: Path, runtime: Path) -> list[str]:
    """Return what a purge says where these directories are named."""
    named = {"GPUWATCHD_STATE_DIR": str(state), "GPUWATCHD_RUNTIME_DIR": str(runtime)}
    tools.answer(f"systemctl --user show {UNIT}", NOT_FOUND)
    return Systemd(environ=tools.environ | named).uninstall(dry_run=False, purge=True)


def test_a_purge_leaves_a_directory_that_may_hold_more(tools: Tools) -> None:
    data = tools.folder / "data"
    data.mkdir()
    elsewhere = tools.folder / "elsewhere"
    elsewhere.mkdir()
    (tools.folder / "link").mkdir()
    planted = tools.folder / "link" / "gpuwatchd"
    planted.symlink_to(elsewhere)
    said = purged(tools, data, planted)
    assert f"{data} may hold other files, too: remove it yourself" in said
    assert data.exists()
    assert elsewhere.exists()


def test_a_purge_leaves_a_checkout_that_was_named_as_the_state_directory(tools: Tools) -> None:
    checkout, ours = tools.folder / "src" / "gpuwatchd", tools.folder / "run" / "gpuwatchd"
    for folder in (checkout, ours):
        folder.mkdir(parents=True)
    for file in (checkout / "history.db", checkout / "README.md", ours / "state.json"):
        file.touch()
    said = purged(tools, checkout, ours)
    assert f"{checkout} may hold other files, too: remove it yourself" in said
    assert (checkout / "README.md").exists()
    assert f"removed {ours}" in said
    assert not ours.exists()


def test_linger_stays_and_is_said(manager: Systemd, tools: Tools) -> None:
    manager.install(dry_run=False)
    tools.answer("loginctl show-user", "yes")
    assert f"loginctl disable-linger {USER}" in manager.uninstall(dry_run=False)[-1]
    assert f"loginctl disable-linger {USER}" not in tools.calls
