"""Other users of this machine, real ones: programs are run under user ids of their own.

Only root can do that. An interpreter or a checkout below a closed directory (``/root``) is out of
their reach: then they get a mount namespace of their own, in which that directory is another, open
one with just those parts in it. Nothing of the machine is changed by it.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

from tests.conftest import need

SERVICE, READER, STRANGER = 64001, 64002, 64003
"""User and group of the service; a member of its group; one who is not."""
ROOT = Path(__file__).parent.parent
_PROGRAM = """
import sys
from pathlib import Path
from gpuwatchd.core import directories as places
places.SYSTEM_STATE_DIR, places.SYSTEM_RUNTIME_DIR = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
sys.argv[0] = "gpuwatchctl"
from gpuwatchd.cli import main
sys.exit(main())
"""


def _closed(path: Path) -> Path | None:
    """Return the uppermost directory above a path that others may not pass."""
    for above in [*path.parents][::-1]:
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return None


class Others:
    """Runs programs as other users.

    In ``directory`` are the service's state (``state``), its live state (``run``) and homes.
    """

    def __init__(self, directory: Path) -> None:
        need(sys.platform == "linux" and os.geteuid() == 0, "other users need root")
        self.state, self.run_dir = directory / "state", directory / "run"
        self._directory = directory
        for user in (SERVICE, READER, STRANGER):
            self.home(user).mkdir(mode=0o700)
            os.chown(self.home(user), user, user)
        for made in (self.state, self.run_dir):
            made.mkdir(mode=0o750)
            os.chown(made, SERVICE, SERVICE)
        directory.chmod(0o755)
        self._within = self._way([Path(sys.base_prefix), Path(sys.prefix), ROOT, directory])
        tried = self.call(STRANGER, [sys.executable, "-c", "print(1)"])
        need(tried.stdout == "1\n", f"another user cannot run Python here: {tried.stderr}")

    def home(self, user: int) -> Path:
        """Return the home of a user."""
        return self._directory / f"home{user}"

    def _way(self, paths: list[Path]) -> list[str]:
        """Return how to run something where others can reach these paths."""
        wanted: dict[Path, list[Path]] = {}
        for path in sorted(path.resolve() for path in paths):
            above = _closed(path)
            if above is not None and not any(path.is_relative_to(p) for p in wanted.get(above, [])):
                wanted.setdefault(above, []).append(path)
        if not wanted:
            return []
        lines = ["set -e"]
        scratch = self._directory / "kept"
        for above, below in wanted.items():
            cover = scratch / f"cover{len(lines)}"
            kept = [(scratch / f"part{len(lines)}-{at}", path) for at, path in enumerate(below)]
            for part, path in kept:
                part.mkdir(parents=True)
                (cover / path.relative_to(above)).mkdir(parents=True)
                lines.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(part))}")
            lines.append(f"mount --bind {shlex.quote(str(cover))} {shlex.quote(str(above))}")
            # The scratch directory itself may be covered by now: by descriptors it is still there.
            lines += [
                f"mount --bind /proc/self/fd/{10 + at} {shlex.quote(str(path))}"
                for at, (_, path) in enumerate(kept)
            ]
            opened = [
                f"exec {10 + at}<{shlex.quote(str(part))}" for at, (part, _) in enumerate(kept)
            ]
            lines[-len(kept) - 1 : -len(kept) - 1] = opened
        lines.append('exec "$@"')
        script = "\n".join(lines)
        return ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash"]

    def words(self, user: int, argv: list[str], *groups: int, **environ: str) -> list[str]:
        """Return the command that runs something as a user, with nothing of our environment."""
        which = [f"--reuid={user}", f"--regid={user}", f"--groups={','.join(map(str, groups))}"]
        if not groups:
            which[2] = "--clear-groups"
        settings = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home(user)) if user else "/nonexistent",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "200",
            **environ,
        }
        assigned = [f"{name}={value}" for name, value in settings.items()]
        return [*self._within, "setpriv", *which, "env", "-i", *assigned, *argv]

    def call(
        self, user: int, argv: list[str], *groups: int, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run something to its end."""
        return subprocess.run(
            self.words(user, argv, *groups, **environ), capture_output=True, text=True, timeout=60,
            check=False, cwd=ROOT,
        )  # fmt: skip

    def ctl(self, user: int, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``gpuwatchctl`` as a user of a machine whose service has our directories.

        The reader is a member of the service's group; 0 is root.
        """
        groups = (SERVICE,) if user == READER else ()
        argv = [sys.executable, "-c", _PROGRAM, str(self.state), str(self.run_dir), *words]
        return self.call(user, argv, *groups, **environ)
