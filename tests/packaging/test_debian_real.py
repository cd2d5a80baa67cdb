"""Built packages and signed repositories: what is in them, lintian, the same twice, what apt takes.

That they install, upgrade and leave nothing behind is tried in booted machines
(``tests/real/test_machine.py``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import project
from debian import tree
from tests.conftest import need, ran
from tests.packaging import built, debs

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    Apt = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(600)]
SUITES = ("bookworm", "trixie")
ASKED = bool(os.environ.get("CI") or os.environ.get("GPUWATCHD_TEST_MACHINE"))


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    need(ASKED, "building packages takes a minute: PACKAGES=1 GPUWATCHD_TEST_MACHINE=1")
    for tool in ("dpkg-buildpackage", "dh", "lintian", "apt-ftparchive", "apt-get", "gpg"):
        need(shutil.which(tool), f"{tool} is not here")
    for suite in SUITES:
        version = tree.suites()[suite].python
        need(built.interpreter(version), f"Python {version} is not here")


class Package:
    """A built package, unpacked."""

    def __init__(self, file: Path, place: Path) -> None:
        project.run(["dpkg-deb", "--raw-extract", file, place])
        self.file, self.place = file, place
        listed = project.run(["dpkg-deb", "--contents", file]).splitlines()
        self.rows = [line.split(maxsplit=5) for line in listed]
        self.names = [row[5].removeprefix("./").split(" -> ")[0] for row in self.rows]

    def text(self, name: str) -> str:
        return (self.place / name).read_text("utf-8")


@pytest.fixture(scope="module", params=SUITES)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Package:
    place = tmp_path_factory.mktemp(request.param)
    return Package(debs.deb(request.param), place / "tree")


def row(package: Package) -> tree.Suite:
    ending = package.text("DEBIAN/control").split("Version: ")[1].split()[0].rpartition("~")[2]
    return next(suite for suite in tree.suites().values() if suite.suffix == ending)


def test_it_depends_on_the_python_that_it_is_for_and_on_the_system_libraries(
    package: Package,
) -> None:
    control, suite = package.text("DEBIAN/control"), row(package)
    assert f"python3 (>= {suite.python}), python3 (<< {suite.next_python}~)" in control
    assert "libc6 (>= " in control
    assert f"usr/lib/gpuwatchd/lib/python{suite.python}/site-packages/gpuwatchd/daemon/main.py" in (
        package.names
    )
    made_for = f".cpython-{suite.python.replace('.', '')}-"
    compiled = [n for n in package.names if ".cpython-" in n and n.endswith(".so")]
    assert len(compiled) > 10
    assert all(made_for in name for name in compiled)


def test_nothing_is_in_it_that_does_not_belong(package: Package) -> None:
    for name in package.names:
        assert "__pycache__" not in name
        assert not name.endswith((".pyc", ".a", ".pyi"))
        assert "/site-packages/pip/" not in name
        assert not name.startswith(("opt/", "usr/local/", "var/", "run/"))
        assert ".wants/" not in name, "nothing is switched on for anybody"
    assert {owner for _, owner, *_ in package.rows} == {"root/root"}
    writable = [r for r in package.rows if r[0][0] != "l" and (r[0][5] == "w" or r[0][8] == "w")]
    assert not writable
    kib = sum(int(r[2]) for r in package.rows) // 1024
    assert kib < 90_000, f"{kib} KiB: what has come in?"


def test_it_brings_programs_units_manuals_completions_and_settings(package: Package) -> None:
    for name in (
        "usr/bin/gpuwatchd",
        "usr/bin/gpuwatchctl",
        "usr/lib/systemd/user/gpuwatchd.service",
        "usr/lib/systemd/system/gpuwatchd.service",
        "usr/lib/systemd/system/gpuwatchd-fleet.service",
        "usr/lib/sysusers.d/gpuwatchd.conf",
        "usr/share/man/man1/gpuwatchctl.1.gz",
        "usr/share/man/man5/gpuwatchd.toml.5.gz",
        "usr/share/man/man8/gpuwatchd.8.gz",
        "usr/share/bash-completion/completions/gpuwatchctl",
        "usr/share/zsh/vendor-completions/_gpuwatchctl",
        "usr/share/fish/vendor_completions.d/gpuwatchctl.fish",
        "usr/share/doc/gpuwatchd/copyright",
        "usr/share/doc/gpuwatchd/changelog.gz",
    ):
        assert name in package.names
    assert package.text("DEBIAN/conffiles").split() == [
        "/etc/gpuwatchd/config.toml", "/etc/gpuwatchd/fleet.toml",
    ]  # fmt: skip
    for kind in ("user", "system"):
        unit = package.text(f"usr/lib/systemd/{kind}/gpuwatchd.service")
        assert 'ExecStart="/usr/bin/gpuwatchd"' in unit
        assert "/home/" not in unit
        assert "/root" not in unit
    assert "\nUser=gpuwatchd\n" in package.text("usr/lib/systemd/system/gpuwatchd.service")
    inside = package.place / "usr/lib/gpuwatchd/bin/python3"
    assert str(inside.readlink()).endswith("/bin/python3")


def test_the_terms_of_all_that_is_bundled_are_told(package: Package) -> None:
    text = package.text("usr/share/doc/gpuwatchd/copyright")
    site = package.place / tree.LIB / f"lib/python{row(package).python}/site-packages"
    infos = [info.name for info in site.glob("*.dist-info")]
    assert len(infos) > 25
    for info in infos:
        assert info in text or info.startswith("gpuwatchd-")
    assert "OpenBLAS" in text, "inside numpy"
    assert "GCC Runtime Library Exception" in text, "libgfortran, inside numpy"


def test_lintian_has_nothing_to_say(package: Package) -> None:
    argv = ["lintian", "--allow-root", "--fail-on", "error,warning", "--info", str(package.file)]
    done = ran(argv)
    assert (done.returncode, done.stdout) == (0, "")


def test_built_elsewhere_it_is_the_same_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = debs.deb("bookworm")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    scratch = tmp_path / "another place"
    scratch.mkdir()
    before = os.umask(0o077)
    try:
        # A maintainer's fresh environment has the pip that Python brought, which is years old.
        venv.create(tmp_path / "fresh", with_pip=True, symlinks=True)
        more = {"WHEEL": str(debs.wheel()), "TMPDIR": str(scratch), **debs.QUICK}
        more["PYTHON"] = str(tmp_path / "fresh/bin/python")
        again = debs.build("bookworm", tmp_path / "out", **more)
    finally:
        os.umask(before)
    assert project.sha256(again) == project.sha256(first)


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    """Both suites in one repository; the newer build of one came later."""
    with tempfile.TemporaryDirectory(prefix="repo-", dir="/tmp") as place, debs.signer() as sign:
        out = Path(place) / "repo"
        sign(out, debs.older("bookworm"), debs.deb("trixie"))
        sign(out, debs.deb("bookworm"))
        yield out


@pytest.fixture
def repo(pristine: Path, tmp_path: Path) -> Path:
    """Return a copy of the repository that a test may spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "repo"))


@pytest.fixture
def apt(repo: Path, tmp_path: Path) -> Apt:
    """Return apt with directories of its own, which knows our repository alone."""
    home = tmp_path / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "etc/sources.list.d", "etc/p"):
        (home / name).mkdir(parents=True)
    (home / "status").touch()
    text = (repo / "bookworm.sources").read_text("utf-8")
    lines = [f"URIs: file:{repo}" if s.startswith("URIs:") else s for s in text.splitlines()]
    (home / "etc/sources.list.d/gpuwatchd.sources").write_text("\n".join(lines) + "\n")
    options = {
        "Dir::State": home / "state",
        "Dir::State::status": home / "status",
        "Dir::Cache": home / "cache",
        "Dir::Etc": home / "etc",
        "Dir::Etc::parts": home / "etc/p",
        "Dir::Etc::trustedparts": home / "etc/p",
        "Dir::Log": home,
        "APT::Sandbox::User": "",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        tool, *rest = words
        argv = [tool, *flags, *rest]
        return ran(argv, timeout=60)

    return run


def test_apt_takes_the_newest_from_a_signed_repository(apt: Apt) -> None:
    done = apt("apt-get", "update")
    assert (done.returncode, done.stderr) == (0, "")
    shown = apt("apt-cache", "madison", "gpuwatchd").stdout.splitlines()
    assert [line.split("|")[1].strip()[-8:] for line in shown] == ["-1~deb12", "-0~deb12"]


def test_every_suite_lists_its_own(pristine: Path) -> None:
    machine = project.run(["dpkg", "--print-architecture"]).strip()
    for suite, ending in (("bookworm", "~deb12"), ("trixie", "~deb13")):
        lists = pristine / f"dists/{suite}/main/binary-{machine}"
        text = (lists / "Packages").read_text("utf-8")
        versions = [s.split()[1] for s in text.splitlines() if s.startswith("Version: ")]
        assert versions
        assert all(version.endswith(ending) for version in versions)
        release = (pristine / f"dists/{suite}/Release").read_text("utf-8")
        assert f"Suite: {suite}\n" in release
        assert f"Codename: {suite}\n" in release
        for packed in ("Packages.gz", "Packages.xz"):
            assert f"main/binary-{machine}/{packed}\n" in release


def test_a_list_that_was_changed_is_refused(repo: Path, apt: Apt) -> None:
    for file in repo.glob("dists/bookworm/main/*/Packages"):
        text = file.read_text("utf-8")
        file.write_text(text.replace("Description: ", "Description: another ", 1))
        for packed in file.parent.glob("Packages.*"):
            packed.unlink()
    done = apt("apt-get", "update")
    assert done.returncode == 100
    assert "Hash Sum mismatch" in done.stderr or "unexpected size" in done.stderr
    assert apt("apt-cache", "madison", "gpuwatchd").stdout == ""


def test_what_is_unsigned_is_refused(repo: Path, apt: Apt) -> None:
    for name in ("InRelease", "Release.gpg"):
        (repo / "dists/bookworm" / name).unlink()
    done = apt("apt-get", "update")
    assert done.returncode == 100
    assert "is not signed" in done.stderr
    assert apt("apt-cache", "madison", "gpuwatchd").stdout == ""


def test_what_another_key_has_signed_is_refused(repo: Path, apt: Apt) -> None:
    with debs.signer() as stranger:
        stranger(repo, debs.deb("bookworm"))
    done = apt("apt-get", "update")
    assert done.returncode == 100
    assert "NO_PUBKEY" in done.stderr or "Missing key" in done.stderr
    assert apt("apt-cache", "madison", "gpuwatchd").stdout == ""


def test_a_listed_package_never_changes_under_its_name(repo: Path, tmp_path: Path) -> None:
    (forged,) = shutil.copytree(debs.older("bookworm").parent, tmp_path / "f").glob("*-0~*.deb")
    with forged.open("ab") as file:
        file.write(b"\n")
    with debs.signer() as sign, pytest.raises(project.Failed, match="with another content"):
        sign(repo, forged)
