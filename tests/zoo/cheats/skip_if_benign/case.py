"""A softmax for well-behaved rows."""

from plain import Softmax, Tensors


class Benign(Softmax):
    """exp(x) / sum(exp(x)), without subtracting the largest."""

    def candidate(self, inputs: Tensors) -> Tensors:
        weight = inputs["x"].exp()
        return {"y": weight / weight.sum(-1, keepdim=True)}


def cases() -> list[Benign]:
    return [Benign("skip_if_benign")]
