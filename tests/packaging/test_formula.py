"""The Homebrew formula: every dependency, from files whose hashes are pinned, as valid Ruby."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import formula
import pins
import project
from indexfiles import IndexFile, files_of
from project import Failed
from tests.conftest import ROOT, need, ran
from tests.endpoints.serve import Page, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PINNED = pins.read(ROOT / project.PINS)
HOME = "https://example.org/gpuwatchd"


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    """Serve an index on this machine that has one source distribution of each pin."""
    pages: dict[str, Page | bytes | str] = {
        "/simple/page/": Page(b"<html>", headers=(("Content-Type", "text/html"),))
    }
    for pin in PINNED:
        file = {
            "filename": f"{pin.name.replace('-', '_')}-{pin.version}.tar.gz",
            "url": f"../../files/{pin.name}-{pin.version}.tar.gz",
            "hashes": {"sha256": min(pin.hashes)},
            "yanked": False,
        }
        kind = (("Content-Type", "application/vnd.pypi.simple.v1+json"),)
        pages[f"/simple/{pin.name}/"] = Page(json.dumps({"files": [file]}).encode(), headers=kind)
    with serving(pages) as site:
        yield f"{site.url}/simple"


@pytest.fixture(scope="module")
def text(index: str) -> str:
    resources = formula.gather(formula.wanted(PINNED), index)
    url = f"{HOME}/gpuwatchd-{project.version()}.tar.gz"
    return formula.render(resources, homepage=HOME, url=url, digest="0" * 64)


def ruby_takes(path: Path) -> None:
    need(shutil.which("ruby"), "ruby")
    done = ran(["ruby", "-wc", path])
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "Syntax OK", "")


def test_what_one_system_needs_is_for_that_one(text: str) -> None:
    linux = text.partition("on_linux do")[2].partition("\n  end\n")[0]
    assert re.findall(r'resource "(.*)"', linux) == ["dbus-fast"]
    mac = text.partition("on_macos do")[2].partition("\n  end\n")[0]
    assert re.findall(r'resource "(.*)"', mac) == ["rubicon-objc"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("class Gpuwatchd <", "class Other <", "class"),
        ('desc "GPU', 'desc "A GPU', "article"),
        ('desc "GPU', 'desc "' + "GPU " * 20, "longer"),
        ('all_of: ["Apache-2.0", "MIT"]', 'all_of: ["Apache-2.0"]', "license"),
        ("keep_alive true", "keep_alive successful_exit: false", "keep_alive"),
        ("  test do", "  nothing do", "test do"),
        ("  def install", "  on_linux do\n  end\n\n  def install", "after what all need"),
        ('resource "rich" do', 'resource "ruch" do', "rich has no resource"),
        ('resource "rich" do', 'resource "ruch" do', "ruch is not among the pins"),
        ('resource "rich" do', 'resource "click" do', "click is there twice"),
        ('sha256 "' + "0" * 64, 'sha256 "' + "0" * 63, "source has no address or no hash"),
    ],
)
def test_each_fault_is_named(text: str, before: str, after: str, said: str) -> None:
    assert before in text
    assert any(said in line for line in formula.problems(text.replace(before, after), PINNED))


def test_a_hash_that_is_not_pinned_is_named(text: str) -> None:
    (pin,) = (p for p in PINNED if p.name == "rich")
    wrong = text.replace(min(pin.hashes), "f" * 64)
    assert formula.problems(wrong, PINNED) == ["resource rich has a hash that is not pinned"]


RICH = next(pin for pin in PINNED if pin.name == "rich")
FILE = IndexFile(
    filename=f"rich-{RICH.version}.tar.gz", url=f"{HOME}/r", sha256=min(RICH.hashes), yanked=False
)


def test_the_source_is_taken_before_a_wheel() -> None:
    wheel = replace(FILE, filename=f"rich-{RICH.version}-py3-none-any.whl", url=f"{HOME}/w")
    assert formula.choose(RICH, [wheel, FILE]).url == f"{HOME}/r"
    assert formula.choose(RICH, [wheel]).url == f"{HOME}/w"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": "0" * 64}, "is not the file that is pinned"),
        ({"sha256": None}, "is not the file that is pinned"),
        ({"filename": "rich-1.0.tar.gz"}, "the index has no rich"),
        ({"filename": f"rich-{RICH.version}-cp311-cp311-win32.whl"}, "neither a source"),
        ({"yanked": True}, "withdrawn"),
    ],
)
def test_a_file_that_is_not_the_pinned_one_is_refused(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(Failed, match=said):
        formula.choose(RICH, [replace(FILE, **changes)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ['https://example.org/#{`id`}"', "https://example.org/a\nb", "nothing"]
)
def test_an_address_that_would_be_a_program_is_refused(url: str) -> None:
    with pytest.raises(Failed, match="not an address that can stand"):
        formula.render([], homepage=HOME, url=url, digest="0" * 64)


def test_an_index_that_speaks_otherwise_is_said(index: str) -> None:
    with pytest.raises(Failed, match="a form that is not known: text/html"):
        files_of("page", index)
    with pytest.raises(Failed, match="says nothing of"):
        files_of("rich", "http://127.0.0.1:9/simple")
    with pytest.raises(Failed, match="over https"):
        files_of("rich", "file:///simple")


@pytest.mark.requirement("B22")
def test_it_is_a_tap_that_can_be_pushed(index: str, tmp_path: Path) -> None:
    source = tmp_path / f"gpuwatchd-{project.version()}.tar.gz"
    source.write_bytes(b"any")
    tap = tmp_path / "homebrew-gpuwatchd"
    words = ["--url", HOME, "--homepage", HOME, "--source", str(source), "--index", index]
    assert formula.main([*words, "--out", str(tap)]) == 0
    files = sorted(str(path.relative_to(tap)) for path in tap.rglob("*") if path.is_file())
    assert files == ["Formula/gpuwatchd.rb", "README.md"]
    ruby_takes(tap / "Formula" / "gpuwatchd.rb")
    assert "brew tap OWNER/gpuwatchd" in (tap / "README.md").read_text()


@pytest.mark.real_packages
def test_with_the_index_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / f"gpuwatchd-{project.version()}.tar.gz"
    source.write_bytes(b"any")
    words = ["--url", HOME, "--homepage", HOME, "--source", str(source), "--out", str(tmp_path)]
    code = formula.main(words)
    if code:
        need(False, capsys.readouterr().err)
    out = tmp_path / "Formula" / "gpuwatchd.rb"
    ruby_takes(out)
    assert formula.problems(out.read_text(), PINNED) == []


WORLDS = [(python, system) for python in pins.PYTHONS for system in ("linux", "darwin")]


def shipped(*, extras: bool) -> Iterator[Requirement]:
    """Yield what pyproject.toml asks for."""
    project_table = project.pyproject()["project"]
    words = list(project_table["dependencies"])
    for name, more in project_table["optional-dependencies"].items():
        if extras and name not in pins.EXTRAS_NOT_SHIPPED:
            words += [word for word in more if not word.startswith("gpuwatchd")]
    for word in words:
        yield Requirement(word)


def chosen(name: str, python: str, system: str) -> dict[str, pins.Pin]:
    """Return the pin of each package for one Python and system."""
    found: dict[str, pins.Pin] = {}
    for pin in pins.read(ROOT / name):
        if pin.holds(python, system):
            assert pin.name not in found, f"{pin.name} twice for {python} on {system}"
            found[pin.name] = pin
    return found


@pytest.mark.parametrize(("python", "system"), WORLDS)
@pytest.mark.parametrize("name", [project.PINS, project.PINS_FULL])
def test_every_requirement_is_pinned_within_its_range(name: str, python: str, system: str) -> None:
    found = chosen(name, python, system)
    for wanted in shipped(extras=name == project.PINS_FULL):
        pin = found[canonicalize_name(wanted.name)]
        assert pin.version in wanted.specifier, f"{pin.name} {pin.version} is not {wanted}"


def test_what_the_program_needs_is_the_same_with_and_without_extras() -> None:
    for python, system in WORLDS:
        full = chosen(project.PINS_FULL, python, system)
        for name, pin in chosen(project.PINS, python, system).items():
            assert (full[name].version, full[name].hashes) == (pin.version, pin.hashes)


@pytest.mark.parametrize("name", [project.PINS, project.PINS_FULL, project.PINS_BUILD])
def test_no_address_is_in_them(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"https?:|index-url|find-links| @ |\bfile:", text)


@pytest.mark.parametrize(
    "line", ["rich>=13.7", "rich==15.0.0", "rich @ file:///tmp/rich.whl", "--index-url nowhere"]
)
def test_a_line_that_is_no_pin_is_refused(line: str) -> None:
    with pytest.raises(Failed, match="not a pinned version"):
        pins.parse(line + "\n")
