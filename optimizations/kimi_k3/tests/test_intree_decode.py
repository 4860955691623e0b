"""The walk over a model's layers, with parts in plain torch where ours need a GPU.

Protects: that a step in which requests verify drafts leaves attention to vLLM, which knows whose
rows there are, and that all other parts get every row. The planted fault takes each row for a
request of its own, as a graph of plain decode does.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

from kimi_k3.intree.ranks import Ranks  # noqa: E402

HIDDEN, BLOCKS, LAYERS, EACH = 4, 2, 3, 4


def _mixed(prefix: Tensor, delta: Tensor | None) -> Tensor:
    if delta is not None:
        prefix += delta
    return 0.5 * prefix


class _Site:
    """Of ours: by row."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, prefix: Tensor, delta: Tensor | None, bank: Tensor, early: bool) -> Tensor:
        return _mixed(prefix, delta)


class _Half:
    """Of ours: every row is a request, so none sees another."""

    made = 0

    def __init__(self, attention: Any) -> None:
        type(self).made += 1
        self.extra_bytes = 0

    def attend(self, x: Tensor, where: Tensor) -> Tensor:
        return x

    def give(self, heads: Tensor) -> Tensor:
        return heads


class _Moe:
    extra_bytes = 0
    asked: ClassVar[list[tuple[int, int, bool, bool]]] = []

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, x: Tensor, rows: Tensor, shared: bool, up: bool) -> Tensor:
        self.asked.append((len(x), int(rows), shared, up))
        return x * 3


class _Attention(torch.nn.Module):
    """Of vLLM: a row sees those of its request up to itself."""

    prefix = "kda"
    in_proj_qkvgfab = None

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.lengths = lengths

    def forward(self, hidden_states: Tensor, positions: Tensor) -> Tensor:
        parts = hidden_states.split(self.lengths)
        return torch.cat([part.cumsum(0) for part in parts])


class _Layer(SimpleNamespace):
    """Of vLLM."""

    def _pre_attn_norm(self, delta: Any, bank: Any, prefix: Tensor) -> tuple[Tensor, Tensor, Any]:
        return _mixed(prefix, delta), prefix, bank

    _post_attn_norm = _pre_attn_norm


def _backbone(lengths: list[int]) -> Any:
    attention, none = _Attention(lengths), SimpleNamespace()
    layers = [
        _Layer(
            prev_valid_blocks=1, is_block_write_layer=False, layer_idx=number, self_attn=attention,
            self_attention_res_norm=none, self_attention_res_proj=none, input_layernorm=none,
            mlp_res_norm=none, mlp_res_proj=none, post_attention_layernorm=none,
            block_sparse_moe=none, mlp=lambda x: x * 3,
        )
        for number in range(1, LAYERS + 1)
    ]  # fmt: skip
    weight = SimpleNamespace(weight=torch.ones(1, HIDDEN), variance_epsilon=1e-5)
    return SimpleNamespace(
        config=SimpleNamespace(num_experts=2, routed_expert_hidden_size=2, hidden_size=HIDDEN),
        embed_tokens=weight, num_attn_res_blocks=BLOCKS, layers=layers,
        output_attn_res_norm=weight, output_attn_res_proj=weight,
    )  # fmt: skip


def _stock(backbone: Any, embedded: Tensor) -> Tensor:
    """The same step as vLLM walks it."""
    prefix, delta = embedded.clone(), None
    for layer in backbone.layers:
        x = _mixed(prefix, delta)
        x = _mixed(prefix, layer.self_attn(x, None))
        delta = layer.mlp(x)
    return prefix + delta


@pytest.fixture
def decode(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, over parts of its own in place of ours."""
    parts = SimpleNamespace(
        KdaHalf=_Half, MlaHalf=_Half, MixSite=_Site, Moe=_Moe, Pages=None,
        Shared=lambda *_: SimpleNamespace(),
    )  # fmt: skip
    last = SimpleNamespace(attn_res=lambda prefix, delta, *_, **__: prefix + delta)
    monkeypatch.setitem(sys.modules, "kimi_k3.intree.layer", parts)
    monkeypatch.setitem(sys.modules, "vllm.models.kimi_k3.nvidia.ops", last)
    for name in ("vllm.models.kimi_k3", "vllm.models.kimi_k3.nvidia"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(ops=last))
    monkeypatch.delitem(sys.modules, "kimi_k3.intree.decode", raising=False)
    module = importlib.import_module("kimi_k3.intree.decode")
    monkeypatch.delitem(sys.modules, "kimi_k3.intree.decode")
    monkeypatch.setattr(_Half, "made", 0)
    monkeypatch.setattr(_Moe, "asked", [])
    return module


def _step(module: Any, monkeypatch: pytest.MonkeyPatch, rows: int, idle: int) -> None:
    """A step is told of: the last `idle` rows have no request."""
    states = torch.arange(rows, dtype=torch.int32)
    told = SimpleNamespace(
        attn_metadata={"kda": SimpleNamespace(non_spec_state_indices_tensor=states)},
        is_padding=torch.arange(rows + 3) >= rows - idle,
    )
    monkeypatch.setattr(module, "get_forward_context", lambda: told)


def _made(module: Any, backbone: Any, each: int) -> Any:
    experts = {layer.layer_idx: object() for layer in backbone.layers}
    largest = {"attn_res": 64, "kda": 64, "mla": 64, "moe": 64, "shared": 64, "latent_up": 8}
    return module.Decode(backbone, experts, [8, 16], Ranks(1), largest, each)


@pytest.mark.parametrize(("rows", "idle", "up"), [(8, 0, True), (8, 4, True), (16, 0, False)])
def test_verified_rows_are_stocks(
    decode: Any, monkeypatch: pytest.MonkeyPatch, rows: int, idle: int, up: bool
) -> None:
    backbone = _backbone([EACH] * (rows // EACH))
    ours = _made(decode, backbone, EACH)
    _step(decode, monkeypatch, rows, idle)
    embedded = torch.randn(rows, HIDDEN)
    expected = _stock(backbone, embedded)
    assert torch.equal(ours.run(embedded, torch.zeros(rows)), expected)
    assert _Half.made == 0 and int(ours.executed) == 1 and ours.capture.captured == {rows}
    assert _Moe.asked == [(rows, rows - idle, True, up)] * LAYERS


def test_a_row_taken_for_a_request_of_its_own_is_seen(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault, and that plain decode, of which it is true, agrees."""
    embedded = torch.randn(8, HIDDEN)
    for lengths, right in ([1] * 8, True), ([EACH, EACH], False):
        backbone = _backbone(lengths)
        ours = _made(decode, backbone, each=1)
        _step(decode, monkeypatch, 8, 0)
        expected = _stock(backbone, embedded)
        assert torch.equal(ours.run(embedded.clone(), torch.zeros(8)), expected) is right
    assert _Half.made == 2 * LAYERS
