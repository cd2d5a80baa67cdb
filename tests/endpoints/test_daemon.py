"""The daemon asks a server of its configuration and shows the answer in the live state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import live
from tests.endpoints.serve import serving
from tests.test_daemon import daemon, said, wait_for

if TYPE_CHECKING:
    from pathlib import Path

METRICS = b'vllm:kv_cache_usage_perc{model_name="m"} 0.5\nvllm:num_requests_running 0\n'


@pytest.mark.slow
def test_a_server_of_the_configuration_is_in_the_live_state(tmp_path: Path) -> None:
    with serving({"/metrics": METRICS}) as site, serving({}) as broken:
        file = tmp_path / "gpuwatchd.toml"
        file.write_text(
            f'[endpoints]\nurls = ["vLLM={site.url}", "SGLang={broken.url}"]\nevery = "15s"\n'
        )
        world = ["--source", "simulate:demo", "--interval", "0.2"]
        with daemon(tmp_path, *world, "--config", str(file)):

            def servers() -> tuple[str, ...]:
                state = live.read(tmp_path / "run")
                return tuple(s.kind for s in state.servers) if state is not None else ()

            wait_for(lambda: set(servers()) == {"vLLM", "SGLang"})
            state = live.read(tmp_path / "run")
        assert state is not None
        by_kind = {server.kind: server for server in state.servers}
        assert (by_kind["vLLM"].ok, by_kind["vLLM"].kv_share) == (True, 0.5)
        assert not by_kind["SGLang"].ok
        # Asked again only after the interval, however often the daemon ticks; and the scripted
        # world has a process that runs vLLM, which is on no port of this machine.
        assert site.asked == ["/metrics"]
        assert [problem for problem in state.problems if "SGLang" in problem] == [
            f"SGLang at {broken.url}: it answers 404 Not Found"
        ]
        assert "Traceback" not in said(tmp_path)
