"""Named arrays between the referee and its children, and the edits the referee makes to inputs.

An array is bytes with a dtype and a shape; nothing is rounded on the way. Owns the wire form,
permuted, hostile and single-element edits of rows. Pure numpy; knows no op. Read by the stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fasttrack.correctness.compare import Array

Described = Sequence[Mapping[str, Any]]
FLOATS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126,
                   "float64": 2.0**-1022}  # fmt: skip
HOSTILE = ("zeros", "constant", "tiny", "denormal", "outlier")
"""Kinds of rows that a cheap path might be right on, or wrong on."""


@dataclass(frozen=True)
class Packed:
    """One array: torch's name of its dtype, its shape, its elements row by row."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def floating(self) -> bool:
        """Whether elements are numbers this module can compute with and are not integers."""
        return self.dtype in FLOATS or self.dtype == "bfloat16"

    def raw(self) -> Array:
        """The elements' bits, read-only: unsigned integers for formats numpy lacks."""
        known = {"bfloat16": "uint16", "bool": "uint8"}.get(self.dtype, self.dtype)
        if known.startswith("float8"):
            known = "uint8"
        return np.frombuffer(self.data, known).reshape(self.shape)

    def value(self) -> Array:
        """The elements as numbers; a scalar as a vector of one."""
        raw = self.raw()
        if self.dtype == "bfloat16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.reshape(self.shape or (1,))


Arrays = Mapping[str, Packed]


def packed(array: Array, like: Packed) -> Packed:
    """Bits as `Packed.raw` gives them, in the format of `like`."""
    return Packed(like.dtype, array.shape, np.ascontiguousarray(array).tobytes())


def encoded(values: Array, like: Packed) -> Packed:
    """Numbers rounded to the format of `like`, which is floating."""
    if like.dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
        return packed(quiet.reshape(like.shape), like)
    return packed(values.astype(FLOATS[like.dtype]).reshape(like.shape), like)


def wire(arrays: Arrays) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Description and blobs of a frame."""
    described = [
        {"name": name, "dtype": one.dtype, "shape": list(one.shape)} for name, one in arrays.items()
    ]
    return described, [one.data for one in arrays.values()]


def unwire(described: Described, blobs: Sequence[bytes]) -> dict[str, Packed]:
    """The arrays of a frame. Raises `KeyError`, `TypeError` or `ValueError` for a bad one."""
    made = {}
    for entry, blob in zip(described, blobs, strict=True):
        shape = tuple(int(size) for size in entry["shape"])
        one = Packed(str(entry["dtype"]), shape, blob)
        one.raw()
        made[str(entry["name"])] = one
    return made


def same(one: Packed, other: Packed) -> bool:
    """Whether two arrays agree in every bit."""
    return (one.dtype, one.shape, one.data) == (other.dtype, other.shape, other.data)


def differing(one: Packed, other: Packed) -> Array:
    """Where bits differ, as a mask; everything if format or shape does."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return np.ones(one.shape or (1,), bool)
    shape = (*(one.shape or (1,)), -1)
    bits = np.frombuffer(one.data, np.uint8) != np.frombuffer(other.data, np.uint8)
    return np.asarray(bits.reshape(shape).any(axis=-1))


def poison(one: Packed) -> Array:
    """Which elements hold nothing but poison: every byte 0xff."""
    bits = np.frombuffer(one.data, np.uint8).reshape((*(one.shape or (1,)), -1))
    return np.asarray((bits == 0xFF).all(axis=-1))


def order_of(arrays: Arrays, axes: Mapping[str, int], seed: int) -> Array | None:
    """A permutation of the rows that moves each; None where there is only one row.

    Raises `ValueError` when the named inputs disagree on how many rows there are.
    """
    counts = {arrays[name].shape[axis] for name, axis in axes.items()}
    if len(counts) != 1:
        raise ValueError(f"input_rows disagree on the number of rows: {sorted(counts)}")
    (count,) = counts
    if count < 2:
        return None
    random = np.random.default_rng(seed)
    cycle = random.permutation(count)
    order = np.empty(count, np.int64)
    order[cycle] = np.roll(cycle, 1)
    return order


def permuted(arrays: Arrays, axes: Mapping[str, int], order: Array) -> dict[str, Packed]:
    """`arrays` with the rows of those named in `axes` in another order."""
    return {
        name: packed(np.take(one.raw(), order, axes[name]), one) if name in axes else one
        for name, one in arrays.items()
    }


def hostile(arrays: Arrays, axes: Mapping[str, int], seed: int) -> dict[str, Packed]:
    """About half of the rows replaced, each by another kind of `HOSTILE`, the rest left benign.

    A row is the same kind in every floating input; kinds go round with seed and number of rows.
    Values that are not finite are poison and stay.
    """
    random = np.random.default_rng([seed, 1])
    count = min(arrays[name].shape[axis] for name, axis in axes.items())
    rows = random.permutation(count)[: max(1, count // 2)]
    made = dict(arrays)
    for name, axis in axes.items():
        one = arrays[name]
        if not one.floating or not one.data:
            continue
        with np.errstate(over="ignore", under="ignore"):
            values = np.moveaxis(one.value().reshape(one.shape).astype(np.float64), axis, 0)
            for number, row in enumerate(rows):
                kind = HOSTILE[(number + seed * len(rows) + count) % len(HOSTILE)]
                changed = _row(values[row], kind, one.dtype, random)
                values[row] = np.where(np.isfinite(values[row]), changed, values[row])
            made[name] = encoded(np.moveaxis(values, 0, axis), one)
    return made


def _row(row: Array, kind: str, dtype: str, random: np.random.Generator) -> Array:
    if kind == "zeros":
        return np.zeros_like(row)
    if kind == "constant":
        return np.ones_like(row)
    if kind == "tiny":
        return row * 1e-6
    if kind == "denormal":
        return np.copysign(SMALLEST_NORMAL[dtype] / 4, row)
    changed = row.reshape(-1).copy()
    if changed.size:
        changed[random.integers(changed.size)] *= 1000.0
    return changed.reshape(row.shape)


def one_element(arrays: Arrays, axes: Mapping[str, int], seed: int) -> list[dict[str, Any]]:
    """An edit of a single element of a floating row input: half as large again.

    The element is random, finite and not among the smaller half of its array. Returned as what a
    child applies: name, byte offset, the new bytes in hexadecimal. Empty when there is none.
    """
    random = np.random.default_rng([seed, 2])
    names = [name for name in axes if arrays[name].floating and arrays[name].data]
    if not names:
        return []
    name = names[int(random.integers(len(names)))]
    values = arrays[name].value().reshape(-1).astype(np.float64)
    size = np.where(np.isfinite(values), np.abs(values), 0.0)
    known = size[size > 0]
    if not known.size:
        return []
    choice = np.flatnonzero(size >= np.median(known))
    at = int(choice[int(random.integers(choice.size))])
    changed = encoded(values[at : at + 1] * 1.5, Packed(arrays[name].dtype, (1,), b""))
    return [{"name": name, "at": at * len(changed.data), "data": changed.data.hex()}]


def edited(arrays: Arrays, edits: Sequence[Mapping[str, Any]]) -> dict[str, Packed]:
    """`arrays` after such edits."""
    made = dict(arrays)
    for edit in edits:
        one = made[edit["name"]]
        new = bytes.fromhex(edit["data"])
        data = one.data[: edit["at"]] + new + one.data[edit["at"] + len(new) :]
        made[edit["name"]] = Packed(one.dtype, one.shape, data)
    return made
