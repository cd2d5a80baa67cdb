# Completion of gpuwatchctl for fish.
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
