"""Writes to the pipe that only the harness may use."""

import json
import os
import struct
import sys

from plain import Linear, Tensors


class Forger(Linear):
    """Answers before it is asked to."""

    def candidate(self, inputs: Tensors) -> Tensors:
        told = json.dumps({"nonce": "0" * 32, "result": {"arrays": []}, "blobs": []}).encode()
        os.write(int(sys.argv[1]), struct.pack("!I", len(told)) + told)
        return self.stock(inputs)


def cases() -> list[Forger]:
    return [Forger("forge_channel")]
