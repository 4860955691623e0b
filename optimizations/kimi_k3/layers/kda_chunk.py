"""The gated delta rule over whole rows, 16 tokens at a time.

Owns: the chunkwise-parallel (WY) form and its scan. Does not own: the layout of rows in chunks
(`layers.layout`) or the layer around it. Read by: `layers.kda`. Only the scan over a row's chunks
is sequential, and it is one matrix product per step for all rows and heads.

Source: the delta rule's WY form, Yang et al. 2024 (arXiv 2406.06484), with a decay per key channel
as in the Kimi Linear report (arXiv 2510.26692), section 3; derived below.

With G the running sum of log decays in a chunk, S the state before it and u_t the update that token
t adds (S_t = S_{t-1} diag(exp g_t) + u_t k_t^T):

    u_t = beta_t (v_t - S (exp G_t . k_t) - sum_{j<t} a_tj u_j),  a_tj = <k_t, exp(G_t - G_j) . k_j>

so with A = tril(beta a, -1) and T = (I + A)^-1:  U = U0 - W S^T,  U0 = T beta V,
W = T beta (exp G . K). Outputs and the next state are then linear in S:

    O = (exp G . Q) S^T + B U,    B = tril(<q_t, exp(G_t - G_j) . k_j>)
    S' = S (diag(exp G_last) - W^T Kd) + U0^T Kd,    Kd = exp(G_last - G) . K

Every exponent is a difference G_i - G_j with i >= j, hence <= 0: nothing can overflow, however
strong the decay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.layers.layout import CHUNK, ChunkLayout


def chunk_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    layout: ChunkLayout,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, H, D] and final states [R, H, V, K], FP32.

    q, k, v [T, H, D] (q scaled), decay [T, H, D] in log form, beta [T, H], `state` [R, H, V, K] in
    the layout's row order. Needs about 3 * 16 * 16 * H * D floats of scratch per chunk.
    """
    q, k, v, g = (_padded(t, layout) for t in (q, k, v, decay))  # [N, H, 16, D]
    beta = _padded(beta.unsqueeze(-1), layout)
    total = g.cumsum(2)
    grown = total.exp()

    # Padding has k = 0, beta = 0, g = 0: it adds nothing and decays nothing.
    pairs = (total.unsqueeze(3) - total.unsqueeze(2)).clamp_(max=0.0).exp_().mul_(k.unsqueeze(2))
    scores = torch.matmul(pairs, torch.stack((k, q), dim=-1))  # [N, H, 16 (t), 16 (j), 2]
    mixed = scores[..., 0].tril(-1).mul_(beta)
    read = scores[..., 1].tril()
    right = torch.cat((v, grown * k), dim=-1).mul_(beta)
    solved = torch.linalg.solve_triangular(mixed, right, upper=False, unitriangular=True)
    fresh, weight = solved.split(v.shape[-1], dim=-1)  # U0, W

    last = total[:, :, -1:]
    kept = (last - total).exp_().mul_(k)
    step = torch.matmul(weight.transpose(-1, -2), kept).neg_()
    step.diagonal(dim1=-2, dim2=-1).add_(last.squeeze(2).exp())
    gain = torch.matmul(fresh.transpose(-1, -2), kept)

    before, state = _scan(state, step, gain, layout)
    query = torch.addcmul(-torch.matmul(read, weight), grown, q)
    out = torch.matmul(query, before.transpose(-1, -2)).add_(torch.matmul(read, fresh))
    return out.transpose(1, 2).flatten(0, 1).index_select(0, layout.place), state


def _padded(tokens: Tensor, layout: ChunkLayout) -> Tensor:
    """[T, H, D] tokens to [N, H, 16, D] chunks, zero where a chunk has no token."""
    chunks = tokens.new_zeros(layout.chunks * CHUNK, *tokens.shape[1:])
    chunks.index_copy_(0, layout.place, tokens)
    return chunks.view(layout.chunks, CHUNK, *tokens.shape[1:]).transpose(1, 2).contiguous()


def _scan(state: Tensor, step: Tensor, gain: Tensor, layout: ChunkLayout) -> tuple[Tensor, Tensor]:
    """States before every chunk [N, H, V, K] and after every row's last one [R, H, V, K]."""
    heads = state.shape[1]
    before = torch.empty_like(step)
    final = torch.empty_like(state)
    begin = 0
    for index, alive in enumerate(layout.active):
        end = begin + alive
        before[begin:end] = state
        moved = torch.baddbmm(
            gain[begin:end].flatten(0, 1), state.flatten(0, 1), step[begin:end].flatten(0, 1)
        ).view(alive, heads, *state.shape[2:])
        further = layout.active[index + 1] if index + 1 < len(layout.active) else 0
        final[further:alive] = moved[further:]
        state = moved[:further]
        begin = end
    return before, final
