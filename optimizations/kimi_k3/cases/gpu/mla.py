"""Cases `mla_query` and `mla_value`: an MLA layer on a GPU, before and behind its attention.

Owns: inputs, truth, stock arithmetic and candidates. Read by: the harness.
Rows of a token-by-token step are flat, [q B, ...]; cache rows of nobody are NaN. An FP8 cache is
bytes; its rows are compared as the numbers they stand for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.cases.gpu import common
from kimi_k3.cases.gpu.common import BATCHES, EPS, NAN, GpuCase, Regime, Tensors
from kimi_k3.reference.basic import rms_norm

QUERY, LATENT, SHARED, NOPE, VALUE = 1536, 512, 64, 128, 128
ROW, HEAD = LATENT + SHARED, NOPE + SHARED
SPARE = 5
"""Cache rows, or pages, of nobody."""
LARGEST = 448.0
"""Of E4M3."""
NAN_BYTE = 0x7F
FP8 = torch.float8_e4m3fn


def numbers(cache: Tensor, scale: Tensor) -> Tensor:
    """What cache rows stand for; FP32 if they are bytes."""
    return cache.view(FP8).float() * scale if cache.dtype == torch.uint8 else cache


def stored(rows: Tensor, scale: Tensor, fp8: bool) -> Tensor:
    """Numbers as the cache holds them."""
    if not fp8:
        return rows.bfloat16()
    return (rows / scale).float().clamp(-LARGEST, LARGEST).to(FP8).view(torch.uint8)


def poisoned(rows: int, fp8: bool) -> Tensor:
    """A cache of nobody."""
    if fp8:
        return torch.full((rows, ROW), NAN_BYTE, dtype=torch.uint8)
    return torch.full((rows, ROW), NAN, dtype=torch.bfloat16)


def refilled(cache: Tensor, seed: int) -> Tensor:
    """Finite numbers in rows of nobody."""
    if cache.dtype != torch.uint8:
        return common.filled(cache, seed)
    random = torch.Generator().manual_seed(seed)
    other = torch.randint(0, NAN_BYTE, cache.shape, generator=random).to(cache)
    return torch.where(cache == NAN_BYTE, other, cache)


class QueryCase(GpuCase):
    """Tokens [R] from the packed projection to absorbed queries and cache rows."""

    op = "mla_query"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "query": ("row", "head", "element"),
        "cache": ("row", "element"),
        "untouched": ("cache row", "element"),
    }
    in_place = ("cache",)
    input_rows = {"projected": 0, "slot": 0}  # noqa: RUF012
    output_rows = {"query": 0, "cache": 0}  # noqa: RUF012
    planting = {  # noqa: RUF012
        "gain_rounded_to_fp8": lambda i: i | {"query_norm": i["query_norm"].to(FP8).bfloat16()},
        "absorbed_by_a_neighbour": lambda i: i | {"key_up": i["key_up"].roll(1, 0)},
        "shared_key_lost": lambda i: i | {"projected": _without_shared(i["projected"])},
    }

    def every(self) -> list[Regime]:
        """Every batch, both caches; six heads; padding; more tokens than blocks have warps for."""
        plain = {"heads": 12, "fp8": 0, "null": 0}
        made = [plain | {"rows": rows} for rows in BATCHES]
        made += [plain | {"rows": rows, "fp8": 1} for rows in (1, 4, 8, 16, 33)]
        made += [plain | {"rows": rows, "heads": 6} for rows in (1, 8, 64)]
        return [*made, *(plain | {"rows": rows, "null": 2} for rows in (5, 24))]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Padding rows are NaN and have no slot."""
        random = common.generator(seed, regime)
        heads, rows, fp8 = (regime[name] for name in ("heads", "rows", "fp8"))
        live = rows - regime["null"]
        slot = torch.randperm(rows + SPARE, generator=random)[:rows].int()
        slot[live:] = -1
        wide = QUERY + ROW + heads * VALUE
        made = {
            "projected": common.normal(random, rows, wide),
            "slot": slot,
            "query_norm": (1 + 0.1 * torch.randn(QUERY, generator=random)).bfloat16(),
            "latent_norm": (1 + 0.1 * torch.randn(LATENT, generator=random)).bfloat16(),
            "query_up": common.normal(random, heads * HEAD, QUERY, scale=QUERY**-0.5),
            "key_up": common.normal(random, heads, LATENT, NOPE, scale=NOPE**-0.5),
            "scale": torch.tensor([0.02 if fp8 else 1.0]),
            "cache": poisoned(rows + SPARE, bool(fp8)),
        }
        made["projected"][live:] = NAN
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers in rows of padding and in the cache."""
        projected = common.filled(inputs["projected"], seed)
        return inputs | {"projected": projected, "cache": refilled(inputs["cache"], seed)}

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """Other slots."""
        random = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(inputs["cache"]), generator=random).to(inputs["slot"].device)
        moved = order[inputs["slot"].long()].int()
        return inputs | {"slot": torch.where(inputs["slot"] < 0, inputs["slot"], moved)}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Rounded where the engine rounds: norm, up-projection, absorption, cache row."""
        names = ("projected", "query_norm", "latent_norm", "query_up", "key_up")
        projected, gain, latent_gain, up, key_up = (inputs[name].to(dtype) for name in names)
        low, latent, shared, _ = projected.split(
            [QUERY, LATENT, SHARED, projected.shape[1] - QUERY - ROW], dim=-1
        )
        low = common.kept(rms_norm(low, gain, EPS), dtype).to(dtype)
        q = common.kept(low @ up.t(), dtype).to(dtype).unflatten(1, (-1, HEAD))
        absorbed = torch.einsum("rhn,hln->rhl", q[..., :NOPE], key_up)
        query = common.kept(torch.cat((absorbed, q[..., NOPE:]), dim=-1), dtype)
        live = inputs["slot"] >= 0
        rows = torch.cat((common.kept(rms_norm(latent, latent_gain, EPS), dtype), shared), dim=-1)
        cache, scale = inputs["cache"], inputs["scale"]
        made = _filled(
            cache, inputs["slot"], stored(rows, scale, cache.dtype == torch.uint8), scale
        )
        if dtype == torch.float64:
            # Beyond the largest FP8 number a row says no more than that.
            most = LARGEST * scale if cache.dtype == torch.uint8 else torch.inf * scale
            made["cache"] = torch.where(live[:, None], rows.clamp(-most, most), 0.0)
        return {"query": torch.where(live[:, None, None], query, 0.0), **made}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The kernel, in place on the cache."""
        from kimi_k3.kernels.mla.launch import queries

        cache, heads = inputs["cache"], len(inputs["key_up"])
        rows = len(inputs["slot"])
        kernel = queries(heads, rows, len(cache), cache.dtype == torch.uint8, EPS)
        query = inputs["projected"].new_empty(rows, heads, ROW)
        common.launched(kernel, inputs | {"query": query})
        return {"query": query, **_filled(cache, inputs["slot"], None, inputs["scale"])}


def _filled(cache: Tensor, slot: Tensor, rows: Tensor | None, scale: Tensor) -> Tensors:
    """`rows` written to their slots, if there are any; what the slots hold, in BF16 from either
    cache, so that a fault planted in the last bits is one for FP8 too; the other rows."""
    count, live = len(cache), slot >= 0
    # Where padding goes is data: it goes to a row beyond the last, of which nobody asks.
    place = torch.where(live, slot, count).long()
    longer = torch.cat((cache, cache[:1]))
    if rows is not None:
        longer = longer.index_copy(0, place, rows)
        cache.copy_(longer[:count])
    taken = torch.zeros(count + 1, dtype=torch.int32, device=cache.device)
    order = torch.argsort(taken.index_fill(0, place, 1)[:count], stable=True)
    held = torch.where(live[:, None], numbers(longer[place], scale), 0.0).bfloat16()
    return {"cache": held, "untouched": cache[order[: count - len(slot)]].float()}


def _without_shared(projected: Tensor) -> Tensor:
    changed = projected.clone()
    changed[:, QUERY + LATENT : QUERY + ROW] = 0
    return changed


class ValueCase(GpuCase):
    """Partial results [P, R, H, 512] to gated heads."""

    op = "mla_value"
    outputs = {"y": ("row", "column")}  # noqa: RUF012
    input_rows = {"projected": 0, "partial": 1, "lse": 1}  # noqa: RUF012
    output_rows = {"y": 0}  # noqa: RUF012
    planting = {  # noqa: RUF012
        "merged_by_mean": lambda i: i | {"lse": i["lse"].clamp(-1e30, 0).sign().abs()},
        "gate_of_a_neighbour": lambda i: i | {"projected": i["projected"].roll(1, 1)},
        "weights_rounded_to_fp8": lambda i: i | {"value_up": i["value_up"].to(FP8).bfloat16()},
    }

    def every(self) -> list[Regime]:
        """Every batch with as many parts as it has splits; eight ranks; six heads; empty parts and
        tokens of nobody."""
        plain = {"heads": 12, "empty": 0, "null": 0}
        made = [plain | {"rows": rows, "parts": max(1, 132 // rows)} for rows in BATCHES]
        made += [plain | {"rows": rows, "parts": 8, "empty": 3} for rows in (1, 5, 16, 64)]
        made += [plain | {"rows": rows, "parts": 9, "heads": 6} for rows in (1, 33)]
        made += [plain | {"rows": 1, "parts": 132, "empty": 100}]
        return [*made, *(plain | {"rows": rows, "parts": 4, "null": 2} for rows in (5, 24))]

    def faults(self, regime: Regime) -> list[str]:
        """What has an effect here: one part alone cannot be merged wrongly."""
        return [name for name in self.planting if regime["parts"] > 1 or name != "merged_by_mean"]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Empty parts hold NaN; each token misses others."""
        random = common.generator(seed, regime)
        heads, rows, parts = (regime[name] for name in ("heads", "rows", "parts"))
        live = rows - regime["null"]
        order = torch.rand(parts, rows, heads, generator=random).argsort(0)
        empty = order < regime["empty"]
        empty[:, live:] = True
        lse = 3 * torch.randn(parts, rows, heads, generator=random)
        partial = torch.randn(parts, rows, heads, LATENT, generator=random)
        made = {
            "projected": common.normal(random, rows, QUERY + ROW + heads * VALUE),
            "partial": partial.masked_fill(empty[..., None], NAN),
            "lse": lse.masked_fill(empty, -torch.inf),
            "value_up": common.normal(random, heads, VALUE, LATENT, scale=LATENT**-0.5),
        }
        made["projected"][live:] = NAN
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers in empty parts and rows of padding."""
        return inputs | {n: common.filled(inputs[n], seed) for n in ("projected", "partial")}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Rounded where the engine rounds: merged latent, values, gated values."""
        lse, projected = inputs["lse"].to(dtype), inputs["projected"].to(dtype)
        top = lse.amax(0).clamp_min(-1e30)
        weights = torch.exp2(lse - top)[..., None]
        values = torch.where(weights == 0, 0.0, inputs["partial"].to(dtype))
        total = weights.sum(0)
        latent = (values * weights).sum(0) / torch.where(total == 0, 1.0, total)
        latent = common.kept(latent, dtype).to(dtype)
        o = torch.einsum("rhl,hvl->rhv", latent, inputs["value_up"].to(dtype))
        o = common.kept(o, dtype).to(dtype).flatten(1)
        y = o * torch.sigmoid(projected[:, QUERY + ROW :])
        live = (total > 0).squeeze(-1).repeat_interleave(VALUE, dim=1)
        return {"y": common.kept(torch.where(live, y, 0.0), dtype)}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The kernel."""
        y = inputs["projected"].new_empty(inputs["lse"].shape[1], inputs["lse"].shape[2] * VALUE)
        self.candidate_into(inputs, {"y": y})
        return {"y": y}

    def candidate_into(self, inputs: Tensors, out: Tensors) -> None:
        """Into the caller's buffer."""
        from kimi_k3.kernels.mla.launch import values

        parts, rows, heads = inputs["lse"].shape
        common.launched(values(heads, rows, parts), inputs | {"y": out["y"]})
