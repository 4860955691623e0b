"""Kernels on a stream of their own, and nobody waits for it."""

import torch
from plain import Linear, Tensors


class SideStream(Linear):
    """The output is returned while the device still sleeps."""

    stream: torch.cuda.Stream | None = None

    def candidate(self, inputs: Tensors) -> Tensors:
        home = inputs["x"].device
        x, weight = (inputs[name].cuda() for name in ("x", "weight"))
        y = torch.zeros(len(x), 64, device="cuda")
        torch.cuda.synchronize()
        self.stream = self.stream or torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(50_000_000)
            y.copy_(x @ weight.T)
        return {"y": y.to(home)}


def cases() -> list[SideStream]:
    return [SideStream("side_stream")]
