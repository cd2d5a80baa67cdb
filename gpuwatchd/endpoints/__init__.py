"""What serving engines on this machine say of themselves; one file per engine, loopback only."""

ENDPOINTS: dict[str, str] = {
    "Ollama": "gpuwatchd.endpoints.ollama:Ollama",
    "vLLM": "gpuwatchd.endpoints.vllm:Vllm",
    "SGLang": "gpuwatchd.endpoints.sglang:Sglang",
    "llama.cpp": "gpuwatchd.endpoints.llamacpp:LlamaCpp",
}
