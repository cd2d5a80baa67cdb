"""Which GPUs are in trouble, and for how long: lost, hanging, to be reset, or read no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline.titles import of_device

if TYPE_CHECKING:
    from gpuwatchd.core.model import Severity
    from gpuwatchd.core.model.alerts import Title
    from gpuwatchd.pipeline.device_state import TrackedDevice
    from gpuwatchd.pipeline.tracker import Intake

ALONE_S: Final = 60.0
"""A GPU is told as lost after so long while another one of its driver answers."""
DRIVER_S: Final = 300.0
"""The same while none does: a driver that is exchanged or loaded anew takes its time."""
HUNG_S: Final = 180.0
"""A call to the driver may take long while much is loaded, and while NVML is started."""
RESET_S: Final = 30.0
_BLIND: Final = frozenset({"nvml", "drm", "metal"})
"""Sources of which silence means something: a recording just ends."""
_SILENT: Final = "silent"
_ON_PURPOSE: Final = frozenset({"asleep", "released"})
_WORDS: Final = {
    "lost": "the GPU does not answer any more",
    "hung": "a call to its driver does not return",
    "reset-required": "the GPU has to be reset",
    _SILENT: "nothing can be read of the GPU any more",
}
_LOG: Final = ("the kernel's log says more", "sudo dmesg | grep -iE 'xid|nvrm|amdgpu|pcie'")
_ADVICE: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "lost": (
        _LOG,
        ("what ran on it cannot go on there: start it again on another GPU", ""),
        ("one that fell off the bus comes back with a reboot, or with the power off and on", ""),
    ),
    "hung": (
        _LOG,
        ("see which processes hold it", "sudo fuser -v /dev/nvidia* /dev/dri/*"),
        ("if they cannot be ended, only a reset of the GPU or a reboot helps", ""),
    ),
    "reset-required": (
        _LOG,
        ("until then new programs fail on it; those that run may go on", ""),
    ),
    _SILENT: (("gpuwatchctl doctor says what is missing", ""), _LOG),
}


class Ailment(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one subject now."""

    kind: str
    subject: Subject
    severity: Severity
    title: Title
    reasons: tuple[str, ...]
    """The parts of its reason; the first is enough on a lock screen."""
    advice: tuple[str, ...] = ()
    commands: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What is to be typed at the end of each line of advice; "" for nothing."""
    group: str = ""
    since_s: float | None = None
    """Where that is known better than from when it was first seen here."""
    framework: str | None = None

    @property
    def key(self) -> str:
        """Key of its alert."""
        return f"{self.kind}:{self.subject.id}"


class DeviceHealth:
    """How each GPU is.

    Parameters
    ----------
    intake
        Has the state of each device.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._since_s: dict[str, float] = {}
        """UUID -> since when something is wrong."""
        self._well: set[str] = set()
        """Those that have answered: what never did is not lost."""

    def recall(self, uid: str, since_s: float) -> None:
        """Take over what an earlier run knew: this one was in trouble."""
        self._well.add(uid)
        self._since_s[uid] = since_s

    def move(self, by_s: float) -> None:
        """Let what has lasted last no longer for a step of the clock, or a time without looks."""
        self._since_s = {uid: since_s + by_s for uid, since_s in self._since_s.items()}

    def conditions(self, now_s: float) -> dict[str, Ailment]:
        """Return what is wrong, by the key of its alert; some microseconds when all is well."""
        bad: list[tuple[TrackedDevice, str]] = []
        for uid, device in self._intake.devices.items():
            state = _state(device)
            if state == "ok":
                self._well.add(uid)
                self._since_s.pop(uid, None)
            elif state in _ON_PURPOSE:
                self._since_s.pop(uid, None)
            elif state in _WORDS and device.device.parent_uid not in self._intake.devices:
                bad.append((device, state))
        ailments: dict[str, Ailment] = {}
        for device, state in bad:
            uid = device.device.uid
            if uid not in self._well and state != "reset-required":
                continue
            since_s = self._since_s.setdefault(uid, now_s)
            if now_s - since_s >= self._hold_s(device, state):
                ail = self._ail(device, state, since_s)
                ailments[ail.key] = ail
        return ailments

    def is_well(self, subject: Subject) -> tuple[Ending, float] | None:
        """Return that a GPU answers again, and for how long it must; None where it does not."""
        device = self._intake.devices.get(subject.device_uid)
        return (Ending.DEVICE_ANSWERS, 60.0) if device and _state(device) == "ok" else None

    def _hold_s(self, device: TrackedDevice, state: str) -> float:
        if state == "reset-required":
            return RESET_S
        if state == "hung":
            return HUNG_S
        return ALONE_S if state == "lost" and self._others(device)[0] else DRIVER_S

    def _others(self, device: TrackedDevice) -> tuple[int, int]:
        """Return how many other GPUs of the same source answer, and how many there are."""
        others = [
            other
            for other in self._intake.devices.values()
            if other.source == device.source and other is not device and not other.device.parent_uid
        ]
        return sum(_state(other) == "ok" for other in others), len(others)

    def _ail(self, tracked_device: TrackedDevice, state: str, since_s: float) -> Ailment:
        device = tracked_device.device
        answer, others = self._others(tracked_device)
        texts = [
            _WORDS[state],
            # Where it is says the title.
            *(fault.why for fault in tracked_device.faults[:1]),
        ]
        if others and not answer:
            texts.append(
                f"nor do the other {others} of its driver"
                if others > 1
                else "nor does the other one"
            )
        advice = _ADVICE[state]
        if state == "reset-required" and device.vendor == "nvidia" and device.index is not None:
            reset = f"sudo nvidia-smi --gpu-reset -i {device.index}"
            again = f"gpuwatchctl release --for 5m && {reset}"
            advice = (*advice, ("end what runs on it, then", again))
        return Ailment(
            kind="gpu",
            subject=Subject(device_uid=device.uid),
            severity="critical" if state in {"lost", "hung"} else "warning",
            title=of_device(device),
            reasons=tuple(texts),
            advice=tuple([": ".join(filter(None, line)) for line in advice]),
            commands=tuple([command for _, command in advice]),
            group=f"gpu:{tracked_device.source}",
            since_s=since_s,
        )


def _state(device: TrackedDevice) -> str | None:
    """Return a device's state as far as it is known."""
    reading = device.reading
    if reading is not None and reading.state != "no-permission":
        return reading.state
    return _SILENT if device.source in _BLIND else None
