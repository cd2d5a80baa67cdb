"""Programs that leak, and programs that do not; each a job for ``tests.probe.planted``.

``python leaks.py NAME --kit plain|torch --every S``: the program runs while another thread inspects
it, and what was found is printed as JSON. Python 3.8 must read this file.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import functools
import gc
import json
import os
import queue
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

sys.path.insert(
    0,
    os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        "gpuwatchd", "probe", "boot",
    ),
)  # fmt: skip
DONE, WARM = threading.Event(), threading.Event()
DONE_STEPS = [0]
PAGES: Any = collections.defaultdict(list)


class Node:
    """A step of a graph."""

    def __init__(self, *inputs: Any) -> None:
        self.next_functions = tuple((one, 0) for one in inputs)


class Blob:
    """Stands for a tensor where no framework is needed."""

    def __init__(self, length: int = 8, grad_fn: Any = None) -> None:
        self.shape = (length,)
        self.nbytes = 4 * length
        self.grad_fn = grad_fn
        self.grad: Any = None


class Plain:
    """Makes blobs."""

    types: Tuple[type, ...] = (Blob,)

    def tensor(self, length: int = 8) -> Any:
        return Blob(length)

    def loss(self) -> Any:
        return Blob(1, Node())

    def cat(self, one: Any, other: Any) -> Any:
        return Blob(one.shape[0] + other.shape[0])

    def add(self, one: Any, other: Any) -> Any:
        return Blob(1, Node(one.grad_fn, other.grad_fn))

    def trained(self) -> Any:
        blob = Blob(16)
        blob.grad = Blob(16)
        return blob


class Torch(Plain):
    """Makes tensors of PyTorch."""

    def __init__(self) -> None:
        import torch
        from _gpuwatchd_probe import tensors

        torch.set_num_threads(1)
        self.torch = torch
        self.types = tensors.types()
        self.weights = torch.ones(64, requires_grad=True)

    def tensor(self, length: int = 8) -> Any:
        return self.torch.zeros(length)

    def loss(self) -> Any:
        return (self.weights * 2).sum()

    def cat(self, one: Any, other: Any) -> Any:
        return self.torch.cat([one, other])

    def add(self, one: Any, other: Any) -> Any:
        return one + other

    def trained(self) -> Any:
        leaf = self.torch.ones(16, requires_grad=True)
        (leaf * 3).sum().backward()
        leaf.grad.add_(1)
        return leaf


def steps(limit: int = 1 << 30) -> Iterator[int]:
    """Count the steps of a job until it has been inspected."""
    number = 0
    while not DONE.is_set() and number < limit:
        yield number
        DONE_STEPS[0] = number
        if number == 100:
            WARM.set()
        time.sleep(0.004)
        number += 1


def wait_steps(seconds: float) -> None:
    end = DONE_STEPS[0] + 250 * seconds
    while DONE_STEPS[0] < end:
        time.sleep(0.01)


def list_of_losses(kit: Any) -> None:
    losses = []
    for _ in steps():
        losses.append(kit.loss())


def list_of_outputs(kit: Any) -> None:
    outputs: List[Any] = []

    def forward(number: int) -> Any:
        return kit.tensor(32)

    for number in steps():
        outputs.append(forward(number))


def dict_by_step(kit: Any) -> None:
    history = {}
    for number in steps():
        history[number] = kit.tensor()


def shape_keyed_cache(kit: Any) -> None:
    masks: Dict[int, Any] = {}
    for number in steps():
        if number not in masks:
            masks[number] = kit.tensor(number + 1)


def closure(kit: Any) -> None:
    def logger() -> Callable[[Any], None]:
        records: List[Any] = []

        def log(value: Any) -> None:
            records.append(value)

        return log

    write = logger()
    for _ in steps():
        write(kit.tensor())


class Trainer:
    seen: List[Any] = []  # noqa: RUF012  # the leak


def class_attribute(kit: Any) -> None:
    for _ in steps():
        Trainer.seen.append(kit.tensor())


class Module:
    def __init__(self) -> None:
        self.hooks: Any = collections.OrderedDict()


def hook_list(kit: Any) -> None:
    model = Module()
    for number in steps():
        target = kit.tensor()

        def hook(output: Any, target: Any = target) -> Any:
            return target

        model.hooks[number] = hook
        del target


class Optimizer:
    def __init__(self) -> None:
        self.groups: List[Dict[str, Any]] = []

    def add_group(self, group: Dict[str, Any]) -> None:
        self.groups.append(group)


def optimizer_groups(kit: Any) -> None:
    optimizer = Optimizer()
    for _ in steps():
        optimizer.add_group({"params": [kit.trained()], "lr": 0.1})


class Dataset:
    def __init__(self, kit: Any) -> None:
        self.kit = kit
        self.memo: Dict[int, Any] = {}

    def __getitem__(self, number: int) -> Any:
        if number not in self.memo:
            self.memo[number] = self.kit.tensor()
        return self.memo[number]


def dataset_memo(kit: Any) -> None:
    dataset = Dataset(kit)
    for number in steps():
        dataset[number]


KITS: List[Any] = []


@functools.lru_cache(maxsize=None)
def position_table(number: int) -> Any:
    return KITS[0].tensor()


def cached_function(kit: Any) -> None:
    for number in steps():
        position_table(number)


def queue_without_end(kit: Any) -> None:
    jobs: Any = queue.Queue()
    for _ in steps():
        jobs.put(kit.tensor())


def module_defaultdict(kit: Any) -> None:
    for number in steps():
        PAGES[number % 3].append(kit.tensor())


def generator_local(kit: Any) -> None:
    def stream() -> Iterator[int]:
        window = []
        while True:
            window.append(kit.tensor())
            yield len(window)

    source = stream()
    for _ in steps():
        next(source)


def exceptions(kit: Any) -> None:
    failures = []

    def attempt() -> None:
        activation = kit.tensor()
        raise ValueError(len(str(activation is None)))

    for _ in steps():
        try:
            attempt()
        except ValueError as error:
            failures.append(error)


def asyncio_tasks(kit: Any) -> None:
    async def upload(value: Any) -> None:
        await asyncio.sleep(3600)
        print(value)

    async def serve() -> None:
        pending = set()
        for _ in steps():
            pending.add(asyncio.ensure_future(upload(kit.tensor())))
            await asyncio.sleep(0)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    asyncio.run(serve())


def nested(kit: Any) -> None:
    state: Dict[str, Any] = {"runs": []}
    for number in steps():
        state["runs"].append({"step": number, "output": kit.tensor()})


def tensor_made_anew(kit: Any) -> None:
    buffer = kit.tensor()
    for _ in steps():
        buffer = kit.cat(buffer, kit.tensor())


def running_total(kit: Any) -> None:
    total = kit.loss()
    for _ in steps():
        total = kit.add(total, kit.loss())


class Link:
    __slots__ = ("next", "value")

    def __init__(self, value: Any, following: Any) -> None:
        self.value, self.next = value, following


def linked_list(kit: Any) -> None:
    head = None
    for _ in steps():
        head = Link(kit.tensor(), head)
    while head is not None:  # freeing a long chain at once overflows the C stack
        head = head.next


def numpy_array(kit: Any) -> None:
    import numpy as np

    table = np.empty(100_000, dtype=object)
    for number in steps():
        table[number] = kit.tensor()


def kept_grad(kit: Any) -> None:
    layers = []
    for _ in steps():
        leaf = kit.trained()
        layers.append((leaf, leaf.grad))


def frozen(kit: Any) -> None:
    outputs = []
    for number in steps():
        outputs.append(kit.tensor())
        if number % 50 == 0:
            gc.freeze()


def large_ring(kit: Any) -> None:
    replay: Any = collections.deque(maxlen=1_000_000)
    for _ in steps():
        replay.append(kit.tensor())


def ring(kit: Any) -> None:
    recent: Any = collections.deque(maxlen=20)
    for _ in steps():
        recent.append(kit.tensor())


def accumulation(kit: Any) -> None:
    for _ in steps():
        kit.trained()


def warm_up(kit: Any) -> None:
    moments = {}
    for number in steps():
        if number < 40:
            moments[number] = kit.tensor()


def train_and_evaluate(kit: Any) -> None:
    for number in steps():
        results = [kit.tensor(16) for _ in range(60 if number // 30 % 2 else 5)]
        del results


def loader_threads(kit: Any) -> None:
    batches: Any = queue.Queue(maxsize=8)

    def load() -> None:
        while not DONE.is_set():
            with_room = kit.tensor()
            try:
                batches.put(with_room, timeout=0.1)
            except queue.Full:
                continue

    workers = [threading.Thread(target=load, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in steps():
        batches.get()
    for worker in workers:
        worker.join()


def growing_then_full(kit: Any) -> None:
    cache: Any = collections.OrderedDict()
    for number in steps():
        cache[number] = kit.tensor()
        if len(cache) > 50:
            cache.popitem(last=False)


def batches_of_length(kit: Any) -> None:
    for number in steps():
        batch = kit.tensor(8 + 37 * number % 61)
        del batch


def collector_off(kit: Any) -> None:
    gc.disable()
    for _ in steps():
        pair = [kit.tensor(), kit.tensor()]
        del pair


LEAKS: Dict[str, Tuple[Callable[[Any], None], Tuple[str, ...]]] = {
    "list of losses": (list_of_losses, ("losses in list_of_losses()",)),
    "list of outputs": (list_of_outputs, ("outputs in list_of_outputs()",)),
    "dict by step": (dict_by_step, ("history in dict_by_step()",)),
    "cache by shape": (shape_keyed_cache, ("masks in shape_keyed_cache()",)),
    "closure": (closure, ("records in log()",)),
    "class attribute": (class_attribute, ("Trainer.seen",)),
    "hooks": (hook_list, ("model.hooks in hook_list()",)),
    "optimizer groups": (optimizer_groups, ("optimizer.groups in optimizer_groups()",)),
    "data-set memo": (
        dataset_memo,
        ("dataset.memo in dataset_memo()", "self.memo in __getitem__()"),
    ),
    "lru_cache": (cached_function, ("lru_cache of position_table()",)),
    "queue": (queue_without_end, ("jobs.queue in queue_without_end()",)),
    "defaultdict": (module_defaultdict, ("leaks.PAGES", "leaks.PAGES[...]")),
    "generator": (generator_local, ("window in stream()",)),
    "exceptions": (exceptions, ("failures in exceptions()",)),
    "asyncio tasks": (asyncio_tasks, ("pending in serve()",)),
    "nested": (nested, ("state[...] in nested()",)),
    "made anew": (tensor_made_anew, ("buffer in tensor_made_anew()",)),
    "running total": (running_total, ("total in running_total()",)),
    "linked list": (linked_list, ("head in linked_list()",)),
    "numpy array": (numpy_array, ("table in numpy_array()",)),
    "kept grad": (kept_grad, ("layers in kept_grad()",)),
    "frozen": (frozen, ("outputs in frozen()",)),
    "large ring": (large_ring, ("replay in large_ring()",)),
}  # fmt: skip
CLEAN: Dict[str, Callable[[Any], None]] = {
    "ring": ring,
    "accumulation": accumulation,
    "warm-up": warm_up,
    "train and evaluate": train_and_evaluate,
    "loader": loader_threads,
    "growing, then full": growing_then_full,
    "batches of any length": batches_of_length,
    "collector off": collector_off,
}


CLEAN_TORCH = ("clean_adam", "clean_loader", "clean_script")
"""In reports.py, with what has to be named of the leaks there."""
REPORTED: Dict[str, str] = {
    "running_total": "running_loss",
    "metric_states": "preds",
    "step_outputs": "outputs",
    "training_log": "logs",
    "cached_items": "__getitem__",
    "prediction_loop": "preds",
    "hidden_state": "hidden",
    "kept_errors": "failures",
    "stale_callbacks": "callbacks",
    "saved_activations": "activations",
    "cached_models": "adapter_params",
    "class_variable": "flat_params",
}


def inspected(types: Any, every_s: float, wait: Callable[[float], Any] = time.sleep) -> Any:
    """Take all steps of an inspection and return its result."""
    from _gpuwatchd_probe import inspection

    result: Dict[str, Any] = {}
    for number, result in enumerate(inspection.steps(types)):  # noqa: B007
        if number:
            wait(every_s)
    return result


def main(programs: Dict[str, Callable[[Any], Any]]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--kit", choices=["plain", "torch"], default="plain")
    parser.add_argument("--every", type=float, default=0.3)
    parser.add_argument("--by-steps", action="store_true", help="250 for a second of --every")
    chosen = parser.parse_args()
    kit = Torch() if chosen.kit == "torch" else Plain()
    KITS.append(kit)
    result: Dict[str, Any] = {}

    def agent() -> None:
        WARM.wait(60)
        wait = wait_steps if chosen.by_steps else time.sleep
        result.update(inspected(kit.types, chosen.every, wait))
        DONE.set()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    programs[chosen.name](kit)
    thread.join()
    print(json.dumps(result))


if __name__ == "__main__":
    main({**{name: one for name, (one, _) in LEAKS.items()}, **CLEAN})
