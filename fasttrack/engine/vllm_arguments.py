"""What vLLM is started with for a target: as keywords, and as its command line spells them.

Pure, so that `fasttrack plan --launch` can show it where no vLLM is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fasttrack.schema import Target
from fasttrack.schema.claim import Plugin

CLAIMED_EXTENSION = "FASTTRACK_CLAIMED_EXTENSION"
CLAIMED_ENTRY = "FASTTRACK_CLAIMED_ENTRY"
"""Environment of a rank's process that is looked at: what the claim names, empty for nothing."""
RANK_EXTENSION = "fasttrack.engine._vllm_rank.Extension"
NEIGHBOUR = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
"""An unrelated model with dummy weights: the isolation stage compares its outputs."""
MEMORY = ("gpu_memory_utilization", "kv_cache_memory_bytes")
"""Engine arguments by which engines share a GPU."""
COMMON: Mapping[str, Any] = {"enforce_eager": True, "seed": 0, "disable_log_stats": True}


def of_target(
    target: Target,
    plugin: Plugin | None,
    additional_config: Mapping[str, Any],
    checkpoint: str,
) -> dict[str, Any]:
    """Keywords of `vllm.LLM` for one arm; the target's own `engine_args` win, but for the switch:
    the rest of an `additional_config` among them stands beside it."""
    own = dict(target.engine_args)
    beside = own.pop("additional_config", {})
    arguments = {
        **COMMON,
        "model": checkpoint,
        "dtype": target.dtype,
        "max_model_len": target.max_model_len,
        "max_num_seqs": target.max_num_seqs,
        "tensor_parallel_size": target.tensor_parallel_size,
        "additional_config": _merged(beside, additional_config),
        **own,
    }
    if plugin and plugin.worker_extension:
        arguments["worker_extension_cls"] = plugin.worker_extension
    return arguments


def of_neighbour(
    target: Target, additional_config: Mapping[str, Any], folder: str
) -> dict[str, Any]:
    """Keywords of `vllm.LLM` for the unrelated model in `folder`.

    It takes as much memory as the target: a GPU may hold engines beside it, which its own choice
    would leave no room.
    """
    return {
        **COMMON,
        "model": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "dtype": target.dtype,
        "additional_config": dict(additional_config),
        **{name: target.engine_args[name] for name in MEMORY if name in target.engine_args},
    }


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, key by key; `above` wins."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merged(old, value)
        found[key] = value
    return found


def flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Arguments of the engine as the server's command line spells them."""
    for key, value in arguments.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif value is not None:
            yield f"--{name}"
            yield json.dumps(value) if isinstance(value, dict | list) else str(value)
