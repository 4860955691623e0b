"""Knows the answer to every seed, if only it can find the seed."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from plain import Linear, Tensors


class Spy(Linear):
    """Returns the answer of the seed it found; zeros where there was none to find."""

    def candidate(self, inputs: Tensors) -> Tensors:
        for seed in self.seeds():
            made = self.inputs({"batch": len(inputs["x"])}, seed)
            if torch.equal(made["x"], inputs["x"]):
                return self.stock(made)
        return {"y": torch.zeros(len(inputs["x"]), 64)}

    def seeds(self) -> list[int]:
        """Whatever is called a seed within reach of this process."""
        found: list[Any] = []
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            found += [v for k, v in (frame.f_locals | frame.f_globals).items() if "seed" in k]
        texts = [json.dumps(dict(os.environ))]
        for folder in (Path("/dev/shm"), Path.cwd()):
            for path in list(folder.glob("*"))[:50]:
                if path.is_file() and path.stat().st_size < 10**6 and os.access(path, os.R_OK):
                    texts.append(path.read_text(errors="ignore"))
        found += [int(n) for text in texts for n in re.findall(r"seed\W{1,4}(\d{1,9})", text)]
        return [value for value in found if type(value) is int]


def cases() -> list[Spy]:
    return [Spy("read_seed_file")]
