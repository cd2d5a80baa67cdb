"""Which alerts there are, under which labels, through the life of a job and of a worker."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import pytest

from gpuwatchd.core.config import listening
from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.fleet import main
from gpuwatchd.fleet.alertmanager import Active, Alertmanagers, FleetAlert
from gpuwatchd.fleet.config import Shard
from gpuwatchd.fleet.judging import Judge
from gpuwatchd.fleet.outgoing import Sender, gpu_of, line_of
from gpuwatchd.fleet.rings import Gpu, Rings
from gpuwatchd.fleet.state import Metrics, StateFile
from gpuwatchd.fleet.worker import Worker
from gpuwatchd.view.queries import fleet_state
from tests.cli.calls import Ctl
from tests.fleet.fake import fleet
from tests.fleet.test_repairs import fails_at
from tests.fleet.test_rounds import START, Played, at, begun, flat, leak

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.fleet.alertmanager import Key
    from gpuwatchd.fleet.client import Client
    from gpuwatchd.view.queries.fleet_state import FailingMember

Curves = dict[tuple[str, str, str], "FloatArray"]


class Taken:
    """In the place of the members: what is active there, and every change of that."""

    def __init__(self) -> None:
        self.active_now: dict[Key, FleetAlert] = {}
        self.new: list[dict[str, str]] = []
        self.over: list[dict[str, str]] = []
        self.answers = True
        self.failures: dict[str, int] = {}

    def failing(self) -> tuple[FailingMember, ...]:
        return ()

    def offer(self, firing: Iterable[FleetAlert], over: Iterable[FleetAlert]) -> None:
        now = {alert.key: alert for alert in firing}
        ended = {alert.key for alert in over}
        assert not ended & now.keys()
        # What is sent no more must be said to be over.
        assert self.active_now.keys() - now.keys() <= ended
        self.new += [alert.labels for key, alert in now.items() if key not in self.active_now]
        self.over += [dict(key) for key in ended & self.active_now.keys()]
        self.active_now = now

    def active(self, *_: str) -> list[Active] | None:
        return [
            Active(a.labels, datetime.fromtimestamp(a.starts_at_s, UTC), a.annotations)
            for a in self.active_now.values()
        ] if self.answers else None  # fmt: skip

    @property
    def annotations(self) -> list[dict[str, str]]:
        return [alert.annotations for alert in self.active_now.values()]


class Run:
    """A worker over curves, from one round to another, with what it sends."""

    def __init__(
        self,
        curves: Curves,
        taken: Taken | None = None,
        cluster: str = "a",
        shard: Shard = Shard(),  # noqa: B008 - a tuple
    ) -> None:
        self.curves, self.taken = curves, taken or Taken()
        self.cluster, self.shard = cluster, shard
        self.start(400)

    def start(self, minute: int) -> None:
        """Begin anew, as after a kill: nothing is left but what the members have."""
        self.worker, _ = begun(self.curves, minute)
        self.judge, self.sender = self.fresh()

    def fresh(self) -> tuple[Judge, Sender]:
        plain = fleet()
        section = msgspec.structs.replace(plain.section, cluster=self.cluster)
        changed = msgspec.structs.replace(plain, section=section, shard=self.shard)
        sender = Sender(changed, cast("Alertmanagers", self.taken))
        return Judge(fleet().detection, fleet().policy), sender

    def to(self, last: int, first: int = 400) -> Run:
        for minute in range(first, last + 1):
            self.worker.round(at(minute))
            self.sender.before(self.worker.rings, self.judge)
            self.judge.round(self.worker.rings)
            self.sender.send(self.worker.rings, self.judge)
        return self


def later(minute: int, mib_per_minute: float = 60.0) -> FloatArray:
    """Return a leak that begins later."""
    curve = flat(8000.0)
    curve[minute:] += mib_per_minute * np.arange(520.0 - minute)
    return curve


def test_a_job_is_one_alert_whose_labels_stay_while_its_gpus_come_and_go() -> None:
    leaves = leak()
    leaves[425:] = 4.0
    curves = {
        ("GPU-a", "n1", "p"): leaves,
        ("GPU-b", "n2", "p"): leak(21.0),
        ("GPU-c", "n2", "p"): later(380),
        ("GPU-d", "n3", "q"): leak(),
        ("GPU-e", "n3", ""): leak(),
        ("GPU-f", "n3", "p"): flat(),
    }
    run = Run(curves).to(440)
    common = {"alertname": "GpuMemoryLeak", "gpuwatchd": "fleet", "cluster": "a"}
    named = [{k: v for k, v in labels.items() if k != "severity"} for labels in run.taken.new]
    assert {**common, "job": "p", "pattern": "gradual"} in named
    assert {**common, "job": "q", "pattern": "gradual"} in named
    assert {**common, "hostname": "n3", "uuid": "GPU-e", "pattern": "gradual"} in named
    (job,) = [a for a in run.taken.active_now.values() if a.labels.get("job") == "p"]
    assert job.annotations["gpus"].splitlines() == ["n2 GPU-b", "n2 GPU-c"]
    # Nothing has ended; a severity may have risen.
    left = [{k: v for k, v in one.items() if k != "severity"} for one in run.taken.over]
    assert all(one in [dict(k) for k in run.sender._groups] for one in left)


def test_two_workers_of_one_configuration_are_one_to_alertmanager() -> None:
    curves = {
        ("GPU-a", "n1", "p"): leak(),
        ("GPU-b", "n2", "p"): leak(21.0),
        ("GPU-e", "n3", ""): later(250),
    }
    one, other = Run(curves), Run(curves)
    other.start(417)
    one.to(430)
    other.to(430, 417)
    assert one.taken.active_now.keys() == other.taken.active_now.keys()
    assert len(one.taken.active_now) == 2


def test_no_number_is_in_a_label_and_texts_are_clean() -> None:
    run = Run({("GPU-a", "n\x1b[31m1\u202e", "p\x00\nq"): leak()}).to(400)
    (labels,) = run.taken.new
    assert labels["job"] == "p q"
    (said,) = run.taken.annotations
    assert {"summary", "description", "rate", "eta", "evidence", "command", "gpus"} <= said.keys()
    assert "" not in {*labels.values(), *said.values()}
    assert msgspec.json.encode([labels, said]).isascii()
    assert not any(char < " " for text in said.values() for char in text.replace("\n", ""))


def test_what_gets_worse_is_another_alert_and_the_milder_one_is_over_at_once() -> None:
    # Full within the window: it is a warning first, and critical from an hour before on.
    run = Run({("GPU-a", "n1", "p"): leak(30.0)}).to(500)
    assert [labels["severity"] for labels in run.taken.new] == ["warning", "critical"]
    assert [labels["severity"] for labels in run.taken.over] == ["warning"]


def test_a_gpu_without_values_keeps_its_alert_and_says_so() -> None:
    dead = leak()
    dead[412:] = np.nan
    run = Run({("GPU-a", "n1", "p"): dead, ("GPU-b", "n1", "p"): flat()}).to(411)
    assert "data" not in run.taken.annotations[0]
    run.to(450, 412)
    assert "n1 GPU-a" in run.taken.annotations[0]["data"]
    run.sender.send(run.worker.rings, run.judge, failing_since_s=at(450))
    assert "data" in run.taken.annotations[0]
    assert not run.taken.over


def test_a_kill_at_any_round_changes_nothing_for_the_reader() -> None:
    ends = leak(22.0)
    ends[430:] = 4.0
    curves = {
        ("GPU-a", "n1", "p"): leak(28.0),
        ("GPU-b", "n2", "p"): later(385),
        ("GPU-c", "n2", ""): later(388),
        ("GPU-d", "n3", "r"): ends,
    }
    calm, killed = Run(curves).to(440), Run(curves)
    for minute in range(400, 441):
        if minute % 3 == 0:
            killed.start(minute)
        killed.to(minute, minute)

    def key(labels: dict[str, str]) -> list[tuple[str, str]]:
        return sorted(labels.items())

    assert sorted(map(key, killed.taken.new)) == sorted(map(key, calm.taken.new))
    assert sorted(map(key, killed.taken.over)) == sorted(map(key, calm.taken.over))
    assert killed.taken.active_now.keys() == calm.taken.active_now.keys()


def test_after_a_kill_gpus_beyond_those_listed_open_no_alert_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuwatchd.fleet.outgoing._MOST_LISTED", 3)
    curves = {(f"GPU-{k}", "n1", "p"): leak(20.0 + k) for k in range(5)}
    run = Run(curves).to(401)
    (key,) = run.taken.active_now
    # By now the last two grow in steps.
    for k in (3, 4):
        curves[f"GPU-{k}", "n1", "p"] = 8000.0 + 400.0 * (np.arange(520.0) // 20)
    run.start(403)
    run.to(404, 403)
    assert {run.judge.findings[row].pattern for row in (2, 3, 4)} == {"gradual", "step"}
    assert list(run.taken.active_now) == [key]
    assert run.taken.annotations[0]["summary"].startswith("job p leaks memory on 5 GPUs")
    for curve in curves.values():
        curve[405:] = 4.0
    run.to(406, 405)
    assert (len(run.taken.new), run.taken.over) == (1, [dict(key)])


def test_a_shard_reads_back_its_own_alerts_and_no_others() -> None:
    curves = {("GPU-a", "n1", "p"): leak()}
    run = Run(curves, shard=Shard(1, 2)).to(401)
    (key,) = run.taken.active_now
    for shard, many in ((Shard(1, 2), 1), (Shard(2, 2), 0), (Shard(), 0)):
        other = Run(curves, run.taken, shard=shard)
        other.sender._read_back()
        assert (
            list(other.sender._groups)
            == [tuple(pair for pair in key if pair[0] != "severity")] * many
        )


def test_after_a_kill_one_whose_past_is_not_had_yet_stays() -> None:
    curve = leak()
    curve[:60] = 4.0  # its job has begun within the window
    curves = {(f"GPU-{name}", f"n{name}", name): curve for name in "ab"}
    run = Run(curves).to(401)
    fired_at_s = {alert.firing_at_s for alert in run.judge.alerts.values()}
    assert len(run.taken.active_now) == 2
    played = Played(curves, START)
    run.worker = Worker(fleet(series=1, in_flight=1), cast("Client", played), sleep=lambda _: None)
    run.judge, run.sender = run.fresh()
    fails_at(played, 1)
    run.to(402, 402)
    assert list(run.worker.missing) == ["GPU-b"]
    run.to(405, 403)
    assert not run.worker.missing
    # Nothing has ended or begun anew on the way.
    assert (len(run.taken.new), run.taken.over) == (2, [])
    assert {alert.firing_at_s for alert in run.judge.alerts.values()} == fired_at_s


def test_the_next_job_leaks_under_its_own_name_also_after_a_pause() -> None:
    first, second = leak(), leak(60.0, base=-16000.0)
    first[405:], second[:405] = np.nan, np.nan
    run = Run({("GPU-a", "n1", "one"): first, ("GPU-a", "n1", "two"): second}).to(403)
    run.to(470, 470)
    assert [labels["job"] for labels in run.taken.new] == ["one", "two"]
    assert [labels["job"] for labels in run.taken.over] == ["one"]


def test_after_a_kill_one_without_values_stays_and_one_whose_job_has_gone_is_over() -> None:
    dead, ends = leak(), leak()
    dead[405:], ends[405:410], ends[410:] = np.nan, 4.0, 9000.0
    curves = {("GPU-a", "n1", "p"): dead, ("GPU-b", "n2", "q"): ends}
    run = Run(curves).to(404)
    run.start(430)
    assert len(run.worker.rings.gpus) == 1
    run.to(431, 430)
    assert [a.labels["job"] for a in run.taken.active_now.values()] == ["p"]
    assert "n1 GPU-a" in run.taken.annotations[0]["data"]
    assert [labels["job"] for labels in run.taken.over] == ["q"]


def test_after_a_kill_names_of_any_length_are_known_again() -> None:
    ends = leak()
    ends[406:] = 4.0
    run = Run({("GPU-" + "a" * 36, "h" * 250, ""): ends}).to(404)
    assert len(run.taken.active_now) == 1
    run.start(404)
    run.to(412, 404)
    assert not run.taken.active_now


def test_a_pattern_that_only_another_version_has_is_unknown() -> None:
    late = leak()
    late[405:] = np.nan
    run = Run({("GPU-a", "n1", "p"): late}).to(404)
    (alert,) = run.taken.active_now.values()
    other = msgspec.structs.replace(alert, labels={**alert.labels, "pattern": "spiral"})
    run.taken.active_now = {other.key: other}
    run.start(404)
    run.to(405, 405)
    assert list(run.taken.active_now) == [other.key]
    assert [finding.pattern for finding in run.judge.findings.values()] == ["unknown"]


@pytest.mark.parametrize(("trap", "code"), [("exporters", 3), ("server", 3)])
def test_after_a_kill_what_is_open_is_shown_without_a_value(
    trap: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ends, alone = leak(), leak()
    ends[405:] = alone[405:] = np.nan
    curves = {("GPU-a", "n1", "p"): ends, ("GPU-b", "n2", ""): alone}
    run = Run(curves).to(404)
    assert len(run.taken.active_now) == 2
    played = Played(curves, START)
    if trap == "server":
        played.fails = [MetricsServerError("away")]
    run.worker = Worker(fleet(), cast("Client", played), sleep=lambda _: None)
    run.judge, run.sender = run.fresh()
    section = msgspec.structs.replace(fleet().section, state=str(tmp_path / "fleet.json"))
    chosen = msgspec.structs.replace(
        fleet(), section=section, listen=listening.parse(f"unix:{tmp_path}/m", remote=False)
    )
    state, metrics, stop = StateFile(chosen), Metrics(chosen), main.Stop()
    monkeypatch.setattr(stop, "wait", lambda _: stop.set())
    monkeypatch.setattr(time, "time", lambda: at(430))
    main._rounds(run.worker, run.judge, state, metrics, stop, sender=run.sender)
    found = fleet_state.read(state.path).round
    shown = {gpu.id: (gpu.host, gpu.job, gpu.state, gpu.data) for gpu in found.verdicts}
    assert shown == {
        "GPU-a": ("n1", "p", "firing", "none"),
        "GPU-b": ("n2", "", "firing", "none"),
    }
    assert (found.gpus, found.no_data) == (2, 2)
    assert b'gpuwatchd_fleet_alerts{state="firing"} 2.0' in metrics._page
    ctl = Ctl(capsys)
    assert "firing, no data" in ctl(f"fleet status --state {state.path} --exit-code", code=code)
    assert "firing" in ctl(f"fleet explain GPU-a --state {state.path}")


@pytest.mark.parametrize(
    "gpu",
    [
        Gpu(id="GPU-a", uuid="GPU-a", host=""),
        Gpu(id="GPU-a", uuid="GPU-a", host="", gpu="0"),
        Gpu(id="GPU-a/1", uuid="GPU-a", host="n1.example:9400", gpu="0", instance="1"),
        Gpu(id="GPU-a", uuid="GPU-a", host="a GPU 7 b", gpu="11", job="p", namespace="q"),
    ],
)
def test_a_gpu_is_known_by_the_line_of_its_alert(gpu: Gpu) -> None:
    assert gpu_of(line_of(gpu), {"job": gpu.job, "namespace": gpu.namespace}) == gpu


def test_alerts_of_other_workers_are_left_alone() -> None:
    theirs = Run({("GPU-x", "n9", "p"): leak()}).to(401).taken
    (alert,) = theirs.active_now.values()
    for labels, words in (
        ({**alert.labels, "cluster": "b"}, alert.annotations),
        (alert.labels, {**alert.annotations, "source": "amd"}),
        ({**alert.labels, "severity": "page"}, alert.annotations),
    ):
        other = msgspec.structs.replace(alert, labels=labels, annotations=words)
        theirs.active_now, theirs.over = {other.key: other}, []
        clusters = ("a", "") if labels.get("cluster") == "b" else ("a",)
        for cluster in clusters:
            run = Run({("GPU-a", "n1", "q"): flat()}, theirs, cluster)
            run.sender._read_back()
            assert not run.sender._groups


def test_it_is_known_what_was_open_before_anything_is_sent_unless_nobody_says() -> None:
    taken = Taken()
    taken.answers = False
    run = Run({("GPU-a", "n1", "p"): leak()}, taken).to(401)
    assert not taken.new
    run.to(402, 402)
    assert len(taken.new) == 1
    taken.answers = True
    run.to(403, 403)
    assert (len(taken.new), len(taken.active_now)) == (1, 1)


def test_a_clock_that_is_set_back_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run({("GPU-a", "n1", "p"): leak()}).to(401)
    (key,) = run.taken.active_now
    monkeypatch.setattr(time, "time", lambda: at(401) - 3600)
    state, metrics = StateFile(fleet()), Metrics(fleet())
    main._rounds(run.worker, run.judge, state, metrics, main.Stop(), sender=run.sender)
    # Nothing is known for a while; what was open is read back and stays.
    run.judge, run.sender = run.fresh()
    run.sender.send(Rings(fleet().map, 60, 385), run.judge, failing_since_s=1.0)
    assert list(run.taken.active_now) == [key]
