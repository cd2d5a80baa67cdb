"""Which memory is held without work for long enough to tell somebody: one alert per process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import units
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline.device_health import Ail
from gpuwatchd.pipeline.titles import device_title, process_title

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuwatchd.core.model import Holding, HoldingKind, ProcessKey
    from gpuwatchd.pipeline.idle_memory import Holdings
    from gpuwatchd.pipeline.tracker import Intake

HOLD_S: Final = 300.0
"""What is held without work is told after so long; each kind is listed only after its own time."""
GONE_S: Final = 60.0
"""An alert on a process that is gone is over after so long."""
BUSY_S: Final = 300.0
"""One on a process that is still there is over after so long: it may be looked at half-way."""
_WORDS: Final[dict[HoldingKind, str]] = {
    "gone": "held by a process that does not exist any more",
    "defunct": "held by a process that has ended and was not collected",
    "driver-wait": "held by a process that hangs in the kernel",
    "ghost": "held by nobody that is known",
    "orphaned-runner": "held by a runner that its server has forgotten",
    "no-model": "held by a server without a model",
    "leaked-kv": "held by a cache that its server does not use",
    "hung-rank": "held by a rank that waits for its job in vain",
    "idle": "held by a process that does nothing",
}


class Waste:
    """What is held without work, process by process.

    Parameters
    ----------
    intake
        Says who is there.
    holdings
        Has what is held without work.
    """

    def __init__(self, intake: Intake, holdings: Holdings) -> None:
        self._intake = intake
        self._holdings = holdings
        self._homes: dict[ProcessKey, str] = {}
        """Process -> the device that its alert is about: it may hold memory on several."""
        self._doubted: set[ProcessKey] = set()
        """Those of which nobody knows what they did while nobody looked."""
        self._seen: tuple[object, object] = (None, None)
        self._found: dict[str, Ail] = {}

    def recall(self, subject: Subject) -> None:
        """Take over what an earlier run knew."""
        if subject.process is not None:
            self._homes[subject.process] = subject.device_uid
            self._doubted.add(subject.process)

    def doubt(self, subjects: Iterable[Subject]) -> None:
        """Take in that nobody has looked for a while: what lasted is listed only when it has anew.

        Parameters
        ----------
        subjects
            Of the alerts that are open.
        """
        self._doubted = {one.process for one in subjects if one.process is not None}

    def look(self, kinds: Collection[HoldingKind], now_s: float) -> dict[str, Ail]:
        """Return what is to be told, by the key of its alert; the same until there is news."""
        seen = (self._holdings.found, kinds)
        if seen[0] is self._seen[0] and seen[1] == self._seen[1]:
            return self._found
        self._seen = seen
        meant = [
            one
            for one in self._holdings.found
            if one.kind in kinds and one.since_s is not None and now_s - one.since_s >= HOLD_S
        ]
        whose: dict[object, list[Holding]] = {}
        for one in meant:
            whose.setdefault(one.process.key if one.process else one.device_uid, []).append(one)
        ails = [self._ail(those) for those in whose.values()]
        self._found = {ail.key: ail for ail in ails}
        keys = {one.process.key for one in meant if one.process is not None}
        self._doubted -= keys
        self._homes = {key: uid for key, uid in self._homes.items() if key in keys}
        return self._found

    def is_over(self, subject: Subject, patience_s: float = 0.0) -> tuple[str, float] | None:
        """Return why nothing is held any more, and for how long that must be; None: not known.

        Parameters
        ----------
        patience_s
            How long it takes until what does nothing is listed.
        """
        seen = self._intake.devices.get(subject.device_uid)
        reading = None if seen is None else seen.reading
        if reading is None or reading.state != "ok" or reading.uses is None:
            return None
        if subject.process is None:
            return "no memory is held by nobody any more", BUSY_S
        use = next((one for one in reading.uses if one.key == subject.process), None)
        if use is None:
            return "the process has ended or has let go of the GPU", GONE_S
        if subject.process in self._doubted:
            if not use.sm_pct:
                return "it is not listed any more", patience_s + BUSY_S
            self._doubted.discard(subject.process)
        return "it is at work again, or has given the memory back", BUSY_S

    def _ail(self, those: list[Holding]) -> Ail:
        """Return what is told of one process; ``those`` begin with the surest."""
        first = those[0]
        info = first.process
        uids = [one.device_uid for one in those]
        uid = uids[0]
        if info is not None:
            home = self._homes.get(info.key)
            uid = home if home in uids else uid
            self._homes[info.key] = uid
        since_s = min(one.since_s for one in those if one.since_s is not None)
        seen = self._intake.devices.get(uid)
        title = uid if seen is None else device_title(seen.device)
        if info is not None and seen is not None:
            named = info.name not in {"", "?"}
            gone = f"{title}: pid {info.key.pid} (gone)"
            title = process_title(seen.device, info) if named else gone
        return Ail(
            kind="held",
            subject=Subject(
                device_uid=uid,
                process=None if info is None else info.key,
                unattributed=info is None,
            ),
            severity="warning",
            title=title,
            reason="; ".join([_amount(those, first.kind), *_beside(those)]),
            advice=(*_owner(first), *first.advice),
            group=(info.group or "") if info is not None else "",
            since_s=since_s,
            framework=None if info is None else info.framework,
        )


def _amount(those: list[Holding], kind: HoldingKind) -> str:
    known = [one.held_bytes for one in those if one.held_bytes is not None]
    size = units.size(sum(known)) if known else "memory"
    where = f" on {len(those)} GPUs" if len(those) > 1 else ""
    return f"{size}{where} {_WORDS[kind]}"


def _beside(those: list[Holding]) -> list[str]:
    """Return the facts, and for how much and how long; the alert's own line says the money."""
    said = [those[0].evidence] if those[0].evidence else []
    hours = [one.gib_hours for one in those if one.gib_hours is not None]
    if hours:
        said.append(f"{sum(hours):.1f} GiB-hours so far")
    return said


def _owner(first: Holding) -> tuple[str, ...]:
    """Return whom to ask."""
    info = first.process
    if info is None or info.foreign or info.name in {"", "?"}:
        return ()
    return (f"it belongs to {info.whose}",)
