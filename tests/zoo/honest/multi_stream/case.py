"""Two streams that are waited for."""

import torch
from plain import Linear, Tensors


class Joined(Linear):
    """Each stream makes half of the columns; events order everything."""

    device = "cuda"
    streams: tuple[torch.cuda.Stream, ...] = ()

    def candidate(self, inputs: Tensors) -> Tensors:
        x, weight = inputs["x"], inputs["weight"]
        y = torch.empty(len(x), 64, device="cuda")
        self.streams = self.streams or (torch.cuda.Stream(), torch.cuda.Stream())
        current = torch.cuda.current_stream()
        for stream, half in zip(self.streams, (slice(0, 32), slice(32, 64)), strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                y[:, half] = x @ weight[half].T
            current.wait_stream(stream)
        return {"y": y}


def cases() -> list[Joined]:
    return [Joined("multi_stream")]
