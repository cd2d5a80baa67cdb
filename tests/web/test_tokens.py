"""The token: made once, its owner's alone, never half of one, and no link is followed."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.web import auth
from gpuwatchd.web.auth import TokenError, Tokens

if TYPE_CHECKING:
    from pathlib import Path

OTHER_UID = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a token is to be, in a folder that does not exist yet."""
    return tmp_path / "state" / auth.FILE_NAME


def fresh(path: Path) -> tuple[str, Tokens]:
    """Return a new token, and who knows it."""
    token, known = auth.kept(path), Tokens(path)
    assert known.fits(token)
    return token, known


def test_it_is_made_once_and_its_owners_alone(path: Path) -> None:
    os.umask(0)
    first = auth.kept(path)
    assert len(first) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert auth.kept(path) == first
    assert [one.name for one in path.parent.iterdir()] == [auth.FILE_NAME]


def test_its_owner_can_write_it_whatever_the_umask_is(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = os.umask(0o277)
    try:
        auth.kept(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_many_that_begin_at_once_agree(path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: auth.kept(path), range(64)))
    assert found == {auth.read(path)}
    assert [one.name for one in path.parent.iterdir()] == [auth.FILE_NAME]


def test_a_new_one_holds_at_once_and_the_old_one_no_longer(path: Path) -> None:
    first, known = fresh(path)
    second = auth.renew(path)
    assert second != first
    assert not known.fits(first)
    assert known.fits(second)
    path.unlink()
    assert not known.fits(second)
    assert not known.fits("")


def test_it_holds_while_root_acts_as_another_user_who_cannot_see_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, known = fresh(path)
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: -7)
        assert known.fits(token)
    assert not known.fits(token)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_one_that_others_can_read_is_refused(path: Path, mode: int) -> None:
    token, known = fresh(path)
    path.chmod(mode)
    assert not known.fits(token)
    with pytest.raises(TokenError, match="others can read it"):
        auth.kept(path)


@pytest.fixture
def theirs(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a token that belongs to another user, and that we could read."""
    auth.kept(path)
    if os.geteuid() == 0:
        os.chown(path, OTHER_UID, -1)
        return path
    _owned_by(OTHER_UID, monkeypatch)  # only root can give a file away
    return path


def _owned_by(uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file look as if it belonged to a user."""
    look = os.fstat

    def another(handle: int) -> os.stat_result:
        found = list(look(handle))
        found[stat.ST_UID] = uid
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", another)


def test_one_that_belongs_to_another_user_is_refused(theirs: Path) -> None:
    """Whoever wrote it knows it: the page would be theirs."""
    content = theirs.read_text().strip()
    known = Tokens(theirs)
    assert known.current() == ""
    assert not known.fits(content)
    for ask in (auth.read, auth.kept):
        with pytest.raises(TokenError, match="belongs to another user") as error:
            ask(theirs)
        assert error.value.page == "errors#web-token"
        assert content not in f"{error.value} {error.value.hint}"
    assert theirs.read_text().strip() == content, "what is another user's is left alone"


def test_one_that_is_given_away_meanwhile_is_good_for_nothing(
    path: Path, request: pytest.FixtureRequest
) -> None:
    token, known = fresh(path)
    request.getfixturevalue("theirs")
    known._seen = None if os.geteuid() else known._seen  # nothing has changed where it is feigned
    assert not known.fits(token)
    if os.geteuid() == 0:
        os.chown(path, 0, -1)
        assert known.fits(token)


def test_that_of_another_user_is_replaced_by_one_of_our_own(theirs: Path) -> None:
    before = theirs.read_text()
    if os.geteuid() == 0:
        assert auth.renew(theirs) != before.strip()
        assert theirs.stat().st_uid == 0
    assert Tokens(theirs).current() != before.strip()


def test_roots_own_is_taken_by_the_service_of_the_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = auth.kept(path)
    _owned_by(0, monkeypatch)
    assert auth.read(path) == token


def test_a_link_is_not_followed_and_what_it_names_is_not_touched(path: Path) -> None:
    path.parent.mkdir()
    other = path.parent / "other"
    other.write_text("x" * 43)
    other.chmod(0o600)
    path.symlink_to(other)
    with pytest.raises(TokenError, match="a link"):
        auth.kept(path)
    assert not Tokens(path).fits("x" * 43)
    auth.renew(path)
    assert other.read_text() == "x" * 43
    assert not path.is_symlink()


def test_a_link_to_nothing_makes_nothing_there(path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(path.parent / "planted")
    with pytest.raises(TokenError, match="a link"):
        auth.kept(path)
    assert not (path.parent / "planted").exists()


@pytest.mark.parametrize("kind", ["fifo", "folder", "empty", "short", "bytes", "huge"])
def test_what_is_no_token_is_refused_without_waiting(path: Path, kind: str) -> None:
    path.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(0o700)
    else:
        content = {"empty": b"", "short": b"abc", "bytes": b"\xff" * 43, "huge": b" a" * 9999}
        path.write_bytes(content[kind])
        path.chmod(0o600)
    with pytest.raises(TokenError):
        auth.kept(path)


def test_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TokenError, match="Not a directory") as error:
        auth.kept(tmp_path / "file" / "token")
    assert error.value.hint


def test_it_is_in_no_repr(path: Path) -> None:
    token, known = fresh(path)
    assert token not in repr(known)
    assert not known.fits("\u00e9" + token)
