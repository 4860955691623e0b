"""Right in 99 calls of 100."""

from plain import Linear, Tensors


class Flaky(Linear):
    """Every hundredth call loses the last bit of one element."""

    calls = 0

    def candidate(self, inputs: Tensors) -> Tensors:
        y = self.stock(inputs)["y"]
        self.calls += 1
        if self.calls % 100 == 50:
            y[0, 0] = y[0, 0] * (1 + 2**-22)
        return {"y": y}


def cases() -> list[Flaky]:
    return [Flaky("flaky_1pct")]
