"""The gated delta rule over whole rows, differentiable, with no loop over tokens.

Owns: the chunkwise form for training. The engine's form (`layers.kda_chunk`) works in place on
packed rows and cannot be differentiated; this one takes a rectangle of rows, each from a zero
state. Everything is batched matrix products and elementwise maps, so that a compiler can fuse it.

Source: the delta rule's WY form, Yang et al. 2024 (arXiv 2406.06484), with a decay per key channel
as in the Kimi Linear report (arXiv 2510.26692), section 3. In a chunk, with G the running sum of
log decays, S the state before it and A = tril(beta <k_t, exp(G_t - G_j) k_j>, -1):

    T = (I + A)^-1,  U = T beta V,  W = T beta (exp(G) K),  B = tril(<q_t, exp(G_t - G_j) k_j>)
    O = (exp(G) Q - B W) S^T + B U
    S' = S (diag exp(G_last) - W^T Kd) + U^T Kd,  Kd = exp(G_last - G) K
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 16
"""Tokens of a chunk. With a log decay of at least -5 per token, exponents measured from a chunk's
middle stay within +-40, so that both factors of exp(G_t - G_j) are ordinary FP32 numbers."""

MIDDLE = CHUNK // 2 - 1


def delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """q, k, v, log_decay [B, L, H, D], beta [B, L, H], L a multiple of 16 -> o [B, L, H, D].

    FP32 or FP64 inputs; log decays in [-5, 0]. Equals `reference.kda.delta_step` token by token.
    """
    shape = q.shape
    q, k, v, log_decay = (_chunks(t) for t in (q, k, v, log_decay))  # [B, N, H, 16, D]
    beta = _chunks(beta.unsqueeze(-1))
    total = log_decay.cumsum(-2)
    apart = total - total[..., MIDDLE : MIDDLE + 1, :]
    raised, lowered = apart.exp(), apart.neg().exp()
    late, early = k * raised, (k * lowered).transpose(-1, -2)
    ones = torch.ones(CHUNK, CHUNK, dtype=q.dtype, device=q.device)
    inverse = unit_inverse(beta * (late @ early) * ones.tril(-1))
    read = ((q * raised) @ early) * ones.tril()
    grown = total.exp()
    fresh, weight = (inverse @ (beta * torch.cat((v, grown * k), -1))).split(v.shape[-1], -1)

    last = total[..., -1:, :]
    kept = (last - total).exp() * k
    step = torch.diag_embed(last.squeeze(-2).exp()) - weight.transpose(-1, -2) @ kept
    gain = fresh.transpose(-1, -2) @ kept
    before = _states_before(step, gain)  # [B, N, H, V, K]
    o = (grown * q - read @ weight) @ before.transpose(-1, -2) + read @ fresh
    return o.transpose(2, 3).reshape(shape)


def unit_inverse(strict: Tensor) -> Tensor:
    """(I + strict)^-1 for strictly lower triangular [..., 16, 16], by doubling diagonal blocks.

    Blocks P, Q of the inverse and C below P join as [[P, 0], [-Q C P, Q]]. Unlike a Neumann series
    this is as stable as substitution, also for nearly parallel keys.
    """
    place = torch.arange(CHUNK, device=strict.device)
    inverse = torch.eye(CHUNK, dtype=strict.dtype, device=strict.device).expand_as(strict)
    size = 1
    while size < CHUNK:
        same = place.unsqueeze(-1) // (2 * size) == place // (2 * size)
        below = same & ((place // size % 2 == 1).unsqueeze(-1) & (place // size % 2 == 0))
        inverse = inverse - inverse @ (strict * below) @ inverse
        size *= 2
    return inverse


def _chunks(tokens: Tensor) -> Tensor:
    """[B, L, H, D] -> [B, L/16, H, 16, D]."""
    return tokens.unflatten(1, (-1, CHUNK)).transpose(2, 3)


def _states_before(step: Tensor, gain: Tensor) -> Tensor:
    """State before each chunk for S' = S step + gain from zero; both [B, N, H, D, D], as result.

    A recursive scan: chunks pair up to half as many, so that N chunks take log N rounds.
    """
    count = step.shape[1]
    if count == 1:
        return torch.zeros_like(gain)
    if count % 2:  # the padding is after everything, so nobody sees its state
        step, gain = (functional.pad(t, (0, 0) * 3 + (0, 1)) for t in (step, gain))
    first, second = step[:, ::2], step[:, 1::2]
    first_gain, second_gain = gain[:, ::2], gain[:, 1::2]
    even = _states_before(first @ second, first_gain @ second + second_gain)
    odd = even @ first + first_gain
    return torch.stack((even, odd), 2).flatten(1, 2)[:, :count]
