"""Acts on processes and jobs: whom nothing may be done to, and what a daemon that may act does."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from gpuwatchd.act import reap
from gpuwatchd.act.checkpoint import Checkpoint
from gpuwatchd.collect.logs.log_types import LogFile
from gpuwatchd.collect.replay import read_log
from gpuwatchd.core.errors import ActionError
from gpuwatchd.core.model import ProcessInfo
from gpuwatchd.pipeline.history_log import HISTORY
from tests.act.children import booted_at_s, job, key_of, ready
from tests.act.reuse import races
from tests.act.test_reap import NEVER, held, plain
from tests.campaign import Figures, line, require
from tests.conftest import ROOT, SHARED, ran
from tests.fleet import kills as fleet_kills
from tests.pipeline import countdown_kills, harmless_acts
from tests.scenarios import blind, documented, worlds
from tests.scenarios.replay_processes import log_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuwatchd.core.model import Series
    from tests.act.test_reap import Files
    from tests.scenarios.views import View

DAY_S = 86400.0
SAVES_WITHIN_S = 60.0


@contextlib.contextmanager
def _counted() -> Iterator[list[int]]:
    """Yield the signals that would be sent by any way, and send none."""
    sent: list[int] = []

    def note(_: int, number: int) -> None:
        if number:  # 0 only asks whether there is a process
            sent.append(number)

    with (
        mock.patch.object(signal, "pidfd_send_signal", note),
        mock.patch.object(os, "kill", note),
    ):
        yield sent


def reused_pids(count: int, seed: int) -> Figures:
    """Give a pid to another process at any moment of a reap."""
    done = races(count, seed)
    figures: Figures = {"races": count, **done._asdict()}
    if not (done.right and done.refused):
        raise AssertionError(f"{line(figures)}: it is no race where nothing is sent, or refused")
    return require(figures, wrong=0)


def _reap(pid: int, files: Files) -> None:
    with held(pid, files=files) as (target, signals):
        reap.end(target, signals, 0.01, lambda: False, [])


ENDS: dict[str, Callable[[int, Files], None]] = {"reap": _reap}
"""Who may end a process -> what tries it on one that is listed as idle."""


def never_ended(count: int, seed: int) -> Figures:
    """Try to end who is never ended, and, so that it is known to be a try, somebody else."""
    figures: Figures = dict.fromkeys(("tries", "refused", "signals", "others", "ended"), 0)
    chance = random.Random(seed)
    for _ in range(count):
        pairs = [(name, end) for name in (*NEVER, None) for end in ENDS.values()]
        for name, end in chance.sample(pairs, len(pairs)):
            with tempfile.TemporaryDirectory() as folder:
                given = plain(Path(folder)) if name is None else NEVER[name](Path(folder))
                with given as (pid, files), _counted() as sent:
                    try:
                        end(pid, files)
                    except ActionError:
                        figures["refused"] += 1
            figures["others" if name is None else "tries"] += 1
            figures["ended" if name is None else "signals"] += bool(sent)
    tries = count * len(NEVER) * len(ENDS)
    return require(figures, tries=tries, refused=tries, signals=0, ended=count * len(ENDS))


TORCH = sys.executable if find_spec("torch") else os.environ.get("GPUWATCHD_TEST_FRAMEWORKS", "")
"""An interpreter with PyTorch; "" for none."""
WITHOUT_TORCH = 20
"""Jobs of plain Python are quick."""


def checkpoints(count: int, _: int) -> Figures:
    """Ask jobs to save, with a handler for the signal and without; with PyTorch if there is one."""
    names = ("torch", "asked", "saved", "deaf", "refused", "signals", "ended")
    figures: Figures = dict.fromkeys(names, 0)
    ask = Checkpoint(checkpoint="signal", signal="USR1", booted_at_s=booted_at_s())
    count = count if TORCH else WITHOUT_TORCH
    for _ in range(count):
        figures["torch"] += bool(TORCH)
        with (
            tempfile.TemporaryDirectory() as folder,
            job(torch=TORCH, waits=False) as deaf,
            job(Path(folder, "saved"), torch=TORCH) as process,
        ):
            ask.ask(key_of(process.pid), dry_run=False)
            figures["asked"] += 1
            end_s = time.monotonic() + SAVES_WITHIN_S
            while not Path(folder, "saved").exists() and time.monotonic() < end_s:
                time.sleep(0.01)
            # What torch.save has written whole is a sound archive.
            is_whole = not TORCH or zipfile.is_zipfile(Path(folder, "saved"))
            figures["saved"] += Path(folder, "saved").exists() and is_whole
            ready(deaf)
            figures["deaf"] += 1
            with _counted() as sent:
                try:
                    ask.ask(key_of(deaf.pid), dry_run=False)
                except ActionError:
                    figures["refused"] += 1
            figures["signals"] += len(sent)
            figures["ended"] += sum(one.poll() is not None for one in (process, deaf))
    return require(figures, saved=count, refused=count, signals=0, ended=0)


# ---- harmless series, as logs that pipeline.replay plays


def harmless(seed: int, recorded: Path = SHARED) -> list[tuple[str, Callable[[], LogFile]]]:
    """Return every harmless series that may be looked at: where it is from, and what makes it.

    Of a family the item of a seed; the blind corpus is not among them.
    """

    def of_item(build: Callable[..., worlds.Item | blind.Item], family: str) -> LogFile:
        item = build(family, seed)
        return _log(f"{family}, seed {seed}", item.series, item.processes)

    made: list[tuple[str, Callable[[], LogFile]]] = [
        *(("laboratory", partial(of_item, worlds.build, name)) for name in worlds.BENIGN),
        *(("once-blind", partial(of_item, blind.build, name)) for name in blind.BENIGN),
        *(
            ("documented", partial(_log, name, series, {}))
            for name, series in documented.harmless().items()
        ),
    ]
    manifest = recorded / "traces" / "manifest.json"
    for entry in json.loads(manifest.read_text()) if manifest.is_file() else ():
        path = manifest.parent / entry["file"]
        if entry.get("label") == "no-leak" and path.is_file():
            made.append(("recorded", partial(read_log, path)))
    return made


def _log(name: str, device: Series, processes: Mapping[str, View]) -> LogFile:
    """Return a made-up run as the history of a daemon has it: it knows every process for sure."""
    log = LogFile(path=name, format=HISTORY, series=[log_series(device, None)])
    for title, view in processes.items():
        key = view.series.subject.process
        assert key is not None
        words = tuple(title.split())
        info = ProcessInfo(
            key=key, name=title, argv=words, user="lab", uid=os.getuid(),
            framework=view.series.framework,
        )  # fmt: skip
        log.processes.append(info)
        log.series.append(log_series(view.series, info))
    log.devices = [log.series[0].device]
    log.rows = sum(int(one.t_s.size) for one in log.series)
    return log


def replayed(count: int, seed: int, acts_of: Callable[[LogFile], int]) -> Figures:
    """Return the acts that a check counts over so many harmless logs, and what these were.

    Each is taken once before any is taken again, with the next seed.
    """
    figures: Counter[str] = Counter()
    chance, left, seconds = random.Random(seed), count, 0.0
    while left > 0:
        made = harmless(seed)
        for origin, make in chance.sample(made, min(left, len(made))):
            log = make()
            figures[origin] += 1
            figures["subjects"] += len(log.series)
            figures["acts"] += acts_of(log)
            cards = [one for one in log.series if one.process is None and one.t_s.size]
            # Of what has none it cannot be known that it is idle: nothing is shown by no act there.
            figures["with_utilisation"] += any("utilisation" in one.activity for one in cards)
            seconds += sum(float(one.t_s[-1] - one.t_s[0]) for one in cards)
        left, seed = left - len(made), seed + 1
    return {"logs": count, "gpu_days": seconds / DAY_S, **figures}


def countdowns(count: int, seed: int) -> Figures:
    """Kill the daemon in a countdown, at every stage, while this and that happens."""
    figures = countdown_kills.kills(count, seed)
    require(figures, kills=count, **dict.fromkeys(countdown_kills.WRONGS, 0.0))
    if not figures.get("steps"):
        raise AssertionError(f"{line(figures)}: nothing is shown where no step is ever taken")
    return figures


def harmless_series(count: int, seed: int) -> Figures:
    """Let a daemon that may act look at harmless series; 0 is all of them."""
    made = harmless(seed)
    flat = _log("flat", documented.harmless()["flat"], {})
    planted = harmless_acts.acts(flat, "idle", seed=seed)
    figures = replayed(
        count or len(made), seed, lambda log: harmless_acts.acts(log, "unknown", "works", seed=seed)
    )
    return require(figures | {"planted_acts": planted}, acts=0, planted_acts=1)


def fleet_worker(count: int, seed: int) -> Figures:
    """Kill the worker of a fleet at any moment, between real parts: no alert ends or begins anew.

    10,000 GPUs in the full form, 200 in the short one.
    """
    gpus, step_s = (10_000, 20) if count > 10 else (200, 5)
    figures = fleet_kills.kills(count, seed, gpus=gpus, step_s=step_s)
    jobs = figures["jobs"]
    return require(figures, kills=count, missing=0, early=0, again=0, alerts=jobs, over=jobs)


def libraries(count: int, _: int) -> Figures:
    """Train with the callbacks in the real libraries; in the short form in those that are here."""
    words = ("-m", "pytest", "-q", "-p", "no:randomly", "tests/integrations/test_libraries.py")
    done = ran([sys.executable, *words], cwd=ROOT)
    figures: Figures = {"code": done.returncode, "passed": 0, "skipped": 0}
    figures |= {kind: float(n) for n, kind in re.findall(r"(\d+) (passed|skipped)", done.stdout)}
    return require(figures, code=0, **({"skipped": 0} if count else {}))
