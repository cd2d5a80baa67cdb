"""Names of holders; read in a child, as in a job."""

from __future__ import annotations

import collections
import functools
import gc
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from _gpuwatchd_probe import attributes, heap, holders, names

from gpuwatchd.analysis.frameworks import advice
from tests.conftest import ON_LINUX
from tests.probe import planted
from tests.probe.leaks import CLEAN, LEAKS, Blob, inspected
from tests.probe.test_census import CALLED, Hostile, HostileBlob

pytestmark = ON_LINUX


LENGTH, BOUND = 20, 5000
MAY_BE_UNNAMED = {"running total", "linked list", "numpy array", "kept grad"}
Maker = Callable[[list[Blob]], Any]


class Beside:
    """Holds what it is told to; its limit is an attribute of any name."""

    def __init__(self, held: Any, **limits: int) -> None:
        self.held = held
        self.__dict__.update(limits)


class Slotted:
    __slots__ = ("items", "maxsize")

    def __init__(self, items: Any) -> None:
        self.items, self.maxsize = items, BOUND


class Fixed:
    MAX_SIZE = BOUND

    def __init__(self, items: Any) -> None:
        self.items = items


class Recent(collections.OrderedDict[int, Blob]):
    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.capacity = BOUND


class Cache:
    """As in cachetools: the names of what is the class's own are mangled."""

    def __init__(self, items: Any) -> None:
        self.__maxsize, self.__data = BOUND, dict(items)


class Lazy(Beside):
    """A limit that only code of the user's could say is none."""

    def __getattr__(self, name: str) -> Any:
        CALLED.append(name)
        return BOUND

    @property
    def capacity(self) -> int:
        CALLED.append("capacity")
        return BOUND


def full_queue(kind: type[queue.Queue[Blob]]) -> Maker:
    def make(items: list[Blob]) -> Any:
        made = kind(maxsize=BOUND)
        for item in items:
            made.put(item)
        return made

    return make


def cached(_: list[Blob]) -> Any:
    call = functools.lru_cache(maxsize=BOUND)(Blob)
    for number in range(LENGTH):
        call(number + 1)
    return call


BOUNDED: dict[str, Maker] = {
    "deque": lambda items: collections.deque(items, maxlen=BOUND),
    "lru_cache": cached,
    "queue": full_queue(queue.Queue),
    "lifo queue": full_queue(queue.LifoQueue),
    "capacity": lambda items: Beside(list(items), capacity=BOUND),
    "max_size": lambda items: Beside(dict(enumerate(items)), max_size=BOUND),
    "buffer_size": lambda items: Beside(set(items), _buffer_size=BOUND),
    "slots": lambda items: Slotted(list(items)),
    "of the class": lambda items: Fixed(list(items)),
    "ordered dict": lambda items: Recent(enumerate(items)),
    "mangled": lambda items: Cache(enumerate(items)),
    "dict": lambda items: {"maxlen": BOUND, "items": list(items)},
    "dict of lists": lambda items: Beside({"seen": list(items)}, capacity=BOUND),
    "rows": lambda items: Beside([(0, {"seen": item}) for item in items], capacity=BOUND),
    "default dict": lambda items: Beside(
        collections.defaultdict(list, {k: [item] for k, item in enumerate(items)}), maxlen=BOUND
    ),
}
UNBOUNDED: dict[str, Maker] = {
    "exceeded": lambda items: Beside(list(items), capacity=LENGTH // 2),
    "of another object": lambda items: Beside(Beside(list(items)), capacity=BOUND),
    "property": lambda items: Lazy(list(items)),
    "a truth": lambda items: Beside(list(items), maxsize=True),
    "no limit": lambda items: Beside(list(items), maxsize=0),
    "as good as none": lambda items: Beside(list(items), maxsize=sys.maxsize),
}


def holder(members: list[Any]) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        attributes.remember_dicts()
        frame: Any = sys._getframe()
        own = [frame]
        while frame.f_code.co_name != "holder":
            own.append(frame := frame.f_back)
        CALLED.clear()
        known = set(map(id, gc.get_objects())) - {id(members)}
        namer = names.Namer(known, set(map(id, own)))
        return {"found": holders.walk(members, (Blob,), 60.0, namer), "called": CALLED}

    answer = heap.in_child(work, 100.0)
    assert answer["called"] == []
    return answer["found"][0] if answer["found"] else {}


def test_a_list_of_a_running_function() -> None:
    losses = [Blob() for _ in range(30)]
    found = holder(losses[-6:])
    assert found["name"] == "losses in test_a_list_of_a_running_function()"
    assert (found["kind"], found["len"], found["bound"]) == ("list", 30, None)
    assert found["file"] == __file__


def holders_of_every_kind() -> dict[str, dict[str, Any]]:
    found = {}
    for kind, make in (BOUNDED | UNBOUNDED).items():
        kept = make([Blob() for _ in range(LENGTH)])
        found[kind] = holder([obj for obj in gc.get_objects() if type(obj) is Blob][-6:])
        del kept
    return found


@pytest.fixture(scope="module")
def of_every_kind() -> dict[str, dict[str, Any]]:
    """What is found in a process of its own: a walk through the heap of the tests takes seconds."""
    script = f"import json, sys; sys.path[:0] = {sys.path!r}; "
    script += "from tests.probe import test_holders as it; "
    script += "print(json.dumps(it.holders_of_every_kind()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", [*BOUNDED, *UNBOUNDED])
def test_what_bounds_a_holder_is_read(kind: str, of_every_kind: dict[str, dict[str, Any]]) -> None:
    found = of_every_kind[kind]
    assert (found["len"], found["bound"]) == (LENGTH, BOUND if kind in BOUNDED else None)
    assert found["name"].startswith(("kept", "lru_cache of")), found
    if kind in {"lru_cache", "deque"}:
        assert advice.of_holder(found["kind"], graph=False)


def test_hostile_objects_on_the_way_are_not_called() -> None:
    hostile = Hostile()
    mixed: dict[Any, Any] = {0: hostile, 1: [HostileBlob() for _ in range(20)], 2: [hostile]}
    object.__getattribute__(hostile, "__dict__").update(
        held=mixed[1], mixed=mixed, capacity=hostile
    )
    found = holder([*mixed[1][-6:]])
    assert found["kind"] == "list"
    del mixed, found


def test_containers_that_are_reached_alike_are_named_together() -> None:
    layers = {number: Beside([Blob() for _ in range(20)]) for number in range(3)}
    members = [layer.held[-place] for place in (1, 2, 3) for layer in layers.values()]
    del layers[0]
    layers[0] = Beside(members[::3] + [Blob() for _ in range(9)])
    found = holder(members)
    assert found["name"].startswith("layers[...].held in "), found
    assert (found["kind"], found["len"]) == ("list", 52)


def test_variables_that_keep_a_group_together_are_all_named() -> None:
    losses, scores, norms = ([Blob() for _ in range(20)] for _ in range(3))
    found = holder([*losses[-2:], *scores[-2:], *norms[-2:]])
    named = {name.partition(" in ")[0] for name in found["name"].split(" and ")}
    assert (named, found["len"], found["bound"]) == ({"losses", "scores", "norms"}, 60, None)


def test_containers_that_no_variable_leads_to_are_not_named() -> None:
    hidden: Any = [[[[[[[[[Blob() for _ in range(20)]]]]]]]] for _ in range(2)]
    members = [one for deep in hidden for one in deep[0][0][0][0][0][0][0][:3]]
    assert holder(members).get("name", "hidden").startswith("hidden")


@pytest.mark.parametrize(
    ("text", "short"), [(".next.next.next", ".next"), ("s.q.queue", "s.q.queue")]
)
def test_a_chain_is_written_once(text: str, short: str) -> None:
    assert names._short(text) == short


def test_values_of_keys_are_not_shown() -> None:
    secrets = {"password": [Blob() for _ in range(20)]}
    assert holder(secrets["password"][-6:])["name"].startswith("secrets[...]")


def test_an_error_is_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> dict[str, Any]:
        raise heap.HeapError("memory")

    monkeypatch.setattr(heap, "in_child", refuse)
    seen = inspected((Blob,), 0.0)
    assert (seen["error"], seen["groups"]) == ("memory", [])


def test_not_while_pytorch_compiles() -> None:
    space: dict[str, Any] = {}
    exec(compile("def run(end): end.wait()", "/x/torch/_dynamo/convert_frame.py", "exec"), space)
    end = threading.Event()
    thread = threading.Thread(target=space["run"], args=(end,))
    thread.start()
    seen = inspected((Blob,), 0.0)
    end.set()
    thread.join()
    assert (seen["error"], seen["censuses"]) == ("compiling", 0)


QUICK = ("list of losses", "closure", "lru_cache", "linked list", "ring")


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Inspect the programs that are asked for, four at a time: most of it they sleep."""
    names = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_planted
    ]
    with ThreadPoolExecutor(4) as pool:
        words = ("plain", sys.executable, 0.3)
        yield {n: pool.submit(planted.inspected, n, *words, by_steps=True) for n in names}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in [*LEAKS, *CLEAN]],
)
def test_planted(name: str, jobs: dict[str, Future[dict[str, Any]]]) -> None:
    seen = jobs[name].result()
    word = planted.verdict(name, seen)
    right = word == ("silent" if name in CLEAN else "right")
    assert right or (word == "unnamed" and name in MAY_BE_UNNAMED - {*QUICK}), seen
