"""Where in the program the recorder finds what it calls: the one file that names its modules.

Whoever moves or renames a part of the program mends it here, and in the tests' own worlds.
"""

from __future__ import annotations

from gpuwatchd import config
from gpuwatchd.ctl import COMMANDS, program
from gpuwatchd.ctl import main as gpuwatchctl
from gpuwatchd.daemon import main as gpuwatchd_main
from gpuwatchd.notify import chat, command, desktop, mail, render
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.sources.simulate import SimulateSource
from gpuwatchd.store import live
from gpuwatchd.store.schema import FILE_NAME as HISTORY_FILE
from gpuwatchd.store.writer import History
from gpuwatchd.web import files, security, tokens
from gpuwatchd.web.api import Api
from gpuwatchd.web.pages.answers import ANSWERS as PAGE_VIEWS

__all__ = [
    "COMMANDS",
    "HISTORY_FILE",
    "PAGE_VIEWS",
    "Api",
    "History",
    "Pipeline",
    "SimulateSource",
    "chat",
    "command",
    "config",
    "desktop",
    "files",
    "gpuwatchctl",
    "gpuwatchd_main",
    "live",
    "mail",
    "program",
    "render",
    "security",
    "tokens",
]
