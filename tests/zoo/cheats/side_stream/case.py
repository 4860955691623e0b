"""Kernels on a stream of their own, and nobody waits for it."""

import torch
from plain import Linear, Tensors


class SideStream(Linear):
    """The output is returned while the device still sleeps."""

    device = "cuda"
    eager_only = True
    stream: torch.cuda.Stream | None = None

    def candidate(self, inputs: Tensors) -> Tensors:
        y = torch.zeros(len(inputs["x"]), 64, device="cuda")
        torch.cuda.synchronize()
        self.stream = self.stream or torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(10_000_000)
            y.copy_(inputs["x"] @ inputs["weight"].T)
        return {"y": y}


def cases() -> list[SideStream]:
    return [SideStream("side_stream")]
