"""``run``: start a job that can be looked into; nothing of ours stays between it and the shell."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import click

from gpuwatchd.cli import options
from gpuwatchd.collect import mailboxes
from gpuwatchd.core import config, text
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store.private_files import private_directory

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes, as shells have them."""


class RunError(GpuwatchdError):
    """The command was not started; its exit code is that of a shell."""

    def __init__(self, message: str, code: int, hint: str) -> None:
        super().__init__(message, hint=hint, page="errors#not-run")
        self.exit_code = code  # type: ignore[misc]


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=options.examples("run -- python train.py --epochs 3", "run -- torchrun train.py"),
)
@click.option("--counters-only", is_flag=True, help="Never look into its heap, whoever asks.")
@click.option(
    "--record",
    is_flag=True,
    help="Have torch's CUDA allocator record who allocates, and what is there when it fails. Not "
    "run on a GPU so far.",
)
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
def command(command: tuple[str, ...], counters_only: bool, record: bool) -> int:  # noqa: FBT001
    """Run COMMAND so that `inspect` can say which variable keeps its memory.

    COMMAND takes this program's place: same pid, same exit code. Python programs in it, from 3.8
    on, write what their framework's allocator says into a file that only you can read; their heap
    is looked into only when you ask. Exit 127: no such command; 126: it cannot be run.
    """
    if command[0].startswith("-"):
        raise click.NoSuchOption(command[0])
    place = private_directory(mailboxes.folder(os.getuid()).absolute())  # the job may chdir
    mailboxes.sweep(place)
    agreed = False
    with suppress(GpuwatchdError):  # whoever reads it for its own sake says what is wrong
        agreed = config.load(options.current().config).config.probe.inspect_on_alert
    old = os.environ.get("PYTHONPATH")
    environ = {
        **os.environ,
        "PYTHONPATH": f"{mailboxes.BOOT}{os.pathsep}{old}" if old else str(mailboxes.BOOT),
        "GPUWATCHD_PROBE": "counters" if counters_only else "alert" if agreed else "1",
        mailboxes.VARIABLE: str(place),
        **({"GPUWATCHD_PROBE_RECORD": "1"} if record else {}),
    }
    name = text.clean(command[0]) or "''"
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and by what it runs
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environ)  # noqa: S606 - no shell is wanted
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) or not command[0]:
            python = name.endswith(".py") and Path(command[0]).is_file()
            hint = f"gpuwatchctl run -- python {name}" if python else f"which {name}"
            raise RunError(f"{name}: no such command", NOT_FOUND, hint) from None
        why = text.clean(str(getattr(error, "strerror", None) or error))
        raise RunError(f"{name}: {why}", NOT_EXECUTABLE, f"ls -ld {name}") from None
