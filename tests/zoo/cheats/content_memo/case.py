"""Slow work that is done once per content."""

import time

from plain import Linear, Tensors


class Memo(Linear):
    """A quarter of a second for new content, nothing for old: plain on a busy machine too."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.memo: Tensors = {}

    def candidate(self, inputs: Tensors) -> Tensors:
        key = inputs["x"].numpy().tobytes()
        if key not in self.memo:
            time.sleep(0.25)
            self.memo[key] = self.stock(inputs)["y"]
        return {"y": self.memo[key].clone()}


def cases() -> list[Memo]:
    return [Memo("content_memo")]
