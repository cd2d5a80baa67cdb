"""The verbs: each is ``command`` in a file here, and one line in ``GROUPS``."""

from __future__ import annotations

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "See": {
        "status": (
            "Show every GPU: used, growth, time left, who; open alerts.",
            "understand-a-verdict",
        ),
        "watch": ("Show the status again every few seconds.", "understand-a-verdict"),
        "top": ("Show the live screen: GPUs, processes, charts, alerts.", "see-it"),
        "plot": ("Draw memory over time as a chart (a table: history).", "see-it#pictures"),
        "history": ("List memory over time as a table or CSV (a chart: plot).", "storage"),
        "web": ("Serve the live page and the JSON API on this machine.", "live-page"),
    },
    "Understand": {
        "explain": (
            "Explain one verdict: why, and what to do (all: predict).",
            "understand-a-verdict",
        ),
        "predict": ("List all verdicts with figures (one: explain).", "understand-a-verdict"),
        "zombies": ("List idle memory, and what would free it.", "find-idle-memory"),
        "inspect": (
            "Show which variable of a process keeps what grows.",
            "inspect-a-process",
        ),
        "report": ("Sum up a period: findings, who, cost, advice.", "report"),
        "cost": ("Show what leaks and idle memory cost.", "what-it-costs"),
        "analyze": ("Find leaks in recorded logs: nvidia-smi, DCGM, W&B ...", "analyse-a-log"),
        "backtest": (
            "Replay your own history: which alerts, and what if.",
            "backtest-your-settings",
        ),
        "export": ("Write your history as anonymous data for everybody.", "share-your-data"),
    },
    "Be warned": {
        "alerts": ("List open and past alerts; show one in full.", "be-warned"),
        "snooze": ("Silence an alert, or what matches a rule, for a while.", "quiet"),
        "feedback": ("Mark an alert as normal or as a leak.", "teach-it-your-programs"),
        "notify": ("Set up channels, list and test them; send a digest.", "be-warned"),
        "policy": ("Explain the rules, and try them on a finding.", "rules"),
        "check": ("Answer as a monitoring plug-in (Nagios, Icinga).", "nagios"),
        "metrics": ("Print what Prometheus scrapes, and how it does.", "prometheus"),
        "fleet": ("Show what the workers of a fleet on this machine see.", "fleet"),
    },
    "Act": {
        "run": ("Start a job so that inspect can look into it.", "inspect-a-process"),
        "ask-checkpoint": ("Ask a job to save now (it has saved: checkpointed).", "be-warned"),
        "checkpointed": (
            "Report that a job has saved (to ask it: ask-checkpoint).",
            "what-it-costs",
        ),
        "reap": ("End a process that holds idle memory (list: zombies).", "free-idle-memory"),
        "hold": ("Take no automatic step on a process for a while.", "free-idle-memory#hold"),
        "release": (
            "Release the NVIDIA driver: for a GPU reset, MIG, an update.",
            "run-the-service#letting-go-of-the-gpus",
        ),
    },
    "Set up": {
        "service": ("Run the daemon: yours, or the machine's.", "run-the-service"),
        "config": ("Show, write and check the configuration.", "config"),
        "doctor": ("Check what works here, and say what fixes it.", "troubleshoot"),
        "demo": ("Show the whole job on simulated GPUs.", "first-leak"),
        "docs": ("Read and search the manual.", "index"),
        "schema": ("Print the JSON Schema of a verb's answer.", "use-the-json"),
        "completion": ("Print the completion script of a shell.", "install#completion"),
    },
}
"""What people want -> verb -> its line in the help, and the page of the documentation that its own
help ends with. No module of a verb is imported for it."""
VERBS = {verb: line for verbs in GROUPS.values() for verb, line in verbs.items()}
COMMANDS = {verb: f"{__name__}.{verb.replace('-', '_')}:command" for verb in VERBS}
