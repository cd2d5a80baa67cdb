"""Give the tree the version of the next release, and its changelog a dated section.

``make version VERSION=1.2.0rc1`` does it before ``make release-check``. What stood under
*Unreleased* becomes the section; *Unreleased* stays, empty, so that what is added later is no part
of the release.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from pathlib import Path

from packaging.version import Version

import project
import release_check
from project import NAME, Failed

UNRELEASED = "## [Unreleased]\n"


def dated(root: Path, version: str, day: dt.date) -> str:
    """Return the changelog with a section of this version and day.

    Raises
    ------
    Failed
        When there is nothing to release, or both *Unreleased* and the section have entries.
    """
    text = (root / "CHANGELOG.md").read_text("utf-8")
    found = {name: body for name, _, body in project.sections(root)}
    head = f"## [{version}] - {day}\n"
    if version in found:
        if found.get("Unreleased"):
            raise Failed(
                f"CHANGELOG.md has entries under Unreleased and a section {version}",
                f"move them into the section, or take its heading away: {head.strip()}",
            )
        lines = text.splitlines(keepends=True)
        return "".join(head if line.startswith(f"## [{version}]") else line for line in lines)
    if not found.get("Unreleased"):
        raise Failed("CHANGELOG.md has nothing under Unreleased", "say there what is new")
    return text.replace(UNRELEASED, f"{UNRELEASED}\n{head}", 1)


def write(root: Path, version: str, day: dt.date) -> None:
    """Write the version into the tree; :class:`project.Failed` where it cannot be the next one."""
    if not release_check.SEMANTIC.fullmatch(version):
        raise Failed(f"{version} is no semantic version", "such as 1.2.0 or 1.2.0rc1")
    before = project.version(root)
    if Version(version) < Version(before):
        raise Failed(f"{version} comes before {before}, which the tree has", "raise it")
    changelog = dated(root, version, day)
    init = root / NAME / "__init__.py"
    text = init.read_text("utf-8")
    init.write_text(
        text.replace(f'__version__ = "{before}"', f'__version__ = "{version}"'), "utf-8"
    )
    (root / "CHANGELOG.md").write_text(changelog, "utf-8")


def main(argv: list[str] | None = None) -> int:
    """Set the version and say what is left to a person."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", metavar="VERSION", help="such as 1.2.0 or 1.2.0rc1")
    parser.add_argument("--root", type=Path, default=project.ROOT, help="another tree")
    options = parser.parse_args(argv)
    try:
        write(options.root, options.version, dt.datetime.now(dt.UTC).date())
    except Failed as failure:
        print(f"version: {failure}\nhint: {failure.hint}", file=sys.stderr)
        return 1
    print(f"{NAME} {options.version}; git diff shows what changed")
    for fault in release_check.upgrade_notes(release_check.Tree(root=options.root)):
        print(f"{fault.what}\n       mend: {fault.mend}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
