"""The verbs: each is ``command`` in a file here, and one line in ``PAGES``."""

from __future__ import annotations

PAGES: dict[str, str] = {
    "status": "understand-a-verdict",
    "watch": "understand-a-verdict",
    "top": "see-it",
    "predict": "understand-a-verdict",
    "explain": "understand-a-verdict",
    "zombies": "find-idle-memory",
    "plot": "see-it#pictures",
    "history": "storage",
    "report": "report",
    "alerts": "be-warned",
    "snooze": "quiet",
    "feedback": "teach-it-your-programs",
    "cost": "what-it-costs",
    "checkpointed": "what-it-costs",
    "analyze": "analyse-a-log",
    "backtest": "backtest-your-settings",
    "web": "live-page",
    "doctor": "troubleshoot",
    "ask-checkpoint": "be-warned",
    "release": "run-the-service#letting-go-of-the-gpus",
    "config": "config",
    "policy": "rules",
    "notify": "be-warned",
    "check": "nagios",
    "service": "run-the-service",
    "demo": "first-leak",
    "docs": "index",
    "schema": "use-the-json",
    "completion": "install#completion",
}
"""Verb -> the page of the documentation that its help ends with, in the order of the help."""
COMMANDS = {verb: f"{__name__}.{verb.replace('-', '_')}:command" for verb in PAGES}
