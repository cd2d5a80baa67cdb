"""Whom a judgement is about, and what the rules of its user say of it before anything opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts import wording
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import About, Alert
from gpuwatchd.core.model.findings import more_reasoned

if TYPE_CHECKING:
    from gpuwatchd.core.model import Device, Finding, ProcessInfo


def subject_facts(device: Device | None, info: ProcessInfo | None, finding: Finding) -> About:
    """Return whom a judgement is about, in the words that rules are written in.

    Parameters
    ----------
    device, info
        Its device and its process, as far as they are known.
    """
    gpu = ""
    if device is not None and device.index is not None:
        parent = device.parent_index
        gpu = f"{parent}:{device.index}" if device.parent_uid and parent is not None else ""
        gpu = gpu or str(device.index)
    process = finding.subject.process
    known = About(
        gpu=gpu,
        card_uid="" if device is None else device.parent_uid or "",
        gpu_name="" if device is None else device.name,
        pid=None if process is None else process.pid,
        framework=finding.framework or "",
    )
    if info is None:
        return known
    return msgspec.structs.replace(
        known,
        user=info.user or "",
        process=info.name,
        framework=info.framework or known.framework,
        command=" ".join(info.argv),
        job=info.group or info.job or "",
        container=info.short_container or "",
        program=info.program or "",
        unit=info.unit or "",
        model=info.model or "",
    )


def expected(
    finding: Finding,
    rules: alerts.Rules,
    device: Device,
    info: ProcessInfo | None,
    level_bytes: float,
) -> Finding:
    """Return a judgement that is a watch at most where a rule says that it may grow.

    Parameters
    ----------
    device, info
        Its device and its process, as far as they are known.
    level_bytes
        What the subject holds.
    """
    if finding.tier != "alert" or not any(
        override.grows or override.grows_to_bytes for override in rules.overrides
    ):
        return finding
    as_alert = Alert(
        key=f"leak:{finding.subject.id}",
        kind="leak",
        subject=finding.subject,
        state="pending",
        severity=alerts.grade(finding),
        finding=finding,
        opened_at_s=finding.judged_at_s,
        changed_at_s=finding.judged_at_s,
        about=subject_facts(device, info, finding),
    )
    rule = alerts.may_grow(as_alert, alerts.rules_for(as_alert, rules), level_bytes)
    if rule is None:
        return finding
    why = wording.hold(Hold.MAY_GROW, rule)
    return msgspec.structs.replace(more_reasoned(finding, why), tier="watch")
