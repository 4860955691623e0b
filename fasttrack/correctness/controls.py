"""Planted faults: results a sharp comparison must reject in every cell, else it is INSENSITIVE."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fasttrack.correctness.compare import Array, scales, slice_axes, to_dtype

LOWER = {"float32": "bfloat16", "float64": "float32"}


def _zeros(value: Array, dtype: str) -> Array:
    return np.zeros_like(value)


def _first_slice_off(value: Array, dtype: str) -> Array:
    """One slice off by a tenth of its scale: hidden by any aggregate over the output."""
    changed = value.copy()
    changed[0] += 0.1 * scales(value)[0]
    return changed


def _tail_dropped(value: Array, dtype: str) -> Array:
    """The last 1 % of the inner axis missing, as an unwritten tail would be."""
    changed = value.copy()
    count = max(1, value.shape[-1] // 100)
    changed[..., -count:] = 0.0
    return changed


def _lower_precision(value: Array, dtype: str) -> Array:
    """Rounded to the next lower format; for 16-bit outputs three more mantissa bits are lost."""
    if dtype in LOWER:
        return to_dtype(value, LOWER[dtype])
    mantissa, exponent = np.frexp(value)
    coarse: Array = np.ldexp(np.round(mantissa * 16) / 16, exponent)
    return coarse


def _slice_mean(value: Array, dtype: str) -> Array | None:
    """Every slice flattened to its mean: the size is right, the content gone."""
    inner = tuple(range(slice_axes(value.ndim), value.ndim))
    if not inner or max(value.shape[axis] for axis in inner) < 2:
        return None
    return np.broadcast_to(value.mean(axis=inner, keepdims=True), value.shape)


def _rows_swapped(value: Array, dtype: str) -> Array | None:
    """The first two rows changed places: right values for the wrong requests."""
    if value.shape[0] < 2:
        return None
    changed = value.copy()
    changed[[0, 1]] = value[[1, 0]]
    return changed


CONTROLS: Mapping[str, Callable[[Array, str], Array | None]] = {
    "zeros": _zeros,
    "slice_mean": _slice_mean,
    "rows_swapped": _rows_swapped,
    "first_slice_off": _first_slice_off,
    "tail_dropped": _tail_dropped,
    "lower_precision": _lower_precision,
}
"""Name to a function of (stock's output as float64, its dtype name); None where the shape has no
room for the fault."""
