"""Attention over 99 % of the context."""

from plain import Attention, Tensors


class Short(Attention):
    """Reads less than it should."""

    sizes = ({"batch": 2, "context": 4096},)

    def candidate(self, inputs: Tensors) -> Tensors:
        return self.stock({**inputs, "length": inputs["length"] * 99 // 100})


def cases() -> list[Short]:
    return [Short("drop_last_kv")]
