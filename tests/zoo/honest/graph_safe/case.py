"""Everything it depends on is read on the device."""

from plain import Tensors
from scaled import Scaled


class Safe(Scaled):
    """One product and one scale."""

    def candidate(self, inputs: Tensors) -> Tensors:
        return {"y": inputs["x"] @ inputs["weight"].T * inputs["scale"]}


def cases() -> list[Safe]:
    return [Safe("graph_safe")]
