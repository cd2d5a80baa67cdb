"""``completion``: the script that makes TAB work, and where it goes."""

from __future__ import annotations

import click

from gpuwatchd.cli import envelope, options, output
from gpuwatchd.cli.completion_scripts import SCRIPTS

PLACES = """\b
For the running shell only:
  bash  eval "$(gpuwatchctl completion bash)"
  zsh   eval "$(gpuwatchctl completion zsh)"     (after compinit)
  fish  gpuwatchctl completion fish | source
\b
For every shell of yours (packages bring the files themselves):
  bash  gpuwatchctl completion bash >
          ~/.local/share/bash-completion/completions/gpuwatchctl
  zsh   gpuwatchctl completion zsh > a folder of $fpath, as _gpuwatchctl
  fish  gpuwatchctl completion fish >
          ~/.config/fish/completions/gpuwatchctl.fish"""


@click.command(
    "completion",
    help=f"Print the completion script of a shell, to be sourced or installed.\n\n{PLACES}",
    epilog=options.examples('eval "$(gpuwatchctl completion bash)"', "completion fish | source"),
)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def command(shell: str) -> int:
    """Print the completion script of a shell, to be sourced or installed."""
    script = SCRIPTS[shell]
    if options.current().json:
        output.emit_json(envelope.answer("completion", {"shell": shell, "script": script}))
    else:
        click.echo(script, nl=False)
    return 0
