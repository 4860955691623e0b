"""What decides the numbers of a vLLM engine: two sessions are compared only if these are equal."""

from __future__ import annotations

import hashlib
from importlib.metadata import distributions
from typing import Any

TESTED = ("0.32.0", "0.33.0")


def fingerprint(config: Any) -> dict[str, str | int | float | bool | None]:
    """Of an engine of this configuration in this process."""
    import torch
    import vllm  # not before its child has set what it reads

    return {
        "engine": "vllm",
        "vllm": vllm.__version__,
        "vllm_tested": vllm.__version__.split("+")[0] in TESTED,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "timer": "perf_counter",
        "device": str(config.device_config.device_type),
        "dtype": str(config.model_config.dtype),
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "block_size": config.cache_config.block_size,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "enforce_eager": bool(config.model_config.enforce_eager),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "decode_context_parallel_size": config.parallel_config.decode_context_parallel_size,
        "draft_tokens": config.speculative_config.num_speculative_tokens
        if config.speculative_config
        else 0,
        "installed": _installed(),
    }


def _installed() -> str:
    """Digest over name and version of every installed distribution."""
    found = sorted(f"{one.metadata['Name']}=={one.version}" for one in distributions())
    return hashlib.sha256("\n".join(found).encode()).hexdigest()
