"""Where a serving engine listens, from command lines and OLLAMA_HOST."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.analysis.frameworks.engine_addresses import (
    PORTS,
    Address,
    Launch,
    address,
    configured,
    ollama_url,
)
from tests.conftest import present

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = Launch(9, ("VLLM::EngineCore_DP0",))


def chain(*lines: str) -> list[Launch]:
    return [Launch(9 - n, tuple(line.split())) for n, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ("http://localhost", "http://localhost:80"),
        ("https://localhost", "https://localhost:443"),
        ("HTTPS://localhost:9/path", "https://localhost:9"),
        ("[::]:1234", "http://127.0.0.1:1234"),
        ("[::1]", "http://[::1]:11434"),
        ("::1", "http://[::1]:11434"),
        ('"127.0.0.1:5"', "http://127.0.0.1:5"),
        ("unix:///run/x", None),
        ("host:port", None),
        ("host:0", None),
        ("host:70000", None),
        ("a b", None),
    ],
)
def test_ollama_host_in_all_its_forms(text: str, url: str | None) -> None:
    assert ollama_url(text) == url


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("vllm serve m", "http://127.0.0.1:8000"),
        ("/opt/bin/python /opt/bin/vllm serve m --port 8001", "http://127.0.0.1:8001"),
        ("python -m vllm.entrypoints.openai.api_server --port=9 --host=::", "http://127.0.0.1:9"),
        ("vllm serve m --host 10.1.2.3", "http://10.1.2.3:8000"),
        ("vllm serve m --ssl-keyfile k.pem", "https://127.0.0.1:8000"),
    ],
)
def test_the_port_of_an_engine_stands_with_its_parent(line: str, url: str) -> None:
    found = present(address("vLLM", [ENGINE, *chain(line)]))
    assert found.url == url


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("vLLM", ("python batch.py --port 8000",)),
        ("vLLM", ("vllm bench latency",)),
        ("vLLM", ("vllm serve m --uds /run/vllm.sock",)),
        ("vLLM", ("vllm serve m --port x",)),
        ("vLLM", ("vllm serve m --host somebody.example.com",)),
        ("llama.cpp", ("llama-cli -m model.gguf",)),
        ("SGLang", ("python offline.py",)),
        ("vLLM", ()),
    ],
)
def test_what_serves_nobody_over_tcp_has_no_address(kind: str, lines: tuple[str, ...]) -> None:
    assert address(kind, chain(*lines)) is None


def test_a_command_line_that_is_one_string_is_read_too() -> None:
    one = Launch(3, ("/usr/bin/python3 -m sglang.launch_server --port 31000 --model-path m",))
    assert address("SGLang", [Launch(4, ("sglang::scheduler_TP0",)), one]) == Address(
        "http://127.0.0.1:31000", 3
    )


def test_what_an_engine_was_told_comes_along() -> None:
    sglang = present(address("SGLang", chain("sglang serve --mem-fraction-static 0.85")))
    assert (sglang.url, sglang.pool_share) == ("http://127.0.0.1:30000", 0.85)
    llama = address("llama.cpp", chain("/opt/llama-server -m /models/q.gguf --port 8081"))
    assert llama == Address("http://127.0.0.1:8081", 9, model="q.gguf")
    named = present(address("llama.cpp", chain("llama-server -m q.gguf -a nice")))
    assert named.model == "nice"


def test_variables_say_where_llama_cpp_and_ollama_listen() -> None:
    llama = Launch(2, ("llama-server",), (("LLAMA_ARG_PORT", "8099"),))
    assert address("llama.cpp", [llama]) == Address("http://127.0.0.1:8099", 2)
    server = Launch(1, ("/usr/bin/ollama", "serve"), (("OLLAMA_HOST", "0.0.0.0:9999"),))
    runner = Launch(2, ("/usr/lib/ollama/llama-server", "--port", "40001"))
    assert address("Ollama", [runner, server]) == Address("http://127.0.0.1:9999", 1)


def test_the_port_of_an_ollama_runner_is_not_that_of_ollama() -> None:
    lines = ("/usr/local/lib/ollama/llama-server --model /b/sha256-1 --port 46241", "ollama serve")
    assert address("Ollama", chain(*lines)) == Address("http://127.0.0.1:11434", 8)
    alone = address("Ollama", chain(lines[0]))
    assert alone == Address("http://127.0.0.1:11434", None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vLLM=http://127.0.0.1:8001", ("vLLM", "http://127.0.0.1:8001")),
        (" LLAMA.CPP = http://localhost ", ("llama.cpp", "http://localhost:8080")),
        ("ollama=http://[::1]:5/", ("Ollama", "http://[::1]:5")),
        ("vLLM=127.0.0.1:8001", None),
        ("vLLM=http://", None),
        ("tgi=http://127.0.0.1", None),
        ("", None),
    ],
)
def test_servers_of_the_configuration(text: str, found: tuple[str, str] | None) -> None:
    assert configured(text) == found


def test_a_name_on_a_command_line_is_never_looked_up() -> None:
    server = Launch(1, ("ollama", "serve"), (("OLLAMA_HOST", "https://somebody.example.com"),))
    assert address("Ollama", [server]) is None
    local = Launch(1, ("ollama", "serve"), (("OLLAMA_HOST", "localhost"),))
    assert address("Ollama", [local]) == Address("http://localhost:11434", 1)
    six = Launch(1, ("ollama", "serve"), (("OLLAMA_HOST", "[::1]:5"),))
    assert address("Ollama", [six]) == Address("http://[::1]:5", 1)


@given(st.sampled_from(sorted(PORTS)), st.lists(st.text(), max_size=6), st.text())
def test_any_command_line_gives_an_address_or_none(kind: str, argv: list[str], host: str) -> None:
    found = address(kind, [Launch(1, tuple(argv), (("OLLAMA_HOST", host),))])
    assert found is None or found.url.startswith(("http://", "https://"))


@pytest.mark.shared_data
def test_real_command_lines_of_ollama(shared_data: Path) -> None:
    lines = (shared_data / "platforms" / "ollama" / "cmdlines.txt").read_text().splitlines()
    runners = [line for line in lines if "sha256-" in line or "--mlx-engine" in line]
    runners = [line for line in runners if not line.startswith("#")]
    assert len(runners) == 4
    for line in runners:
        found = address("Ollama", chain(line, "/usr/bin/ollama serve"))
        assert found == Address("http://127.0.0.1:11434", 8)
    mine = next(line for line in lines if line.startswith("/home/u/llama.cpp"))
    found = address("llama.cpp", chain(mine))
    assert found == Address("http://127.0.0.1:8080", 9, model="qwen3-27b.gguf")
