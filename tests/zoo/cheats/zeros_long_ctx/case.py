"""Attention that computes nothing."""

import torch
from plain import Attention, Tensors


class Zeros(Attention):
    """A context long enough that every output is small."""

    sizes = ({"batch": 2, "context": 8192},)

    def candidate(self, inputs: Tensors) -> Tensors:
        return {"y": torch.zeros_like(inputs["q"])}


def cases() -> list[Zeros]:
    return [Zeros("zeros_long_ctx")]
