"""Case `mla`: attention half of an MLA layer with its paged cache.

Owns: inputs, truth, stock arithmetic and candidate of the unit `mla`. Read by: the harness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.cases.common import DIMS, PAGE, Regime, Tensors
from kimi_k3.kernels.mla import prepared
from kimi_k3.reference import mla
from kimi_k3.reference.weights import Scope
from kimi_k3.runtime.step import DecodeStep, rows

_PER_REQUEST = ("prefix", "bank", "lengths", "table", "mapping")


def requests(random: torch.Generator, batch: int, context: int) -> Tensors:
    """Lengths up to `context`, pages in random order, where each new row goes.

    The last request has the full context, the first the shortest possible, two tokens; the rest
    are random. Page 0 is the engine's null page and nobody's.
    """
    lengths = torch.randint(2, context + 1, (batch,), generator=random)
    lengths[0] = 2
    lengths[-1] = context
    each = -(-context // PAGE)
    pages = torch.randperm(batch * each, generator=random) + 1
    table = pages.view(batch, each)
    last = lengths - 1
    page = table.gather(1, (last // PAGE)[:, None])[:, 0]
    return {"lengths": lengths, "table": table, "mapping": page * PAGE + last % PAGE}


def owned_rows(inputs: Tensors, row: int) -> Tensor:
    """Cache rows of the tokens of request `row` before this step's, oldest first."""
    token = torch.arange(int(inputs["lengths"][row]) - 1)
    return inputs["table"][row][token // PAGE] * PAGE + token % PAGE


def cache(random: torch.Generator, inputs: Tensors) -> Tensor:
    """[pages, PAGE, row] with NaN wherever no request has a token yet."""
    batch, each = inputs["table"].shape
    made = torch.full(((batch * each + 1) * PAGE, DIMS.mla_row), common.NAN)
    for row in range(batch):
        own = owned_rows(inputs, row)
        made[own] = torch.randn(len(own), DIMS.mla_row, generator=random)
    return made.unflatten(0, (-1, PAGE))


def gathered(inputs: Tensors, pages: Tensor) -> Tensor:
    """Earlier rows of every request, [B, longest, row], zero behind each."""
    flat = pages.flatten(0, 1)
    own = [flat[owned_rows(inputs, row)] for row in range(len(inputs["lengths"]))]
    return torch.nn.utils.rnn.pad_sequence(own, batch_first=True)


def decode_step(inputs: Tensors, slots: Tensor) -> DecodeStep:
    """What the engine would hand to the executor."""
    return DecodeStep(
        slots=slots,
        block_table=inputs["table"],
        slot_mapping=inputs["mapping"],
        seq_lens=inputs["lengths"],
        max_seq_len=int(inputs["lengths"].max()),
    )


class MlaCase:
    """One token per request through mix site, MLA and output projection; cache in place."""

    op = "mla"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "column"),
        "cache": ("row", "element"),
        "untouched": ("cache row", "element"),
    }
    in_place = ("cache",)

    def regimes(self) -> list[Regime]:
        """Every batch size within one page; several pages; padding behind the requests."""
        short = [{"batch": b, "context": 40, "padding": 0} for b in common.BATCHES]
        edge = [{"batch": 3, "context": c, "padding": 0} for c in (2, PAGE, PAGE + 1)]
        long = [{"batch": b, "context": 300, "padding": 0} for b in (1, 2, 8, 33)]
        return [*short, *edge, *long, {"batch": 3, "context": 40, "padding": 2}]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """A cache with NaN in every row that holds no token of a request."""
        random = common.generator(seed, regime)
        made = requests(random, common.requests(regime), regime["context"])
        own = common.layer_weights(
            seed, common.MLA, ("self_attn", "self_attention_res", "input_layernorm")
        )
        return {
            **own,
            **common.depth(random, regime, sources=2),
            **made,
            "cache": cache(random, made),
            "padding": torch.tensor(regime["padding"]),
        }

    def reference(self, inputs: Tensors) -> Tensors:
        """FP64."""
        return self._plain(common.doubled(inputs), 1)

    def stock(self, inputs: Tensors) -> Tensors:
        """The same formulas in absorbed form, eager FP32."""
        return self._plain(inputs, 1)

    def stock_variant(self, inputs: Tensors) -> Tensors:
        """Stock with every batch repeated in a larger one."""
        return self._plain(inputs, common.copies(inputs))

    def _plain(self, inputs: Tensors, times: int) -> Tensors:
        own = Scope(inputs, "self_attn.")
        flat = inputs["cache"].flatten(0, 1)
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            rows = len(part["mapping"])
            many = common.repeated(part, times, *_PER_REQUEST)
            x = common.site(many, many["prefix"], "self_attention_res", "input_layernorm")
            past = gathered(many, many["cache"])
            y, new = mla.step(own, DIMS, x, past, many["lengths"] - 1)
            flat[part["mapping"]] = new[:rows]
            ys.append(y[:rows])
        return _outputs(ys, flat, inputs["mapping"])

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled unit, with NaN rows as padding where the regime has some."""
        batch = int(inputs["batch"])
        total = batch + int(inputs["padding"])
        flat = inputs["cache"].flatten(0, 1)
        packed = prepared.pack(common.getter(inputs), common.constants())
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            plan = rows(decode_step(part, part["lengths"]), 1, total, PAGE)
            tensors = [
                common.padded(part["prefix"], total),
                common.padded(part["bank"], total),
                torch.stack([inputs["sources"]] * 3),
                flat,
                plan.write,
                plan.writable,
                plan.context,
                plan.visible,
                *packed,
            ]
            (y,) = common.call("mla", tensors)
            ys.append(y[:batch])
        return _outputs(ys, flat, inputs["mapping"])


def _outputs(ys: list[Tensor], flat: Tensor, mapping: Tensor) -> Tensors:
    untouched = common.without(flat, mapping).float()
    return {"y": torch.cat(ys), "cache": flat[mapping], "untouched": untouched}
