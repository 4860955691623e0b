"""An output that is written after the call has returned."""

import threading
import time

import torch
from plain import Linear, Tensors


class Late(Linear):
    """The answer arrives when nobody looks at the clock any more."""

    def candidate(self, inputs: Tensors) -> Tensors:
        y = torch.zeros(len(inputs["x"]), 64)
        copies = {name: value.clone() for name, value in inputs.items()}

        def work() -> None:
            time.sleep(0.01)
            y.copy_(self.stock(copies)["y"])

        threading.Thread(target=work, daemon=True).start()
        return {"y": y}


def cases() -> list[Late]:
    return [Late("late_thread")]
