"""``zombies``: idle memory, and who has device files open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.view.answers.base import Count, HoldingShape, Info, Instant, Shape, fill, of_verb
from gpuwatchd.view.queries import current_state

if TYPE_CHECKING:
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners


class Checked(Shape):
    """How much was looked at."""

    devices: Count
    devices_known: Count
    """Whose process list is known."""
    processes: Count
    since_at: Instant | None


class Holder(Info):
    """A process that the driver does not list, with device files open."""

    nodes: tuple[str, ...]
    computes: bool
    """False: it has only opened the cards, as a monitor does."""


class OpenFiles(Shape):
    """Who has device files open."""

    possible: bool
    """False without /proc."""
    whole: bool
    looked: Count
    unreadable: Count
    """Processes that only root may look into."""
    holders: tuple[Holder, ...]


class ZombiesData(Shape):
    """Idle memory."""

    holdings: tuple[HoldingShape, ...]
    """The surest first."""
    checked: Checked
    open_files: OpenFiles


def idle_memory(view: View, loose: UnlistedOpeners) -> ZombiesData:
    """Return idle memory, how much was looked at, and who has device files open."""
    items = [item for item in view.devices if current_state.list_is_known(item)]
    return ZombiesData(
        holdings=tuple(fill(HoldingShape, held) for held in view.holdings),
        checked=Checked(
            devices=len(view.devices),
            devices_known=len(items),
            processes=sum(len(item.processes or ()) for item in items),
            since_at=units.instant(view.since_s),
        ),
        open_files=fill(
            OpenFiles,
            loose,
            holders=tuple(
                fill(
                    Holder,
                    who,
                    nodes=tuple(map(text.clean, opener.nodes)),
                    computes=opener.computes,
                )
                for who, opener in loose.found
            ),
        ),
    )


IdleMemory = of_verb("zombies", "IdleMemory", ZombiesData, "``zombies``.")
