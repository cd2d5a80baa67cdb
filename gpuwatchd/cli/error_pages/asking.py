"""Errors about what was asked for, where the program lives and how it is set up."""

from __future__ import annotations

from typing import Final, NamedTuple

# The shape of a section of the page of errors.


class ErrorPage(NamedTuple):
    """One section of the page of errors."""

    id: str
    """The stable name: ``errors#ID``."""
    title: str
    """What it is, in a few words."""
    means: str
    """What it says of the state of things."""
    causes: tuple[str, ...]
    """What usually leads to it."""
    do: tuple[str, ...]
    """What to do about it, the likeliest first."""


ASKING: Final = (
    # What is asked for is not there.
    ErrorPage(
        "no-gpu",
        "No GPU was found",
        "No source that is switched on could read a GPU of this machine.",
        (
            "the NVIDIA driver is not installed or not loaded (`libnvidia-ml.so.1` is missing)",
            ("its library is there and cannot be loaded: for another processor, cut off, not "
             "readable, or in need of another one that is missing"),
            ("driver and kernel module are of two versions: the driver was upgraded and the machine"
            " not restarted since"),
            "inside a container that was started without its GPUs",
            "`[sources] enabled` leaves out the one that this machine needs",
        ),
        (
            "`gpuwatchctl doctor` looks at driver, devices and rights one by one",
            "`nvidia-smi` must list the GPU; if it does not, the driver comes first",
            "to try everything without a GPU: `gpuwatchctl demo`",
        ),
    ),
    ErrorPage(
        "no-such-gpu",
        "No GPU of this name",
        "`--gpu` (or the name that was given) fits none of the GPUs that are known.",
        (
            "an index of another machine, or one that changed when a card was moved",
            "the recorded GPU has been taken out, and nothing is kept of it",
            "a pattern that the shell has expanded: quote `'GPU-*'`",
        ),
        ("`gpuwatchctl status` lists index, name and UUID of each",),
    ),
    ErrorPage(
        "no-such-process",
        "No process of this pid",
        "The pid is on no GPU, or there is no such process on this machine.",
        (
            "it has ended meanwhile",
            "it is inside a container, and the pid is the one that it sees itself",
            "the driver does not say which processes hold memory (`gpuwatchctl status -v` tells)",
        ),
        (
            "`gpuwatchctl status` lists the pids as the machine sees them",
            "of one that has ended: `gpuwatchctl alerts --all`, `gpuwatchctl history --pid PID`",
        ),
    ),
    ErrorPage(
        "no-such-alert",
        "No alert of this name",
        "An alert is named by its six characters, its key, a part of its key, a pid, or `latest`;"
        " none that is kept fits.",
        ("a slip in the six characters", "it is older than the history keeps alerts"),
        ("`gpuwatchctl alerts --all` lists them all",),
    ),
    ErrorPage(
        "ambiguous",
        "The name fits several",
        "What was given fits more than one, and nothing was chosen for you.",
        ("a part of a key that several alerts share", "a pattern that fits several GPUs"),
        ("give more of it; an alert's six characters and a GPU's UUID fit one only",),
    ),
    ErrorPage(
        "unknown-name",
        "A name that is not in the table",
        "A source, a channel, a shell or another part was named that gpuwatchd does not have.",
        ("a slip", "a part that a later version has"),
        ("the hint lists the names that are known; all of them: `gpuwatchctl docs tables`",),
    ),
    ErrorPage(
        "no-history",
        "There is no history yet",
        "The daemon has written nothing here, so there is no past to look at.",
        (
            "the daemon has never run as this user",
            "`GPUWATCHD_STATE_DIR` points elsewhere than the daemon's",
            "the daemon of the machine runs as another user, and you are not in its group",
        ),
        (
            "`gpuwatchctl service install` starts the daemon now and at every login",
            "`gpuwatchctl doctor` says where the history is looked for",
        ),
    ),
    ErrorPage(
        "nothing-recorded",
        "Nothing is recorded for this time",
        "There is a history, but nothing in it of the time (or the GPU, or the pid) asked for.",
        (
            "the daemon did not run then",
            "it has only just been started: it writes once a minute",
            "the time is older than `[store]` keeps samples",
        ),
        ("ask for a longer time, for example `--since 7d`", "what is now: `gpuwatchctl status`"),
    ),
    ErrorPage(
        "no-charts",
        "What draws files is not installed",
        "A picture as a file is drawn by Matplotlib, which comes with the extra `charts`.",
        ("gpuwatchd was installed without its extras",),
        (
            "the hint is the command that adds it to this very installation",
            "without it: `gpuwatchctl plot` in the terminal, `gpuwatchctl report` as a page",
        ),
    ),
    ErrorPage(
        "no-picture",
        "The picture could not be drawn",
        "There is something to draw, but no file came of it.",
        (
            "more charts than one file takes, or too little room for them (`--size`)",
            "the machine is so busy that half a minute did not suffice",
            "Matplotlib is broken here; what it said is in the message",
        ),
        (
            "choose fewer with `--gpu`, `--pid` or `--user`, or leave out `--size`",
            "`gpuwatchctl plot` without `--output` needs no Matplotlib",
        ),
    ),
    # The program and its places.
    ErrorPage(
        "already-running",
        "Another daemon is running",
        "One daemon may use a runtime directory at a time; this one did not start.",
        (
            "the service runs already, and a second one was started by hand",
            "a package's service and one of your own",
        ),
        (
            "`gpuwatchctl status` shows what the running one sees",
            "`gpuwatchctl service stop` ends the service, `gpuwatchctl service status` names it",
            ("for an experiment beside it, set GPUWATCHD_STATE_DIR and GPUWATCHD_RUNTIME_DIR to"
            " empty directories of yours"),
        ),
    ),
    ErrorPage(
        "directory",
        "A directory cannot be used",
        "The state or the runtime directory (or a file in it) cannot be made, read or written, or"
        " it is not ours alone.",
        (
            "it belongs to another user, after a start with sudo for example",
            "it is a symbolic link, which is refused: whoever can replace it could read along",
            "the disk is full or read-only",
        ),
        (
            ("`ls -ld` the path of the message; give it to the user of the daemon (chown) or choose"
            " another with GPUWATCHD_STATE_DIR and GPUWATCHD_RUNTIME_DIR"),
            "`gpuwatchctl doctor` looks at both directories",
        ),
    ),
    ErrorPage(
        "no-space",
        "The result cannot be written",
        "Standard output took no more: the place that it was sent to is full.",
        ("a full disk, or a quota that is used up",),
        ("make room (`df -h`) and run it again; nothing but the output is lost",),
    ),
    ErrorPage(
        "file-exists",
        "The file is there already",
        "`config init` overwrites no file that you may have written.",
        ("it was run before",),
        ("edit the file, or begin anew with `gpuwatchctl config init --force`",),
    ),
    ErrorPage(
        "cannot-write",
        "The file cannot be written",
        "The configuration could not be written where it was to go.",
        ("a directory that is not yours, or read-only",),
        ("choose another place: `gpuwatchctl --config FILE config init`",),
    ),
    ErrorPage(
        "installation",
        "A part cannot be loaded",
        "A module of gpuwatchd, or a library that it needs, is missing or broken.",
        (
            "a system upgrade replaced the Python that the environment was made with",
            "the environment was mended by hand, or copied",
        ),
        (
            "install it again: `pipx reinstall gpuwatchd`, or `apt install --reinstall gpuwatchd`",
            "`gpuwatchctl doctor` names what is missing",
        ),
    ),
    ErrorPage(
        "internal",
        "An internal error: a fault of gpuwatchd",
        "Something happened that nobody has thought of. It is ours, not yours, and worth a report.",
        ("a fault in the program",),
        (
            ("run it again with `--debug` (the daemon: `--log-level debug`): the lines before the"
            " error say where it happened"),
            ("report it with: the command line, those lines, `gpuwatchctl --version`,"
            " `gpuwatchctl doctor --json`, and the driver's version (`nvidia-smi`)"),
            ("passwords are never in them; user names, paths and command lines may be: look them"
            " over before you send them"),
            "for the daemon also `gpuwatchctl service logs`",
        ),
    ),
    ErrorPage(
        "other",
        "Something could not be done",
        "An error of a part that names no section of its own, such as a plug-in.",
        ("the message says it",),
        ("`gpuwatchctl doctor`",),
    ),
    # Configuration.
    ErrorPage(
        "configuration",
        "A value of the configuration cannot be used",
        "A key holds a value of the wrong kind, or out of its range. Nothing of the file was taken"
        " over; a daemon that runs keeps the configuration that it has.",
        (
            "a number where a duration with its unit is meant (`15m`), or the reverse",
            "two keys that contradict each other",
        ),
        (
            "the message has file and key; `gpuwatchctl docs config` says what each key takes",
            "`gpuwatchctl config validate` checks a file before it is used",
            "`gpuwatchctl config print --origin` says where each value comes from",
        ),
    ),
    ErrorPage(
        "configuration-key",
        "A key of the configuration that does not exist",
        "The file or the environment has a section or a key that gpuwatchd does not know, or has"
        " one twice. It is refused: a slip would else change nothing, and in silence.",
        ("a slip; the message names the nearest key", "`some-key` and `some_key` in one section"),
        ("`gpuwatchctl config init` prints every key, `gpuwatchctl docs config` explains them",),
    ),
    ErrorPage(
        "configuration-file",
        "A configuration file cannot be read",
        "The file is missing, may not be read, or is no TOML.",
        (
            "`--config` or GPUWATCHD_CONFIG names another file than the one meant",
            "a quote or a bracket is missing: the message has the line",
        ),
        (
            "`gpuwatchctl config path` lists the files that are looked for",
            "`gpuwatchctl config validate FILE`",
        ),
    ),
)  # fmt: skip
