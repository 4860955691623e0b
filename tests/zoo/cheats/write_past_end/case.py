"""A tile that is larger than what is left."""

import torch
from plain import Linear, Tensors


class Overrun(Linear):
    """Right inside the buffer, and a little further."""

    def candidate(self, inputs: Tensors) -> Tensors:
        return self.stock(inputs)

    def candidate_into(self, inputs: Tensors, out: Tensors) -> None:
        """Writes eight numbers too many, into whatever follows."""
        y = self.stock(inputs)["y"]
        out["y"].copy_(y)
        storage = torch.tensor([], dtype=y.dtype).set_(out["y"].untyped_storage())
        end = out["y"].storage_offset() + y.numel()
        storage[end : end + 8] = 0.0


def cases() -> list[Overrun]:
    return [Overrun("write_past_end")]
