"""``completion``: the script that makes TAB work, and where it goes."""

from __future__ import annotations

from importlib import resources
from typing import Literal

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.answers.program import Completion, Script

FILES = {"bash": "gpuwatchctl.bash", "zsh": "_gpuwatchctl", "fish": "gpuwatchctl.fish"}
"""The scripts in gpuwatchd/cli/completions: they hand over the line so far, and show the answer.

Our own rather than the parser's: its scripts differ from release to release (packages carry these
files), and bash's would lose every key and setting at its ":" or "=".
"""


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
@click.argument("shell", type=click.Choice(list(FILES)))
def command(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the completion script of a shell, to be sourced or installed."""
    file = resources.files("gpuwatchd.cli") / "completions" / FILES[shell]
    script = file.read_text(encoding="utf-8")
    if options.current().json:
        output.emit_answer(Completion, Script(shell=shell, script=script))
    else:
        click.echo(script, nl=False)
    return 0
