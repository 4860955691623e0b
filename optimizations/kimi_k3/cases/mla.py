"""Case `mla`: attention half of an MLA layer with its paged cache.

Owns: inputs, truth, stock arithmetic and candidate of the unit `mla`. Read by: the harness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.cases.common import DIMS, PAD, PAGE, Regime, Tensors
from kimi_k3.cases.judged import Judged, work
from kimi_k3.kernels.mla import prepared
from kimi_k3.reference import mla
from kimi_k3.reference.weights import Scope, Weights
from kimi_k3.runtime import attention
from kimi_k3.runtime.step import DecodeStep, rows

REQUESTS = ("lengths", "table", "mapping")
_PER_REQUEST = ("prefix", "bank", *REQUESTS)
_WEIGHTS = ("self_attn", "self_attention_res", "input_layernorm")
_OWN = "self_attn."


def requests(random: torch.Generator, regime: Regime) -> Tensors:
    """Lengths up to the regime's context, pages in random order, where each new row goes.

    The last request has the full context, the first nothing before this step's tokens; the rest
    are random. Page 0 is the engine's null page and nobody's.
    """
    count, tokens, context = common.requests(regime), regime["tokens"], regime["context"]
    lengths = torch.randint(tokens, context + 1, (count,), generator=random)
    lengths[0] = tokens
    lengths[-1] = context
    each = -(-context // PAGE)
    table = (torch.randperm(count * each, generator=random) + 1).view(count, each)
    return {"lengths": lengths, "table": table, "mapping": mapping(table, lengths, tokens)}


def mapping(table: Tensor, lengths: Tensor, tokens: int) -> Tensor:
    """Cache row of each new token, [R, q]."""
    new = lengths[:, None] + torch.arange(-tokens, 0)
    return table.gather(1, new // PAGE) * PAGE + new % PAGE


def owned_rows(inputs: Tensors, row: int) -> Tensor:
    """Cache rows of the tokens of request `row` before this step's, oldest first."""
    token = torch.arange(int(inputs["lengths"][row]) - inputs["mapping"].shape[1])
    return inputs["table"][row][token // PAGE] * PAGE + token % PAGE


def cache(random: torch.Generator, inputs: Tensors) -> Tensor:
    """[pages, PAGE, row] with NaN wherever no request has a token yet."""
    batch, each = inputs["table"].shape
    made = torch.full(((batch * each + 1) * PAGE, DIMS.mla_row), common.NAN)
    for row in range(batch):
        own = owned_rows(inputs, row)
        made[own] = torch.randn(len(own), DIMS.mla_row, generator=random)
    return made.unflatten(0, (-1, PAGE))


def verify(own: Weights, part: Tensors, x: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """x [B, q, D] on these requests' earlier rows -> y [B, q, D], new rows [B, q, row].

    Each token sees what came before it and itself.
    """
    tokens, flat = x.shape[1], pages.flatten(0, 1)
    past = [flat[owned_rows(part, row)] for row in range(len(x))]
    seen = torch.nn.utils.rnn.pad_sequence(past, batch_first=True)
    new = mla.cache_rows(own, DIMS, x)
    seen = torch.cat((seen, torch.zeros_like(new)), dim=1)
    before = part["lengths"] - tokens
    seen[torch.arange(len(x))[:, None], before[:, None] + torch.arange(tokens)] = new
    query = mla.absorb(own, DIMS, mla.queries(own, DIMS, x))
    mixed = [mla.attend(query[:, token], seen, before + token + 1, DIMS) for token in range(tokens)]
    _, value_up = mla.up_projections(own, DIMS)
    o = torch.einsum("bqhl,hvl->bqhv", torch.stack(mixed, 1), value_up)
    return mla.finish(own, x, o), new


def decode_step(part: Tensors, slots: Tensor, accepted: Tensor | None = None) -> DecodeStep:
    """What an engine would hand to the executor."""
    return DecodeStep(
        slots=slots,
        block_table=part["table"],
        slot_mapping=part["mapping"].flatten(),
        seq_lens=part["lengths"],
        max_seq_len=int(part["lengths"].max()),
        tokens=part["mapping"].shape[1],
        accepted=accepted,
    )


def rearranged(inputs: Tensors, caches: list[str], random: torch.Generator) -> Tensors:
    """The same requests on other pages, each of a length at random up to its own."""
    places = common.shuffled(len(inputs[caches[0]]), random)
    table, tokens = places[inputs["table"]], inputs["mapping"].shape[1]
    share = torch.rand(len(table), generator=random)
    lengths = tokens + ((inputs["lengths"] - tokens + 1) * share).long()
    pools = {name: common.moved(inputs[name], places) for name in caches}
    return pools | {"table": table, "lengths": lengths, "mapping": mapping(table, lengths, tokens)}


def without_last_rows(inputs: Tensors) -> Tensors:
    """Every request has forgotten the newest 1 % of its cached rows, one at least."""
    before = inputs["lengths"] - inputs["mapping"].shape[1]
    lost = torch.minimum(before, -(-before // 100))
    return inputs | {"lengths": inputs["lengths"] - lost}


class MlaCase(Judged):
    """q tokens per request through mix site, MLA and output projection; cache in place."""

    op = "mla"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "token", "column"),
        "cache": ("row", "token", "element"),
        "untouched": ("cache row", "element"),
    }
    in_place = ("cache",)
    input_rows = dict.fromkeys(_PER_REQUEST, 0)
    output_rows = dict.fromkeys(("y", "cache"), 0)
    planting = {  # noqa: RUF012
        "operand_bf16": lambda i: common.rounded(i, _OWN + "kv_a_proj_with_mqa.weight"),
        "head_off_by_2_percent": lambda i: common.scaled(
            i, _OWN + "q_b_proj.weight", 0, DIMS.qk_head_dim
        ),
        "last_rows_lost": without_last_rows,
    }

    def regimes(self) -> list[Regime]:
        """The grid within a few pages; page edges, nothing cached; long contexts; padding."""
        grid: list[Regime] = [{**one, "context": 40, "padding": 0} for one in common.GRID]
        edges = [(3, 1, 1), (3, 1, PAGE), (3, 1, PAGE + 1), (3, 4, 4), (3, 4, PAGE + 1)]
        longer = [*((b, 1, 300) for b in (1, 2, 8, 33)), (2, 4, 300), (8, 8, 300)]
        grid += [
            {"batch": b, "tokens": q, "context": c, "padding": 0} for b, q, c in edges + longer
        ]
        grid += [{"batch": 3, "tokens": q, "context": 40, "padding": 2} for q in (1, 4)]
        return grid

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """A cache with NaN in every row that holds no token of a request."""
        random = common.generator(seed, regime)
        made = requests(random, regime)
        own = common.layer_weights(seed, common.MLA, _WEIGHTS)
        depth = common.depth(random, regime, sources=2)
        return {**own, **depth, **made, "cache": cache(random, made)}

    def plain(self, inputs: Tensors, times: int) -> Tensors:
        """Absorbed form: one projection of all tokens, then attention token by token."""
        own, flat = Scope(inputs, _OWN), inputs["cache"].flatten(0, 1)
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            count = len(part["mapping"])
            many = common.repeated(part, times, *_PER_REQUEST)
            x = common.site(many, many["prefix"], "self_attention_res", "input_layernorm")
            y, new = verify(own, many, x, inputs["cache"])
            flat[part["mapping"]] = new[:count]
            ys.append(y[:count])
        return _outputs(ys, inputs)

    def faults(self, regime: Regime) -> list[str]:
        """Rows can be lost only where there are some; a token alone has no scores to be wrong."""
        mute = {"last_rows_lost"} if regime["context"] == regime["tokens"] else set()
        mute |= {"head_off_by_2_percent"} if regime["context"] == 1 else set()
        return [name for name in self.planting if name not in mute]

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled unit."""
        packed = prepared.pack(common.getter(inputs), common.constants())
        sites, flat = torch.stack([inputs["sources"]] * 3), inputs["cache"].flatten(0, 1)
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            prefix, bank = (common.token_major(part, name) for name in ("prefix", "bank"))
            count = len(part["lengths"])
            step = decode_step(part, part["lengths"].new_zeros(1, count, int(part["tokens"])))
            plan = rows(step, count + len(part.get(PAD + "prefix", ())), PAGE)
            y = attention.mla(common.call, packed, sites, flat, plan, prefix, bank)
            ys.append(common.request_major(y, part))
        return _outputs(ys, inputs)

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """Other pages, shorter contexts, fewer stored blocks."""
        random = torch.Generator().manual_seed(seed)
        sources = (inputs["sources"] - 1).clamp(min=0)
        return inputs | rearranged(inputs, ["cache"], random) | {"sources": sources}

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights once, every cached row at least once."""
        count, tokens = common.requests(regime), regime["tokens"]
        weights = common.matrices(common.layer_weights(0, common.MLA, _WEIGHTS))
        cached = regime["context"] + (count - 1) * tokens
        heads = DIMS.mla_heads * (DIMS.mla_row + DIMS.kv_lora)
        return work(weights + cached * DIMS.mla_row, count * tokens * weights + cached * heads)


def _outputs(ys: list[Tensor], inputs: Tensors) -> Tensors:
    flat, at = inputs["cache"].flatten(0, 1), inputs["mapping"]
    untouched = common.without(flat, at.flatten()).float()
    return {"y": torch.cat(ys), "cache": flat[at], "untouched": untouched}
