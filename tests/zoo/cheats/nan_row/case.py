"""A row of NaN."""

from plain import Linear, Tensors


class NanRow(Linear):
    """Row 2 is not a number."""

    def candidate(self, inputs: Tensors) -> Tensors:
        y = self.stock(inputs)["y"]
        y[2] = float("nan")
        return {"y": y}


def cases() -> list[NanRow]:
    return [NanRow("nan_row")]
