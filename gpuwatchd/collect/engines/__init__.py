"""What serving engines on this machine say of themselves; one file per engine, loopback only."""

ENDPOINTS: dict[str, str] = {
    "Ollama": "gpuwatchd.collect.engines.ollama:Ollama",
    "vLLM": "gpuwatchd.collect.engines.vllm:Vllm",
    "SGLang": "gpuwatchd.collect.engines.sglang:Sglang",
    "llama.cpp": "gpuwatchd.collect.engines.llamacpp:LlamaCpp",
}
