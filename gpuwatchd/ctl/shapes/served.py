"""``web``."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.ctl.shapes.base import Answer, Shape


class Serving(Shape):
    """Where the live page is, and its key."""

    url: str | None
    """With the token; null of a unix socket, and with --token."""
    listens: str | None
    """Without it: http://ADDRESS or unix:PATH; null with --token, which serves nothing."""
    token: str
    token_file: str


class Web(Answer):
    """``web``, once it answers, and ``web --token``."""

    verb: Literal["web"]
    data: Serving
