"""What is stored as JSON is found again, whatever its fields are called in Python.

Unknown keys are ignored when JSON is read, so a field that is renamed without ``rename=`` loses
what people have on their disks, and nothing else would tell.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

import gpuwatchd
from gpuwatchd.analysis.attribution import ledger
from gpuwatchd.analysis.verdict import judge
from gpuwatchd.core import decoding
from gpuwatchd.core.codes import NameKind, ProblemCode, Reason
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import (
    Alert,
    DeviceReading,
    Finding,
    Holding,
    ProcessInfo,
    ProcessKey,
    Series,
    Subject,
)
from gpuwatchd.core.model.alerts import (
    Title,
    TitlePart,
    device_title,
    host_title,
    process_title,
)
from gpuwatchd.core.model.base import Value
from gpuwatchd.core.model.findings import dismissed_finding, with_host_reason, with_reason
from gpuwatchd.pipeline.messages import sentences
from gpuwatchd.store import legacy_text, live
from gpuwatchd.store.live import LiveDevice, LiveState
from tests.making import CARD, LEAKER, alert, finding
from tests.store.filling import away, filled, leaves, names, structs
from tests.store.stored import FOREIGN, STRUCTS, encoded, recorded, struct

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(gpuwatchd.__file__).parent
READS = {"decode": 1, "decoder": 0, "convert": 1, "Decoder": 0}
"""Functions that make values of JSON -> where among their arguments the type is."""
_CLASS = re.compile(r"(^|[.\[])_?[A-Z]\w*[a-z]\w*\]?$")
"""How the name of a class ends an argument; modules that have none need not be imported."""


class Renamed(Value, frozen=True, kw_only=True, rename={"now": "then"}):
    now: int = 0


def test_the_record_is_of_the_structs_that_are_stored() -> None:
    assert recorded().keys() == STRUCTS.keys()


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_of_the_example_is_away_from_its_default(name: str) -> None:
    for one in structs(filled(struct(STRUCTS[name]))):
        assert away(one) == names(type(one)), type(one)


@pytest.mark.parametrize("name", STRUCTS)
def test_it_is_written_as_it_was_recorded(name: str) -> None:
    """A field that is new is recorded by ``python -m tests.store.stored``."""
    assert encoded(filled(struct(STRUCTS[name]))) == recorded()[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_every_recorded_value_is_found_again(name: str) -> None:
    then = recorded()[name]
    now = decoding.decode(msgspec.json.encode(then), struct(STRUCTS[name]))
    assert Counter(leaves(then)) - Counter(leaves(now)) == Counter()


def test_a_renamed_field_keeps_its_name_in_the_state_file() -> None:
    assert live._lean(Renamed(now=1)) == {"then": 1}


@pytest.mark.slow
def test_nothing_else_is_read_from_json() -> None:
    listed = {struct(place) for place in (*STRUCTS.values(), *FOREIGN)}
    assert set(_read()) == listed


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if name != decoding.__name__ and not name.endswith("__main__"):
            yield name.removesuffix(".__init__"), ast.parse(path.read_text("utf-8"))


def _read() -> Iterator[type[msgspec.Struct]]:
    """Yield every Struct that some call in the package decodes JSON into."""
    handed: set[str] = set()
    for module, tree in _trees():
        for function, call in _calls(tree):
            kind = _kind(call)
            if kind is None:
                continue
            if _takes(function, kind):
                handed.add(function.name)
            else:
                yield from _structs(_meant(module, kind))
    # Where the type is an argument of the function around it: from whoever calls that; those of
    # the API stand in its table.
    for module, tree in _trees():
        for _, call in _calls(tree):
            bodies = [one.value for one in call.keywords if one.arg == "body"]
            if _name(call.func) in handed or bodies:
                for argument in bodies or call.args:
                    if _CLASS.search(ast.unparse(argument)):
                        yield from _structs(_meant(module, argument, None))


def _calls(tree: ast.AST, around: ast.FunctionDef | None = None) -> Iterator[Any]:
    """Yield every call with the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield around, node
        yield from _calls(node, node if isinstance(node, ast.FunctionDef) else around)


def _kind(call: ast.Call) -> ast.expr | None:
    """Return the type that a call decodes into; None where it does not decode."""
    if _name(call.func) not in READS or not isinstance(call.func, ast.Attribute):
        return None
    if ast.unparse(call.func.value) not in {"decoding", "msgspec", "msgspec.json"}:
        return None
    named = next((one.value for one in call.keywords if one.arg == "type"), None)
    return named or call.args[READS[_name(call.func)]]


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _takes(function: ast.FunctionDef | None, kind: ast.expr) -> bool:
    """Say whether a type is an argument of the function that decodes into it."""
    arguments = [] if function is None else [*function.args.args, *function.args.kwonlyargs]
    return isinstance(kind, ast.Name) and kind.id in {one.arg for one in arguments}


_LOUD: Any = object()


def _meant(module: str, kind: ast.expr, otherwise: Any = _LOUD) -> Any:
    """Return what an expression means in a module."""
    try:
        return eval(ast.unparse(kind), dict(vars(import_module(module))))
    except (NameError, AttributeError, TypeError):
        if otherwise is _LOUD:
            raise
        return otherwise


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and not get_args(kind) and issubclass(kind, msgspec.Struct):
        yield kind
    for one in get_args(kind):
        yield from _structs(one)


RANKS = [
    msgspec.structs.replace(
        LEAKER, key=ProcessKey(pid=pid, started_at_s=1.0), group="torchrun 7f3a", rank=pid - 1
    )
    for pid in (1, 2)
]


def judged(end_s: float = 3600.0) -> Finding:
    t_s = np.arange(0.0, end_s, 5.0)
    subject = Subject(device_uid="G", process=LEAKER.key)
    series = Series(subject=subject, t_s=t_s, used_bytes=12e9 + t_s * 1e6, limit_bytes=24e9)
    return judge(series, DetectionSection())


def host() -> Finding:
    return with_host_reason(judged())


def ranks() -> Finding:
    mine = [
        ledger.Rank(subject=f"s{info.rank}", info=info, gpu=info.rank, finding=judged())
        for info in RANKS
    ]
    return ledger.joined_finding(mine[0], mine, 2)


def led() -> Finding:
    return with_reason(judged(), "one alert for its job: see rank 0", Reason.RANK, "rank 0")


@pytest.mark.parametrize("make", [judged, lambda: judged(130.0), host, ranks, led])
def test_a_reason_is_understood(make: object) -> None:
    new = make()  # type: ignore[operator]
    old = msgspec.json.decode(msgspec.json.encode(new.public), type=Finding)
    assert not old.grounds
    known = legacy_text.finding(old)
    assert (known.code, known.lead, known.blame) == (new.code, new.lead, new.blame)
    assert [(part.whole, part.forecast) for part in known.parts] == [
        (part.whole, part.forecast) for part in new.parts
    ]
    assert sentences.evidence(known) == sentences.evidence(new)


def test_what_was_said_to_be_normal_is_known() -> None:
    new = dismissed_finding(judged(), "alice said that this is normal", Reason.NORMAL)
    assert legacy_text.finding(new.public).code is Reason.NORMAL


def test_what_has_parts_is_returned_as_it_is() -> None:
    new = judged()
    assert legacy_text.finding(new) is new


@pytest.mark.parametrize(
    "title",
    [
        device_title(CARD),
        device_title(CARD, TitlePart(text="memory that no listed process owns",
                                         short="memory that nobody owns")),
        process_title(CARD, LEAKER),
        process_title(CARD, ProcessInfo(key=LEAKER.key, name="vllm", user="bob")),
        host_title(LEAKER),
        ledger.title(
            [ledger.Rank(subject=str(k), info=info, gpu=k) for k, info in enumerate(RANKS)]
        ),
        ledger.title([ledger.Rank(subject="s", info=info) for info in RANKS], host=True),
    ],
    ids=str,
)  # fmt: skip
def test_a_title_is_as_short_as_it_is_made_today(title: Title) -> None:
    made: Alert = msgspec.structs.replace(alert(), **title.fields)
    old = legacy_text.alert(msgspec.structs.replace(made, title_parts=UNSET))
    for room in range(10, 80):
        short = sentences.fitted(sentences.brief(old), room)
        assert short == sentences.fitted(sentences.brief(made), room)
    for notice in ("firing", "repeat"):
        cases = [sentences.Case(one, notice, 10_000.0, ran_out=False) for one in (old, made)]
        assert sentences.subject(cases[0]) == sentences.subject(cases[1])


def test_the_state_of_an_older_daemon_gets_codes() -> None:
    hidden = ProcessInfo(key=LEAKER.key, name="pid 4711 (hidden by system policy)")
    gone = ProcessInfo(key=LEAKER.key, name="gone, was python")
    state = live._with_codes(
        LiveState(
            pid=1, version="0", started_at_s=0.0, taken_at_s=0.0, interval_s=5.0,
            devices=(
                LiveDevice(
                    device=CARD,
                    reading=DeviceReading(
                        device_uid=CARD.uid, used_bytes=1, free_bytes=1, total_bytes=2,
                        uses_reason="memory is read per MIG instance",
                    ),
                    finding=finding(),
                ),
            ),
            holdings=(
                Holding(
                    kind="hung-rank", device_uid=CARD.uid, process=hidden,
                    evidence="1 rank of slurm 42.0 has ended and rank 1 computes nothing",
                ),
                Holding(
                    kind="hung-rank", device_uid=CARD.uid, process=gone, evidence="it waits",
                    advice=("see where it stands: py-spy dump --pid PID",),
                ),
            ),
            problems=("no GPU found: no driver", "channel email does not deliver: refused", "x"),
        )
    )  # fmt: skip
    (device,) = state.devices
    assert device.reading is not None
    assert device.reading.per_instance
    first, second = state.holdings
    assert (first.left, second.left, second.command) == (True, False, "py-spy dump --pid PID")
    assert first.process is not None
    assert second.process is not None
    assert first.process.name_kind is NameKind.STAND_IN
    assert (second.process.name_kind, second.process.was) == (NameKind.GONE, "python")
    assert state.problem_codes == (ProblemCode.NO_GPU, ProblemCode.CHANNEL, ProblemCode.OTHER)
