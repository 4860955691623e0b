"""Outputs remembered by address."""

from plain import Linear, Tensors


class PointerMemo(Linear):
    """An address that was seen gets the answer it got before."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.memo: Tensors = {}

    def candidate(self, inputs: Tensors) -> Tensors:
        key = inputs["x"].data_ptr()
        if key not in self.memo:
            self.memo[key] = self.stock(inputs)["y"]
        return {"y": self.memo[key].clone()}


def cases() -> list[PointerMemo]:
    return [PointerMemo("pointer_memo")]
