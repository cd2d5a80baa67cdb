"""What a worker tells after each round: a file for ``gpuwatchctl fleet``, a page of metrics."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec.structs import replace

from gpuwatchd import __version__
from gpuwatchd.core import extras, registry
from gpuwatchd.core.config import expanded
from gpuwatchd.core.text import clean
from gpuwatchd.fleet.alertmanager import member_name
from gpuwatchd.fleet.judging import silent
from gpuwatchd.service import metrics_server
from gpuwatchd.service.sockets import Server
from gpuwatchd.store.private_files import lock_file
from gpuwatchd.view.queries import fleet_state
from gpuwatchd.view.queries.fleet_state import (
    CalmGpu,
    FailingMember,
    FleetGpu,
    FleetRoundState,
    FleetState,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gpuwatchd.fleet.config import Fleet
    from gpuwatchd.fleet.judging import Judge
    from gpuwatchd.fleet.rings import Rings
    from gpuwatchd.fleet.worker import Worker

log = logging.getLogger("gpuwatchd.fleet")


def round_state(
    worker: Worker, judge: Judge, without_data: Iterable[FleetGpu] = ()
) -> FleetRoundState:
    """Return what a round has come to.

    ``without_data``: GPUs whose alerts are open, and of which the rings may know nothing.
    """
    rings = worker.rings
    none = silent(rings)
    found = {gpu.id: gpu for gpu in without_data}
    unknown = len(found.keys() - {gpu.id for gpu in rings.gpus}) if found else 0
    for row in judge.findings:
        gpu = _verdict(rings, judge, row, none=bool(none[row]))
        found[gpu.id] = gpu
    return FleetRoundState(
        at_s=float(rings.end * rings.step_s) if rings.end else None,
        gpus=rings.rows.size + unknown,
        no_data=int(np.count_nonzero(none)) + unknown,
        late=int(np.count_nonzero((rings.began >= 0) & ~none & (rings.last < rings.end))),
        judged=judge.judged,
        failed=len(judge.failed),
        resolved=len(judge.resolved),
        dropped=rings.dropped.copy(),
        failures=worker.failures.copy(),
        doubts=rings.doubts,
        verdicts=tuple(sorted(found.values(), key=fleet_state.urgency)),
    )


def _verdict(rings: Rings, judge: Judge, row: int, *, none: bool) -> FleetGpu:
    limit, used = rings.limit_bytes[row], rings.series(row)[1]
    finding, alert = judge.findings[row], judge.alerts.get(row)
    if alert is not None and alert.state != "pending":
        # What is shown must not be graver, or milder, than what was sent.
        finding = replace(finding, severity=alert.severity)
    return FleetGpu(
        **msgspec.structs.asdict(rings.gpus[row]),
        data=_data(rings, row, none=none),
        used_bytes=float(used[-1]) if used.size else None,
        limit_bytes=None if np.isnan(limit) else float(limit),
        finding=finding,
        alert=alert,
    )


def _data(rings: Rings, row: int, *, none: bool) -> fleet_state.Data:
    return "none" if none else "late" if rings.last[row] < rings.end else "fresh"


def _calm(rings: Rings, judge: Judge, shown: Collection[str]) -> Iterator[CalmGpu]:
    """Yield the GPUs without a verdict; ``shown`` are the ids of those that have one."""
    none, step_s = silent(rings).tolist(), rings.step_s
    since = rings.began.tolist()
    for row in rings.rows.tolist():
        gpu = rings.gpus[row]
        if row not in judge.findings and gpu.id not in shown:
            yield CalmGpu(
                id=gpu.id,
                host=gpu.host,
                gpu=gpu.gpu,
                data=_data(rings, row, none=none[row]),
                since_at_s=int(judge.calm_since.get(row, since[row])) * step_s,
            )


class StateFile:
    """The file of one worker; what keeps it from being written costs no round.

    Several shards have a file each, whatever the configuration calls it.
    """

    def __init__(self, fleet: Fleet, *, dry_run: bool = False) -> None:
        section, shard = fleet.section, fleet.shard
        path = expanded(section.state) if section.state else fleet_state.default_file(fleet.name)
        several = f"-{shard.number}-of-{shard.of}" if shard.of > 1 else ""
        self.path = path.with_name(f"{path.stem}{several}{path.suffix}")
        self._own = not section.state
        self._failing = False
        self._failed = 0
        self.failing_members: tuple[FailingMember, ...] = ()
        """Members of Alertmanager that do not take alerts; told by who sends them."""
        now_s = time.time()
        self.state = FleetState(
            pid=os.getpid(),
            process=fleet_state.process_mark(os.getpid()),
            dry_run=dry_run,
            host=clean(os.uname().nodename),
            version=__version__,
            server=clean(urlsplit(section.url).netloc),
            shard=str(shard),
            started_at_s=now_s,
            written_at_s=now_s,
            due_at_s=now_s,
            step_s=float(section.step),
            confirm=fleet.policy.confirm,
            alert_confidence=fleet.detection.confidence_threshold,
        )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other workers from the file until the block is left.

        A place that cannot be written has no lock either.

        Raises
        ------
        GpuwatchdError
            When another worker has it.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self._make_folder()
                hint = f"gpuwatchctl fleet status shows what it sees; its state is {self.path}"
                stack.callback(os.close, lock_file(Path(f"{self.path}.lock"), hint=hint))
            yield

    def begin(self) -> None:
        """Write that there is no round yet: what is there is another worker's."""
        self._write(self.state.due_at_s)

    def _make_folder(self) -> None:
        if self._own:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def after_round(
        self,
        worker: Worker,
        judge: Judge,
        found: FleetRoundState,
        *,
        round_s: float,
        due_at_s: float,
    ) -> None:
        """Write what a round has come to."""
        calm = tuple(_calm(worker.rings, judge, {gpu.id for gpu in found.verdicts}))
        verdicts, most = found.verdicts, (fleet_state.MOST_VERDICTS, fleet_state.MOST_CALM)
        self.state = replace(
            self.state,
            rounds=self.state.rounds + 1,
            round_s=round_s,
            round_at_s=time.time(),
            error="",
            left_out=max(0, len(verdicts) - most[0]) + max(0, len(calm) - most[1]),
            round=replace(found, verdicts=verdicts[: most[0]]),
            calm=calm[: most[1]],
        )
        self._write(due_at_s)

    def after_failure(self, why: str, found: FleetRoundState, due_at_s: float) -> None:
        """Write that there was no round, why, and what is open all the same."""
        found = replace(found, verdicts=found.verdicts[: fleet_state.MOST_VERDICTS])
        self.state = replace(self.state, error=clean(why, limit=400), round=found)
        self._write(due_at_s)

    def close(self) -> None:
        """Write that the worker has stopped in order."""
        self.state = replace(self.state, stopped=True)
        self._write(time.time())

    def _write(self, due_at_s: float) -> None:
        now_s, failed = time.time(), sum(self.state.round.failures.values())
        if failed > self._failed:
            self.state = replace(self.state, failed_at_s=now_s)
        self._failed = failed
        self.state = replace(
            self.state,
            written_at_s=now_s,
            due_at_s=due_at_s,
            failing_members=self.failing_members,
        )
        fresh = Path(f"{self.path}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._make_folder()
            handle = os.open(fresh, flags, 0o600)
            with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(msgspec.json.encode(self.state))
            fresh.replace(self.path)
        except OSError as error:
            if not self._failing:
                log.warning(
                    "%s cannot be written, gpuwatchctl fleet sees nothing: %s",
                    self.path,
                    error.strerror,
                )
            self._failing = True
            with contextlib.suppress(OSError):  # half a file is of no use
                fresh.unlink()
        else:
            self._failing = False


_RENDER: Final = {"metrics": "gpuwatchd.view.fleet_metrics:render"}
_REASONS: Final = (
    "above-total",
    "blank",
    "duplicate",
    "no-uuid",
    "not-a-number",
    "out-of-order",
    "uuid-on-two-hosts",
)
"""Why something is left out."""
_STATUSES: Final = ("no answer", "401", "403", "429", "503")
"""How a question fails, for the most part."""
_SERVER: Final = Server("gpuwatchd fleet", "[metrics] listen names another")


class Metrics:
    """The page of one worker."""

    def __init__(self, fleet: Fleet) -> None:
        self._address, self._shard = fleet.listen, str(fleet.shard)
        members = map(member_name, fleet.section.alertmanagers)
        asked = ["round", "query_range"]
        asked += [f"{name} {what}" for name in members for what in ("read", "post")]
        # A counter that begins with its first failure has no rise that a rule could see.
        self._failures = {f"{what} {status}": 0 for what in asked for status in _STATUSES}
        self._rounds = self._judged = 0
        self._found = FleetRoundState()
        self._round_s: float | None = None
        self._page = b""

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Serve the page where the configuration asks for it, until the block is left.

        Raises
        ------
        GpuwatchdError
            When prometheus-client is missing, or the address cannot be had.
        """
        if self._address is None:
            yield
            return
        extras.need("metrics", "[metrics]", "prometheus_client", page="errors#metrics-extra")
        self._render()
        with metrics_server.serving(self._address, lambda: self._page, _SERVER):
            yield

    def after_round(self, found: FleetRoundState, round_s: float) -> None:
        """Take over what a round has come to."""
        self._rounds += 1
        self._judged += found.judged
        self._found, self._round_s = found, round_s
        self._render()

    def after_failure(self, found: FleetRoundState) -> None:
        """Take over what is open, and what failed since the last round."""
        self._found = found
        self._render()

    def _render(self) -> None:
        if self._address is not None:
            found = replace(
                self._found,
                dropped=dict.fromkeys(_REASONS, 0) | self._found.dropped,
                failures=self._failures | self._found.failures,
            )
            self._page = registry.load(_RENDER, "metrics")(
                found,
                shard=self._shard,
                rounds=self._rounds,
                judged=self._judged,
                round_s=self._round_s,
            )
