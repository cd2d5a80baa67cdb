"""What is foreseen of a GPU and its processes, as ``predict`` tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.view.queries import subjects as judged
from gpuwatchd.view.text import badges, device_facts, verdict_text
from gpuwatchd.view.text import prediction as predict
from gpuwatchd.web.pages import overview, page_parts
from gpuwatchd.web.pages.page_parts import head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query


def predictions(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all alike
    """Return, for each GPU, how fast it grows, how sure that is and when it will be full."""
    view = judged.judged_view(flags)
    return {
        "page": head(view),
        "devices": [
            {
                **overview.device(view, item),
                "subjects": subjects(item, whole=not flags.user),
                "none": _none(view, item),
            }
            for item in view.devices
        ],
    }


def _none(view: View, item: LiveDevice) -> str:
    """Return what to say of a GPU that nothing is judged of."""
    instead = device_facts.judged_instead(item, view.devices)
    return instead or verdict_text.verdict(None, samples=item.samples)[0]


def subjects(
    item: LiveDevice, *, whole: bool, only: LiveProcess | None = None
) -> list[dict[str, Any]]:
    """Return each judged subject with its figures, labelled as ``predict`` labels them.

    Parameters
    ----------
    whole
        Whether the device itself is one of them.
    only
        This process alone.
    """
    found = []
    for who, finding, process in predict.subjects(item, whole=whole):
        if only is not None and (process is None or process.info.key != only.info.key):
            continue
        full = predict.told_in_full(finding)
        facts = predict.facts(item, finding, process) if full else []
        found.append(
            {
                "key": finding.subject.id,
                "who": page_parts.joined([who]),
                "badge": overview.badge(badges.badge(finding)),
                "process": None if process is None else overview.address(item, process),
                "reason": "" if full else page_parts.joined([finding.reason]),
                "facts": [[label, page_parts.joined([value])] for label, value in facts],
            }
        )
    return found
