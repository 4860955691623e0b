"""One expert of eight is wrong."""

from plain import Experts, Tensors


class BadExpert(Experts):
    """Expert 5 is off by one percent."""

    def candidate(self, inputs: Tensors) -> Tensors:
        experts = inputs["experts"].clone()
        experts[5] *= 1.01
        return self.stock({**inputs, "experts": experts})


def cases() -> list[BadExpert]:
    return [BadExpert("one_bad_expert")]
