"""The page of the units: what a package gives to systemd, as the program prints it."""

from __future__ import annotations

from gpuwatchd.service import unit_files

_EXEC = "/usr/bin/gpuwatchd"
_INTRODUCTION = """
What `gpuwatchctl service install` writes, with the paths of a package;
`gpuwatchctl service print` shows yours. Why a line is there stands above it. Changes belong into a
drop-in, which no upgrade touches: `systemctl --user edit gpuwatchd`.
[How to run the service](../how-to/run-the-service.md).
""".strip()


def page() -> list[str]:
    """Return the lines of the page, without its mark."""
    lines = ["# Units of systemd", "", *_INTRODUCTION.splitlines(), ""]
    for title, system in (("Of a user", False), ("Of a machine", True)):
        shown = unit_files.for_package(_EXEC, system=system).rstrip().splitlines()
        lines += [f"## {title}", "", "```ini", *shown, "```", ""]
    return lines
