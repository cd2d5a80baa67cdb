"""Where in the program the recorder finds what it calls: the one file that names its modules.

Whoever moves or renames a part of the program mends it here, and in the tests' own worlds.
"""

from __future__ import annotations

from gpuwatchd.cli import COMMANDS, command_line
from gpuwatchd.cli import main as gpuwatchctl
from gpuwatchd.collect.simulate import SimulateSource
from gpuwatchd.core import config
from gpuwatchd.daemon.main import main as gpuwatchd_main
from gpuwatchd.notify import plain_text as render
from gpuwatchd.notify.channels import chat, command
from gpuwatchd.notify.channels.desktop import channel as desktop
from gpuwatchd.notify.channels.email import message as mail
from gpuwatchd.store import live
from gpuwatchd.store.schema import FILE_NAME as HISTORY_FILE
from gpuwatchd.store.writer import History
from gpuwatchd.view.query import Query
from gpuwatchd.web import auth as security
from gpuwatchd.web import responses
from gpuwatchd.web.api import Api
from gpuwatchd.web.pages import ANSWERS as PAGE_VIEWS
from tests.pipelines import make_pipeline

__all__ = [
    "COMMANDS",
    "HISTORY_FILE",
    "PAGE_VIEWS",
    "Api",
    "History",
    "Query",
    "SimulateSource",
    "chat",
    "command",
    "command_line",
    "config",
    "desktop",
    "gpuwatchctl",
    "gpuwatchd_main",
    "live",
    "mail",
    "make_pipeline",
    "render",
    "responses",
    "security",
]
