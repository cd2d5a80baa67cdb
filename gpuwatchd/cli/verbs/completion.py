"""``completion``: the script that makes TAB work, and where it goes."""

from __future__ import annotations

import click

from gpuwatchd.cli import envelope, options, output

# What each shell does at TAB: hand over the line as typed so far, and show the answer.
# Our own rather than the parser's: its scripts differ from release to release (packages carry
# these as files), and bash's would lose every key and setting at its ":" or "=".

BASH = r"""# Completion of gpuwatchctl for bash 4.4 and later.
_gpuwatchctl_completion() {
    local line last cut='' kind value
    line=${COMP_LINE:0:COMP_POINT}
    last=${line##*[[:space:]]}
    # bash takes words apart at ":" and "=", which keys and settings contain.
    [[ $COMP_WORDBREAKS == *:* && $last == *:* ]] && cut=${last%"${last##*:}"}
    [[ $COMP_WORDBREAKS == *=* && $last == *=* ]] && cut=${last%"${last##*=}"}
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                value=${value#"$cut"}
                # bash takes it as it is: a name must stay one word, and no command.
                [[ $value == *[!A-Za-z0-9_./:=@,+%-]* ]] && printf -v value %q "$value"
                COMPREPLY+=("$value")
                [[ $value == *= ]] && compopt -o nospace
                ;;
        esac
    done < <(env COMP_WORDS="$line" COMP_CWORD="$last" _GPUWATCHCTL_COMPLETE=words_complete \
        "${1/#\~\//"$HOME"/}" 2>/dev/null)
    return 0
}
complete -o nosort -F _gpuwatchctl_completion gpuwatchctl
"""

ZSH = r"""#compdef gpuwatchctl
# Completion of gpuwatchctl for zsh.
_gpuwatchctl() {
    local -a answers described plain open
    local kind value help
    answers=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1)) \
        _GPUWATCHCTL_COMPLETE=zsh_complete "${words[1]/#\~\//$HOME/}" 2>/dev/null)}")
    for kind value help in $answers; do
        case $kind in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain)
                if [[ $value == *= ]]; then
                    open+=("$value:$help")
                elif [[ $help == _ ]]; then
                    plain+=("$value")
                else
                    described+=("$value:$help")
                fi
                ;;
        esac
    done
    (( $#described )) && _describe -V gpuwatchctl described
    (( $#open )) && _describe -V settings open -S ''
    (( $#plain )) && compadd -V gpuwatchctl -a plain
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _gpuwatchctl "$@"
else
    compdef _gpuwatchctl gpuwatchctl
fi
"""

FISH = r"""# Completion of gpuwatchctl for fish.
function __gpuwatchctl_complete
    set -l line (commandline -cp)
    set -l last (commandline -ct)
    for answer in (env COMP_WORDS="$line" COMP_CWORD="$last" \
            _GPUWATCHCTL_COMPLETE=fish_complete gpuwatchctl 2>/dev/null)
        set -l part (string split -m 1 , -- $answer)
        switch $part[1]
            case dir
                __fish_complete_directories $last
            case file
                __fish_complete_path $last
            case plain
                echo $part[2]
        end
    end
end
complete --no-files --keep-order --command gpuwatchctl --arguments "(__gpuwatchctl_complete)"
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
FILES = {"bash": "gpuwatchctl.bash", "zsh": "_gpuwatchctl", "fish": "gpuwatchctl.fish"}
"""What the files in packaging/completions are called."""


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
