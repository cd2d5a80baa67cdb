"""What stops a release: every fault is planted once and must be named."""

from __future__ import annotations

import copy
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import dist
import licences
import pins
import project
import release_check
import sbom
import set_version
import vendored
from release_check import Tree, look
from tests.conftest import ROOT, not_here
from tests.packaging import built

if TYPE_CHECKING:
    from pathlib import Path

HASH = f"--hash=sha256:{'0' * 64}"
GOOD = {
    "gpuwatchd/__init__.py": '__version__ = "1.2.0"\n',
    "gpuwatchd/store/schema.py": '_VERSION_1 = """\n"""\n_VERSION_2 = """\n"""\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-22\n\n- A.\n",
    "docs/reference/upgrading.md": "# Upgrading\n\n## 1.2.0\n\nNothing to do.\n",
    "pyproject.toml": '[project]\ndependencies = ["rich>=13.7"]\n'
    '[project.optional-dependencies]\nchat = ["apprise>=2.1"]\n'
    'full = ["gpuwatchd[chat]"]\nbench = ["nvitop>=1.4"]\n'
    '[build-system]\nrequires = ["hatchling>=1.26"]\n',
    "packaging/constraints.txt": f"rich==15.0.0 {HASH}\n",
    "packaging/constraints-full.txt": f"apprise==2.1.0 {HASH}\nrich==15.0.0 {HASH}\n",
    "packaging/constraints-build.txt": f"hatchling==1.27.0 {HASH}\n",
    "tests/store/histories/v1.sql": "",
    "tests/store/histories/v2.sql": "",
}
QUICK = ("version", "changelog", "upgrade-notes", "clean", "pins", "histories")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in GOOD.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "All"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return Tree(root=tmp_path, out=tmp_path / "dist")


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_wrong_with_a_good_tree(tree: Tree, name: str) -> None:
    assert look(name, tree) == []


@pytest.mark.parametrize(
    ("check", "file", "before", "after", "said"),
    [
        ("version", "gpuwatchd/__init__.py", "1.2.0", "1.2", "no semantic version"),
        ("version", "gpuwatchd/__init__.py", "1.2.0", "1.2.0.dev1", "no semantic version"),
        ("version", "gpuwatchd/__init__.py", "1.2.0", "1.1.9", "later than 1.1.9"),
        ("version", "gpuwatchd/__init__.py", "__version__", "number", "no __version__"),
        ("changelog", "gpuwatchd/__init__.py", "1.2.0", "1.3.0", "no section 1.3.0"),
        ("changelog", "CHANGELOG.md", " - 2026-11-22", "", "no date"),
        ("changelog", "CHANGELOG.md", "2026-11-22", "2026-02-31", "2026-02-31 is no date"),
        ("changelog", "CHANGELOG.md", "2026-11-22", "9999-01-01", "a day to come"),
        ("changelog", "CHANGELOG.md", "- A.\n", "", "is empty"),
        ("changelog", "CHANGELOG.md", "ed]\n", "ed]\n- B.\n", "unreleased entries"),
        ("upgrade-notes", "docs/reference/upgrading.md", "1.2.0", "1.1.0", "says nothing of 1.2.0"),
        ("upgrade-notes", "docs/reference/upgrading.md", "Nothing to do.", "", "says nothing"),
        ("clean", "CHANGELOG.md", "- A.", "- C.", "CHANGELOG.md among them"),
        ("pins", "pyproject.toml", "rich>=13.7", "rich>=16", "rich>=16 is not met"),
        ("pins", "pyproject.toml", "rich>=13.7", "click>=8", "click>=8 is not met"),
        ("pins", "pyproject.toml", "apprise>=2.1", "apprise>=3", "apprise>=3 is not met"),
        ("pins", "pyproject.toml", "hatchling>=1.26", "hatchling>=2", "constraints-build.txt"),
        ("pins", "packaging/constraints.txt", HASH, f"{HASH} {HASH[:-1]}", "not a pinned"),
        ("pins", "packaging/constraints.txt", " --hash=sha256:" + "0" * 64, "", "not a pinned"),
        ("histories", "gpuwatchd/store/schema.py", "_VERSION_1", "_VERSION_3", "version 3"),
    ],
)
def test_each_fault_is_named(
    tree: Tree, check: str, file: str, before: str, after: str, said: str
) -> None:
    path = tree.root / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    faults = look(check, tree)
    assert any(said in fault.what for fault in faults), faults
    assert all(fault.mend for fault in faults)


def test_a_version_that_is_tagged_is_not_released_again(tree: Tree) -> None:
    subprocess.run(["git", "tag", "v1.2.0"], cwd=tree.root, check=True)
    assert look("version", tree) == []  # this is what the tag makes a release of
    subprocess.run(["git", "tag", "v1.2.1"], cwd=tree.root, check=True)
    assert ["tagged v1.2.1" in fault.what for fault in look("version", tree)] == [True]
    words = [
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "--allow-empty",
        "-qm",
        "b",
    ]
    subprocess.run(words, cwd=tree.root, check=True)
    assert [fault.what for fault in look("version", tree)] == ["v1.2.0 is tagged already"]


def test_the_next_version_is_set_with_what_is_new(tree: Tree) -> None:
    file = tree.root / "CHANGELOG.md"
    before = file.read_text()
    words = ["--root", str(tree.root)]
    assert set_version.main(["1.3.0rc1", *words]) == 1  # with nothing to say
    file.write_text(before.replace("[Unreleased]\n", "[Unreleased]\n\n- B.\n"))
    for wrong in ("1.3", "1.1.0"):
        assert set_version.main([wrong, *words]) == 1
    assert (set_version.main(["1.3.0rc1", *words]), tree.version) == (0, "1.3.0rc1")
    assert (look("version", tree), look("changelog", tree)) == ([], [])
    assert [name for name, *_ in project.sections(tree.root)] == ["Unreleased", "1.3.0rc1", "1.2.0"]
    assert set_version.main(["1.3.0rc1", *words]) == 0  # on another day
    file.write_text(file.read_text().replace("1.3.0rc1", "1.3.0"))
    (fault,) = look("version", tree)
    assert fault.what == "1.3.0 in CHANGELOG.md is later than 1.3.0rc1"


def test_workflows_call_make_targets_that_exist() -> None:
    folder = ROOT / ".github" / "workflows"
    if not folder.is_dir():
        not_here("a source distribution has no workflows")
    called = {
        target
        for file in folder.glob("*.yml")
        for target in re.findall(r"run: make (?:[A-Z]+=\S+ )*([a-z-]+)", file.read_text())
    }
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"lint", "test-quick", "coverage", "dist", "deb", "site", "release"} <= called
    assert called <= targets


def test_what_it_prints_and_how_it_ends(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--root", str(tree.root), "--only", "changelog,pins"]
    assert release_check.main(words) == 0
    assert "FAILED" not in capsys.readouterr().out
    (tree.root / "CHANGELOG.md").write_text("# Changelog\n")
    assert release_check.main(words) == 1
    shown = capsys.readouterr().out
    assert "FAILED changelog\n" in shown
    assert "ok     pins\n" in shown
    with pytest.raises(SystemExit):
        release_check.main(["--only", "nothing"])
    with pytest.raises(SystemExit):
        release_check.main([*words, "--sign", "me"])
    assert "every check" in capsys.readouterr().err


def test_bytes_that_change_between_two_builds_are_a_fault(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "build", lambda *_: ())
    monkeypatch.setattr(dist, "differences", lambda *_: ["gpuwatchd-1.2.0.tar.gz"])
    (fault,) = look("built", tree)
    assert fault.what == "not the same when built again: gpuwatchd-1.2.0.tar.gz"


def test_what_a_release_has_beside_its_archives_is_asked_of_no_index(
    tmp_path: Path, archives: tuple[Path, Path]
) -> None:
    for file in archives:
        (tmp_path / file.name).symlink_to(file)
    for name in ("licences.txt", "cdx.json", "cdx.json.asc"):
        (tmp_path / f"gpuwatchd-1.2.0-{name}").write_text("beside\n")
    dist.accepted(tmp_path)
    (tmp_path / "gpuwatchd-1.2.0.tar.gz").write_text("no archive\n")
    with pytest.raises(project.Failed, match="twine check"):
        dist.accepted(tmp_path)


def test_a_licence_that_says_how_ours_is_licensed_is_a_fault() -> None:
    found = {"a": "MIT", "b": "GPL-3.0-only", "c": None, "d": "MIT AND (LGPL-2.1-only OR ISC)"}
    assert licences.faults(found) == [
        "b is under GPL-3.0-only",
        "c is under a licence that it does not name",
    ]


@pytest.mark.parametrize(
    ("expression", "classifiers", "text", "meant"),
    [
        ("MIT", ["GNU General Public License v3"], "", "MIT"),
        (None, ["Apache Software License"], "", "Apache-2.0"),
        (None, [], "BSD 3-Clause License\nmore", "BSD-3-Clause"),
        (None, [], "x" * 200, None),
        (None, ["GNU Lesser General Public License v3 (LGPLv3)"], "MIT", None),
        (None, [], "", None),
    ],
)
def test_what_a_package_says_of_its_licence(
    expression: str | None, classifiers: list[str], text: str, meant: str | None
) -> None:
    assert licences.expression(expression, classifiers, text) == meant


@pytest.mark.parametrize(
    "words", ["(MIT", "MIT AND", "Apache-2.0 WITH something", "", "MIT OR GPL-2.0"]
)
def test_an_expression_is_allowed_only_where_it_can_be_read(words: str) -> None:
    assert licences.may_ship(words) is words.startswith(("(MIT", "MIT OR"))


@pytest.fixture(scope="module")
def bill(archives: tuple[Path, Path]) -> dict[str, Any]:
    core = pins.read(ROOT / project.PINS)
    full = pins.read(ROOT / project.PINS_FULL)
    names = dict.fromkeys((pin.name for pin in full), "MIT")
    return sbom.make(archives[1], core, full, {}, names)


def test_the_bill_of_materials_is_whole(bill: dict[str, Any]) -> None:
    assert sbom.problems(bill) == []
    rich = next(one for one in bill["components"] if one["name"] == "rich")
    assert rich["scope"] == "required"
    assert next(o for o in bill["components"] if o["name"] == "matplotlib")["scope"] == "optional"
    assert rich["bom-ref"] in bill["dependencies"][0]["dependsOn"]
    assert bill["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0 AND MIT"}]
    plot = next(one for one in bill["components"] if one["name"] == "uPlot")
    assert plot["purl"] == "pkg:npm/uplot@1.6.32"
    assert plot["licenses"] == [{"expression": "MIT"}]
    assert plot["bom-ref"] in bill["dependencies"][0]["dependsOn"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("purl", "pkg:pypi/Rich", "has no purl"),
        ("hashes", [], "has no SHA-256"),
        ("licenses", [], "has no licence"),
        ("version", "", "has no version"),
        ("bom-ref", "other", "is no component"),
    ],
)
def test_a_gap_in_the_bill_is_named(bill: dict[str, Any], key: str, value: Any, said: str) -> None:
    wrong = copy.deepcopy(bill)
    wrong["components"][0][key] = value
    assert any(said in line for line in sbom.problems(wrong))


@pytest.mark.real_packages
@pytest.mark.timeout(300)
def test_all_that_is_shipped_may_be() -> None:
    with built.alone("uv"):  # which installs them, and may be fetched for another test right now
        installed = licences.installed()
    found = licences.of_pins(installed, pins.read(ROOT / project.PINS_FULL))
    assert licences.faults(found | vendored.licences()) == []


@pytest.mark.parametrize("name", ["histories", "pins", "upgrade-notes"])
def test_this_tree_keeps_what_does_not_wait_for_a_release(name: str) -> None:
    assert look(name, Tree()) == []
