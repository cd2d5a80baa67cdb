"""``web``."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.cli.answers.base import Answer, Shape


class Serving(Shape):
    """Where the live page is, and its key."""

    url: str | None
    """With the token; null of a unix socket, with --token, and where the output is no terminal."""
    listens: str | None
    """Without it: http://ADDRESS or unix:PATH; null with --token, which serves nothing."""
    token: str | None
    """Null where the output is no terminal and --token was not given: token_file has it."""
    token_file: str


class Web(Answer):
    """``web``, once it answers, and ``web --token``."""

    verb: Literal["web"]
    data: Serving
