"""Child of `sanitizer`: one call of one case's candidate on its own inputs, and nothing else."""

from __future__ import annotations

import json
import sys

import torch

from fasttrack.correctness import _case_child as child


def main(text: str) -> None:
    """`text`: JSON with distribution, fallback, folder, op, regime, seed."""
    told = json.loads(text)
    child.load(told["distribution"], told["fallback"], told["folder"], False)
    child.inputs(told["op"], told["regime"], told["seed"])
    child.ready(told["op"])
    child.once(told["op"])
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
