"""What each serving engine says, today and in older forms, and what is none of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.analysis.frameworks.engine_addresses import PORTS
from gpuwatchd.collect.engines import ENDPOINTS
from gpuwatchd.collect.engines.llamacpp import LlamaCpp
from gpuwatchd.collect.engines.ollama import Ollama
from gpuwatchd.collect.engines.sglang import Sglang
from gpuwatchd.collect.engines.vllm import Vllm
from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.model import ServedModel
from gpuwatchd.core.registry import load
from tests.conftest import present

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.model import ServerReading
    from gpuwatchd.core.ports import Endpoint

URL = "http://127.0.0.1:1"
VLLM = rb"""# HELP vllm:num_requests_running Requests in execution.
vllm:num_requests_running{engine="0",model_name="org/model"} 2.0
vllm:num_requests_waiting{engine="0",model_name="org/model"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="org/model",reason="capacity"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="org/model"} 0.25
vllm:num_preemptions_total{engine="0",model_name="org/model"} 7.0
vllm:cache_config_info{block_size="16",gpu_memory_utilization="0.92",num_gpu_blocks="1000",x="\""} 1
"""
SGLANG = b"""sglang:num_running_reqs{model_name="org/model",tp_rank="0",priority=""} 1
sglang:num_running_reqs{model_name="org/model",tp_rank="1",priority=""} 1
sglang:num_queue_reqs{model_name="org/model",tp_rank="0",priority=""} 0
sglang:token_usage{model_name="org/model",tp_rank="0"} 0.28
sglang:kv_evictable_tokens{model_name="org/model",tp_rank="0"} 5000
"""
LLAMA = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:n_decode_total 9\n"
LLAMA_OLD = b"llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:kv_cache_tokens 1234\n"


def site(pages: dict[str, bytes]) -> Callable[[str], bytes]:
    def get(path: str) -> bytes:
        if path not in pages:
            raise EndpointError(f"it answers 404 {path}", status=404)
        return pages[path]

    return get


def asked(engine: Endpoint, pages: dict[str, bytes]) -> ServerReading:
    return engine.ask(site(pages), URL, 5.0)


def ollama(*models: dict[str, object]) -> dict[str, bytes]:
    return {
        "/api/version": b'{"version":"0.9.1"}',
        "/api/ps": json.dumps({"models": models}).encode(),
    }


def test_every_engine_that_can_be_found_can_be_asked() -> None:
    assert ENDPOINTS.keys() == PORTS.keys()
    assert {name: load(ENDPOINTS, name).name for name in ENDPOINTS} == {n: n for n in ENDPOINTS}


def test_ollama_with_a_model_partly_on_the_gpu() -> None:
    pages = ollama(
        {
            "name": "m:8b", "model": "m:8b", "size": 6000, "size_vram": 5000, "new_key": [1],
            "expires_at": "2025-10-17T16:47:07.933551234-07:00", "context_length": 4096,
        }
    )  # fmt: skip
    said = asked(Ollama(), pages)
    assert said.version == "0.9.1"
    (model,) = said.models or ()
    assert (model.name, model.size_bytes, model.vram_bytes) == ("m:8b", 6000, 5000)
    assert model.expires_at_s == pytest.approx(1760744827.93, abs=0.01)


def test_ollama_in_its_old_form_with_two_models_and_with_none() -> None:
    old = {"name": "a", "size": 10, "size_vram": 0, "expires_at": "0001-01-01T00:00:00Z"}
    said = asked(Ollama(), ollama(old, {"model": "b"}))
    assert said.models == (
        ServedModel(name="a", size_bytes=10, vram_bytes=0),
        ServedModel(name="b"),
    )
    assert asked(Ollama(), ollama()).models == ()
    assert asked(Ollama(), {**ollama(), "/api/ps": b'{"models":null}'}).models == ()


def test_ollama_says_its_version_once() -> None:
    engine, paths = Ollama(), []
    pages = ollama()

    def get(path: str) -> bytes:
        paths.append(path)
        return pages[path]

    for _ in range(3):
        assert engine.ask(get, URL, 1.0).version == "0.9.1"
    assert paths == ["/api/version", "/api/ps", "/api/ps", "/api/ps"]


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"models":5}', b'{"models":[{"size":"big"}]}', b"[" * 9999]
)
def test_ollama_refuses_what_is_not_its_form(body: bytes) -> None:
    with pytest.raises(EndpointError, match="not of Ollama"):
        asked(Ollama(), {**ollama(), "/api/ps": body})


def test_vllm_of_today() -> None:
    said = asked(Vllm(), {"/metrics": VLLM})
    assert (said.running, said.waiting, said.kv_share, said.pool_share) == (2, 3, 0.25, 0.92)
    assert said.models == (ServedModel(name="org/model"),)
    assert said.facts == {"preemptions": 7.0, "gpu_blocks": 1000.0}


def test_vllm_as_it_was_called_before() -> None:
    said = asked(Vllm(), {"/metrics": b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'})
    assert (said.kv_share, said.running, said.waiting, said.pool_share) == (0.5, None, None, None)


def test_vllm_with_two_engines_adds_requests_and_shows_the_fuller_cache() -> None:
    two = VLLM + VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75")
    said = asked(Vllm(), {"/metrics": two})
    assert (said.running, said.waiting, said.kv_share) == (4, 6, 0.75)


def test_sglang_counts_ranks_once_and_leaves_out_what_it_could_evict() -> None:
    said = asked(Sglang(), {"/metrics": SGLANG})
    assert (said.running, said.waiting, said.kv_share) == (1, 0, 0.28)
    assert said.facts["kv_evictable_tokens"] == 5000.0


def test_llama_cpp_of_today_takes_the_kv_cache_from_its_slots() -> None:
    slots = [
        {
            "id": 0, "n_ctx": 1000, "is_processing": True, "n_prompt_tokens": 600, "prompt": "x",
            "next_token": [{"n_decoded": 150, "n_remain": -1}],
        },
        {"id": 1, "n_ctx": 1000, "is_processing": False, "n_prompt_tokens": 150},
        {"id": 2, "n_ctx": 1000, "is_processing": False},
    ]  # fmt: skip
    said = asked(LlamaCpp(), {"/metrics": LLAMA, "/slots": json.dumps(slots).encode()})
    assert (said.running, said.waiting, said.kv_share) == (1, 2, 0.25)
    assert said.facts["kept_share"] == 0.05


def test_llama_cpp_as_it_was_tells_its_kv_cache_as_a_fact() -> None:
    said = asked(LlamaCpp(), {"/metrics": LLAMA_OLD})
    assert said.kv_share is None
    assert said.facts == {"kv_cache_tokens": 1234.0, "kv_cache_usage_ratio": 0.5}


def test_llama_cpp_is_not_asked_again_for_a_page_that_it_has_not() -> None:
    engine, paths = LlamaCpp(), []

    def get(path: str) -> bytes:
        paths.append(path)
        return site({"/metrics": LLAMA})(path)

    for _ in range(2):
        assert engine.ask(get, URL, 1.0).running == 1
    assert paths == ["/metrics", "/slots", "/metrics"]


@pytest.mark.parametrize("status", [503, None])
def test_llama_cpp_that_loads_its_model_or_starts_anew_is_asked_for_all_of_it_again(
    status: int | None,
) -> None:
    engine, pages = LlamaCpp(), {"/slots": b"[]"}

    def get(path: str) -> bytes:
        if "/metrics" not in pages and path == ("/metrics" if status else "/slots"):
            raise EndpointError("not now", status=status)
        return site(pages)(path)

    with pytest.raises(EndpointError):
        engine.ask(get, URL, 1.0)
    pages["/metrics"] = LLAMA
    assert engine.ask(get, URL, 2.0).running == 1


def test_llama_cpp_that_shows_neither_page_says_what_is_missing() -> None:
    with pytest.raises(EndpointError, match="--metrics"):
        asked(LlamaCpp(), {})


@pytest.mark.parametrize("engine", [Vllm(), Sglang(), LlamaCpp()])
def test_another_server_on_the_port_is_recognised_as_such(engine: Endpoint) -> None:
    with pytest.raises(EndpointError, match=r"metrics|llama"):
        asked(engine, {"/metrics": b"go_goroutines 8\n"})


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("api_ps_docs_new_partial_offload", [("gemma4", 5333539264)]),
        ("api_ps_docs_old", [("mistral:latest", 5137025024)]),
        ("api_ps_empty", []),
    ],
)
def test_real_answers_of_ollama(
    shared_data: Path, name: str, models: list[tuple[str, int]]
) -> None:
    folder = shared_data / "platforms" / "ollama"
    pages = {
        "/api/version": (folder / "api_version.json").read_bytes(),
        "/api/ps": (folder / f"{name}.json").read_bytes(),
    }
    said = asked(Ollama(), pages)
    assert [(m.name, m.vram_bytes) for m in said.models or ()] == models
    assert said.version == "0.5.1"


@pytest.mark.shared_data
def test_real_metrics(shared_data: Path) -> None:
    folder = shared_data / "platforms" / "metrics"
    vllm = asked(Vllm(), {"/metrics": (folder / "vllm_metrics.prom").read_bytes()})
    assert (vllm.running, vllm.waiting, vllm.kv_share) == (2, 3, 0.3412)
    assert vllm.pool_share == 0.92
    new = asked(LlamaCpp(), {"/metrics": (folder / "llamacpp_metrics_current.prom").read_bytes()})
    assert (new.running, new.waiting, new.kv_share) == (0, 0, None)
    old = asked(LlamaCpp(), {"/metrics": (folder / "llamacpp_metrics_old.prom").read_bytes()})
    assert old.facts["kv_cache_usage_ratio"] == 0.5


def test_what_no_server_has_is_not_told() -> None:
    told = asked(Ollama(), ollama({"name": "a", "size": 10**400, "size_vram": 10**400}))
    assert told.models == (ServedModel(name="a"),)
    crowd: list[dict[str, object]] = [{"name": f"m{i}"} for i in range(5000)]
    told = asked(Ollama(), ollama(*crowd))
    assert told.models is not None
    assert len(told.models) == 64
    lines = [b'vllm:num_requests_running{model_name="m%d"} 1\n' % i for i in range(5000)]
    told = asked(Vllm(), {"/metrics": b"".join(lines)})
    assert len(present(told.models)) == 64


def test_facts_are_numbers_that_can_be_published() -> None:
    """JSON has no infinity: one that got into the live state would make it unreadable."""
    huge = b"".join(b'sglang:kv_used_tokens{model_name="%d"} 1e308\n' % i for i in range(2))
    told = asked(Sglang(), {"/metrics": huge + b"sglang:num_running_reqs 1\n"})
    assert (told.facts, told.running) == ({}, 1)
    for blocks in (b"1e999", b"1e308", b"-5", b"None"):
        text = b'vllm:cache_config_info{num_gpu_blocks="%s"} 1\nvllm:num_requests_running 1\n'
        told = asked(Vllm(), {"/metrics": text % blocks})
        assert (told.facts, told.running) == ({}, 1)
