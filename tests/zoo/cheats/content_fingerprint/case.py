"""Outputs remembered by a sample of the input."""

from plain import Linear, Tensors


class Fingerprint(Linear):
    """Every 97th element decides whether an input was seen."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.memo: Tensors = {}

    def candidate(self, inputs: Tensors) -> Tensors:
        key = inputs["x"].flatten()[::97].numpy().tobytes()
        if key not in self.memo:
            self.memo[key] = self.stock(inputs)["y"]
        return {"y": self.memo[key].clone()}


def cases() -> list[Fingerprint]:
    return [Fingerprint("content_fingerprint")]
