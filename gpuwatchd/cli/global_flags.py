"""The global flags of one call; no command-line parser is needed to hold them."""

from __future__ import annotations

from gpuwatchd.view.query import Query


class Globals(Query):
    """What is asked, and how the answer is to be written."""

    __slots__ = ("ascii", "color", "debug", "every", "json", "quiet", "verb", "verbose", "wide")

    def __init__(self) -> None:
        super().__init__()
        self.json = False
        self.color = "auto"
        self.ascii = False
        self.quiet = False
        self.verbose = False
        self.debug = False
        self.wide = False
        self.every = False
        self.verb = ""
