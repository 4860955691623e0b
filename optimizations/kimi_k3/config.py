"""Hugging Face configuration class of the out-of-tree K3 model.

Owns: the `model_type` and the attributes vLLM's hybrid cache derives from a config. Does not own:
what the dimensions mean (`dims`). Read by: the plugin. The only module that imports transformers.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from kimi_k3.dims import Dims
from kimi_k3.presets import ARCHITECTURE, K3, MODEL_TYPE, NANO, NANO_13, NANO_B4, PRESETS

__all__ = [
    "ARCHITECTURE",
    "K3",
    "MODEL_TYPE",
    "NANO",
    "NANO_13",
    "NANO_B4",
    "PRESETS",
    "KimiK3Config",
    "hybrid_cache_keys",
]


def hybrid_cache_keys(dims: Dims) -> dict[str, Any]:
    """Attributes vLLM reads to lay out a hybrid cache.

    For a model it does not know to be MLA, vLLM sizes an attention page as
    2 * num_key_value_heads * head_dim elements per token; with one head of half a latent row that
    is exactly the row we store.
    """
    if dims.mla_row % 2:
        raise ValueError(f"kv_lora_rank + qk_rope_head_dim must be even, got {dims.mla_row}")
    names = {"kda": "linear_attention", "mla": "full_attention"}
    return {
        "layer_types": [names[kind] for kind in dims.layer_kinds],
        "num_key_value_heads": 1,
        "head_dim": dims.mla_row // 2,
    }


class KimiK3Config(PretrainedConfig):
    """Configuration of `FasttrackKimiK3ForCausalLM`; keys as in the released K3 config."""

    model_type = MODEL_TYPE

    def __init__(self, **kwargs: Any) -> None:
        """Keep every key given. Without keys it is an empty shell, which transformers needs."""
        if "num_hidden_layers" in kwargs:
            kwargs |= hybrid_cache_keys(Dims.from_config(kwargs))
        super().__init__(**kwargs)

    def dims(self) -> Dims:
        """Checked dimensions. Raises ValueError naming every problem."""
        return Dims.from_config(self.to_dict())
