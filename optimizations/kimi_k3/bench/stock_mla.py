"""`python -m kimi_k3.bench.stock_mla [--batch 1,8,64]`: MLA behind its queries, beside vLLM 0.33's.

From absorbed queries and a paged BF16 cache to gated values. Ours: core and value kernel. Stock, as
its Kimi K3 does it on Hopper: FlashAttention 3 in the form for MLA with a schedule made once per
step (which is not timed), the value product, the gate by `torch.compile`; and FlashMLA in place of
FlashAttention, which vLLM offers too. Needs those two extensions of the vLLM 0.33.0 wheel and no
more of it. Graphs take turns in one run, caches cold; outputs are compared first.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.third_party.flashmla import flash_mla_interface as flashmla
from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

from kimi_k3.bench import ops
from kimi_k3.bench.mla import CONTEXTS, PAGE, Layer
from kimi_k3.bench.timing import Call, captured, interleaved, read_bandwidth
from kimi_k3.kernels.mla.form import HEAD, LATENT, QUERY, ROW, VALUE

MOST_SPLITS = 32
"""As vLLM bounds them where it captures graphs."""
Attend = Callable[[], Tensor]


@torch.compile(dynamic=False)
def _gated(values: Tensor, gate: Tensor) -> Tensor:
    return values * gate.sigmoid()


def _flash_attention(layer: Stock, schedule: Tensor) -> Tensor:
    """[B, H, 512]."""
    cache = layer.cache.view(-1, PAGE, 1, ROW)
    made: Tensor = flash_attn_varlen_func(
        q=layer.query[..., LATENT:], q_v=layer.query[..., :LATENT], k=cache[..., LATENT:],
        v=cache[..., :LATENT], max_seqlen_q=1, max_seqlen_k=layer.context, causal=True,
        cu_seqlens_q=layer.starts, seqused_k=layer.seen[0], block_table=layer.table,
        softmax_scale=HEAD**-0.5, fa_version=3, scheduler_metadata=schedule,
        num_splits=MOST_SPLITS,
    )  # fmt: skip
    return made


def _flash_mla(layer: Stock, schedule: Any) -> Tensor:
    """[B, H, 512]."""
    made, _ = flashmla.flash_mla_with_kvcache(
        q=layer.query[:, None], k_cache=layer.cache.view(-1, PAGE, 1, ROW),
        block_table=layer.table, cache_seqlens=layer.seen[0], head_dim_v=LATENT,
        tile_scheduler_metadata=schedule, softmax_scale=HEAD**-0.5, causal=True,
    )  # fmt: skip
    whole: Tensor = made[:, 0]
    return whole


class Stock(Layer):
    """A layer with what stock needs besides."""

    def __init__(self, batch: int, context: int) -> None:
        super().__init__(batch, context)
        self.starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
        self.weights = self.value_up.transpose(1, 2).contiguous()
        self.values = torch.empty(batch, ops.HEADS, VALUE, dtype=torch.bfloat16, device="cuda")

    def finish(self, attend: Attend) -> Tensor:
        """Values of what `attend` gives, gated: [B, H 128]."""
        latent = attend()
        torch.bmm(latent.transpose(0, 1), self.weights, out=self.values.transpose(0, 1))
        made: Tensor = _gated(self.values.flatten(1), self.projected[:, QUERY + ROW :])
        return made


def _ways(layers: list[Stock]) -> dict[str, list[Call]]:
    one = layers[0]
    schedule = get_scheduler_metadata(
        batch_size=one.batch, max_seqlen_q=1, max_seqlen_k=one.context, num_heads_q=ops.HEADS,
        num_heads_kv=1, headdim=ROW - LATENT, headdim_v=LATENT, cache_seqlens=one.seen[0],
        qkv_dtype=torch.bfloat16, cu_seqlens_q=one.starts, page_size=PAGE, causal=True,
        num_splits=MOST_SPLITS,
    )  # fmt: skip
    plan, _ = flashmla.get_mla_metadata()
    fa3: list[Attend] = [partial(_flash_attention, layer, schedule) for layer in layers]
    mla: list[Attend] = [partial(_flash_mla, layer, plan) for layer in layers]
    ways: dict[str, list[Call]] = {"core": [], "core+value": [], "fa3": [*fa3], "flashmla": [*mla]}
    for layer in layers:
        _, core, value = layer.ours()
        ways["core"].append(core)
        ways["core+value"] += [core, value]
    for name, attends in (("fa3+value", fa3), ("flashmla+value", mla)):
        pairs = zip(layers, attends, strict=True)
        ways[name] = [partial(layer.finish, attend) for layer, attend in pairs]
    return ways


def row(context: int, batch: int, ceiling: float) -> dict[str, Any]:
    """Measure one context and batch."""
    size = 2.0 * batch * context * ROW + 2.0 * ops.HEADS * LATENT * VALUE
    layers = [Stock(batch, context) for _ in range(ops.sets(size))]
    ways = _ways(layers)
    for call in ways["core+value"][:2]:
        call()
    ours = layers[0].y.double()
    apart = {}
    for name in ("fa3+value", "flashmla+value"):
        theirs: Any = ways[name][0]()
        apart[name] = float((ours - theirs.double()).norm() / theirs.double().norm())
    spans = interleaved({name: captured(calls) for name, calls in ways.items()})
    medians = {name: statistics.median(each) / len(layers) for name, each in spans.items()}
    return {"context": context, "batch": batch, "us": medians, "apart": apart,
            "floor_us": size / ceiling / 1e6}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--batch", default="1,8,64")
    parser.add_argument("--context", default=",".join(map(str, CONTEXTS)))
    parser.add_argument("--json")
    chosen = parser.parse_args()
    ceiling, name = read_bandwidth(), torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; reads {ceiling:.2f} TB/s")
    rows = []
    for context in map(int, chosen.context.split(",")):
        for batch in map(int, chosen.batch.split(",")):
            made = row(context, batch, ceiling)
            rows.append(made)
            torch.cuda.empty_cache()
            told = "  ".join(f"{way} {us:.2f}" for way, us in made["us"].items())
            apart = max(made["apart"].values())
            print(f"{context:>5} {batch:>2}  {told}  floor {made['floor_us']:.2f} "
                  f"apart {apart:.1e}", flush=True)  # fmt: skip
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump({"device": name, "read_tb_s": ceiling, "torch": torch.__version__,
                       "rows": rows}, file, indent=1)  # fmt: skip


if __name__ == "__main__":
    main()
