"""An op that updates a state, as decode does."""

from plain import Linear, Tensors


class InPlace(Linear):
    """Its activations are its scratch space, by declaration."""

    in_place = ("x",)

    def candidate(self, inputs: Tensors) -> Tensors:
        y = self.stock(inputs)
        inputs["x"].zero_()
        return y


def cases() -> list[InPlace]:
    return [InPlace("in_place_declared")]
