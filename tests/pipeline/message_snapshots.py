"""The message of each case, as text: one file of tests/pipeline/snapshots each.

``python -m tests.pipeline.message_snapshots`` writes them, and the one that a page shows;
``... NAME`` prints one. Review the difference before it is committed.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.analysis.frameworks.advice import of_holder
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import AlertSubject, Blame, Cost, EtaRange, ProcessKey, Subject
from gpuwatchd.notify import plain_text
from gpuwatchd.pipeline import messages
from tests import making
from tests.making import CARD, KEY, MIB, alert, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from gpuwatchd.core.model import Alert, Message

    _T = TypeVar("_T")

FOLDER = Path(__file__).parent / "snapshots"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "be-warned.md"
SHOWN = "firing-process-gradual"
"""The case that the page shows, as its mail reads."""
_BEGIN, _END = (
    "<!-- an alert, by `python -m tests.pipeline.message_snapshots` -->\n",
    "<!-- end -->\n",
)
ZONE = "UTC"
WIDTH, HEIGHT = 80, 24
NOW_S = 1_795_313_220.0
"""Sunday, 22 November 2026, 02:07 UTC."""
HOUR_S = 3600.0
COST = Cost(
    usd_per_hour=3.4309,
    spent_usd=31.60,
    at_risk_usd=2.69,
    basis="A100 80GB, on-demand, as of 2026-11",
)
TORCH = (
    (
        "Check for tensors that are kept with their graph: `total += loss`, a list of losses "
        "or outputs, a recurrent state never detached, retain_graph=True."
    ),
    (
        "Keep numbers (`loss.item()`) or `.detach().cpu()`, in a list that is emptied; "
        "gc.collect() only helps where reference cycles hold them."
    ),
)
INSIDE = {
    "allocator": making.ALLOCATOR, "holder": making.HOLDER,
    "advice": (of_holder(making.HOLDER.kind, graph=False), *TORCH),
}  # fmt: skip
ABOUT = AlertSubject(
    gpu="0", gpu_name="NVIDIA A100-SXM4-80GB", user="alice", process="python", pid=4711,
    framework="PyTorch", job="slurm 42.0",
)  # fmt: skip


def told(**changes: Any) -> Alert:
    """Return a firing alert on a process as the daemon has it; any field can be changed."""
    judged = finding(
        judged_at_s=NOW_S - 60.0,
        onset_at_s=NOW_S - 4020.0,
        growth_bytes=792.0 * MIB,
        limit_bytes=80.0 * 1024 * MIB,
        framework="PyTorch",
        advice=TORCH,
        reason="grows steadily by 12.4 MB/min for 1 h 6 min, 792 MiB so far, nothing released, "
        "grew in 14 of 16 intervals; 59 % of the free memory is used, 556 MiB left, full in "
        "47 min (39 to 62 min)",
        blame=(Blame(process=KEY, name="alice", share=1.0, rate_bytes_per_s=206_667.0),),
    )
    judged = msgspec.structs.replace(judged, **changes.pop("judged", {}))
    values: dict[str, Any] = {
        "key": "leak:GPU-1/4711@1000.0",
        "title": "GPU 0 (A100-SXM4-80GB): python train.py[4711] of alice",
        "finding": judged,
        "subject": judged.subject,
        "severity": judged.severity,
        "opened_at_s": NOW_S - 400.0,
        "firing_at_s": NOW_S - 100.0,
        "changed_at_s": NOW_S - 100.0,
        "notices": 1,
        "next_notice_at_s": NOW_S + HOUR_S,
        "about": ABOUT,
        "cost": COST,
    }
    return alert(**{**values, **changes})


def over(why: Ending, **changes: Any) -> Alert:
    """Return an alert that has ended."""
    values: dict[str, Any] = {"state": "resolved", "resolved_at_s": NOW_S - 5.0, "notices": 2}
    if why is Ending.ENDED_NEAR_LIMIT:
        values["severity"] = "critical"
    return told(**{**values, **wording.ending(why), **changes})


def _ranks() -> Alert:
    shares = tuple(
        Blame(
            process=ProcessKey(pid=4711 + n, started_at_s=1.0),
            name=f"rank {n} on GPU {n}",
            share=share,
            rate_bytes_per_s=share * 826_667.0,
        )
        for n, share in enumerate((0.26, 0.25, 0.25, 0.24))
    )
    return told(
        title="4 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-3",
        key="leak:ranks",
        judged={
            "blame": shares,
            "reason": "all 4 ranks of torchrun 7f3a leak alike, together 49.6 MB/min, and rank 2 "
            "on GPU 2 is full first; rank 0 on GPU 0 grows steadily by 12.4 MB/min for 1 h 6 min, "
            "792 MiB so far, nothing released, grew in 14 of 16 intervals; 59 % of the free memory "
            "is used, 556 MiB left, full in 47 min (39 to 62 min)",
        },
        about=msgspec.structs.replace(ABOUT, job="torchrun 7f3a"),
    )


def _host() -> Alert:
    return told(
        title="host memory of python train.py[4711] of alice",
        judged={
            "subject": Subject(device_uid=CARD.uid, process=KEY, host=True),
            "advice": (
                (
                    "Check the data-loader workers: Python objects that they share are copied "
                    "little by little as they are read (use arrays), and each prefetches batches; "
                    "try num_workers=0."
                ),
            ),
            "reason": "host memory grows steadily by 12.4 MB/min for 1 h 6 min, 792 MiB so "
            "far, nothing released, grew in 14 of 16 intervals; 59 % of the free memory is used, "
            "556 MiB left, full in 47 min (39 to 62 min)",
        },
        cost=None,
    )


def _device(title: str, subject: Subject, **judged: Any) -> Alert:
    return told(
        key=f"leak:{subject.id}",
        title=title,
        about=AlertSubject(gpu="0", gpu_name="NVIDIA A100-SXM4-80GB"),
        judged={"subject": subject, "framework": None, "blame": (), "advice": (), **judged},
    )


def _other(kind: str, reason: str, advice: tuple[str, ...], **changes: Any) -> Alert:
    subject = changes.pop("subject", Subject(device_uid=CARD.uid))
    judged: dict[str, Any] = {
        "subject": subject, "pattern": "unknown", "rate_bytes_per_s": None, "eta": None,
        "growth_bytes": None, "reason": reason, "advice": advice,
        "framework": None, "blame": (), "confidence": 1.0,
    }  # fmt: skip
    judged["onset_at_s"] = changes.pop("onset_at_s", NOW_S - 430.0)
    values = {"kind": kind, "key": f"{kind}:{subject.id}", "cost": None, "about": None}
    return told(**{**values, **changes}, judged=judged)


def cases() -> Iterator[tuple[str, Message]]:
    """Yield a name and the message of each case."""
    for name, one, notice, extra in _cases():
        yield name, messages.compose(one, notice, now_s=NOW_S, host="lab3", **extra)
    yield from _digests()


def _cases() -> Iterator[tuple[str, Alert, Any, dict[str, Any]]]:  # noqa: PLR0915 - a table
    plain: dict[str, Any] = {}
    soon = EtaRange(low_s=840.0, mid_s=1260.0, high_s=1800.0)
    yield "firing-process-gradual", told(), "firing", plain
    yield (
        "firing-process-step",
        told(judged={
            "pattern": "step", "confidence": 0.97,
            "reason": "rises in steps of 24 MiB every 10 min, 7 so far, nothing released; 59 % of "
            "the free memory is used, 556 MiB left, full in 47 min (39 to 62 min)",
        }),
        "firing", plain,
    )  # fmt: skip
    yield (
        "firing-process-cyclic",
        told(judged={
            "pattern": "cyclic", "confidence": 0.78,
            "reason": "rises and falls every 8 min, and memory kept after each of 9 cycles creeps "
            "up by 12.4 MB/min; 59 % of the free memory is used, 556 MiB left, full in 47 min "
            "(39 to 62 min)",
        }),
        "firing", plain,
    )  # fmt: skip
    yield "firing-holder", told(judged=INSIDE), "firing", plain
    critical = {"severity": "critical", "eta": soon}
    yield "firing-critical", told(judged=critical), "firing", plain
    open_end = EtaRange(low_s=20 * HOUR_S, mid_s=40 * HOUR_S, high_s=None)
    yield "firing-days-away-open", told(judged={"eta": open_end}), "firing", plain
    bare = {
        "eta": None, "r_squared": None, "onset_at_s": None, "growth_bytes": None,
        "limit_bytes": None, "framework": None, "advice": (), "reason": "", "blame": (),
    }  # fmt: skip
    yield "firing-little-known", told(judged=bare, about=None, cost=None), "firing", plain
    yield (
        "firing-container",
        told(
            about=msgspec.structs.replace(
                ABOUT, job="", container="docker 3f2a91c04d7e", unit="docker.service",
                framework="vLLM", model="Qwen/Qwen2-72B",
            ),
        ),
        "firing", plain,
    )  # fmt: skip
    mig = "MIG 3:0 (A100-SXM4-80GB MIG 1g.10gb): python train.py[4711] of alice"
    yield "firing-mig", told(title=mig), "firing", plain
    yield "firing-ranks", _ranks(), "firing", plain
    yield "firing-host-memory", _host(), "firing", plain
    whole = _device(
        "GPU 0 (A100-SXM4-80GB)", Subject(device_uid=CARD.uid),
        advice=(("Check what grows with each request or iteration; bound the cache, keep numbers "
        "instead of arrays."),),
        blame=(
            Blame(process=KEY, name="slurm 42.0 - alice - pid 4711", share=0.83,
                  rate_bytes_per_s=1.0),
            Blame(process=None, name="no listed process", share=0.17, rate_bytes_per_s=1.0),
        ),
    )  # fmt: skip
    yield "firing-device", whole, "firing", plain
    nobody = _device(
        "GPU 0 (A100-SXM4-80GB): memory that no listed process owns",
        Subject(device_uid=CARD.uid, unattributed=True),
        advice=(("Check `gpuwatchctl zombies` and, as root, `fuser -v /dev/nvidia*`: a process of "
        "another container, or one that has died and was not cleaned up."),),
    )  # fmt: skip
    yield "firing-unattributed", nobody, "firing", plain
    second = told(title="GPU 1 (A100-SXM4-80GB): python train.py[4712] of alice", key="leak:2")
    third = told(
        title="GPU 2 (A100-SXM4-80GB): python train.py[4713] of alice",
        key="leak:3",
        judged={"eta": soon},
    )
    yield "firing-group", told(), "firing", {"also": (second, third)}
    yield "firing-flapping", told(flaps=3, told_flapping=True), "firing", plain
    hardware = (("check the hardware first: XID 63: memory was marked to be taken out of use, at "
                "02:01"), *TORCH)  # fmt: skip
    yield "firing-after-hardware", told(judged={"advice": hardware}), "firing", plain
    stale = {"judged_at_s": NOW_S - 900.0}
    yield "repeat-stale", told(judged=stale, notices=2), "repeat", plain
    yield "escalated", told(judged=critical, notices=2), "escalated", plain
    again = told(notices=3, next_notice_at_s=NOW_S + 14 * HOUR_S)
    yield "repeat", again, "repeat", plain
    yield "repeat-standing-still", told(notices=2, clear_since_s=NOW_S - 420.0), "repeat", plain
    yield "resolved-ended", over(Ending.PROCESS_ENDED), "resolved", plain
    yield "resolved-crashed", over(Ending.ENDED_NEAR_LIMIT), "resolved", plain
    yield "resolved-fell", over(Ending.FELL_NEAR_LIMIT), "resolved", plain
    stopped = over(Ending.STOPPED_GROWING, firing_at_s=NOW_S - 3000.0, clear_since_s=NOW_S - 1800.0)
    yield "resolved-stopped", stopped, "resolved", plain
    yield "resolved-unseen", over(Ending.ENDED_UNOBSERVED), "resolved", plain
    yield "firing-gpu-lost", _gpu_lost(), "firing", plain
    with_leak = msgspec.structs.replace(_gpu_lost(), notices=1)
    yield "firing-gpu-lost-group", with_leak, "firing", {"also": (told(), _held())}
    yield "resolved-gpu-back", _gpu_back(), "resolved", plain
    yield "firing-held", _held(), "firing", plain


def _gpu_lost() -> Alert:
    return _other(
        "gpu",
        "the GPU no longer answers; GPU is lost",
        (
            "see the kernel log for details: sudo dmesg | grep -iE 'xid|nvrm|amdgpu|pcie'",
            "what ran on it cannot go on there: start it again on another GPU",
            "one that fell off the bus comes back with a reboot, or with the power off and on",
        ),
        title="GPU 0 (A100-SXM4-80GB)",
        severity="critical",
    )


def _gpu_back() -> Alert:
    return msgspec.structs.replace(
        _gpu_lost(),
        state="resolved",
        **wording.ending(Ending.DEVICE_ANSWERS),
        resolved_at_s=NOW_S,
        notices=2,
    )


def _held() -> Alert:
    return _other(
        "held",
        "9.4 GiB held by an idle process; no work on the GPU and 0.1 % of a core for "
        "2 h 10 min; 20.4 GiB-hours so far",
        (
            "it belongs to alice - python train.py - pid 4711",
            "end it (SIGTERM first) if its owner does not need it",
        ),
        subject=Subject(device_uid=CARD.uid, process=KEY),
        title="GPU 0 (A100-SXM4-80GB): python train.py[4711] of alice",
        about=ABOUT,
        onset_at_s=NOW_S - 7800.0,
        cost=Cost(spent_usd=0.87, since="first-seen", basis="yours"),
    )


def _digests() -> Iterator[tuple[str, Message]]:
    some = [told(), over(Ending.ENDED_NEAR_LIMIT, key="leak:2"), _gpu_lost(), _ranks()]
    day: dict[str, Any] = {
        "number": "1",
        "why": "of the day",
        "from_s": NOW_S - 24 * HOUR_S,
        "now_s": NOW_S,
        "host": "lab3",
    }
    yield "digest", messages.digest(some, **day)
    yield "digest-empty", messages.digest([], **day)
    many = [
        told(key=f"leak:{n}", title=f"GPU 0 (A100): python train.py[{4700 + n}] of alice")
        for n in range(20)
    ]
    yield "digest-many", messages.digest(many, **{**day, "why": "of quiet hours"})


def shown(message: Message) -> str:
    """Return a message as it stands on a screen of 80 columns."""
    lines = [message.subject, ""]
    for line in message.body.split("\n"):
        lines += textwrap.wrap(line, WIDTH) or [""]
    facts = dict(message.facts)
    if message.cost:
        facts["Cost"] = message.cost
    if facts:
        lines.append("")
    room = max((len(label) for label in facts), default=0) + 2
    for label, value in facts.items():
        first = f"{label + ':':<{room}}"
        lines += textwrap.wrap(
            value, WIDTH, initial_indent=first, subsequent_indent=" " * room,
            break_long_words=True, break_on_hyphens=False,
        )  # fmt: skip
    if message.command:
        lines += ["", message.command]
    return "\n".join(lines) + "\n"


def texts() -> dict[str, str]:
    """Return every case as text, in the time zone of the snapshots."""
    return in_zone(lambda: {name: f"[{m.severity}] {shown(m)}" for name, m in cases()})


def first_page(page: str) -> str:
    """Return the page with the mail of one case as it reads now."""
    message = in_zone(lambda: dict(cases()))[SHOWN]
    before, _, rest = page.partition(_BEGIN)
    after = rest.partition(_END)[2]
    mail = f"Subject: {message.subject}\n\n{plain_text.plain(message)}"
    return f"{before}{_BEGIN}\n```\n{mail}```\n\n{_END}{after}"


def in_zone(work: Callable[[], _T]) -> _T:
    """Return what some work gives in the time zone of the snapshots."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = ZONE
    time.tzset()
    try:
        return work()
    finally:
        if before is None:
            os.environ.pop("TZ")
        else:
            os.environ["TZ"] = before
        time.tzset()


def main() -> None:
    """Write the snapshots anew, or print those that are named."""
    found = texts()
    if len(sys.argv) > 1:
        for name in sys.argv[1:]:
            sys.stdout.write(f"=== {name}\n{found[name]}\n")
        return
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        if old.stem not in found:
            old.unlink()
    for name, words in found.items():
        (FOLDER / f"{name}.txt").write_text(words)
    PAGE.write_text(first_page(PAGE.read_text()))


if __name__ == "__main__":
    main()
