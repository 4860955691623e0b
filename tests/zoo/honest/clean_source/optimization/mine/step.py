"""The specialised step."""

import os

import torch

THREADS = int(os.environ.get("MINE_THREADS", "1"))


class Step:
    """State of its own."""

    def __init__(self) -> None:
        self.calls = 0
        self.buffer = torch.zeros(0)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Counts, and works without gradients."""
        self.calls += 1
        with torch.inference_mode():
            self.buffer = x * 2
        return self.buffer
