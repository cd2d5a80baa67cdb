"""A machine with one idle process, and a daemon that may end it: real pipeline and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.act import steps
from gpuwatchd.core.codes import ActResult
from gpuwatchd.core.config import Config, PolicySection
from gpuwatchd.core.config.schema import ActSection, Seconds, ZombiesSection
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.pipeline.step_runner import Classified
from gpuwatchd.store import tables
from tests.making import GIB, sample
from tests.pipeline.restarts import Machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.model import ProcessInfo, Sample

UID = 1000
GAP_S = 120.0
IDLE_S = 60.0
BARE = steps.Manager("bare")


def config(**act: Any) -> Config:
    """Return settings under which idle memory may be ended, two minutes between two notices."""
    values: dict[str, Any] = {"mode": "auto", "notice_gap": Seconds(GAP_S)} | act
    return Config(
        act=ActSection(**values),
        zombies=ZombiesSection(idle_after=Seconds(IDLE_S)),
        policy=PolicySection(max_per_hour=1000),
    )


class IdleMachine(Machine):
    """One device, one process that does nothing; ``taken`` are the steps that were taken.

    ``others`` do nothing besides it. The rule that lets steps be taken has been in force for long
    enough, unless ``is_new``.
    """

    def __init__(
        self, directory: Path, settings: Config | None = None, *, is_new: bool = False,
        others: int = 0, **act: Any,
    ) -> None:  # fmt: skip
        self.config = settings or config(**act)
        self.taken: list[tuple[float, steps.Request]] = []
        self.outcome: Callable[[], steps.Outcome] = lambda: steps.Outcome(ActResult.ENDED, "ended")
        self.busy_pct = 0.0
        self.manager, self.opted_in = BARE, True
        self.is_new, self.others = is_new, others
        super().__init__(directory, lambda _: 20.0 * GIB, 40)

    def begin(self, pid: int) -> None:
        """Let the process begin."""
        super().begin(pid)
        self.info: ProcessInfo = msgspec.structs.replace(self.info, uid=UID)

    def start(self) -> None:
        """Start a daemon whose steps are noted, not taken."""
        super().start()
        ladder: Any = self.pipeline.ladder
        ladder._runner.uid = UID
        ladder._runner._take = self._take
        ladder._runner._start = _at_once
        ladder._runner.manager_of = lambda _: self.manager
        ladder._runner.classified = lambda info: Classified(info.key, self.manager, self.opted_in)
        if not self.is_new:
            ladder.proposals._rule_age_s(by_override=False)
            for name in ladder.proposals._rules.values():
                self.history.shelf.write_now(tables.save_meta, name, self.time.now_s - 8 * 86_400.0)

    def _look(self) -> Sample:
        one = super()._look()
        if self.others:
            keys = [
                ProcessKey(pid=5000 + number, started_at_s=self.began_s)
                for number in range(self.others)
            ]
            infos = [self.info, *(msgspec.structs.replace(self.info, key=key) for key in keys)]
            holders = [(info, 2 * GIB) for info in infos]
            more = sample(self.time.mono_s, holders, device=self.device, wall_s=self.time.now_s)
            one = msgspec.structs.replace(more, boot_id=self.boot_id)
        (reading,) = one.readings
        uses = tuple(
            msgspec.structs.replace(use, sm_pct=self.busy_pct) for use in reading.uses or ()
        )
        reading = msgspec.structs.replace(reading, uses=uses, util_pct=self.busy_pct)
        return msgspec.structs.replace(one, readings=(reading,))

    def _take(self, request: steps.Request, **_: Any) -> steps.Outcome:
        self.taken.append((self.time.now_s, request))
        return self.outcome()

    def run(self, for_s: float) -> None:
        """Let time go by."""
        self.live(self.age_s + for_s)

    @property
    def rows(self) -> list[tuple[str, str, bool]]:
        """Phase, code and whether it was a proposal, of every step on record."""
        found = self.history.shelf.read(tables.load_actions) or []
        return [(row.phase, row.code, row.dry_run) for row in found]

    @property
    def proposals(self) -> list[Any]:
        """What the messages have proposed, in order."""
        return [delivery.message.proposal for delivery in self.post.taken]


def _at_once(work: Callable[[], None]) -> bool:
    """Do without a thread what is to be done in one."""
    work()
    return True
