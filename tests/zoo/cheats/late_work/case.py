"""An output that is written after the call has returned.

By a timer's signal and not by a thread: on a busy machine a thread may come later still, and then
it is the repeats that differ.
"""

import signal
from typing import Any

import torch
from plain import Linear, Tensors


class Late(Linear):
    """The answer arrives when nobody looks at the clock any more."""

    def candidate(self, inputs: Tensors) -> Tensors:
        y = torch.zeros(len(inputs["x"]), 64)
        copies = {name: value.clone() for name, value in inputs.items()}

        def work(*_: Any) -> None:
            with torch.inference_mode():
                y.copy_(self.stock(copies)["y"])

        signal.signal(signal.SIGALRM, work)
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        return {"y": y}


def cases() -> list[Late]:
    return [Late("late_work")]
