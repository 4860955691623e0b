"""The whole K3 text decoder: token ids in, logits out.

Owns: the order of layers, attention-residual sites and state. Does not own: the maths of a module
(`attn_res`, `kda`, `mla`, `moe`). Read by: tests and harness checks, as the truth about a model.

`weights` is always the checkpoint by its full names, as `weights.load` returns it. All arithmetic
is in the dtype of those tensors. Nothing here batches over unequal sequences except `decode`.
Source: Kimi K3 technical report, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kimi_k3.dims import Dims
from kimi_k3.reference import attn_res, kda, mla, moe
from kimi_k3.reference.basic import linear, mlp
from kimi_k3.reference.weights import LM_HEAD, MODEL, Scope, Weights, layer_prefix

Attention = Callable[[int, Weights, Tensor], Tensor]
"""(layer, its attention weights, normalised input) -> attention output; input's shape kept."""


@dataclass
class KdaState:
    """State of one KDA layer of one sequence."""

    conv: Tensor
    """[taps-1, 3*H*D]."""
    recurrent: Tensor
    """[H, V, K]."""


@dataclass
class MlaState:
    """Cache of one MLA layer of one sequence."""

    rows: Tensor
    """[tokens so far, kv_lora + rope]."""


@dataclass
class State:
    """Everything one sequence carries from token to token. Attention residuals carry nothing."""

    layers: list[KdaState | MlaState]

    @classmethod
    def empty(cls, dims: Dims, dtype: torch.dtype = torch.float32) -> State:
        """State before the first token."""

        def one(kind: str) -> KdaState | MlaState:
            if kind == "mla":
                return MlaState(torch.zeros(0, dims.mla_row, dtype=dtype))
            return KdaState(
                torch.zeros(dims.conv_state_shape(), dtype=dtype),
                torch.zeros(dims.recurrent_state_shape(), dtype=dtype),
            )

        return cls([one(kind) for kind in dims.layer_kinds])


def embed(weights: Weights, ids: Tensor) -> Tensor:
    """ids [T] int64 -> [T, hidden]."""
    return weights[MODEL + "embed_tokens.weight"][ids]


def logits(weights: Weights, hidden: Tensor) -> Tensor:
    """Final normalised hidden [..., hidden] -> [..., vocab]."""
    return linear(hidden, weights[LM_HEAD])


def layers(weights: Weights, dims: Dims, hidden: Tensor, attention: Attention) -> Tensor:
    """Embeddings [T, hidden] -> final normalised hidden [T, hidden], with `attention` per layer."""
    prefix, delta = hidden, None
    bank: tuple[Tensor, ...] = ()
    for layer in range(dims.layers):
        own = Scope(weights, layer_prefix(layer))
        starts = dims.block_write(layer) is not None
        at = _site(own, "self_attention_res", "input_layernorm", prefix, delta, bank, starts, dims)
        output = attention(layer, Scope(own, "self_attn."), at.output)
        if starts:
            # The sum so far now lives in the bank; the prefix begins again with this layer.
            prefix, delta = output, None
        else:
            prefix, delta = at.prefix, output
        at = _site(own, "mlp_res", "post_attention_layernorm", prefix, delta, at.bank, False, dims)
        prefix, bank = at.prefix, at.bank
        if layer in dims.moe_layers:
            delta = moe.forward(Scope(own, "block_sparse_moe."), dims, at.output)
        else:
            delta = mlp(Scope(own, "mlp."), dims, at.output)
    model = Scope(weights, MODEL)
    return _site(model, "output_attn_res", "norm", prefix, delta, bank, False, dims).output


def _site(
    own: Weights,
    name: str,
    norm: str,
    prefix: Tensor,
    delta: Tensor | None,
    bank: Sequence[Tensor],
    write: bool,
    dims: Dims,
) -> attn_res.Site:
    return attn_res.site(
        prefix,
        delta,
        bank,
        write,
        own[f"{name}_norm.weight"],
        own[f"{name}_proj.weight"],
        own[f"{norm}.weight"],
        dims.eps,
    )


def extend(weights: Weights, dims: Dims, state: State, ids: Sequence[int] | Tensor) -> Tensor:
    """Run one sequence over further tokens, T >= 1 -> logits [T, vocab]; `state` is advanced.

    Parallel forms: chunked delta rule, attention with expanded keys and values.
    """

    def attention(layer: int, own: Weights, x: Tensor) -> Tensor:
        held = state.layers[layer]
        if isinstance(held, MlaState):
            y, rows = mla.forward(own, dims, x, held.rows)
            held.rows = torch.cat([held.rows, rows])
            return y
        y, held.conv, held.recurrent = kda.forward(own, dims, x, held.conv, held.recurrent)
        return y

    hidden = embed(weights, torch.as_tensor(ids, dtype=torch.int64))
    return logits(weights, layers(weights, dims, hidden, attention))


def forward(weights: Weights, dims: Dims, ids: Sequence[int] | Tensor) -> Tensor:
    """A whole sequence at once: ids [T], T >= 1 -> logits [T, vocab]."""
    dtype = weights[LM_HEAD].dtype
    return extend(weights, dims, State.empty(dims, dtype), ids)


def decode(weights: Weights, dims: Dims, states: Sequence[State], hidden: Tensor) -> Tensor:
    """One token of each sequence: embeddings [B, hidden] -> final normalised hidden [B, hidden].

    `states` holds one `State` per row; each is advanced. Step forms: recurrence, absorbed MLA.
    """

    def attention(layer: int, own: Weights, x: Tensor) -> Tensor:
        held = [state.layers[layer] for state in states]
        if dims.layer_kinds[layer] == "mla":
            return _step_mla(own, dims, x, [one for one in held if isinstance(one, MlaState)])
        return _step_kda(own, dims, x, [one for one in held if isinstance(one, KdaState)])

    return layers(weights, dims, hidden, attention)


def _step_mla(own: Weights, dims: Dims, x: Tensor, held: Sequence[MlaState]) -> Tensor:
    lengths = torch.tensor([len(one.rows) for one in held])
    cache = pad_sequence([one.rows for one in held], batch_first=True)
    y, new = mla.step(own, dims, x, cache, lengths)
    for one, row in zip(held, new, strict=True):
        one.rows = torch.cat([one.rows, row.unsqueeze(0)])
    return y


def _step_kda(own: Weights, dims: Dims, x: Tensor, held: Sequence[KdaState]) -> Tensor:
    conv = torch.stack([one.conv for one in held])
    recurrent = torch.stack([one.recurrent for one in held])
    y, conv, recurrent = kda.step(own, dims, x, conv, recurrent)
    for row, one in enumerate(held):
        one.conv, one.recurrent = conv[row], recurrent[row]
    return y


def step(weights: Weights, dims: Dims, state: State, token: int) -> Tensor:
    """One token of one sequence -> logits [vocab]; `state` is advanced."""
    hidden = decode(weights, dims, [state], embed(weights, torch.tensor([token])))
    return logits(weights, hidden)[0]
