"""Say whether this tree can be released: one line for each check, and the command that mends it.

``make release-check`` runs all of them; ``--only version,changelog`` some; ``--sign KEY`` signs
what was built when everything is in order. It ends with 0 when nothing has to be mended, else 1.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

import dist
import licences
import pins
import project
import sbom
import vendored
from project import NAME, Failed

if TYPE_CHECKING:
    from collections.abc import Callable

SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((a|b|rc)(0|[1-9]\d*))?")
"""A semantic version, as Python spells what comes before a release (1.2.0rc1)."""
UPGRADING = "docs/reference/upgrading.md"
WRITE_HISTORY = ".venv/bin/python -m tests.store.released"
FRESH = ("tests/docs/test_docs.py", "tests/docs/test_manpages.py")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong, and what mends it."""

    what: str
    mend: str


@dataclass(kw_only=True)
class Tree:
    """The tree that is looked at, and where outputs go."""

    root: Path = project.ROOT
    out: Path = field(default=project.ROOT / "dist")

    @property
    def version(self) -> str:
        """The version that the package gives itself."""
        return project.version(self.root)


def version(tree: Tree) -> list[Fault]:
    """Look at the version itself, and whether it was released before."""
    found = tree.version
    said = []
    if not SEMANTIC.fullmatch(found):
        said.append(
            Fault(what=f"{found} is no semantic version", mend="make version VERSION=1.2.3")
        )
    taken = ["git", "tag", "--list", f"v{found}", "--no-contains", "HEAD"]
    if project.run(taken, cwd=tree.root).split():
        said.append(Fault(what=f"v{found} is tagged already", mend="make version VERSION=..."))
    here = project.run(["git", "tag", "--points-at", "HEAD"], cwd=tree.root).split()
    for tag in here:
        if re.match(r"v\d", tag) and tag != f"v{found}":
            what = f"this commit is tagged {tag}, and its version is {found}"
            said.append(Fault(what=what, mend=f"git tag --delete {tag}, or the version"))
    dated = [name for name, date, _ in project.sections(tree.root) if date]
    later = [name for name in dated if _after(name, found)]
    if later:
        what = f"{later[0]} in CHANGELOG.md is later than {found}"
        said.append(Fault(what=what, mend="make version VERSION=..."))
    return said


def _after(one: str, other: str) -> bool:
    """Say whether a version comes after another; a candidate comes before its release."""
    try:
        return Version(one) > Version(other)
    except InvalidVersion:
        return False


def changelog(tree: Tree) -> list[Fault]:
    """Look at the section of this version: dated, not empty, nothing left above it."""
    mend = f"make version VERSION={tree.version}"
    sections = list(project.sections(tree.root))
    said = []
    for name, _, text in sections:
        if name == "Unreleased" and text:
            said.append(Fault(what="the changelog has unreleased entries", mend=mend))
    mine = [(date, text) for name, date, text in sections if name == tree.version]
    if not mine:
        return [*said, Fault(what=f"the changelog has no section {tree.version}", mend=mend)]
    date, text = mine[0]
    if date is None:
        said.append(Fault(what=f"section {tree.version} has no date", mend=mend))
    elif date > dt.datetime.now(dt.UTC).date() + dt.timedelta(days=1):  # somewhere it is tomorrow
        said.append(Fault(what=f"section {tree.version} is dated {date}, a day to come", mend=mend))
    if not re.search(r"^- \S", text, re.MULTILINE):
        said.append(Fault(what=f"section {tree.version} is empty", mend=mend))
    return said


def upgrade_notes(tree: Tree) -> list[Fault]:
    """Look for what users must know who come from the version before."""
    path = tree.root / UPGRADING
    text = path.read_text("utf-8") if path.is_file() else ""
    head = re.escape(re.split(r"a|b|rc", tree.version)[0])
    found = re.search(rf"^## {head}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found and found[1].strip():
        return []
    what = f"{UPGRADING} says nothing of {tree.version}"
    return [Fault(what=what, mend=f"add the section ## {tree.version}, even if nothing changes")]


def clean(tree: Tree) -> list[Fault]:
    """Look for changes that are not committed."""
    lines = project.run(["git", "status", "--porcelain"], cwd=tree.root).splitlines()
    if not lines:
        return []
    what = f"{len(lines)} files are not committed, {lines[0][3:]} among them"
    return [Fault(what=what, mend="git status; git commit")]


def pinned(tree: Tree) -> list[Fault]:
    """Look whether the pins fit what pyproject.toml asks for."""
    asked = project.pyproject(tree.root)
    table = asked["project"]
    optional = table["optional-dependencies"].items()
    extras = [w for name, words in optional if name not in pins.EXTRAS_NOT_SHIPPED for w in words]
    wanted = {
        project.PINS: table["dependencies"],
        project.PINS_FULL: table["dependencies"] + extras,
        project.PINS_BUILD: asked["build-system"]["requires"],
    }
    said = []
    for file, words in wanted.items():
        found = pins.read(tree.root / file)
        for need in map(Requirement, words):
            name = canonicalize_name(need.name)
            versions = {pin.version for pin in found if pin.name == name}
            met = versions and all(number in need.specifier for number in versions)
            if not met and name != NAME:
                said.append(Fault(what=f"{need} is not met by {file}", mend="make pins"))
    return said


def histories(tree: Tree) -> list[Fault]:
    """Look for the history of every version of the tables that has been or is being released."""
    text = (tree.root / NAME / "store" / "schema.py").read_text("utf-8")
    numbers = [int(number) for number in re.findall(r"^_VERSION_(\d+) = ", text, re.MULTILINE)]
    folder = tree.root / "tests" / "store" / "histories"
    return [
        Fault(
            what=f"no history of version {number} of the tables to test the upgrade with",
            mend=WRITE_HISTORY,
        )
        for number in numbers
        if not (folder / f"v{number}.sql").is_file()
    ]


def upgrades(tree: Tree) -> list[Fault]:
    """Run the tests that open every released history."""
    return _tests(tree, ["tests/store/test_released.py"], WRITE_HISTORY)


def generated(tree: Tree) -> list[Fault]:
    """Look whether reference and man pages are what the code says."""
    return _tests(tree, [name for name in FRESH if (tree.root / name).is_file()], "make docs")


def _tests(tree: Tree, names: list[str], mend: str) -> list[Fault]:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    try:
        project.run(words, cwd=tree.root)
    except Failed as failure:
        lines = [line for line in str(failure).splitlines() if line.startswith("FAILED")]
        return [Fault(what=(lines or str(failure).splitlines())[0], mend=mend)]
    return []


def built(tree: Tree) -> list[Fault]:
    """Build twice, compare, and ask twine; what earlier builds have left is gone."""
    dist.forget(tree.out)
    dist.build(tree.root, tree.out)
    dist.same_again(tree.root, tree.out)
    dist.accepted(tree.out)
    return []


def licensed(tree: Tree) -> list[Fault]:
    """Write the list of licences and look whether each may be shipped."""
    full = pins.read(tree.root / project.PINS_FULL)
    found = licences.of_pins(licences.installed(), full)
    licences.write(tree.out / f"{NAME}-{tree.version}-licences.txt", licences.table(found, full))
    mend = "depend on something else; packaging/licences.py has what is allowed and why"
    return [Fault(what=what, mend=mend) for what in licences.faults(found | vendored.licences())]


def bill(tree: Tree) -> list[Fault]:
    """Write the bill of materials and look whether it is whole."""
    wheel = tree.out / f"{NAME}-{tree.version}-py3-none-any.whl"
    if not wheel.is_file():
        return [Fault(what="there is no wheel to describe", mend="make dist")]
    core = pins.read(tree.root / project.PINS)
    full = pins.read(tree.root / project.PINS_FULL)
    said = licences.installed()
    found = sbom.make(wheel, core, full, said, licences.of_pins(said, full))
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    licences.write(tree.out / f"{NAME}-{tree.version}.cdx.json", text)
    return [Fault(what=what, mend="see packaging/sbom.py") for what in sbom.problems(found)]


CHECKS: dict[str, Callable[[Tree], list[Fault]]] = {
    "version": version,
    "changelog": changelog,
    "upgrade-notes": upgrade_notes,
    "clean": clean,
    "pins": pinned,
    "histories": histories,
    "upgrades": upgrades,
    "generated": generated,
    "built": built,
    "licences": licensed,
    "bill-of-materials": bill,
}


def look(name: str, tree: Tree) -> list[Fault]:
    """Run one check; what stops it is a fault as well."""
    try:
        return CHECKS[name](tree)
    except Failed as failure:
        return [Fault(what=str(failure), mend=failure.hint or "see the lines above")]
    except OSError as error:
        return [Fault(what=f"{error.filename}: {error.strerror}", mend="git status")]


def sign(tree: Tree, key: str) -> list[Path]:
    """Write a detached signature beside every file of the release."""
    signed = []
    for path in sorted(tree.out.glob(f"{NAME}-{tree.version}[.-]*")):
        if path.suffix != ".asc":
            words = ["gpg", "--batch", "--yes", "--armor", "--local-user", key, "--detach-sign"]
            project.run([*words, path])
            signed.append(path.with_name(path.name + ".asc"))
    return signed


def main(argv: list[str] | None = None) -> int:
    """Run the checks and say what each found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(CHECKS), metavar="NAMES", help="some checks")
    parser.add_argument("--root", type=Path, default=project.ROOT, help="another tree")
    parser.add_argument("--out", type=Path, help="where files are written (dist/ of the tree)")
    parser.add_argument("--sign", metavar="KEY", help="sign what was built, with gpg")
    options = parser.parse_args(argv)
    names = options.only.split(",")
    if unknown := sorted(set(names) - CHECKS.keys()):
        parser.error(f"no such check: {', '.join(unknown)} (there are {', '.join(CHECKS)})")
    if options.sign and set(names) != CHECKS.keys():
        parser.error("only what has passed every check is signed: --sign without --only")
    root = options.root.resolve()
    tree = Tree(root=root, out=(options.out or root / "dist").resolve())
    wrong = 0
    for name in names:
        faults = look(name, tree)
        wrong += bool(faults)
        print(f"{'FAILED' if faults else 'ok':7}{name}", flush=True)
        for fault in faults:
            print(f"       {fault.what}\n       mend: {fault.mend}", flush=True)
    if wrong:
        print(f"\n{wrong} of {len(names)} checks failed: this is not ready for a release")
        return 1
    if set(names) != CHECKS.keys():
        print(f"\nnothing to mend in {len(names)} of {len(CHECKS)} checks; the others were not run")
        return 0
    print(f"\n{NAME} {tree.version} can be released; its files are in {tree.out}")
    if options.sign:
        try:
            print(*(f"signed {path.name}" for path in sign(tree, options.sign)), sep="\n")
        except Failed as failure:
            print(f"release-check: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
