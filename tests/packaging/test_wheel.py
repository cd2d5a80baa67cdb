"""The wheel and the source distribution: what is in them, and that they come out the same twice."""

from __future__ import annotations

import email
import re
import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

import dist
import project
import readme
import vendored
from tests.conftest import ROOT, need
from tests.probe import gate

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path


@pytest.fixture(scope="module")
def names(archives: tuple[Path, Path]) -> set[str]:
    with zipfile.ZipFile(archives[1]) as wheel:
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def metadata(archives: tuple[Path, Path]) -> Message:
    with zipfile.ZipFile(archives[1]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def test_another_build_gives_the_same_bytes_and_an_index_would_take_them(
    archives: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tarfile.TarFile.extractall
    # The Python of Debian 12, 3.11.2, has no filters.
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda tar, into: plain(tar, into, None))
    assert dist.differences(ROOT, archives[0].parent) == []
    dist.accepted(archives[0].parent)


def test_every_file_has_the_instant_of_the_release(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as sdist:
        assert {member.mtime for member in sdist} == {project.epoch_s()}
        assert {(member.uid, member.gid, member.uname) for member in sdist} == {(0, 0, "")}


@pytest.fixture(scope="module")
def source(archives: tuple[Path, Path]) -> set[str]:
    with tarfile.open(archives[0]) as sdist:
        return {member.name.partition("/")[2] for member in sdist}


def test_all_of_the_package_and_nothing_else(names: set[str], source: set[str]) -> None:
    def of_package(these: set[str]) -> set[str]:
        own = (name for name in these if name.startswith("gpuwatchd/"))
        return {name for name in own if not name.startswith("gpuwatchd/docs/")}

    for name in ("core/config/prices.toml", "service/gpuwatchd.service.in", "py.typed"):
        assert f"gpuwatchd/{name}" in names
    assert of_package(names) == of_package(source)
    version = project.version()
    assert {name.split("/")[0] for name in names} == {
        "gpuwatchd",
        f"gpuwatchd-{version}.dist-info",
        f"gpuwatchd-{version}.data",
    }
    assert not [name for name in names if {"test", "tests"} & set(name.split("/"))]
    assert not [name for name in names if name.endswith(".pyc")]


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_the_probe_runs_without_the_rest_of_the_package(
    version: str, archives: tuple[Path, Path], tmp_path: Path
) -> None:
    python = gate.interpreters().get(version)
    need(python is not None, f"no Python {version} on PATH or in PYENV_ROOT")
    assert python is not None
    with zipfile.ZipFile(archives[1]) as wheel:
        boot = [name for name in wheel.namelist() if name.startswith("gpuwatchd/probe/boot/")]
        wheel.extractall(tmp_path, boot)
    code = "from gpuwatchd import probe; print(probe.report(), probe.span('a'))"
    env = {"PYTHONPATH": str(tmp_path / "gpuwatchd/probe/boot"), "PATH": ""}
    command = [python, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.startswith("{'functions': []} <_gpuwatchd_probe.spans._Span")


@pytest.mark.parametrize(
    "name",
    [
        "man/man1/gpuwatchctl.1",
        "man/man5/gpuwatchd.toml.5",
        "man/man8/gpuwatchd.8",
        "bash-completion/completions/gpuwatchctl",
        "zsh/site-functions/_gpuwatchctl",
        "fish/vendor_completions.d/gpuwatchctl.fish",
    ],
)
def test_man_pages_and_completions_go_where_shells_look(names: set[str], name: str) -> None:
    assert f"gpuwatchd-{project.version()}.data/data/share/{name}" in names


@pytest.mark.parametrize("one", vendored.VENDORED, ids=lambda one: one.name)
def test_what_others_have_made_goes_with_its_terms(
    names: set[str], source: set[str], one: vendored.Vendored
) -> None:
    assert {one.file, one.terms} <= names & source
    assert f"gpuwatchd-{project.version()}.dist-info/licenses/{one.terms}" in names
    assert re.fullmatch(r"\d+\.\d+\.\d+", one.version())


def test_the_pages_travel_along(names: set[str], source: set[str]) -> None:
    pages = {name for name in source if name.startswith("docs/") and name.endswith(".md")}
    assert "docs/how-to/chat.md" in pages
    assert {n for n in names if n.startswith("gpuwatchd/docs/")} == {
        f"gpuwatchd/{p}" for p in pages
    }


def test_what_the_package_says_of_itself(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("gpuwatchd", project.version())
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    assert metadata.get_all("License-File") == ["LICENSE", vendored.VENDORED[0].terms]
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_description_has_no_link_that_only_a_checkout_can_follow(metadata: Message) -> None:
    text = str(metadata.get_payload())
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", outside)
    assert not [link for pair in links for link in pair if link and not link.startswith("http")]
    assert "# gpuwatchd" in text


def test_links_of_the_readme_become_names_of_pages() -> None:
    text = readme.portable(
        "![alert](docs/pictures/a.svg)\n\n[how](docs/how-to/chat.md#ntfy), [licence](LICENSE),\n"
        "[docs/index.md](docs/index.md) and [there](https://example.org)\n"
        "```\n[kept](docs/as-it-is.md)\n```\n"
    )
    assert text == (
        "\nhow (`gpuwatchctl docs how-to/chat#ntfy`), licence,\n"
        "`gpuwatchctl docs index` and [there](https://example.org)\n"
        "```\n[kept](docs/as-it-is.md)\n```\n"
    )


def test_the_source_has_all_that_a_packager_needs(source: set[str]) -> None:
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "Makefile"} <= source
    assert {project.PINS, project.PINS_FULL, project.PINS_BUILD, "PKG-INFO"} <= source
    assert {"tests/conftest.py", "tests/packaging/test_wheel.py", "docs/index.md"} <= source
    assert not [name for name in source if "__pycache__" in name]
    assert not [name for name in source if name.startswith(("build/", "dist/", ".venv"))]


def test_earlier_builds_make_room_and_nothing_else_goes(tmp_path: Path) -> None:
    for name in (
        "gpuwatchd-0.0.9.tar.gz.asc",
        "gpuwatchd_0.0.9~rc1-1~deb12_amd64.deb",
        "SHA256SUMS",
        "mine.deb",
    ):
        (tmp_path / name).touch()
    dist.forget(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.deb"]
