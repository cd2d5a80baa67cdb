"""``completion``: the script that makes TAB work, as click writes it."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gpuwatchd.ctl import envelope, options, output
from gpuwatchd.errors import GpuwatchdError

SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "gpuwatchctl"
_VARIABLE = "_GPUWATCHCTL_COMPLETE"


@click.command(
    "completion",
    epilog=options.examples('eval "$(gpuwatchctl completion bash)"', "completion fish | source"),
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Print the completion script of a shell, to be sourced or installed."""
    kind = get_completion_class(shell)
    if kind is None:
        raise GpuwatchdError(f"no completion for {shell}", hint=f"known: {', '.join(SHELLS)}")
    completer = kind(ctx.find_root().command, {}, _PROGRAM, _VARIABLE)
    # Not source(): for bash it starts a shell to ask its version, and packages are built without.
    script = completer.source_template % completer.source_vars()
    flags = options.current()
    if flags.json:
        output.emit_json(envelope.answer("completion", {"shell": shell, "script": script}))
    else:
        click.echo(script)
    return 0
