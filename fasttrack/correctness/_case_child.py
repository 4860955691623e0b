"""Child of the kernel referee: runs an optimization's cases on demand.

The referee starts two of these: one makes inputs, reference and stock outputs, the other only ever
sees inputs and returns candidate outputs. Arrays travel as blobs beside a description.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch

from fasttrack.correctness import case as cases
from fasttrack.correctness.case import KernelCase, Tensors
from fasttrack.engine.serve import Coded, serve

_CASES: dict[str, KernelCase] = {}


def load(distribution: str, fallback: str | None, folder: str) -> dict[str, Any]:
    """Cases of one distribution: op, outputs, regimes, abilities and declared liberties.

    `fallback` (``module:function``) serves a distribution that is not installed, with `folder` on
    the path. ENG-002 when importing fails.
    """
    torch.set_num_threads(1)
    try:
        factories = [
            point.load()
            for point in entry_points(group="fasttrack.cases")
            if point.dist is not None and point.dist.name == distribution
        ]
        if not factories and fallback:
            sys.path.insert(0, folder)
            module, _, name = fallback.partition(":")
            factories = [getattr(import_module(module), name)]
        for factory in factories:
            _CASES.update({case.op: case for case in factory()})
        return {
            "cases": [
                {
                    "op": case.op,
                    "outputs": {name: list(axes) for name, axes in case.outputs.items()},
                    "regimes": [dict(regime) for regime in case.regimes()],
                    "abilities": cases.offered(case),
                    "in_place": cases.in_place(case),
                    "nondeterministic": cases.nondeterministic(case),
                }
                for case in _CASES.values()
            ]
        }
    except BaseException as error:
        raise Coded("ENG-002", f"{type(error).__name__}: {error}") from error


def inputs(op: str, regime: dict[str, int], seed: int) -> tuple[dict[str, Any], list[bytes]]:
    """Seeded inputs of one cell."""
    return _pack(_CASES[op].inputs(regime, seed))


def run(
    op: str,
    what: str,
    arrays: Sequence[dict[str, Any]],
    repeats: int = 0,
    blobs: Sequence[bytes] = (),
) -> tuple[dict[str, Any], list[bytes]]:
    """One of reference, stock, stock_variant, candidate on given inputs, each time on fresh copies.

    Repeats return digests of their outputs, in addition to the first call's outputs.
    """
    if what not in ("reference", "stock", "stock_variant", "candidate"):
        raise Coded("ENG-006", f"unknown call {what!r}")
    function = getattr(_CASES[op], what)
    with torch.inference_mode():
        message, data = _pack(function(_unpack(arrays, blobs)))
        message["digests"] = [
            _digest(_pack(function(_unpack(arrays, blobs)))[1]) for _ in range(repeats)
        ]
    message["digest"] = _digest(data)
    return message, data


def _digest(data: Sequence[bytes]) -> str:
    sha = hashlib.sha256()
    for blob in data:
        sha.update(blob)
    return sha.hexdigest()


def _pack(tensors: Tensors) -> tuple[dict[str, Any], list[bytes]]:
    described, data = [], []
    for name, tensor in sorted(tensors.items()):
        if not isinstance(tensor, torch.Tensor):
            raise Coded("ENG-006", f"{name} is a {type(tensor).__name__}, not a tensor")
        tensor = tensor.detach().cpu().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        described.append({"name": name, "dtype": dtype, "shape": list(tensor.shape)})
        raw = tensor.view(torch.int16) if dtype == "bfloat16" else tensor
        data.append(raw.numpy().tobytes())
    return {"arrays": described}, data


def _unpack(arrays: Sequence[dict[str, Any]], blobs: Sequence[bytes]) -> Tensors:
    tensors = {}
    for entry, blob in zip(arrays, blobs, strict=True):
        dtype = entry["dtype"]
        flat = np.frombuffer(bytearray(blob), "int16" if dtype == "bfloat16" else dtype)
        tensor = torch.from_numpy(flat)
        if dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        tensors[entry["name"]] = tensor.reshape(entry["shape"])
    return tensors


if __name__ == "__main__":
    serve({"load": load, "inputs": inputs, "run": run}, default_code="ENG-006")
