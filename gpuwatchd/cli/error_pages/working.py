"""Errors of the work itself: GPUs, the history, messages, actions, logs."""

from __future__ import annotations

from typing import Final

from gpuwatchd.cli.error_pages.asking import ErrorPage

WORKING: Final = (
    # GPUs.
    ErrorPage(
        "gpu-unreadable",
        "A GPU could not be read",
        "The driver (or a tool of the system) did not answer, or not as it should.",
        ("the driver hangs or is being replaced", "a tool of the system failed or took too long"),
        (
            "it is tried again by itself; while it lasts, `gpuwatchctl status` says so",
            "`dmesg | tail` shows what the kernel says of the card",
        ),
    ),
    ErrorPage(
        "gpu-lost",
        "A GPU does not answer any more",
        "It answered before, and now the driver says that it is gone.",
        (
            "it has fallen off the bus (XID 79): heat, power, or the slot",
            "it was reset, detached, or given to a virtual machine",
        ),
        (
            "`gpuwatchctl status -v` shows the events of the GPU, `dmesg` those of the kernel",
            "often only a restart of the machine brings it back",
        ),
    ),
    ErrorPage(
        "gpu-denied",
        "A GPU may not be read",
        "The system refuses it to this user.",
        ("you are not in the group of /dev/nvidia* or /dev/dri (`video`, `render`)",),
        ("`sudo usermod -aG render,video $USER`, then log in anew", "`gpuwatchctl doctor`"),
    ),
    ErrorPage(
        "recording",
        "The recording cannot be played",
        "The source `replay` has reached the end of its log, or the log cannot be read.",
        ("its end; without `[sources.replay] loop` it stops there", "the file was moved"),
        ("`gpuwatchctl analyze FILE` says whether the log can be read",),
    ),
    # The history.
    ErrorPage(
        "history",
        "The history cannot be used",
        "The database exists, but it cannot be read or written.",
        ("the disk is full", "the file belongs to another user", "a file system with faults"),
        ("`gpuwatchctl doctor` looks at owner, mode, room and soundness of the file",),
    ),
    ErrorPage(
        "history-busy",
        "The history is in use",
        "Another program has locked the database for longer than we wait.",
        ("a backup, or `sqlite3` with an open transaction", "a network file system without locks"),
        ("try again in a moment", "keep the state directory on a disk of the machine itself"),
    ),
    ErrorPage(
        "history-newer",
        "The history is of a later version",
        "A later gpuwatchd has written it; this one leaves it alone.",
        ("two versions on one machine", "a step back to an older version"),
        (
            "upgrade gpuwatchd (`gpuwatchctl --version`)",
            "to stay with the older version: move the file away, a new history is begun",
        ),
    ),
    ErrorPage(
        "history-older",
        "The history is of an older version",
        "It has not been brought up to date since the upgrade; only the daemon does that.",
        ("gpuwatchd was upgraded, and the daemon not restarted since",),
        ("`gpuwatchctl service restart`",),
    ),
    ErrorPage(
        "history-damaged",
        "The history is damaged",
        "The file is not a sound database any more. The daemon sets it aside by itself, at its next"
        " start if none runs, begins a new one and goes on.",
        ("power was lost while a disk lied about having written", "the file was edited or cut"),
        (
            "where a daemon runs: nothing; where none does: `gpuwatchctl service start`",
            "to rescue rows: `sqlite3 OLD .recover | sqlite3 NEW`",
            "that needs an intact header; some builds of sqlite3 cannot do it (`SQL logic error`)",
        ),
    ),
    # Alerts and what is said of them.
    ErrorPage(
        "already-over",
        "The alert is over",
        "`until-resolved` has no meaning for what is resolved already.",
        ("it was resolved meanwhile",),
        ("give a duration, such as `8h`, if you wait for it to come back",),
    ),
    ErrorPage(
        "not-snoozed",
        "Nothing is snoozed that this names",
        "There is no silence in force of that number or alert.",
        ("it has run out, or was cleared already",),
        ("`gpuwatchctl snooze list --all`",),
    ),
    ErrorPage(
        "nothing-to-learn",
        "Nothing can be learned from this alert",
        "Words such as `normal` and `leak` teach how a program's memory grows; this alert judged no"
        " growth.",
        ("an alert about a GPU's health, or about idle memory",),
        ("to hear no more of it: `gpuwatchctl snooze ALERT 8h`",),
    ),
    ErrorPage(
        "nothing-said",
        "Nothing was said of this alert",
        "There is no word to take back.",
        ("it was taken back already, or said of another alert",),
        ("`gpuwatchctl feedback list`",),
    ),
    ErrorPage(
        "not-replayed",
        "The history could not be replayed",
        "`backtest` runs in a program of its own; that one did not come to an end.",
        ("not enough memory for so long a time", "a damaged history"),
        ("a shorter `--since` needs less memory", "`gpuwatchctl doctor` looks at the history"),
    ),
    # Messages.
    ErrorPage(
        "no-channel",
        "No channel is in use",
        "There is nobody to tell: `[policy] channels` is empty.",
        ("it was emptied, or never set on a machine without a desktop",),
        ("`gpuwatchctl docs be-warned` sets one up", "`gpuwatchctl notify list` shows them all"),
    ),
    ErrorPage(
        "delivery",
        "A message did not arrive",
        "A channel could not pass a message on. The daemon tries again for as long as that may"
        " help, and then the next channel.",
        ("the other side does not answer", "the channel is not set up"),
        ("`gpuwatchctl notify test CHANNEL`", "what waits and why: `gpuwatchctl alerts --all -v`"),
    ),
    ErrorPage(
        "pop-up",
        "A pop-up could not be shown",
        "The desktop's notification server was not reached, or refused.",
        (
            "no desktop session, or a daemon that does not see its bus (started by cron, over ssh)",
            "no notification server runs (dunst, mako, GNOME, KDE)",
            "macOS: notices are not allowed for the program",
        ),
        (
            "`gpuwatchctl notify test desktop` in a terminal of the desktop",
            "on a server without a desktop use e-mail, a chat or a command",
        ),
    ),
    ErrorPage(
        "mail",
        "An e-mail could not be sent",
        "The mail server was not reached, refused, or is not set up.",
        (
            "host, port or tls do not fit together (587: starttls, 465: tls)",
            "user name or password are refused: many providers want an app password",
            "the sender or a recipient is refused",
        ),
        ("`gpuwatchctl notify test email` says what the server said", "`gpuwatchctl doctor`"),
    ),
    ErrorPage(
        "chat",
        "A chat service did not take the message",
        "The service (or the library for it) refused or did not answer.",
        ("an address that is not valid any more", "the extra is missing: `gpuwatchd[chat]`"),
        ("`gpuwatchctl notify test chat`", "`gpuwatchctl docs chat`"),
    ),
    ErrorPage(
        "command-channel",
        "The program of the channel failed",
        "The program of `[notify.command]` could not be run, failed, or took too long.",
        ("not executable, or not an absolute path", "it waits for something; it reads JSON"),
        ("`gpuwatchctl notify test command`", "run it by hand with a message on its input"),
    ),
    ErrorPage(
        "secret-file",
        "A file with a secret cannot be used",
        "The file with the password or the addresses is missing, empty, or others can read it;"
        " such a file is refused.",
        ("a mode that lets the group or others read it", "a path that the daemon does not see"),
        ("`chmod 600 FILE`; the secret is its first line, or one address per line",),
    ),
    ErrorPage(
        "keyring",
        "The keyring did not give the password",
        "The desktop's keyring is missing, locked, or has no such entry.",
        ("a daemon without a desktop session", "the extra is missing: `gpuwatchd[keyring]`"),
        ("`keyring set SERVICE USER`", "without a desktop use `password-file` instead"),
    ),
    ErrorPage(
        "no-terminal",
        "No terminal could be opened",
        "A button of a pop-up opens a report in a terminal, and none was found.",
        ("no display", "a terminal that is not among those that are looked for"),
        ('set `[notify.desktop] terminal`, for example `["xterm", "-e"]`',),
    ),
    # Actions.
    ErrorPage(
        "action",
        "Something was not done to a process",
        "A precaution stopped it; the process was left alone.",
        ("the message says which",),
        ("`gpuwatchctl alerts show ALERT` lists what was asked and what became of it",),
    ),
    ErrorPage(
        "process-gone",
        "The process has ended",
        "There is nobody left to ask.",
        ("it ended meanwhile",),
        ("nothing; `gpuwatchctl alerts --all` says how it ended",),
    ),
    ErrorPage(
        "process-changed",
        "The pid belongs to another process now",
        "The process that was meant has ended and its number was given to another, or it cannot be"
        " known whether it is the same. Nothing was sent to it.",
        (
            "a pid noted some time ago",
            "a system that does not say when it was booted, or when a process was started",
        ),
        ("take the pid from `gpuwatchctl status` and ask again",),
    ),
    ErrorPage(
        "not-allowed",
        "It is not allowed",
        "A rule or the system forbids it. Nothing was done.",
        (
            "a process of the system, or gpuwatchd itself",
            "an alert about no single process",
            "the service of the whole machine, which its group reads and only its user writes to",
        ),
        (
            "the message says which rule",
            "to read that service: `sudo usermod -aG gpuwatchd $USER`, then log in again",
            "to change something there: `sudo -u gpuwatchd gpuwatchctl ...`, by an administrator",
        ),
    ),
    ErrorPage(
        "not-yours",
        "The process is another user's",
        "Only its owner (for some things root) may speak for a process or ask it for something.",
        ("a job of a colleague", "a job that runs in a service or a container as another user"),
        ("ask its owner; `gpuwatchctl status` names the user",),
    ),
    ErrorPage(
        "asking-off",
        "Asking jobs to save is switched off",
        "gpuwatchd touches no process unless you have allowed it.",
        ('`[act] checkpoint` is `"off"`, as it is by default',),
        (
            (
                'set `[act] checkpoint = "signal"` or `"command"`;'
                " `gpuwatchctl docs config` explains both"
            ),
        ),
    ),
    ErrorPage(
        "asking-program",
        "The program that asks for a save failed",
        "The program of `[act] argv` could not be run, refused, or took too long.",
        ("not executable, or not an absolute path", "it found nothing to save"),
        ("run it by hand", "`gpuwatchctl ask-checkpoint PID` says what would be run"),
    ),
    ErrorPage(
        "no-handler",
        "The job has no handler for the signal",
        "The signal would end it instead of letting it save, so it was not sent.",
        ("the framework installs no handler", "the system does not tell (macOS)"),
        ("install one in the job", 'choose another `[act] signal`, or `checkpoint = "command"`'),
    ),
    ErrorPage(
        "not-let-go",
        "The daemon still holds the driver",
        "It was asked to let go of the GPUs and has not done so in time.",
        ("a call into the driver hangs",),
        ("`gpuwatchctl service stop` ends its hold for certain",),
    ),
    ErrorPage(
        "release-request",
        "A request to let go that cannot be followed",
        "The file that asks the daemon to let go of the GPUs is not one that gpuwatchctl writes.",
        ("it was edited, or cut by a full disk",),
        ("`gpuwatchctl release --end` removes it",),
    ),
    # Others.
    ErrorPage(
        "serving-engine",
        "A serving engine did not answer",
        "Ollama, vLLM, SGLang or llama.cpp did not answer at its address, or not as it should.",
        ("it is starting, or has been stopped", "it wants a key", "another program has its port"),
        ("`gpuwatchctl status --json` has `servers` with the reason", "`[sources]` sets addresses"),
    ),
    ErrorPage(
        "service-manager",
        "The service manager refused",
        "systemd or launchd did not do what was asked.",
        (
            "no user manager: a login by `su`, or over ssh without lingering",
            "a container without systemd",
        ),
        (
            "`gpuwatchctl service install --dry-run` shows every step",
            "`gpuwatchctl service logs` shows why the daemon did not start",
            "without any manager: run `gpuwatchd` yourself",
        ),
    ),
    ErrorPage(
        "second-service",
        "There is a service already",
        "A second daemon would do the same work twice, so `service install` refuses it.",
        (
            "the service of the machine watches these GPUs, and you may read it",
            "Homebrew, or a package, has brought a service of its own",
            "a daemon that was started by hand runs",
        ),
        (
            "the hint has the command that ends or uses the other one",
            "`gpuwatchctl status` shows what the one that runs sees",
            "to have one of your own all the same: `gpuwatchctl service install --anyway`",
        ),
    ),
    ErrorPage(
        "root-needed",
        "Only root may do that",
        "The service of a machine is changed by root alone; everybody may look at it.",
        ("`--system` without sudo",),
        ("the hint has the command", "for a service of yours leave `--system` out"),
    ),
    ErrorPage(
        "journal",
        "The journal may not be read",
        "The log of the service is in the system's journal, and this user may not read it.",
        ("you are not in the group `systemd-journal` (or `adm`)",),
        ("the hint has the command for now, and the one for good",),
    ),
    ErrorPage(
        "not-a-reader",
        "You may not read what the machine's service knows",
        "The daemon of this machine runs as its own user; members of its group may read it.",
        ("you are not in the group `gpuwatchd`", "you are, but since your last login"),
        (
            "an administrator runs the command of the hint; then log in again",
            "or run a daemon of your own: `gpuwatchctl service install --anyway`",
        ),
    ),
    ErrorPage(
        "log-format",
        "A log that cannot be read",
        "`analyze` did not find GPU memory over time in the file.",
        (
            "no column of used memory: ask `nvidia-smi --query-gpu` for `memory.used`",
            "no time in the rows",
            "dates that may be read in two ways",
            "a format that is not known",
        ),
        (
            "the message has the file, and the line where there is one",
            "`--interval`, `--date-order`, `--columns` and `--format` help with odd logs",
            "`gpuwatchctl docs analyse-a-log`",
        ),
    ),
    ErrorPage(
        "report-not-written",
        "A report cannot be written",
        "The file that `report` or `analyze --html` was to write could not be made. A report is "
        "written whole or not at all: an older one at that place is as it was.",
        (
            "the name is that of a folder",
            "there is no such folder, or you may not write to it",
            "the disk is full",
        ),
        ("name a file in a folder of yours: `--output ~/report.html`",),
    ),
)


# Errors of the live page and of its API.

SERVING: Final = (
    ErrorPage(
        "web-extra",
        "The live page needs libraries that are not installed",
        "`gpuwatchctl web` is served by Starlette and uvicorn, the extra `web`.",
        ("a plain `pip install gpuwatchd`: extras are named",),
        ("the hint has the command; the Debian package brings it",),
    ),
    ErrorPage(
        "web-listen",
        "The live page cannot listen there",
        "The address is taken, is none, or could be reached from other machines.",
        (
            "`gpuwatchctl web` runs already, or another program has the port",
            "an address that is not loopback, without `[web] remote = true`",
            "a path for a unix socket at which something else is, or one that is too long",
        ),
        (
            "`gpuwatchctl web --port 0` takes a free port and prints it",
            "from another machine: `ssh -t -L 9753:127.0.0.1:9753 HOST gpuwatchctl web`",
        ),
    ),
    ErrorPage(
        "web-token",
        "The token of the live page",
        "Whoever reads through the page or its API needs the token: a port of this machine is open"
        " to everybody on it, the history is not. Its file must be its owner's alone, no link.",
        (
            "the page was opened without the address that `gpuwatchctl web` prints",
            "`--new-token` has replaced it since",
            "the file can be read by others, is a link, or belongs to somebody else",
        ),
        (
            "`gpuwatchctl web --token` prints it; programs send it as `Authorization: Bearer`",
            "`gpuwatchctl web --new-token --token` replaces it",
        ),
    ),
    ErrorPage(
        "web-host",
        "The live page was called by a name that is not its own",
        "The server answers to localhost, 127.0.0.1 and [::1] with its port, and to the names in"
        " `[web] hosts`. Any other could be a page of a stranger that has made its name mean this"
        " machine.",
        ("a proxy or a tunnel with another name or port than the server's",),
        ('`[web] hosts = ["gpu.example.org", "localhost:8080"]` adds names',),
    ),
    ErrorPage(
        "web-request",
        "The live page's server refuses a request",
        "The address, its method, a parameter, the body, its size or its origin is not what the API"
        " takes.",
        (
            "a parameter that this address does not have",
            "a body that is not JSON, or too large",
            "a page of another origin asks",
        ),
        ("`/api/v1/openapi.json` and `gpuwatchctl docs api` describe all of it",),
    ),
)
