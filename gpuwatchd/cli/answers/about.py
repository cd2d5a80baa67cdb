"""``demo``, ``completion``, ``docs`` and ``schema``: what is about gpuwatchd itself."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from gpuwatchd.cli.answers.base import Answer, Count, DeviceId, Eta, Instant, Pid, Seconds, Shape
from gpuwatchd.cli.answers.findings import Verdict


class DemoStarted(Shape):
    """The first line."""

    event: Literal["started"]
    world_s: Seconds
    title: str
    note: str


class DemoEvent(Shape):
    """Something that happened in the simulated world."""

    event: Literal["watch", "alert", "escalated", "cleared", "recovered", "crashed", "pop-up"]
    world_s: Seconds
    """Seconds of that world since the demo began."""
    at: Instant
    text: str
    key: str | UnsetType = UNSET
    """This and the following: where an alert is meant."""
    device: DeviceId | UnsetType | None = UNSET
    pid: Pid | UnsetType | None = UNSET
    started_at: Instant | UnsetType | None = UNSET
    verdict: Verdict | UnsetType = UNSET


class Scored(Shape):
    """One program of the script, and what was said about it."""

    program: str
    planted: str
    leak: bool
    found: str
    watch_s: Seconds | None
    alert_s: Seconds | None
    eta: Eta | None
    true_eta_s: Seconds | None
    """From the first alert to the real end; null: never."""
    right: bool


class DemoSummary(Shape):
    """The last line."""

    event: Literal["summary"]
    world_s: Seconds
    text: str
    rows: tuple[Scored, ...]


class DemoBegins(Answer):
    """``demo``, first line."""

    verb: Literal["demo"]
    data: DemoStarted


class DemoGoesOn(Answer):
    """``demo``, a line per event."""

    verb: Literal["demo"]
    data: DemoEvent


class DemoEnds(Answer):
    """``demo``, last line."""

    verb: Literal["demo"]
    data: DemoSummary


class Script(Shape):
    """A completion script."""

    shell: Literal["bash", "zsh", "fish"]
    script: str


class Completion(Answer):
    """``completion``."""

    verb: Literal["completion"]
    data: Script


class SectionName(Shape):
    """A section of a page."""

    section: str
    title: str
    level: Count


class PageText(Shape):
    """A page of the documentation."""

    page: str
    kind: str | None
    """tutorial, how-to, reference, explanation."""
    title: str
    section: str | None
    sections: tuple[SectionName, ...]
    text: str


class PageShown(Answer):
    """``docs PAGE``."""

    verb: Literal["docs"]
    data: PageText


class PageName(Shape):
    """A page that there is."""

    page: str
    kind: str | None
    title: str


class Pages(Answer):
    """``docs --list``."""

    verb: Literal["docs"]
    data: tuple[PageName, ...]


class Hit(Shape):
    """Where the words occur."""

    page: str
    section: str
    title: str
    line: str


class PagesFound(Answer):
    """``docs --search``."""

    verb: Literal["docs"]
    data: tuple[Hit, ...]


class SchemaName(Shape):
    """A schema that there is."""

    name: str
    id: str
    title: str


class Schemas(Answer):
    """``schema --json`` without a name."""

    verb: Literal["schema"]
    data: tuple[SchemaName, ...]
