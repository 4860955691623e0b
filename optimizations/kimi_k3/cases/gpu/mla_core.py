"""Case `mla_core`: attention of an MLA layer over a paged cache, on a GPU.

Owns: inputs, truth, stock arithmetic and candidate. Read by: the harness.
Pages lie in random order; cache rows of nobody are NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kimi_k3.cases.gpu import common
from kimi_k3.cases.gpu.common import BATCHES, NAN, GpuCase, Regime, Tensors
from kimi_k3.cases.gpu.mla import HEAD, LATENT, ROW, SPARE, numbers, poisoned, refilled, stored


class CoreCase(GpuCase):
    """Queries [q, B, H, 576] on pages, merged with one part from elsewhere, as a rank of decode
    context parallelism would send: that shows the sum of exponentials as far as it matters."""

    op = "mla_core"
    outputs = {"o": ("token", "row", "head", "element")}  # noqa: RUF012
    input_rows = {"query": 1, "table": 0, "seen": 1, "other": 1, "other_lse": 1}  # noqa: RUF012
    output_rows = {"o": 1}  # noqa: RUF012
    planting = {  # noqa: RUF012
        "last_rows_lost": lambda i: i | {"seen": i["seen"] - (i["seen"] + 99) // 100},
        "shared_key_lost": lambda i: i | {"query": _without_tail(i["query"])},
        "scale_of_the_latent": lambda i: i | {"query": i["query"] * (HEAD / LATENT) ** 0.5},
    }

    def every(self) -> list[Regime]:
        """Edges of tiles and pages, every batch, verifications, six and 96 heads, few and many
        splits, both caches, requests of nobody."""
        plain = {"batch": 3, "tokens": 1, "heads": 12, "context": 100, "page": 64, "fp8": 0,
                 "splits": 0, "null": 0}  # fmt: skip
        both = (0, 1)
        made = [plain | {"context": c, "fp8": f} for c in (1, 32, 33, 64, 65, 500) for f in both]
        made += [plain | {"batch": batch} for batch in BATCHES]
        made += [plain | {"batch": 2, "tokens": q, "fp8": f} for q in (2, 4, 5, 8) for f in both]
        made += [plain | {"batch": b, "heads": h, "fp8": b % 2} for h in (6, 96) for b in (1, 2)]
        made += [plain | {"context": 700, "splits": s, "fp8": f} for s in (1, 2, 7) for f in both]
        made += [plain | {"page": page, "context": 700} for page in (1, 16, 48, 1024)]
        made += [plain | {"batch": 5, "tokens": q, "null": 2} for q in (1, 4)]
        return [*made, *(plain | {"batch": 1, "context": 4096, "fp8": f} for f in both)]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """The last request has the full context, the first no more than its own tokens."""
        random = common.generator(seed, regime)
        batch, tokens, heads, fp8 = (regime[n] for n in ("batch", "tokens", "heads", "fp8"))
        page, most = regime["page"], max(regime["context"], tokens)
        length = torch.randint(tokens, most + 1, (batch,), generator=random)
        length[0], length[-1 - regime["null"]] = tokens, most
        width = -(-most // page)
        table = torch.randperm(batch * width + SPARE, generator=random)[: batch * width]
        cache = poisoned((batch * width + SPARE) * page, bool(fp8))
        scale = torch.tensor([0.02 if fp8 else 1.0])
        for row, own in enumerate(table.view(batch, width)):
            token = torch.arange(int(length[row]))
            rows = torch.randn(len(token), ROW, generator=random)
            cache[own[token // page] * page + token % page] = stored(rows, scale, bool(fp8))
        seen = length - torch.arange(tokens)[:, None].flip(0)
        seen[:, batch - regime["null"] :] = 0
        made = {
            "query": common.normal(random, tokens, batch, heads, ROW),
            "cache": cache,
            "table": table.view(batch, width).int(),
            "seen": seen.int(),
            "scale": scale,
            "other": torch.randn(tokens, batch, heads, LATENT, generator=random) * 0.1,
            "other_lse": torch.log2(1.0 + seen)[..., None]
            + 2 + torch.randn(tokens, batch, heads, generator=random),
            # Code is made for one form, so the form is told by a shape: no value has to be read.
            "form": torch.zeros(1 + regime["splits"], page, dtype=torch.int8),
        }  # fmt: skip
        made["query"][:, batch - regime["null"] :] = NAN
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers in rows of nobody and queries of padding."""
        query = common.filled(inputs["query"], seed)
        return inputs | {"query": query, "cache": refilled(inputs["cache"], seed)}

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """The same pages elsewhere, and shorter contexts."""
        random = torch.Generator().manual_seed(seed)
        page = inputs["form"].shape[1]
        pages = inputs["cache"].unflatten(0, (-1, page))
        order = torch.randperm(len(pages), generator=random).to(inputs["table"].device)
        moved = torch.empty_like(pages)
        moved[order] = pages
        seen = torch.where(inputs["seen"] > 1, inputs["seen"] - 1, inputs["seen"])
        table = order[inputs["table"].long()].int()
        return inputs | {"cache": moved.flatten(0, 1), "table": table, "seen": seen}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Request by request; weights before their division rounded as flash kernels round them."""
        page = inputs["form"].shape[1]
        pages = numbers(inputs["cache"], inputs["scale"]).unflatten(0, (-1, page))
        made = torch.empty_like(inputs["other"], dtype=dtype)
        for row, table in enumerate(inputs["table"].long()):
            seen = inputs["seen"][:, row]
            held = pages[table].flatten(0, 1).to(dtype)
            place = torch.arange(len(held), device=held.device)
            held = torch.where((place < seen.max())[:, None], held, 0.0)
            query = torch.where(seen.max() > 0, inputs["query"][:, row].to(dtype), 0.0)
            scores = torch.einsum("qhr,sr->qhs", query, held) * HEAD**-0.5
            visible = place < seen[:, None, None]
            scores = scores.masked_fill(~visible, -torch.inf)
            other = inputs["other_lse"][:, row, :, None].to(dtype) * math.log(2)
            # Over both parts: what comes from elsewhere may outweigh all that is here, or nothing.
            top = torch.maximum(scores.amax(-1, keepdim=True), other)
            weights = torch.exp(scores - top)
            mixed = torch.einsum(
                "qhs,sl->qhl", common.kept(weights, dtype).to(dtype), held[:, :LATENT]
            )
            total, own = weights.sum(-1, keepdim=True), torch.exp(other - top)
            made[:, row] = (mixed + own * inputs["other"][:, row].to(dtype)) / (total + own)
        return {"o": common.kept(made, dtype)}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The kernel, and the merge in FP32."""
        from kimi_k3.kernels.mla.launch import core

        tokens, batch, heads, _ = inputs["query"].shape
        (splits, page), cache = inputs["form"].shape, inputs["cache"]
        kernel = core(heads, batch, tokens, len(cache), page, inputs["table"].shape[1],
                      cache.dtype == torch.uint8, splits - 1 or None)  # fmt: skip
        flat = tokens * batch, heads
        parts = kernel.form.splits
        names = ("cache", "table", "seen", "scale")
        held = {
            "query": inputs["query"].flatten(0, 1),
            "partial": inputs["other"].new_full((parts, *flat, LATENT), NAN),
            "lse": inputs["other"].new_full((parts, *flat), NAN),
        }
        common.launched(kernel, {name: inputs[name] for name in names} | held)
        return {"o": _merged(held["partial"], held["lse"], inputs)}


def _merged(partial: Tensor, lse: Tensor, inputs: Tensors) -> Tensor:
    """Parts and the one from elsewhere."""
    other, other_lse = inputs["other"], inputs["other_lse"]
    lse = torch.cat((lse, other_lse.flatten(0, 1)[None]))
    share = torch.softmax(lse * math.log(2), dim=0)[..., None]
    values = torch.cat((partial, other.flatten(0, 1)[None]))
    mixed = torch.where(share == 0, 0.0, values) * share
    return mixed.sum(0).view_as(other).bfloat16()


def _without_tail(query: Tensor) -> Tensor:
    changed = query.clone()
    changed[..., LATENT:] = 0
    return changed
