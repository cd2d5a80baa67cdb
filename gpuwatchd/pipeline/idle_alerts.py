"""Which memory is held without work for long enough to tell somebody: one alert per process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from gpuwatchd.core import units
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Subject
from gpuwatchd.core.model.alerts import Title, TitlePart
from gpuwatchd.pipeline.device_health import Ailment
from gpuwatchd.pipeline.titles import of_device, of_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuwatchd.core.model import Holding, HoldingKind, ProcessKey
    from gpuwatchd.pipeline.idle_memory import IdleMemory
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


class IdleAlerts:
    """What is held without work, process by process.

    Parameters
    ----------
    intake
        Says who is there.
    holdings
        Has what is held without work.
    """

    def __init__(self, intake: Intake, holdings: IdleMemory) -> None:
        self._intake = intake
        self._holdings = holdings
        self._homes: dict[ProcessKey, str] = {}
        """Process -> the device that its alert is about: it may hold memory on several."""
        self._doubted: set[ProcessKey] = set()
        """Those of which nobody knows what they did while nobody looked."""
        self._seen: tuple[object, object] = (None, None)
        self._found: dict[str, Ailment] = {}

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
        self._doubted = {subject.process for subject in subjects if subject.process is not None}

    def conditions(self, kinds: Collection[HoldingKind], now_s: float) -> dict[str, Ailment]:
        """Return what is to be told, by the key of its alert; the same until there is news."""
        pair = (self._holdings.found, kinds)
        if pair[0] is self._seen[0] and pair[1] == self._seen[1]:
            return self._found
        self._seen = pair
        meant = [
            holding
            for holding in self._holdings.found
            if holding.kind in kinds
            and holding.since_s is not None
            and now_s - holding.since_s >= HOLD_S
        ]
        whose: dict[object, list[Holding]] = {}
        for holding in meant:
            whose.setdefault(
                holding.process.key if holding.process else holding.device_uid, []
            ).append(holding)
        ails = [self._ail(those) for those in whose.values()]
        self._found = {ail.key: ail for ail in ails}
        keys = {holding.process.key for holding in meant if holding.process is not None}
        self._doubted -= keys
        self._homes = {key: uid for key, uid in self._homes.items() if key in keys}
        return self._found

    def is_over(self, subject: Subject, patience_s: float = 0.0) -> tuple[Ending, float] | None:
        """Return why nothing is held any more, and for how long that must be; None: not known.

        Parameters
        ----------
        patience_s
            How long it takes until what does nothing is listed.
        """
        device = self._intake.devices.get(subject.device_uid)
        reading = None if device is None else device.reading
        if reading is None or reading.state != "ok" or reading.uses is None:
            return None
        if subject.process is None:
            return Ending.MEMORY_OWNED, BUSY_S
        use = next((one for one in reading.uses if one.key == subject.process), None)
        if use is None:
            return Ending.MEMORY_RELEASED, GONE_S
        if subject.process in self._doubted:
            if not use.sm_pct:
                return Ending.NOT_LISTED, patience_s + BUSY_S
            self._doubted.discard(subject.process)
        return Ending.AT_WORK, BUSY_S

    def _ail(self, those: list[Holding]) -> Ailment:
        """Return what is told of one process; ``those`` begin with the surest."""
        first = those[0]
        info = first.process
        uids = [holding.device_uid for holding in those]
        uid = uids[0]
        if info is not None:
            home = self._homes.get(info.key)
            uid = home if home in uids else uid
            self._homes[info.key] = uid
        since_s = min(holding.since_s for holding in those if holding.since_s is not None)
        device = self._intake.devices.get(uid)
        title = Title.of(uid) if device is None else of_device(device.device)
        if info is not None and device is not None:
            named = info.name not in {"", "?"}
            gone = of_device(device.device, TitlePart(text=f"pid {info.key.pid} (gone)"))
            title = of_process(device.device, info) if named else gone
        owner = _owner(first)
        return Ailment(
            kind="held",
            subject=Subject(
                device_uid=uid,
                process=None if info is None else info.key,
                unattributed=info is None,
            ),
            severity="warning",
            title=title,
            reasons=(_amount(those, first.kind), *_beside(those)),
            advice=(*owner, *first.advice),
            commands=(*("" for _ in owner), first.command) if first.command else UNSET,
            group=(info.group or "") if info is not None else "",
            since_s=since_s,
            framework=None if info is None else info.framework,
        )


def _amount(those: list[Holding], kind: HoldingKind) -> str:
    known = [holding.held_bytes for holding in those if holding.held_bytes is not None]
    size = units.size(sum(known)) if known else "memory"
    where = f" on {len(those)} GPUs" if len(those) > 1 else ""
    return f"{size}{where} {_WORDS[kind]}"


def _beside(those: list[Holding]) -> list[str]:
    """Return the facts, and for how much and how long; the alert's own line says the money."""
    texts = [those[0].evidence] if those[0].evidence else []
    hours = [holding.gib_hours for holding in those if holding.gib_hours is not None]
    if hours:
        texts.append(f"{sum(hours):.1f} GiB-hours so far")
    return texts


def _owner(first: Holding) -> tuple[str, ...]:
    """Return whom to ask."""
    info = first.process
    if info is None or info.foreign or info.name in {"", "?"}:
        return ()
    return (f"it belongs to {info.attribution}",)
