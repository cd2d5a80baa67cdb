"""Verbs are loaded when they are called, by several threads too."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import options, program
from gpuwatchd.core import registry

if TYPE_CHECKING:
    import pytest


def test_several_threads_load_a_verb_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verb = click.Command("status")
    both = threading.Barrier(2)

    def slowly(command: click.Command) -> click.Command:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # would let in a second thread here, if one may come as far
        command.params += options.global_options()
        return command

    monkeypatch.setattr(program, "_loaded", {})
    monkeypatch.setattr(registry, "load", lambda *_: verb)
    monkeypatch.setattr(options, "add_globals", slowly)
    with ThreadPoolExecutor(2) as pool:
        assert {*pool.map(program.load, ["status"] * 2)} == {verb}
    names = [name for one in verb.params for name in one.opts]
    assert len(names) == len({*names})
