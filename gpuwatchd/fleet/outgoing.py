"""What a worker sends: which GPUs share an alert, under which labels, and what is said of them.

Alertmanager knows an alert by its labels, so none of them changes while it lasts: they are those
of the moment when it opened. Of a job it is one alert per pattern, without hostname, uuid and gpu,
however many of its GPUs grow; a GPU without a job stands alone. Only the severity may change, and
only upwards: then the alert with the lower one is resolved in the same request.

What is open is kept nowhere else: after a restart it is read back from Alertmanager.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, cast, get_args

import msgspec

from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.core import units
from gpuwatchd.core.model import Pattern
from gpuwatchd.core.text import clean
from gpuwatchd.fleet.alertmanager import Alertmanagers, FleetAlert, seconds
from gpuwatchd.fleet.judging import restored, silent
from gpuwatchd.fleet.rings import Gpu
from gpuwatchd.view.queries.fleet_state import FleetGpu, urgency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Alert, Severity
    from gpuwatchd.fleet.alertmanager import Active, Key
    from gpuwatchd.fleet.config import Fleet
    from gpuwatchd.fleet.judging import Judge
    from gpuwatchd.fleet.rings import Rings

log = logging.getLogger("gpuwatchd.fleet")

ALERTNAME: Final = "GpuMemoryLeak"
_MOST_LISTED: Final = 64
"""GPUs that one alert names."""
_LONGEST: Final = 2048
"""Characters of a label, or a line about a GPU: more than those of all its parts."""
_UNSEEN_S: Final = 86_400.0
"""A GPU whose alert was read back, and that has had no value since, is waited for so long."""
_READS: Final = 10
_HELD_READS: Final = 3
"""After so many tries it is sent without knowing what was open."""
_COMMON: Final = ("cluster", "gpuwatchd", "shard")
_CHANGES: Final = ("new", "worse", "over")


class _Group(msgspec.Struct):
    """One alert as Alertmanager has it; its key is its labels without the severity."""

    severity: Severity
    starts_at_s: float
    annotations: dict[str, str]
    unseen: dict[str, float]
    """Lines of GPUs that were read back and are not known here -> since when, monotonic."""
    more: bool = False
    """It was read back, and may have had more GPUs than it could list."""

    def raise_to(self, severity: Severity) -> Severity | None:
        """Take on the worse severity; return the milder one, None where both are the same."""
        if severity == self.severity:
            return None
        milder, self.severity = sorted((severity, self.severity), key=lambda one: RANK[one])
        return milder

    def read_back(self, starts_at_s: float, annotations: Mapping[str, str]) -> None:
        """Take over what a member has of it."""
        self.starts_at_s = min(self.starts_at_s, starts_at_s)
        lines = annotations.get("gpus", "").splitlines()[:_MOST_LISTED]
        self.more = len(lines) == _MOST_LISTED
        lines = [clean(line, limit=_LONGEST) for line in lines]
        self.unseen.update(dict.fromkeys(lines, time.monotonic()))
        self.annotations = {name: clean(word, limit=4096) for name, word in annotations.items()}

    def describe(self, annotations: dict[str, str]) -> None:
        """Say what is known of it now."""
        self.annotations = annotations


class _Member(msgspec.Struct, frozen=True):
    """A GPU whose alert fires."""

    gpu: Gpu
    alert: Alert
    silent: bool

    @property
    def urgency(self) -> tuple[float, float, float, str]:
        """Orders the most urgent first, and the same way for every worker."""
        finding = self.alert.finding
        left_s = float("inf") if finding.eta is None else finding.eta.mid_s
        rate = finding.rate_bytes_per_s or 0.0
        return (-RANK[self.alert.severity], left_s, -rate, line_of(self.gpu))


def line_of(gpu: Gpu) -> str:
    """Return how an alert names one of its GPUs, and by what it is known again."""
    number = ":".join(part for part in (gpu.gpu, gpu.instance) if part)
    return " ".join(part for part in (gpu.host, number and f"GPU {number}", gpu.uuid) if part)


def gpu_of(line: str, labels: Mapping[str, str]) -> Gpu:
    """Return the GPU that :func:`line_of` names, with the job that the labels of its alert have."""
    *host, uuid = line.split(" ")
    number = ""
    if host[-2:-1] == ["GPU"]:
        *host, _, number = host
    gpu, _, instance = number.partition(":")
    return Gpu(
        id=f"{uuid}/{instance}" if instance else uuid,
        uuid=uuid,
        host=" ".join(host),
        gpu=gpu,
        instance=instance,
        job=labels.get("job", ""),
        namespace=labels.get("namespace", ""),
    )


class Sender:
    """Sends what a judge holds to be firing, and keeps what must stay the same."""

    def __init__(self, fleet: Fleet, members: Alertmanagers | None = None) -> None:
        self.members = Alertmanagers(fleet) if members is None else members
        section = fleet.section
        self._confidence = fleet.detection.confidence_threshold
        # A job may have GPUs of several shards: each has an alert of its own on it.
        shard = str(fleet.shard) if fleet.shard.of > 1 else ""
        self._common = _known({"gpuwatchd": "fleet", "cluster": section.cluster, "shard": shard})
        """On every alert of this worker; what was read back has the same, or is not ours."""
        self._source = clean(" ".join((section.map, *section.matchers, shard)).rstrip())
        """The same, for workers that share these labels and ask for other series."""
        self._groups: dict[Key, _Group] = {}
        self._pins: dict[str, Key] = {}
        """Id of a GPU -> the alert that it has been part of since its own began."""
        self._over: list[FleetAlert] = []
        self._reads_left = _READS
        """How often it is still tried to read back what was open; 0 once that is known."""

    def before(self, rings: Rings, judge: Judge) -> None:
        """Give a judge back what was open before a restart, as far as its GPUs are known by now."""
        self._read_back()
        if not any(group.unseen for group in self._groups.values()):
            return
        rows = {line_of(gpu): row for row, gpu in enumerate(rings.gpus) if gpu.id}
        late_s = time.monotonic() - _UNSEEN_S
        for key, group in list(self._groups.items()):
            for line, since_s in list(group.unseen.items()):
                row = rows.get(line)
                # One whose past is not had yet has no job that could be compared.
                if row is not None and rings.last[row] < 0:
                    row = None
                if row is None and since_s > late_s:
                    continue
                del group.unseen[line]
                if row is None or not (
                    _of_job(rings.gpus[row], key)
                    and rings.since[row] * rings.step_s <= group.starts_at_s
                ):
                    continue
                if self._pins.setdefault(rings.gpus[row].id, key) == key:
                    said = dict(key).get("pattern", "")
                    # Another version may have others.
                    pattern = cast("Pattern", said if said in get_args(Pattern) else "unknown")
                    judge.restore(rings, row, group.severity, pattern, group.starts_at_s)
                elif not group.unseen and key not in self._pins.values():
                    # Another worker's alert on the same GPU: it is not ours to end.
                    del self._groups[key]

    def without_data(self) -> list[FleetGpu]:
        """Return the GPUs whose alerts were read back, and that have had no value since."""
        found: dict[str, FleetGpu] = {}
        for key, group in self._groups.items():
            labels = dict(key)
            pattern = cast("Pattern", labels.get("pattern", "unknown"))
            for line in group.unseen:
                gpu = gpu_of(line, labels)
                alert = restored(gpu, group.severity, pattern, group.starts_at_s, self._confidence)
                one = FleetGpu(
                    **msgspec.structs.asdict(gpu), data="none", finding=alert.finding, alert=alert
                )
                found[gpu.id] = min(found.get(gpu.id, one), one, key=urgency)
        return list(found.values())

    def _read_back(self) -> None:
        if not self._reads_left:
            return
        self._reads_left -= 1
        matchers = [f'{name}="{_quoted(word)}"' for name, word in self._common.items()]
        active = self.members.active(*matchers)
        if active is None:
            return
        self._reads_left = 0
        for alert in active:
            self._adopt(alert)
        if self._groups:
            log.info("%d alerts were open before", len(self._groups))

    def _adopt(self, alert: Active) -> None:
        """Take over an alert that is ours; where there are two of it the milder one is over."""
        labels = {name: clean(word, limit=_LONGEST) for name, word in alert.labels.items()}
        severity = cast("Severity", labels.pop("severity", ""))
        if severity not in RANK or clean(alert.annotations.get("source", "")) != self._source:
            return
        if {name: labels[name] for name in _COMMON if name in labels} != self._common:
            return
        key, starts_at_s = tuple(sorted(labels.items())), seconds(alert.starts_at)
        group = self._groups.setdefault(key, _Group(severity, starts_at_s, {}, {}))
        if (milder := group.raise_to(severity)) is not None:
            self._over.append(_alert(key, group, milder))
        group.read_back(starts_at_s, alert.annotations)

    def send(self, rings: Rings, judge: Judge, *, failing_since_s: float | None = None) -> None:
        """Have the members told what fires, and what has ended since the last time.

        ``failing_since_s``: since when the server that has the values has not answered.
        """
        if failing_since_s is not None:
            self._read_back()
        if self._reads_left > _READS - _HELD_READS:
            # What was open before would be sent under other labels, and fire twice.
            return
        by_key = self._members(rings, judge)
        done = Counter(
            self._update(key, sorted(members, key=lambda member: member.urgency))
            for key, members in by_key.items()
        )
        for key in [key for key in self._groups if key not in by_key]:
            group = self._groups[key]
            if group.unseen:
                group.annotations["gpus"] = "\n".join(group.unseen)
                group.annotations["data"] = _no_data(list(group.unseen))
            else:
                del self._groups[key]
                done["over"] += 1
                self._over.append(_alert(key, group))
        if failing_since_s is not None:
            since = units.instant(failing_since_s)
            for group in self._groups.values():
                group.annotations["data"] = f"none: the server has not answered since {since}"
        if any(done[what] for what in _CHANGES):
            counts = " ".join(f"{what}={done[what]}" for what in _CHANGES)
            log.info("alerts %s open=%d", counts, len(self._groups))
        over, self._over = self._over, []
        self.members.offer([_alert(key, group) for key, group in self._groups.items()], over)

    def _members(self, rings: Rings, judge: Judge) -> dict[Key, list[_Member]]:
        """Return the GPUs whose alerts fire, by the alert that they are part of."""
        by_key: dict[Key, list[_Member]] = {}
        pins: dict[str, Key] = {}
        none, ended = silent(rings), {alert.subject.device_uid for alert in judge.resolved}
        for row, alert in judge.alerts.items():
            if alert.state == "firing":
                gpu = rings.gpus[row]
                key = self._pins.get(gpu.id)
                # After a pause the next job may leak at once.
                if key is None or (gpu.id in ended and not _of_job(gpu, key)):
                    key = self._unlisted(gpu) or self._key(gpu, alert)
                pins[gpu.id] = key
                by_key.setdefault(key, []).append(_Member(gpu, alert, bool(none[row])))
        self._pins = pins
        return by_key

    def _unlisted(self, gpu: Gpu) -> Key | None:
        """Return the alert that a GPU may have been part of before a restart without being listed.

        It would open another one where its pattern looks different by now.
        """
        jobs = (key for key, group in self._groups.items() if group.more)
        return next((key for key in jobs if gpu.job and _of_job(gpu, key)), None)

    def close(self) -> None:
        """Send what is open once more, so that it outlives a restart."""
        self.members.close()

    def _key(self, gpu: Gpu, alert: Alert) -> Key:
        """Return the labels of an alert that begins with a GPU; those of its job, if it has one."""
        who = (
            {"job": gpu.job}
            if gpu.job
            else {
                "hostname": gpu.host,
                "uuid": gpu.uuid,
                "gpu": ":".join(part for part in (gpu.gpu, gpu.instance) if part),
            }
        )
        labels = _known(
            {
                **self._common,
                **who,
                "alertname": ALERTNAME,
                "namespace": gpu.namespace,
                "pattern": alert.finding.pattern,
            }
        )
        return tuple(sorted(labels.items()))

    def _update(self, key: Key, members: list[_Member]) -> str:
        """Bring an alert up to its GPUs, the most urgent first; return what that has changed."""
        severity, group = members[0].alert.severity, self._groups.get(key)
        what = ""
        if group is None:
            starts_at_s = min(member.alert.firing_at_s or 0.0 for member in members)
            group = self._groups[key] = _Group(severity, starts_at_s, {}, {})
            what = "new"
        elif RANK[severity] > RANK[group.severity]:
            self._over.append(_alert(key, group, group.raise_to(severity)))
            what = "worse"
        group.describe(_annotations(dict(key), members, group, self._source))
        return what


def _of_job(gpu: Gpu, key: Key) -> bool:
    """Say whether an alert is about the job that a GPU has."""
    labels = dict(key)
    return (gpu.job, gpu.namespace) == (labels.get("job", ""), labels.get("namespace", ""))


def _known(words: Mapping[str, str]) -> dict[str, str]:
    return {name: word for name, word in words.items() if word}


def _quoted(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _alert(key: Key, group: _Group, severity: Severity | None = None) -> FleetAlert:
    return FleetAlert(
        labels={**dict(key), "severity": severity or group.severity},
        annotations=dict(group.annotations),
        starts_at_s=group.starts_at_s,
    )


def _annotations(
    labels: Mapping[str, str], members: list[_Member], group: _Group, source: str
) -> dict[str, str]:
    """Return what is said of an alert; figures are those of the most urgent GPU."""
    worst, count = members[0], len(members) + len(group.unseen)
    finding = worst.alert.finding
    eta = finding.eta and units.band(finding.eta.low_s, finding.eta.mid_s, finding.eta.high_s)
    job = "/".join(part for part in map(labels.get, ("namespace", "job")) if part)
    title = worst.gpu.title or worst.gpu.uuid
    who = f"{title} leaks memory"
    if "job" in labels:
        gpus = "1 GPU" if count == 1 else f"{count} GPUs, first {title}"
        who = f"job {job} leaks memory on {gpus}"
    lines = sorted(line_of(member.gpu) for member in members)
    none = sorted(line_of(member.gpu) for member in members if member.silent)
    rate = finding.shown_rate_bytes_per_s
    return _known(
        {
            "summary": f"{who}, full in {eta}" if eta else who,
            "description": finding.reason,
            "rate": units.rate(rate) if rate else "",
            "eta": eta or "",
            "evidence": f"{units.strength(finding.confidence)}, {finding.samples} values"
            if finding.samples
            else "",
            "judged": units.instant(finding.judged_at_s) or "",
            "command": f"gpuwatchctl fleet explain {worst.gpu.uuid}",
            "gpus": "\n".join([*lines, *sorted(group.unseen)][:_MOST_LISTED]),
            "data": _no_data([*none, *group.unseen]),
            "source": source,
        }
    )


def _no_data(lines: list[str]) -> str:
    """Return what an alert says of GPUs without values; "" where there are none."""
    if not lines:
        return ""
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return f"none for five minutes from {', '.join(lines[:3])}{more}; as last judged"
