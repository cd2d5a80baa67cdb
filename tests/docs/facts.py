"""What is documented and no command knows of itself: exit codes, variables, files, signals.

Words are Markdown. That nothing is missing here is tested against the code (``test_facts``).
"""

from __future__ import annotations

Row = tuple[str, str]

EXIT_CODES: list[Row] = [
    ("0", "done; for `analyze`: nothing at or above `--fail-on`"),
    ("1", ("failed: no GPU readable, no data for the period, delivery failed, not inspected,"
          " not ended; `fleet`: no state of a worker, or one has stopped, looks dead,"
          " had no round, sees no GPU or cannot deliver alerts")),
    ("2", "usage"),
    ("3", ("findings: `analyze` always; `status`, `predict`, `zombies`, `inspect` and"
          " `fleet status` with `--exit-code`; `doctor` with warnings only; `reap`: it ended, but"
          " not its memory;"
          " `service status` as systemctl: not running")),
    ("4", "`service status` as systemctl: there is no such service"),
    ("5", "bad input: a log that cannot be read or has no memory column, a configuration error"),
    ("0-3", "`check` alone: OK, WARNING, CRITICAL, UNKNOWN; a wrong flag is UNKNOWN, too"),
    ("126, 127", "`run` alone: the command cannot be run, or there is none; else its own"),
    ("130", "interrupted (Ctrl-C)"),
    ("141", "the reader closed the pipe"),
]  # fmt: skip
DAEMON_CODES: list[Row] = [
    ("0", "stopped in order; with `--once`: a GPU was read"),
    ("1", "already running, no usable directory; with `--once`: no GPU was read"),
    ("2", "usage"),
    ("75", "start it again: the NVIDIA library is new, and it could not replace itself"),
    ("78", "configuration error at start"),
]
ENVIRONMENT: dict[str, list[Row]] = {
    "Settings": [
        ("GPUWATCHD_CONFIG", "the only configuration file to read, instead of the two usual ones"),
        ("GPUWATCHD_STATE_DIR", "directory of the history"),
        ("GPUWATCHD_RUNTIME_DIR", "directory of the live state and the lock"),
        ("GPUWATCHD_SECTION_KEY", ("any key of the configuration: upper case, `.` and `-` become"
         " `_`, as in `GPUWATCHD_DAEMON_INTERVAL=1s`; a list is written with commas; an unknown"
         " name is a warning")),
    ],
    "Secrets": [
        ("GPUWATCHD_SMTP_PASSWORD", "password of the mail channel; better a file or a credential"),
        ("GPUWATCHD_CHAT_URLS", "addresses of the chat channel, one a line; better a file"),
        ("CREDENTIALS_DIRECTORY", "where systemd puts credentials of the unit"),
    ],
    "Places": [
        ("HOME", "where `~` is"),
        ("XDG_CONFIG_HOME", "instead of `~/.config`"),
        ("XDG_STATE_HOME", "instead of `~/.local/state`"),
        ("XDG_RUNTIME_DIR", "of the login: live state, lock, session bus"),
        ("PATH", "where `systemctl`, your programs and the drivers' tools are looked for"),
    ],
    "Output": [
        ("NO_COLOR", "set and not empty: no colour"),
        ("CLICOLOR_FORCE", "not `0`: colour also in a pipe"),
        ("COLORTERM", "`truecolor` or `24bit`: `top` uses exact colours"),
        ("FORCE_COLOR", "the same"),
        (
            "TERM",
            "how many colours; `dumb`: none, `demo` draws no live screen, and `top` does not start",
        ),
        ("COLUMNS", "width to lay out for; else the terminal's, else 80"),
        ("LC_ALL, LC_CTYPE, LANG", "an encoding other than UTF-8 implies `--ascii`"),
        ("TZ", "time zone of what people read; JSON is always UTC"),
    ],
    "Desktop": [
        ("DBUS_SESSION_BUS_ADDRESS", "the bus that pop-ups are sent to"),
        ("DISPLAY", "says that there is a screen for a terminal"),
        ("WAYLAND_DISPLAY", "the same"),
        ("TERMINAL", "the terminal that the buttons of a pop-up open"),
        ("MPLCONFIGDIR", "folder of Matplotlib, for the picture in a mail"),
    ],
    "Set by who starts it": [
        ("GPUWATCHD_PROBE", "by `run`: `1`, `counters` (the heap is never read) or `alert`"),
        ("GPUWATCHD_PROBE_DIR", "by `run`: where a prepared job writes its mailbox"),
        ("GPUWATCHD_ACT", "of a job, by you: with `1` the steps of `[act]` may be taken on it"),
        (
            "GPUWATCHD_CHECKPOINT_SIGNAL",
            "by `run --checkpoint-signal`: the signal on which the job saves",
        ),
        ("GPUWATCHD_PROBE_RECORD", "by `run --record`: the allocator records who allocates"),
        ("SLURMD_NODENAME", "by Slurm: what it calls this machine; else that is its host name"),
        ("CUDA_DEVICE_ORDER", "of a job: with `PCI_BUS_ID` those numbers are those of the bus"),
        ("CUDA_VISIBLE_DEVICES", "of a job: which GPU a number means, without a UUID"),
        ("PYTHONPATH", "`run` puts the probe in front of it"),
        ("SUDO_USER", "who is meant by \"me\" under `sudo`"),
        ("SSH_CONNECTION", "set: nobody sits at this machine's screen; a hint for `doctor`"),
        ("LD_LIBRARY_PATH", "where `doctor` also looks for the driver's library"),
        ("STATE_DIRECTORY", "by systemd: where `gpuwatchd fleet` leaves its state; else"),
        ("RUNTIME_DIRECTORY", "by systemd: there; else in the state directory"),
        ("NOTIFY_SOCKET", "where the daemon or a worker says that it is ready, well, or stopping"),
        ("WATCHDOG_USEC", "how often it has to say that it is well"),
        ("INVOCATION_ID", "set: a service manager has started it"),
        ("KUBERNETES_SERVICE_HOST", "set: it runs in a pod"),
        ("container", "set: it runs in a container of that kind"),
        ("JOURNAL_STREAM", "names standard error: the journal keeps time and level of a line"),
    ],
    "Given to others": [
        ("GPUWATCHD_ALERT_*", "facts of an alert, for the program of the command channel"),
        ("_GPUWATCHCTL_COMPLETE", "asks for a completion script; use `gpuwatchctl completion`"),
        ("OPENBLAS_NUM_THREADS", "the daemon sets it to 1 for itself where it is not set"),
    ],
}  # fmt: skip
FILES: dict[str, list[Row]] = {
    "Configuration": [
        ("~/.config/gpuwatchd/config.toml", "yours (`gpuwatchctl config path`); none is needed"),
        ("/etc/gpuwatchd/config.toml", "for everybody on the machine, below yours"),
    ],
    "State: ~/.local/state/gpuwatchd": [
        ("history.db", "the history, an SQLite file; with `-wal` and `-shm` while it is open"),
        ("history.db.bak-vN", "copy from before the schema was brought up to date"),
        ("history.db.corrupt-TIME", "a damaged file, moved aside"),
        ("boot.json", ("when this boot began, so that a process stays the same when the clock"
         " is set")),
        ("fleet/fleet.json", "what a worker of `gpuwatchd fleet` saw last (not under systemd)"),
        ("web-token", "the token of the live page (`gpuwatchctl web`), for its owner alone"),
    ],
    "Runtime: $XDG_RUNTIME_DIR/gpuwatchd": [
        ("state.json", "the live state, rewritten each tick"),
        ("gpuwatchd.lock", "held by the one daemon"),
        ("bell", "a named pipe: who may write there may wake the daemon"),
        ("release.json", "until when the driver is released (`gpuwatchctl release`)"),
        ("web.sock", "the live page's socket, where it listens at one"),
        ("metrics.sock", "the socket of `[metrics]`, where it listens at one"),
        ("web-open.html", "leads the browser to the live page (`gpuwatchctl web --open`)"),
        ("popups.json", "pop-ups that are shown, so that a later one replaces them"),
        ("started-anew", "when the daemon last replaced itself"),
    ],
    "Service": [
        ("~/.config/systemd/user/gpuwatchd.service", "the user unit that `service install` writes"),
        ("~/Library/LaunchAgents", "macOS: the agent's property list"),
    ],
    "System service": [
        ("/var/lib/gpuwatchd", "state of the system service, readable by the group `gpuwatchd`"),
        ("/run/gpuwatchd", "its runtime directory"),
    ],
}  # fmt: skip
SIGNALS: list[Row] = [
    ("SIGTERM", "stop in order, within five seconds"),
    ("SIGINT", "the same (Ctrl-C)"),
    ("SIGHUP", "read the configuration again; a bad one is refused and the old one kept"),
    ("SIGKILL", "nothing is lost but the raw samples of the last minute; alerts are kept"),
]
CONFIGURATIONS: dict[str, str] = {
    "A workstation: pop-ups by day, mail when it is serious": """
[policy]
channels = ["desktop", "email"]
severity = { email = "critical" }
quiet-hours = { desktop = ["22:00-07:00"] }

[notify.email]
host = "smtp.example.org"
username = "me"
password-file = "~/.config/gpuwatchd/smtp-password"
sender = "gpuwatchd@example.org"
to = ["me@example.org"]
""",
    "A shared server: administrators by mail, one summary a day": """
[policy]
preset = "shared"
channels = ["email"]
digest = "daily"

[notify.email]
host = "localhost"
security = "none"
sender = "gpu@example.org"
to = ["admins@example.org"]

[[override]]
user = "svc-*"
channels = []
""",
    "A small disk, slow samples": """
[daemon]
interval = "15s"

[store]
max-db-mib = 64
""",
}


def examples() -> list[str]:
    """Return whole configurations, for the page of the keys."""
    lines = ["## Examples", ""]
    for title, words in CONFIGURATIONS.items():
        lines += [f"{title}:", "", "```toml", *words.strip().splitlines(), "```", ""]
    return lines


def _table(head: str, rows: list[Row], *, code: bool = True) -> list[str]:
    tick = "`" if code else ""
    lines = [f"| {head} | meaning |", "|---|---|"]
    return [*lines, *(f"| {tick}{name}{tick} | {words} |" for name, words in rows), ""]


def exit_codes() -> list[str]:
    """Return the page of exit codes, without its mark."""
    return [
        "# Exit codes", "",
        "No GPU is never 0. What a code means never changes within a major version.", "",
        "## gpuwatchctl", "", *_table("code", EXIT_CODES, code=False),
        "## gpuwatchd", "", *_table("code", DAEMON_CODES, code=False),
    ]  # fmt: skip


def environment() -> list[str]:
    """Return the page of environment variables."""
    lines = ["# Environment variables", "",
             "They go above the configuration files and below flags.", ""]  # fmt: skip
    for title, rows in ENVIRONMENT.items():
        lines += [f"## {title}", "", *_table("variable", rows)]
    return lines


def files() -> list[str]:
    """Return the page of files and directories."""
    lines = [
        "# Files and directories", "",
        ("Directories are yours alone (0700, files 0600); those of a machine's service can be read"
         " by its group (0750, files 0640). On macOS state and configuration are in"
        " `~/Library/Application Support/gpuwatchd`, the live state in"
        " `~/Library/Caches/TemporaryItems/gpuwatchd`. What they hold and how much:"
        " [storage](../explanation/storage.md)."), "",
    ]  # fmt: skip
    for title, rows in FILES.items():
        lines += [f"## {title}", "", *_table("path", rows)]
    return lines


def signals() -> list[str]:
    """Return the page of signals."""
    return [
        "# Signals", "", "What `gpuwatchd` does on a signal:", "", *_table("signal", SIGNALS),
        ("Signals that it sends itself to your jobs, only where `[act]` says so, are described with"
        " that section in the [configuration](config.md#act)."), "",
    ]  # fmt: skip
