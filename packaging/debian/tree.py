#!/usr/bin/env python3
"""Lay out the source tree of the Debian package: the installed files and debian/.

``./build`` calls this, with ``packaging/`` on the path and the libraries installed in one folder.
The result is a pure function of that folder, the working tree and the environment
(SOURCE_DATE_EPOCH, DEB_REVISION, DEBFULLNAME, DEBEMAIL).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

import project
from debian import legal

PACKAGE = "gpuwatchd"
HERE = Path(__file__).resolve().parent
LIB = Path("usr/lib") / PACKAGE
COPIED = ("rules", "source/format")
"""What a debian/ folder has beside control, changelog, copyright and gpuwatchd.*."""
FLEET = {
    "fleet.toml": "etc/gpuwatchd/fleet.toml",
    "gpuwatchd-fleet.service": "usr/lib/systemd/system/gpuwatchd-fleet.service",
}
"""What belongs to the worker of a fleet."""
MAINTAINER = "The gpuwatchd authors <packages@gpuwatchd.invalid>"
NOT_NEEDED = ("tests", "test", "_pyinstaller", "__pycache__")
"""Folders of libraries that no program of ours loads."""
DROPPED = {".pyi", ".a", ".lib", ".h", ".c", ".pyx", ".pxd", ".f", ".f90"}
"""Suffixes of files that are for building and checking only."""
TESTS_ONLY = re.compile(r"_\w+_tests\..*\.so$|py\.typed$")
"""Extension modules that the tests of numpy load; and a mark for type checkers."""
NOT_OURS = ("pip", "pip-*.dist-info", "bin", "share", "example.py")
"""What a library asks for or brings and does not use when we use it."""
PROGRAMS = {"gpuwatchd": "gpuwatchd.daemon.main", "gpuwatchctl": "gpuwatchd.cli"}


class Suite(NamedTuple):
    """One row of the table of suites."""

    name: str
    python: str
    glibc: str
    suffix: str

    @property
    def next_python(self) -> str:
        """The first version that cannot load what is made for this one."""
        major, minor = self.python.split(".")
        return f"{major}.{int(minor) + 1}"


def suites() -> dict[str, Suite]:
    """Return the suites that can be built for, by name."""
    rows = (HERE / "suites").read_text(encoding="utf-8").splitlines()
    table = [Suite(*row.split()) for row in rows if row and not row.startswith("#")]
    return {suite.name: suite for suite in table}


def debian_version(version: str, suite: Suite, revision: str = "1") -> str:
    """Return the package's version: a later suite's is higher, a pre-release lower.

    Examples
    --------
    >>> debian_version("0.2.0rc1", Suite("bookworm", "3.11", "2.36", "deb12"))
    '0.2.0~rc1-1~deb12'
    """
    upstream = re.sub(r"(?<=\d)\.?(a|b|rc|dev)(?=\d)", r"~\1", version)
    return f"{upstream}-{revision}~{suite.suffix}"


def maintainer() -> str:
    """Return who answers for this build."""
    name, address = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name or PACKAGE + ' packager'} <{address}>" if address else MAINTAINER


def changelog(top: Path, suite: Suite) -> str:
    """Return Debian's changelog: one entry, which points to ours."""
    version = project.version(top)
    released = version in [name for name, date, _ in project.sections(top) if date]
    what = f"Release {version}" if released else f"Before the release {version}"
    when = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    full = debian_version(version, suite, os.environ.get("DEB_REVISION", "1"))
    return (
        f"{PACKAGE} ({full}) {suite.name}; urgency=medium\n\n"
        f"  * {what}; changelog.gz beside this file says what is new.\n\n"
        f" -- {maintainer()}  {when.replace('-0000', '+0000')}\n"
    )


def control(suite: Suite) -> str:
    """Return the control file for this suite's Python."""
    text = (HERE / "control").read_text(encoding="utf-8")
    values = {
        "@PYTHON_NEXT@": f"{suite.next_python}~",
        "@PYTHON@": suite.python,
        "@MAINTAINER@": maintainer(),
    }
    for word, value in values.items():
        text = text.replace(word, value)
    return text


def clean(site: Path) -> None:
    """Remove what no program of ours loads from the libraries."""
    for folder in _folders(site):
        _remove(folder)
    for file in site.rglob("*"):
        if file.is_file() and (file.suffix in DROPPED or TESTS_ONLY.match(file.name)):
            file.unlink()
    for info in site.glob("*.dist-info"):
        # Nothing is to uninstall or change what dpkg looks after.
        (info / "RECORD").unlink(missing_ok=True)
        (info / "REQUESTED").unlink(missing_ok=True)
        (info / "direct_url.json").unlink(missing_ok=True)
        (info / "INSTALLER").write_text("dpkg\n", encoding="utf-8")
    for folder in sorted((f for f in site.rglob("*") if f.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _folders(site: Path) -> list[Path]:
    return [f for f in site.rglob("*") if f.is_dir() and f.name in NOT_NEEDED]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put(root: Path, name: str | Path, text: str, mode: int = 0o644) -> None:
    """Write one file of the tree."""
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)


def link(root: Path, name: str | Path, target: str) -> None:
    """Make one symbolic link of the tree."""
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


def private_python(root: Path, suite: Suite, version: str) -> None:
    """Make the environment: a link to the system's Python and a path of its own.

    No module of the system or of a user gets in (``-I`` also ignores PYTHONPATH, which people who
    work with GPUs tend to set); what an administrator adds below /usr/local does.
    """
    put(
        root,
        LIB / "pyvenv.cfg",
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {suite.python}\n"
        f"{PACKAGE} = {version}\n",
    )
    link(root, LIB / "bin/python3", "../../../bin/python3")
    site = LIB / f"lib/python{suite.python}/site-packages"
    put(root, site / "local.pth", f"/usr/local/lib/{PACKAGE}/python{suite.python}\n")
    for name, module in PROGRAMS.items():
        lines = (f"#!/{LIB}/bin/python3 -I", "import sys", "", f"from {module} import main", "")
        text = "\n".join((*lines, "sys.exit(main())", ""))
        put(root, LIB / "bin" / name, text, 0o755)
        link(root, f"usr/bin/{name}", f"../lib/{PACKAGE}/bin/{name}")


def ask(python: str, site: Path, code: str, *words: str) -> str:
    """Return what our own installed code prints on the suite's Python."""
    start = f"import sys; sys.path.insert(0, {str(site)!r}); {code}"
    argv = [python, "-I", "-B", "-c", start, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tree.py: {' '.join(words) or code}: {done.stderr.strip()}")
    return done.stdout


def settings_and_units(root: Path, python: str, site: Path) -> None:
    """Write the files of settings (all of them comments) and the units."""
    code = "from gpuwatchd.cli.config_text import default_file as f; print(f(), end='')"
    put(root, "etc/gpuwatchd/config.toml", ask(python, site, code))
    run = "from gpuwatchd.cli import main; sys.exit(main())"
    words = ("service", "print", "--packaged", f"/usr/bin/{PACKAGE}", "--manager", "systemd")
    put(root, "usr/lib/systemd/user/gpuwatchd.service", ask(python, site, run, *words))
    put(
        root,
        "usr/lib/systemd/system/gpuwatchd.service",
        ask(python, site, run, *words, "--system"),
    )
    for name, place in FLEET.items():
        put(root, place, (HERE / name).read_text(encoding="utf-8"))


def manuals_and_completions(root: Path, top: Path) -> None:
    """Copy the manual pages and the completions of the three shells."""
    for page in sorted((top / "docs/man").glob("*.[1-8]")):
        text = page.read_text(encoding="utf-8")
        put(root, f"usr/share/man/man{page.suffix[1:]}/{page.name}", text)
    places = {
        "gpuwatchctl.bash": "usr/share/bash-completion/completions/gpuwatchctl",
        "_gpuwatchctl": "usr/share/zsh/vendor-completions/_gpuwatchctl",
        "gpuwatchctl.fish": "usr/share/fish/vendor_completions.d/gpuwatchctl.fish",
    }
    for name, place in places.items():
        put(root, place, (top / "gpuwatchd/cli/completions" / name).read_text(encoding="utf-8"))


def lay_out(top: Path, suite: Suite, site: Path, python: str, into: Path) -> None:
    """Make the source tree of the package."""
    root, debian = into / "root", into / "debian"
    for name in NOT_OURS:
        for path in site.glob(name):
            _remove(path)
    terms = legal.copyright_file(site, PACKAGE, LIB)
    clean(site)
    settings_and_units(root, python, site)
    manuals_and_completions(root, top)
    private = root / LIB / f"lib/python{suite.python}/site-packages"
    private.parent.mkdir(parents=True, exist_ok=True)
    full = debian_version(project.version(top), suite, os.environ.get("DEB_REVISION", "1"))
    shutil.move(site, private)
    private_python(root, suite, full)
    for file in [HERE / name for name in COPIED] + sorted(HERE.glob(f"{PACKAGE}.*")):
        copy = debian / file.relative_to(HERE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    put(debian, "control", control(suite))
    put(debian, "changelog", changelog(top, suite))
    put(debian, "copyright", terms)
    shutil.copy(top / "CHANGELOG.md", into / "CHANGELOG.md")


def main() -> None:
    """Read the arguments and make the tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top", type=Path, required=True, help="the working tree")
    parser.add_argument("--suite", choices=sorted(suites()), required=True)
    parser.add_argument("--site", type=Path, required=True, help="the libraries; moved away")
    parser.add_argument("--python", required=True, help="a Python of the suite's version")
    parser.add_argument("--into", type=Path, required=True, help="where the tree is made")
    words = parser.parse_args()
    lay_out(words.top, suites()[words.suite], words.site, words.python, words.into)


if __name__ == "__main__":
    main()
