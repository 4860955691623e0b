"""Column-major output."""

from plain import Linear, Tensors


class Strided(Linear):
    """The transpose of a contiguous tensor."""

    def candidate(self, inputs: Tensors) -> Tensors:
        return {"y": self.stock(inputs)["y"].T.contiguous().T}


def cases() -> list[Strided]:
    return [Strided("strided_output")]
