# Completion of gpuwatchctl for bash 4.4 and later.
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
