"""Right for itself, wrong for its neighbours."""

from plain import Linear, Tensors


class Scratch(Linear):
    """Leaves its activations halved."""

    def candidate(self, inputs: Tensors) -> Tensors:
        y = self.stock(inputs)
        inputs["x"].mul_(0.5)
        return y


def cases() -> list[Scratch]:
    return [Scratch("mutate_undeclared")]
