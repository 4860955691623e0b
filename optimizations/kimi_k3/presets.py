"""Named model configurations as plain dictionaries, in the key names of the released config.

Owns: the four configurations this package is written against. Does not own: what the keys mean
(`dims`) or how an engine reads them (`config`, which re-exports these names).
Read by: the checkpoint writer, tests, kernel cases.

Layer lists are 1-based, exactly as the released `config.json` writes them.
Sources: Kimi K3 technical report (arXiv 2607.24653) and the released model configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

ARCHITECTURE = "FasttrackKimiK3ForCausalLM"
MODEL_TYPE = "fasttrack_kimi_k3"


def layers(count: int, full: Iterable[int]) -> dict[str, list[int]]:
    """The lists of a config of `count` layers, of which `full`, counted from 1, are MLA."""
    full_list = sorted(full)
    return {
        "kda_layers": [n for n in range(1, count + 1) if n not in full_list],
        "full_attn_layers": full_list,
    }


_COMMON: dict[str, Any] = {
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "routed_scaling_factor": 1.0,
    "latent_moe_use_norm": True,
    "num_shared_experts": 2,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def _nano(count: int, full: Iterable[int], block: int, experts: int) -> dict[str, Any]:
    return _COMMON | {
        "hidden_size": 128,
        "num_hidden_layers": count,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "intermediate_size": 512,
        "attn_res_block_size": block,
        "linear_attn_config": layers(count, full)
        | {
            "num_heads": 4,
            "head_dim": 32,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
        },
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "num_experts": experts,
        "num_experts_per_token": 4,
        "moe_intermediate_size": 64,
        "routed_expert_hidden_size": 64,
    }


NANO: dict[str, Any] = _nano(21, (4, 8, 12, 16, 20, 21), block=8, experts=16)
"""About 7.5 M parameters; every structural feature of K3, down to the partial last block."""

NANO_13: dict[str, Any] = _nano(13, (4, 8, 12, 13), block=8, experts=32)
"""Shorter, with more experts."""

NANO_B4: dict[str, Any] = _nano(13, (4, 8, 12, 13), block=4, experts=32)
"""Layer 12 is an MLA layer that opens a block, which K3 itself never has."""

K3: dict[str, Any] = _COMMON | {
    "hidden_size": 7168,
    "num_hidden_layers": 93,
    "num_attention_heads": 96,
    "vocab_size": 163840,
    "max_position_embeddings": 1048576,
    "intermediate_size": 33792,
    "attn_res_block_size": 12,
    "linear_attn_config": layers(93, (*range(4, 93, 4), 93))
    | {
        "num_heads": 96,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
        "use_full_rank_gate": True,
    },
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "moe_intermediate_size": 3072,
    "routed_expert_hidden_size": 3584,
}
"""The released model's text decoder."""

PRESETS: dict[str, dict[str, Any]] = {
    "k3-nano": NANO,
    "k3-nano-13": NANO_13,
    "k3-nano-b4": NANO_B4,
    "k3": K3,
}
