"""What is foreseen of a GPU and its processes, as ``predict`` tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from gpuwatchd.view.answers.base import Shape
from gpuwatchd.view.queries import subjects as judged
from gpuwatchd.view.text import badges, prediction, subject_facts, verdict_text
from gpuwatchd.web.pages import overview
from gpuwatchd.web.pages.parts import BadgeMark, PageAnswer, address, frame, joined, mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query


class JudgedSubject(Shape):
    """A judged subject with its figures, labelled as ``predict`` labels them."""

    key: str
    who: str
    badge: BadgeMark
    process: str | None
    reason: str
    facts: tuple[tuple[str, str], ...]


class JudgedDevice(overview.DeviceCard):
    """One GPU, and what is judged on it."""

    subjects: tuple[JudgedSubject, ...]
    none: str
    """What to say where nothing is judged."""


class Predictions(PageAnswer):
    """For each GPU, how fast it grows, how sure that is and when it will be full."""

    devices: tuple[JudgedDevice, ...]


def predictions(query: Query, _: Mapping[str, str]) -> Predictions:
    """Return what is foreseen of each GPU."""
    view = judged.judged_view(query)
    devices = tuple(_device(view, item, whole=not query.user) for item in view.devices)
    return Predictions(page=frame(view), devices=devices)


def _device(view: View, item: LiveDevice, *, whole: bool) -> JudgedDevice:
    instead = subject_facts.judged_instead(item, view.devices)
    return JudgedDevice(
        **structs.asdict(overview.device(view, item)),
        subjects=subjects(item, whole=whole),
        none=instead or verdict_text.verdict(None, samples=item.samples)[0],
    )


def subjects(
    item: LiveDevice, *, whole: bool, only: LiveProcess | None = None
) -> tuple[JudgedSubject, ...]:
    """Return each judged subject.

    Parameters
    ----------
    whole
        Whether the device itself is one of them.
    only
        This process alone.
    """
    found = []
    for who, finding, process in prediction.subjects(item, whole=whole):
        if only is not None and (process is None or process.info.key != only.info.key):
            continue
        full = prediction.told_in_full(finding)
        facts = prediction.facts(item, finding, process) if full else []
        found.append(
            JudgedSubject(
                key=finding.subject.id,
                who=joined([who]),
                badge=mark(badges.badge(finding)),
                process=None if process is None else address(item, process),
                reason="" if full else joined([finding.reason]),
                facts=tuple((label, joined([value])) for label, value in facts),
            )
        )
    return tuple(found)
