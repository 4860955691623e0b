"""Protects: every dimension read once and right, every wrong config refused with all its faults."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from kimi_k3.dims import Dims
from kimi_k3.presets import K3, NANO, NANO_B4, PRESETS
from kimi_k3.reference.weights import shapes


def broken(**changes: Any) -> dict[str, Any]:
    """NANO with `changes`; a dotted key is written with two underscores, `...` deletes."""
    config = copy.deepcopy(NANO)
    for key, value in changes.items():
        *path, last = key.split("__")
        target = config
        for part in path:
            target = target[part]
        if value is ...:
            del target[last]
        else:
            target[last] = value
    return config


def test_k3_is_the_released_model() -> None:
    dims = Dims.from_config(K3)
    assert (len(dims.kda_layers), len(dims.mla_layers)) == (69, 24)
    assert dims.mla_layers == (*range(3, 92, 4), 92)
    assert [n for n in range(93) if dims.block_write(n) is not None] == list(range(0, 93, 12))
    assert dims.blocks == 8
    assert (dims.kda_width, dims.qk_head_dim, dims.mla_row) == (12288, 192, 576)
    assert (dims.shared_inter, dims.decay_rank, len(dims.moe_layers)) == (6144, 128, 92)
    total = sum(math.prod(shape) for shape in shapes(dims).values())
    assert 2.77e12 < total < 2.79e12  # the report says 2.78 T


def test_nano_has_every_feature_of_k3() -> None:
    dims = Dims.from_config(NANO)
    assert dims.mla_layers == (3, 7, 11, 15, 19, 20)
    assert dims.layers % dims.block != 0, "the last AttnRes block must be partial"
    assert all(dims.layer_kinds[n] == "kda" for n in range(0, dims.layers, dims.block))
    assert sum(math.prod(shape) for shape in shapes(dims).values()) == 7_494_492


def test_b4_opens_a_block_in_an_mla_layer() -> None:
    dims = Dims.from_config(NANO_B4)
    assert dims.layer_kinds[12] == "mla"
    assert dims.block_write(12) == 3


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_block_bookkeeping_matches_a_simulation(name: str) -> None:
    dims = Dims.from_config(PRESETS[name])
    stored = 0
    for layer in range(dims.layers):
        assert dims.sources(layer) == stored
        if layer % dims.block == 0:
            assert dims.block_write(layer) == stored
            stored += 1
        else:
            assert dims.block_write(layer) is None
        assert dims.mlp_sources(layer) == stored
    assert dims.blocks == stored


@pytest.mark.parametrize(
    ("tp", "heads", "dense", "shared"), [(8, 12, 4224, 768), (16, 6, 2112, 384)]
)
def test_rank_sizes_of_k3(tp: int, heads: int, dense: int, shared: int) -> None:
    rank = Dims.from_config(K3).rank(tp)
    assert (rank.kda_heads, rank.mla_heads, rank.dense_inter) == (heads, heads, dense)
    assert (rank.shared_inter, rank.router_rows) == (shared, 896 // tp)
    assert (rank.latent_rows, rank.vocab) == (3584 // tp, 163840 // tp)


def test_state_shapes_are_rank_local() -> None:
    dims = Dims.from_config(NANO)
    assert dims.conv_state_shape() == (3, 384)
    assert dims.recurrent_state_shape() == (4, 32, 32)
    assert dims.conv_state_shape(2) == (3, 192)
    assert dims.recurrent_state_shape(4) == (1, 32, 32)


@pytest.mark.parametrize("tp", [0, -1, 3, 8])
def test_impossible_tensor_parallel_size_is_refused(tp: int) -> None:
    with pytest.raises(ValueError, match="tensor parallel size"):
        Dims.from_config(NANO).rank(tp)


def test_refusal_names_every_uneven_size() -> None:
    with pytest.raises(ValueError) as caught:
        Dims.from_config(NANO).rank(32)
    assert "kda_heads = 4" in str(caught.value)
    assert "router_rows = 16" in str(caught.value)
    assert "latent_rows" not in str(caught.value)


def test_nested_config_of_the_released_checkpoint_is_read() -> None:
    assert Dims.from_config({"model_type": "kimi_k3", "text_config": K3}) == Dims.from_config(K3)


def test_defaults_of_the_released_configuration_class_may_be_absent() -> None:
    config = broken(moe_renormalize=..., topk_group=..., tie_word_embeddings=...)
    assert Dims.from_config(config) == Dims.from_config(NANO)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "absent": ({"hidden_size": ...}, "hidden_size"),
    "text": ({"num_experts": "16"}, "num_experts must be"),
    "boolean": ({"v_head_dim": True}, "v_head_dim"),
    "zero": ({"attn_res_block_size": 0}, "attn_res_block_size"),
    "activation": ({"hidden_act": "silu"}, "hidden_act"),
    "softmax router": ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
    "rotary": ({"mla_use_nope": False}, "mla_use_nope"),
    "no mla gate": ({"mla_use_output_gate": ...}, "mla_use_output_gate"),
    "low-rank gate": ({"linear_attn_config__use_full_rank_gate": ...}, "use_full_rank_gate"),
    "tied": ({"tie_word_embeddings": True}, "tie_word_embeddings"),
    "grouped": ({"num_expert_group": 2}, "num_expert_group"),
    "too many experts": ({"num_experts_per_token": 17}, "exceeds num_experts"),
    "no linear config": ({"linear_attn_config": None}, "linear_attn_config"),
    "layer twice": (
        {"linear_attn_config__full_attn_layers": [1, 4, 8, 12, 16, 20, 21]},
        "layer 1 ",
    ),
    "layer missing": (
        {"linear_attn_config__full_attn_layers": [4, 8, 12, 16, 20]},
        r"wrong: \[21\]",
    ),
    "layer zero": ({"linear_attn_config__full_attn_layers": [0, 4, 8, 12, 16, 20]}, r"\[0, 21\]"),
    "layer list": ({"linear_attn_config__kda_layers": "1-3"}, "kda layers"),
    "all dense": ({"first_k_dense_replace": 22}, "first_k_dense_replace"),
    "eps": ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
    "beta": ({"activation_situ_linear_beta": 0}, "activation_situ_linear_beta"),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_single_fault_is_refused_and_named(fault: str) -> None:
    changes, message = FAULTS[fault]
    with pytest.raises(ValueError, match=message):
        Dims.from_config(broken(**changes))


@pytest.mark.parametrize("bound", [..., None, 0.0, 1.0, -5.001, math.nan, -math.inf, "-5"])
def test_absent_or_impossible_gate_bound_is_refused(bound: Any) -> None:
    """Without a bound the decay is another activation, so absence must not pass silently."""
    with pytest.raises(ValueError, match="gate_lower_bound"):
        Dims.from_config(broken(linear_attn_config__gate_lower_bound=bound))


@pytest.mark.parametrize("bound", [-5.0, -5, -0.5])
def test_possible_gate_bound_is_kept(bound: float) -> None:
    dims = Dims.from_config(broken(linear_attn_config__gate_lower_bound=bound))
    assert dims.gate_lower_bound == bound


def test_all_faults_are_reported_at_once() -> None:
    config = broken(hidden_size=..., hidden_act="gelu", rms_norm_eps="x", num_experts=0)
    with pytest.raises(ValueError) as caught:
        Dims.from_config(config)
    named = [line for line in str(caught.value).splitlines() if line.startswith("  - ")]
    assert len(named) == 4


def test_empty_config_is_one_error() -> None:
    with pytest.raises(ValueError, match="not a Kimi K3 text configuration"):
        Dims.from_config({})


def test_configuration_class_round_trips(tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    from kimi_k3.config import KimiK3Config

    config = KimiK3Config(**NANO)
    config.save_pretrained(tmp_path)
    again = KimiK3Config.from_pretrained(tmp_path)
    assert again.dims() == Dims.from_config(NANO)
    assert again.layer_types.count("full_attention") == 6
    # What makes vLLM's page for one token equal to our latent row.
    assert 2 * again.num_key_value_heads * again.head_dim == again.dims().mla_row


def test_configuration_class_refuses_what_dims_refuse() -> None:
    pytest.importorskip("transformers")
    from kimi_k3.config import KimiK3Config

    with pytest.raises(ValueError, match="gate_lower_bound"):
        KimiK3Config(**broken(linear_attn_config__gate_lower_bound=...))
