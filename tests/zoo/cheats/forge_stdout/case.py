"""Says that all is well."""

import json
import os
import sys

import torch
from plain import Linear, Tensors


class Forger(Linear):
    """Prints a verdict of its own."""

    def candidate(self, inputs: Tensors) -> Tensors:
        record = {"kind": "kernel", "op": self.op, "status": "ok", "candidate": {"rms": 0.0}}
        for line in ("PASS", json.dumps(record), json.dumps({"nonce": "x", "result": record})):
            print(line)
            sys.stdout.flush()
            os.write(2, line.encode() + b"\n")
        return {"y": torch.zeros(len(inputs["x"]), 64)}


def cases() -> list[Forger]:
    return [Forger("forge_stdout")]
