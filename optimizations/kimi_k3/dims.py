"""Every dimension of the K3 text decoder, once, checked.

Owns: reading a Hugging-Face-style config dictionary, refusing what the K3 maths does not cover,
layer bookkeeping (kinds, AttnRes blocks), state shapes, rank-local sizes under tensor parallelism.
Does not own: weights, maths, or anything of an engine. Read by: every other module of this package.

Layer numbers are 0-based here; the 1-based lists of the config end in this file.
Source of names and structure: Kimi K3 technical report (arXiv 2607.24653), section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

LayerKind = Literal["kda", "mla"]

# The only values for which the K3 formulas hold; anything else is another model.
_FIXED: dict[str, Any] = {
    "hidden_act": "situ",
    "latent_moe_use_norm": True,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "linear_attn_config.use_full_rank_gate": True,
}
# The same, but these are also the defaults of the released configuration class: may be absent.
_FIXED_DEFAULTS: dict[str, Any] = {
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}

# Field of Dims -> key of the config, all positive integers.
_INTEGERS: Mapping[str, str] = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
    "block": "attn_res_block_size",
    "kda_heads": "linear_attn_config.num_heads",
    "kda_head_dim": "linear_attn_config.head_dim",
    "conv": "linear_attn_config.short_conv_kernel_size",
    "mla_heads": "num_attention_heads",
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "nope": "qk_nope_head_dim",
    "rope": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "dense_inter": "intermediate_size",
    "experts": "num_experts",
    "top_k": "num_experts_per_token",
    "latent": "routed_expert_hidden_size",
    "expert_inter": "moe_intermediate_size",
    "shared_experts": "num_shared_experts",
}

# Field of Dims -> key of the config, all finite floats.
_FLOATS: Mapping[str, str] = {
    "eps": "rms_norm_eps",
    "gate_lower_bound": "linear_attn_config.gate_lower_bound",
    "routed_scaling": "routed_scaling_factor",
    "situ_beta": "activation_situ_beta",
    "situ_linear_beta": "activation_situ_linear_beta",
}


@dataclass(frozen=True)
class RankDims:
    """Sizes of one tensor-parallel rank. Head-, width- and row-sharded quantities only."""

    tp: int
    kda_heads: int
    mla_heads: int
    dense_inter: int
    expert_inter: int
    shared_inter: int
    router_rows: int
    """Router rows of this rank where the router is sharded."""
    latent_rows: int
    """Latent down-projection rows of this rank where it is sharded."""
    vocab: int


@dataclass(frozen=True)
class Dims:
    """Dimensions of one K3-style decoder. Build with `from_config`; widths are in elements."""

    hidden: int
    layers: int
    vocab: int
    max_positions: int
    layer_kinds: tuple[LayerKind, ...]
    block: int
    """Layers per AttnRes block: layer l opens a block where l % block == 0."""
    eps: float

    kda_heads: int
    kda_head_dim: int
    conv: int
    """Taps of the depthwise short convolution, the current token included."""
    gate_lower_bound: float
    """Most negative log decay per step; absent would select another activation, so required."""

    mla_heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    """Shared key width. K3 never rotates it, but caches and scores it."""
    v_head_dim: int

    dense_layers: int
    """The first this many layers have a dense MLP, the rest a latent MoE."""
    dense_inter: int
    experts: int
    top_k: int
    latent: int
    expert_inter: int
    shared_experts: int
    routed_scaling: float
    situ_beta: float
    situ_linear_beta: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Dims:
        """Read `config` (flat, or nested under `text_config` as in the released checkpoint).

        Raises ValueError naming every problem at once.
        """
        text = config.get("text_config") or config
        problems: list[str] = []
        values: dict[str, Any] = {}
        for name, key in _INTEGERS.items():
            values[name] = _integer(text, key, problems)
        for name, key in _FLOATS.items():
            values[name] = _float(text, key, problems)
        values["dense_layers"] = _integer(text, "first_k_dense_replace", problems, least=0)
        for key, wanted in (_FIXED | _FIXED_DEFAULTS).items():
            found = _lookup(text, key)
            if found is None and key in _FIXED_DEFAULTS:
                continue
            if type(found) is not type(wanted) or found != wanted:
                problems.append(f"{key} must be {wanted!r}, got {found!r}")
        values["layer_kinds"] = _layer_kinds(text, values["layers"], problems)
        _cross_checks(values, problems)
        if problems:
            lines = "\n  - ".join(problems)
            raise ValueError(f"not a Kimi K3 text configuration:\n  - {lines}")
        return cls(**{f.name: values[f.name] for f in fields(cls)})

    # ---- layers and AttnRes bookkeeping -------------------------------------------------------

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Layers with Kimi delta attention."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "kda")

    @property
    def mla_layers(self) -> tuple[int, ...]:
        """Layers with multi-head latent attention."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "mla")

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers with a latent MoE instead of a dense MLP."""
        return tuple(range(self.dense_layers, self.layers))

    @property
    def blocks(self) -> int:
        """Stored AttnRes blocks once every layer has run: the sources of the final site."""
        return -(-self.layers // self.block)

    def block_write(self, layer: int) -> int | None:
        """Block stored at the attention site of `layer`, or None."""
        return layer // self.block if layer % self.block == 0 else None

    def sources(self, layer: int) -> int:
        """Stored blocks mixed at the attention site of `layer` (the prefix comes on top)."""
        return -(-layer // self.block)

    def mlp_sources(self, layer: int) -> int:
        """Stored blocks mixed at the MLP site of `layer`: a block just written is included."""
        return layer // self.block + 1

    # ---- derived widths and state shapes ------------------------------------------------------

    @property
    def kda_width(self) -> int:
        """Channels of each of q, k, v and the output gate of a KDA layer."""
        return self.kda_heads * self.kda_head_dim

    @property
    def decay_rank(self) -> int:
        """Inner width of the low-rank decay gate, which K3 fixes to the head width."""
        return self.kda_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Width of one MLA query or key head."""
        return self.nope + self.rope

    @property
    def mla_row(self) -> int:
        """Cached elements per token of an MLA layer: normalised latent, then raw shared key."""
        return self.kv_lora + self.rope

    @property
    def shared_inter(self) -> int:
        """Width of the shared experts, which are one fused MLP on the full hidden size."""
        return self.shared_experts * self.expert_inter

    def conv_state_shape(self, tp: int = 1) -> tuple[int, int]:
        """Convolution state of one request and layer: [taps before now, q|k|v channels]."""
        return self.conv - 1, 3 * self.rank(tp).kda_heads * self.kda_head_dim

    def recurrent_state_shape(self, tp: int = 1) -> tuple[int, int, int]:
        """Delta-rule state of one request and layer: [heads, value, key]."""
        return self.rank(tp).kda_heads, self.kda_head_dim, self.kda_head_dim

    def rank(self, tp: int) -> RankDims:
        """Sizes of one rank of `tp`. Raises ValueError naming every size `tp` does not divide."""
        whole = {
            "kda_heads": self.kda_heads,
            "mla_heads": self.mla_heads,
            "dense_inter": self.dense_inter,
            "expert_inter": self.expert_inter,
            "shared_inter": self.shared_inter,
            "router_rows": self.experts,
            "latent_rows": self.latent,
            "vocab": self.vocab,
        }
        if tp < 1:
            raise ValueError(f"tensor parallel size must be at least 1, got {tp}")
        uneven = [f"{name} = {size}" for name, size in whole.items() if size % tp]
        if uneven:
            raise ValueError(f"tensor parallel size {tp} does not divide " + ", ".join(uneven))
        return RankDims(tp=tp, **{name: size // tp for name, size in whole.items()})


def _lookup(config: Mapping[str, Any], dotted: str) -> Any:
    value: Any = config
    for part in dotted.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _integer(config: Mapping[str, Any], key: str, problems: list[str], least: int = 1) -> int:
    found = _lookup(config, key)
    if isinstance(found, int) and not isinstance(found, bool) and found >= least:
        return found
    problems.append(f"{key} must be an integer >= {least}, got {found!r}")
    return 0


def _float(config: Mapping[str, Any], key: str, problems: list[str]) -> float:
    found = _lookup(config, key)
    if isinstance(found, int | float) and not isinstance(found, bool):
        number = float(found)
        if number - number == 0.0:  # false for NaN and both infinities
            return number
    problems.append(f"{key} must be a finite number, got {found!r}")
    return float("nan")


def _layer_kinds(
    config: Mapping[str, Any], layers: int, problems: list[str]
) -> tuple[LayerKind, ...]:
    """0-based kinds from the two 1-based lists, which must name each layer exactly once."""
    lists: dict[LayerKind, Any] = {
        "kda": _lookup(config, "linear_attn_config.kda_layers"),
        "mla": _lookup(config, "linear_attn_config.full_attn_layers"),
    }
    kinds: dict[int, LayerKind] = {}
    for kind, listed in lists.items():
        if not isinstance(listed, list | tuple) or not all(type(n) is int for n in listed):
            problems.append(f"linear_attn_config: the list of {kind} layers is {listed!r}")
            return ()
        for number in listed:
            if number in kinds:
                problems.append(f"linear_attn_config lists layer {number} more than once")
            kinds[number] = kind
    if layers and set(kinds) != set(range(1, layers + 1)):
        wrong = sorted(set(kinds) ^ set(range(1, layers + 1)))
        problems.append(f"linear_attn_config must cover layers 1..{layers}; wrong: {wrong}")
        return ()
    return tuple(kinds[number] for number in range(1, layers + 1))


def _cross_checks(values: Mapping[str, Any], problems: list[str]) -> None:
    bound, beta, linear = (values[n] for n in ("gate_lower_bound", "situ_beta", "situ_linear_beta"))
    if bound == bound and not -5.0 <= bound < 0.0:
        problems.append(f"linear_attn_config.gate_lower_bound must be in [-5, 0), got {bound}")
    for name, value in (("activation_situ_beta", beta), ("activation_situ_linear_beta", linear)):
        if value <= 0.0:
            problems.append(f"{name} must be positive, got {value}")
    if values["eps"] <= 0.0:
        problems.append(f"rms_norm_eps must be positive, got {values['eps']}")
    if values["experts"] and values["top_k"] > values["experts"]:
        problems.append(
            f"num_experts_per_token {values['top_k']} exceeds num_experts {values['experts']}"
        )
    if values["layers"] and values["dense_layers"] > values["layers"]:
        problems.append("first_k_dense_replace exceeds num_hidden_layers")
