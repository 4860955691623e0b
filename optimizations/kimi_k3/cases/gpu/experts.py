"""Case `experts`: routed experts with MXFP4 weights, and the sum over a token's experts, on a GPU.

Owns: inputs, truth, stock arithmetic and candidate. Read by: the harness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.cases.gpu import common
from kimi_k3.cases.gpu.common import BATCHES, NAN, GpuCase, Regime, Tensors
from kimi_k3.kernels.common import situ
from kimi_k3.kernels.moe.mxfp4 import GROUP, dequantised

LATENT, INTER, TOP_K = 3584, 384, 16
BETA, LINEAR_BETA = 4.0, 25.0
FEW, MANY = 24, 64
"""Experts of a cell: tokens that share, and tokens that hardly do. All 896 take 2 GB: one test of
`tests/test_gpu_moe.py`."""

_inboxes: dict[int, Tensor] = {}
"""By batch, made once: what one call leaves there the next must bear."""


class ExpertsCase(GpuCase):
    """z [B, L] through the K experts of each row."""

    op = "experts"
    outputs = {"y": ("row", "column")}  # noqa: RUF012 - part of the protocol, never changed
    input_rows = {"z": 0, "ids": 0, "gains": 0}  # noqa: RUF012
    output_rows = {"y": 0}  # noqa: RUF012
    planting = {  # noqa: RUF012
        "gate_and_up_swapped": lambda i: i | {"w13": i["w13"].roll(INTER, 1),
                                              "s13": i["s13"].roll(INTER, 1)},
        "last_expert_lost": lambda i: i | {"gains": _without_last(i["gains"])},
        "columns_swapped": lambda i: i | {"w2": i["w2"] >> 4 | i["w2"] << 4},
        "scale_of_next_group": lambda i: i | {"s13": i["s13"].roll(1, 2)},
    }  # fmt: skip

    def every(self) -> list[Regime]:
        """Few experts, so that some have more tokens than a unit, and their weights fit L2; every
        batch with more; rows of padding, which have no experts."""
        plain = {"experts": MANY, "padding": 0}
        made = [plain | {"batch": batch, "experts": FEW} for batch in (1, 2, 8, 33, 64)]
        made += [plain | {"batch": batch} for batch in BATCHES]
        return [*made, *(plain | {"batch": batch, "padding": 2} for batch in (3, 16, 64))]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Any bytes are weights. What padding rows hold is NaN, and their experts are none."""
        random = common.generator(seed, regime)
        batch, count = regime["batch"], regime["experts"]
        live = batch - regime["padding"]

        def bytes_(*shape: int) -> Tensor:
            return torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)

        def scales(*shape: int) -> Tensor:
            return torch.randint(119, 123, shape, generator=random, dtype=torch.uint8)

        gains = torch.rand(batch, TOP_K, generator=random)
        made = {
            "z": common.normal(random, batch, LATENT),
            "ids": torch.rand(batch, count, generator=random).argsort(1)[:, :TOP_K].int(),
            "gains": gains / gains.sum(1, keepdim=True),
            "w13": bytes_(count, 2 * INTER, LATENT // 2),
            "s13": scales(count, 2 * INTER, LATENT // GROUP),
            "w2": bytes_(count, LATENT, INTER // 2),
            "s2": scales(count, LATENT, INTER // GROUP),
        }
        made["z"][live:], made["gains"][live:], made["ids"][live:] = NAN, NAN, -1
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers where nothing may be read, or nothing may come of it."""
        return inputs | {name: common.filled(inputs[name], seed) for name in ("z", "gains")}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Expert by expert; stock multiplies BF16 and keeps both products and the hidden numbers
        in BF16."""
        total = torch.zeros_like(inputs["z"], dtype=dtype)
        operand = torch.float64 if dtype == torch.float64 else torch.bfloat16
        for expert in range(len(inputs["w13"])):
            token, slot = (inputs["ids"] == expert).nonzero(as_tuple=True)
            if not len(token):
                continue
            w13 = dequantised(inputs["w13"][expert], inputs["s13"][expert], operand)
            w2 = dequantised(inputs["w2"][expert], inputs["s2"][expert], operand)
            both = inputs["z"][token].to(operand) @ w13.t()
            gate, up = both.to(dtype).chunk(2, dim=-1)
            active = situ(gate, up, BETA, LINEAR_BETA).to(operand)
            out = (active @ w2.t()).to(dtype)
            total.index_put_(
                (token,), out * inputs["gains"][token, slot, None].to(dtype), accumulate=True
            )
        return {"y": common.kept(total, dtype)}

    def candidate(self, inputs: Tensors) -> Tensors:
        """Both kernels as they are cut for the device measured on."""
        y = torch.empty_like(inputs["z"])
        self.candidate_into(inputs, {"y": y})
        return {"y": y}

    def candidate_into(self, inputs: Tensors, out: Tensors) -> None:
        """Into the caller's buffer."""
        from kimi_k3.kernels.moe.inbox import inbox
        from kimi_k3.kernels.moe.launch import experts, finalize

        batch, count = len(inputs["z"]), len(inputs["w13"])
        kernel = experts(batch, count)
        if batch not in _inboxes:
            _inboxes[batch] = inbox(kernel.routed)
        slots = inputs["gains"].new_empty(batch, TOP_K, LATENT)
        common.launched(kernel, dict(inputs) | {"slots": slots, "inbox": _inboxes[batch]})
        common.launched(
            finalize(batch, count), {"slots": slots, "ids": inputs["ids"], "y": out["y"]}
        )

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights and scales of every expert at most once."""
        used = min(regime["experts"], regime["batch"] * TOP_K)
        numbers = 3.0 * LATENT * INTER
        flops = 2.0 * numbers * regime["batch"] * TOP_K
        return {"bytes": used * numbers * (0.5 + 1 / GROUP), "flops": flops}


def _without_last(gains: Tensor) -> Tensor:
    """`gains` with the last expert of every row weighing nothing."""
    changed = gains.clone()
    changed[:, -1] = 0
    return changed
