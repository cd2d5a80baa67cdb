"""The Debian package as far as it can be told without building it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import gpuwatchd
import project
import vendored
from debian import legal, tree
from gpuwatchd.cli import config_text
from gpuwatchd.fleet import config as fleet
from tests.conftest import ROOT, need, ran
from tests.packaging import debs

if TYPE_CHECKING:
    from pathlib import Path

DEBIAN = ROOT / "packaging" / "debian"
MAINTAINER_SCRIPTS = ("postinst", "prerm", "postrm")
SUITES = sorted(tree.suites())


@pytest.fixture(autouse=True)
def _dated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in ("DEB_REVISION", "DEBFULLNAME", "DEBEMAIL"):
        monkeypatch.delenv(name, raising=False)


def script(kind: str) -> str:
    return (DEBIAN / f"gpuwatchd.{kind}").read_text("utf-8")


def refused(argv: list[object], **more: str) -> list[str]:
    words = [str(word) for word in argv]
    env = debs.surroundings(**more)
    done = ran(words, env=env, timeout=60)
    assert done.returncode == 1
    return done.stderr.splitlines()


@pytest.mark.parametrize("suite", SUITES)
def test_a_package_is_tied_to_the_python_of_its_suite(suite: str) -> None:
    row = tree.suites()[suite]
    text = tree.control(row)
    assert f"python3 (>= {row.python}), python3 (<< {row.next_python}~)" in text
    assert "@" not in text.replace(tree.MAINTAINER, "")
    (depends,) = re.findall(r"^Depends: (.*)$", text, re.MULTILINE)
    assert "${shlibs:Depends}" in depends
    assert "${misc:Depends}" in depends


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ("0.1.0", "0.1.0-1~deb12"),
        ("1.0.0rc2", "1.0.0~rc2-1~deb12"),
        ("1.0.0.dev3", "1.0.0~dev3-1~deb12"),
    ],
)
def test_the_version_is_written_as_debian_orders_it(ours: str, expected: str) -> None:
    assert tree.debian_version(ours, tree.suites()["bookworm"]) == expected


def test_versions_rise_with_builds_releases_and_suites() -> None:
    need(shutil.which("dpkg"), "dpkg is not here")
    old, new = tree.suites()["bookworm"], tree.suites()["trixie"]
    rising = [
        tree.debian_version("1.0.0rc1", new, "1"),
        tree.debian_version("1.0.0", old, "1"),
        tree.debian_version("1.0.0", new, "1"),
        tree.debian_version("1.0.0", old, "2"),
        tree.debian_version("1.0.1", old, "1"),
    ]
    for lower, higher in pairwise(rising):
        argv = ["dpkg", "--compare-versions", lower, "lt", higher]
        assert subprocess.run(argv, check=False).returncode == 0, f"{lower} {higher}"


def test_the_changelog_has_the_version_of_the_program() -> None:
    text = tree.changelog(ROOT, tree.suites()["trixie"])
    head, *_, foot = text.strip().splitlines()
    version = tree.debian_version(gpuwatchd.__version__, tree.suites()["trixie"])
    assert head == f"gpuwatchd ({version}) trixie; urgency=medium"
    assert foot == f" -- {tree.MAINTAINER}  Tue, 14 Nov 2023 22:13:20 +0000"


def test_the_builder_answers_for_his_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBFULLNAME", "M. Leng")
    monkeypatch.setenv("DEBEMAIL", "mleng@example.org")
    monkeypatch.setenv("DEB_REVISION", "3")
    suite = tree.suites()["bookworm"]
    assert "Maintainer: M. Leng <mleng@example.org>\n" in tree.control(suite)
    assert "-3~deb12)" in tree.changelog(ROOT, suite)


@pytest.mark.parametrize("kind", MAINTAINER_SCRIPTS)
def test_a_maintainer_script_is_sound_and_asks_nobody(kind: str) -> None:
    text = script(kind)
    assert text.startswith("#!/bin/sh\nset -e\n")
    assert text.count("\n#DEBHELPER#\n") == 1
    code = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    assert not re.search(r"\b(curl|wget|pip3?|apt|apt-get|read|systemctl .*enable)\b", code)
    told = re.findall(r"^\s*((?:systemctl|deb-systemd-invoke) .*)$", code, re.MULTILINE)
    assert told, "nothing is said to the service manager"
    for command in told:
        assert command.endswith("|| true"), f"a manager that refuses must not break dpkg: {command}"
    subprocess.run(["sh", "-n", DEBIAN / f"gpuwatchd.{kind}"], check=True)


def test_shell_is_clean() -> None:
    need(shutil.which("shellcheck"), "shellcheck is not here")
    files = [DEBIAN / f"gpuwatchd.{kind}" for kind in MAINTAINER_SCRIPTS]
    argv = ["shellcheck", *map(str, files), str(DEBIAN / "build"), str(DEBIAN / "apt-repo")]
    done = ran(argv)
    assert done.stdout == ""


def test_a_removal_touches_nothing_of_users() -> None:
    removed = re.findall(r"\brm -r?f (.*)$", script("postrm"), re.MULTILINE)
    assert removed == [
        '"$1"', "/etc/gpuwatchd /var/lib/gpuwatchd /run/gpuwatchd",
        "/var/lib/gpuwatchd-fleet /var/lib/private/gpuwatchd-fleet",
    ]  # fmt: skip


def test_the_files_of_settings_set_nothing() -> None:
    for line in config_text.default_file().splitlines():
        assert not line or line[0] in "#[", line
    assert tomllib.loads((DEBIAN / "fleet.toml").read_text("utf-8")) == {}


def test_what_the_file_for_a_fleet_proposes_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = re.sub(r"^#(?=\S)", "", (DEBIAN / "fleet.toml").read_text("utf-8"), flags=re.MULTILINE)
    token = re.findall(r'^token-file = "(.*)"$', text, re.MULTILINE)[0]
    unit = (DEBIAN / "gpuwatchd-fleet.service").read_text("utf-8")
    assert token.startswith("/run/credentials/gpuwatchd-fleet.service/")
    assert f"\nLoadCredential={token.rpartition('/')[2]}:" in unit
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "fleet.toml").write_text(text.replace(token, "token"))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert fleet.load(tmp_path / "fleet.toml").headers == {"Authorization": "Bearer s3cret"}


def test_builders_are_told_what_is_wrong(tmp_path: Path) -> None:
    said = refused([DEBIAN / "build", "sarge", tmp_path])
    assert said[0] == "build: no suite sarge"
    assert said[1].split() == ["hint:", "one", "of:", "bookworm", "trixie", "noble"]
    assert refused([DEBIAN / "build"]) == ["build: usage: packaging/debian/build SUITE OUT_DIR"]


def test_a_builder_without_the_suites_python_is_told_how_to_get_it(tmp_path: Path) -> None:
    need(shutil.which("dpkg-buildpackage") and shutil.which("dh"), "debhelper is not here")
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    table = tmp_path / "debian"
    shutil.copytree(DEBIAN, table, ignore=shutil.ignore_patterns("__pycache__"))
    (table / "suites").write_text("sid 3.99 2.50 sid\n")
    constraints = str(ROOT / project.PINS_FULL)
    said = refused([table / "build", "sid", tmp_path / "out"], CONSTRAINTS=constraints)
    assert said[0] == "build: sid has Python 3.99, which is not here"
    assert "DEB_PYTHON" in said[1]


def test_a_repository_needs_a_key_and_packages_of_ours(tmp_path: Path) -> None:
    need(shutil.which("apt-ftparchive") and shutil.which("gpg"), "apt-utils, gnupg")
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    (tmp_path / "other.deb").write_bytes(b"!<arch>\n")
    argv = [DEBIAN / "apt-repo", tmp_path / "repo", "nobody@example.org", tmp_path / "other.deb"]
    said = refused(argv, GNUPGHOME=str(home))
    assert said[0] == "apt-repo: gpg has no secret key nobody@example.org"
    assert said[1].startswith("hint: gpg --quick-generate-key")


def test_the_terms_of_a_library_are_told(tmp_path: Path) -> None:
    info = tmp_path / "thing-1.2.dist-info"
    (info / "licenses").mkdir(parents=True)
    (info / "METADATA").write_text("Name: thing\nVersion: 1.2\nLicense-Expression: MIT AND Zlib\n")
    (info / "RECORD").write_text("thing/__init__.py,,\nthing-1.2.dist-info/METADATA,,\n../x,,\n")
    (info / "licenses/LICENSE").write_text(
        "Copyright (c) 2020 A. Body\nCopyright notice of others\n\nDo what you like.\n"
    )
    ours = tmp_path / "gpuwatchd-0.dist-info"
    ours.mkdir()
    (ours / "METADATA").write_text("Name: gpuwatchd\nVersion: 0\nLicense-Expression: Apache-2.0\n")
    shutil.copy(ROOT / "LICENSE", ours / "LICENSE")
    (tmp_path / "thing").mkdir()
    text = legal.copyright_file(tmp_path, "gpuwatchd", tree.LIB)
    first, own, _, thing = text.split("\n\n")
    assert first.startswith("Format: ")
    assert "/usr/share/common-licenses/Apache-2.0" in own
    assert "TERMS AND CONDITIONS FOR USE" not in own
    assert thing.splitlines()[:4] == [
        "Files: usr/lib/gpuwatchd/lib/python*/site-packages/thing/*",
        " usr/lib/gpuwatchd/lib/python*/site-packages/thing-1.2.dist-info/*",
        "Copyright: 2020 A. Body",
        "License: MIT and Zlib",
    ]
    assert " ." in thing.splitlines()


def test_the_terms_of_what_lies_inside_ours_are_told(tmp_path: Path) -> None:
    ours = tmp_path / "gpuwatchd-0.dist-info"
    (one,) = vendored.VENDORED
    terms = ours / "licenses" / one.terms
    terms.parent.mkdir(parents=True)
    shutil.copy(ROOT / one.terms, terms)
    shutil.copy(ROOT / "LICENSE", ours / "licenses" / "LICENSE")
    said = project.pyproject()["project"]["license"]
    (ours / "METADATA").write_text(f"Name: gpuwatchd\nVersion: 0\nLicense-Expression: {said}\n")
    text = legal.copyright_file(tmp_path, "gpuwatchd", tree.LIB)
    _, own, inside = text.split("\n\n")
    assert own.splitlines()[:3] == [
        "Files: *", "Copyright: The authors of gpuwatchd", "License: Apache-2.0",
    ]  # fmt: skip
    assert "Permission is hereby granted, free of charge" not in own
    folder = "usr/lib/gpuwatchd/lib/python*/site-packages/gpuwatchd/charts/static"
    assert inside.splitlines()[:3] == [
        f"Files: {folder}/uPlot.*", "Copyright: 2022 Leon Sorokin", "License: MIT",
    ]  # fmt: skip
    assert "Permission is hereby granted, free of charge" in inside
    static = (ROOT / one.terms).parent
    assert ROOT / one.file in set(static.glob("uPlot.*"))
