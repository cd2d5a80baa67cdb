"""``run``: start a job that can be looked into; nothing of ours stays between it and the shell."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click

from gpuwatchd.act.checkpoint import DECLARED
from gpuwatchd.cli import options
from gpuwatchd.collect import mailboxes
from gpuwatchd.core import config, text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.service import job_start, unit_files
from gpuwatchd.store.private_files import private_directory
from gpuwatchd.view.queries import current_state

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes, as shells have them."""


class RunError(GpuwatchdError):
    """The command was not started; its exit code is that of a shell."""

    def __init__(self, message: str, code: int, hint: str) -> None:
        super().__init__(message, hint=hint, page="errors#not-run")
        self.exit_code = code  # type: ignore[misc]


def _vram(words: str) -> int:
    if words.strip().replace(".", "", 1).isdecimal():
        raise ValueError(f"{words!r} has no unit; write for example 20GiB")
    size = units.parse_size(words)
    if size <= 0:
        raise ValueError("must be more than zero")
    return size


def _unit(words: str) -> str:
    if not job_start.is_unit_name(words):
        raise ValueError(f"{words!r} cannot be the name of a unit: letters, digits and :_.@- only")
    return words


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=options.examples(
        "run -- python train.py --epochs 3",
        "run --vram 20GiB -- python train.py",
        "run --unit night --restart 2 -- python train.py",
    ),
)
@click.option(
    "--vram",
    type=options.Parsed("size", _vram),
    help="Memory of each GPU that PyTorch (2.10 or later) and JAX keep to, such as 20GiB.",
)
@click.option(
    "--checkpoint-signal",
    type=click.Choice(["USR1", "USR2", "HUP"]),
    help="The job saves on this signal: `ask-checkpoint` may send it, whatever [act] says.",
)
@click.option(
    "--unit",
    type=options.Parsed("name", _unit),
    help="Start it as a service of your systemd, in the background.",
)
@click.option(
    "--restart",
    type=click.IntRange(0, 100),
    help="Times that systemd starts it anew after it has failed; a --unit is named for you.",
)
@click.option("--counters-only", is_flag=True, help="Never look into its heap, whoever asks.")
@click.option(
    "--record",
    is_flag=True,
    help="Have torch's CUDA allocator record who allocates, and what is there when it fails. Not "
    "run on a GPU so far.",
)
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
def command(
    *,
    command: tuple[str, ...],
    counters_only: bool,
    record: bool,
    vram: int | None,
    checkpoint_signal: str | None,
    unit: str | None,
    restart: int | None,
) -> int:
    """Run COMMAND so that `inspect` can say which variable keeps its memory.

    COMMAND takes this program's place: same pid, same exit code; with --unit it is systemd's, and
    exit 0 says that it was started. Python programs in it, from 3.8
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
        **({DECLARED: checkpoint_signal} if checkpoint_signal else {}),
        **({} if vram is None else _limited(vram)),
    }
    if unit is not None or restart is not None:
        return _started(unit or f"gpuwatchd-run-{os.getpid()}", command, environ, restart or 0)
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


def _say(text_: str) -> None:
    if not options.current().quiet:
        print(f"gpuwatchctl: {text_}", file=sys.stderr)


def _limited(vram: int) -> dict[str, str]:
    """Return the variables of the limit, and say what it does not bound."""
    view = current_state.load_view(options.current(), everybody=True)
    devices = job_start.visible([item.device for item in view.devices], os.environ)
    try:
        limit = job_start.limited(vram, devices, os.environ)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--vram'") from None
    of = "the largest GPU" if len(devices) > 1 else "the GPU"
    _say(f"PyTorch and JAX keep to {limit.fraction:.4f} of {units.size(limit.total_bytes)} of {of}")
    _say("not bounded: CUDA's context and libraries, TensorFlow, CuPy, what is allocated directly")
    return limit.variables


def _started(unit: str, command: tuple[str, ...], environ: dict[str, str], restarts: int) -> int:
    """Have systemd start it; say how it is followed and ended."""
    name = job_start.start_unit(
        unit_files.CommandRunner(environ), unit, command, environ, restarts=restarts
    )
    print(name)
    _say(f"follow it: journalctl --user -u {name} -f; end it: systemctl --user stop {name}")
    return 0
