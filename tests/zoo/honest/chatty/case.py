"""An op with debug output left on."""

import sys

from plain import Linear, Tensors


class Chatty(Linear):
    """Right, and loud."""

    def candidate(self, inputs: Tensors) -> Tensors:
        print("step", flush=True)
        sys.stderr.write("warning: nothing is wrong\n" * 20)
        return self.stock(inputs)


def cases() -> list[Chatty]:
    return [Chatty("chatty")]
