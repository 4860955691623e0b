"""Attention over whole pages, whatever the length says."""

import torch
from plain import Attention, Tensors


class WholePages(Attention):
    """Slots past the length count, unless they happen to hold NaN."""

    def candidate(self, inputs: Tensors) -> Tensors:
        rows = []
        for q, table in zip(inputs["q"], inputs["table"], strict=True):
            keys = inputs["keys"][table].flatten(0, 1)
            values = inputs["values"][table].flatten(0, 1)
            scores = q @ keys.T / 32**0.5
            weight = torch.softmax(scores.nan_to_num(-1e30), dim=-1)
            rows.append(weight @ values.nan_to_num(0.0))
        return {"y": torch.stack(rows)}


def cases() -> list[WholePages]:
    return [WholePages("read_padding")]
