"""Error measures against an fp64 reference, per natural slice. Pure numpy; knows no op."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasttrack.schema import ErrorStats

Array = NDArray[Any]
FLOOR_SHARE = 1e-3
"""A slice's scale is never below this share of the whole output's RMS."""


def slice_axes(ndim: int) -> int:
    """How many leading axes name a slice: rows of a matrix, (row, head) of anything larger."""
    return 1 if ndim <= 2 else 2


def scales(reference: Array) -> Array:
    """RMS of the reference per slice, broadcastable to its shape, with a floor."""
    inner = tuple(range(slice_axes(reference.ndim), reference.ndim))
    finite = np.where(np.isfinite(reference), reference, 0.0)
    per_slice = np.sqrt(np.mean(finite**2, axis=inner, keepdims=True))
    whole = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    scale: Array = np.maximum(per_slice, max(FLOOR_SHARE * whole, 1e-300))
    return scale


@np.errstate(over="ignore", invalid="ignore")
def error_stats(
    value: Array, reference: Array, axes: tuple[str, ...], dtype: str = "float64"
) -> ErrorStats:
    """Scaled error of `value` against `reference` (float64, same shape, at least one element).

    Elements whose NaN/Inf class differs from that of the reference rounded to `dtype` are counted
    in `nonfinite` and make no error value; equal classes (NaN where the reference has NaN) count
    as right.
    """
    value = value.astype(np.float64)
    rounded = to_dtype(reference, dtype)
    kind_differs = (
        (np.isnan(value) != np.isnan(rounded))
        | (np.isposinf(value) != np.isposinf(rounded))
        | (np.isneginf(value) != np.isneginf(rounded))
    )
    both = np.isfinite(value) & np.isfinite(reference)
    error = np.where(both, value - np.where(both, reference, 0.0), 0.0) / scales(reference)
    size = np.abs(error)
    inner = tuple(range(slice_axes(error.ndim), error.ndim))
    slice_rms = np.sqrt(np.mean(error**2, axis=inner))
    worst = np.unravel_index(int(np.argmax(slice_rms)), slice_rms.shape)
    if kind_differs.any():
        bad = np.unravel_index(int(np.argmax(kind_differs)), error.shape)
    else:
        bad = np.unravel_index(int(np.argmax(size)), error.shape)
    return ErrorStats(
        rms=_finite(np.sqrt(np.mean(error**2))),
        q999=_finite(np.quantile(size, 0.999)),
        max=_finite(size.max()),
        worst_slice_rms=_finite(slice_rms.max()),
        worst_slice=coordinate(worst, axes),
        mean_signed=_finite(np.mean(error)),
        nonfinite=int(kind_differs.sum()),
        first_bad=coordinate(bad, axes),
    )


def _finite(value: Any) -> float | None:
    """A measure, or null when it overflowed: an error beyond all bounds, not an absent one."""
    return float(value) if np.isfinite(value) else None


def larger(one: ErrorStats, other: ErrorStats) -> ErrorStats:
    """The larger value of each measure; places are those of the larger worst slice."""

    def most(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else max(a, b, key=abs)

    place = one if (one.worst_slice_rms or 0.0) >= (other.worst_slice_rms or 0.0) else other
    return place.model_copy(
        update={
            "rms": most(one.rms, other.rms),
            "q999": most(one.q999, other.q999),
            "max": most(one.max, other.max),
            "worst_slice_rms": most(one.worst_slice_rms, other.worst_slice_rms),
            "mean_signed": most(one.mean_signed, other.mean_signed),
            "nonfinite": max(one.nonfinite, other.nonfinite),
        }
    )


def coordinate(index: tuple[Any, ...], axes: tuple[str, ...]) -> str:
    """``row=3,column=17`` from an index and axis names."""
    names = [*axes, *(f"axis{i}" for i in range(len(axes), len(index)))]
    return ",".join(f"{name}={int(i)}" for name, i in zip(names, index, strict=False))


def rounding_rms(reference: Array, dtype: str) -> float:
    """Scaled RMS error of rounding the reference to a dtype: no result can be better."""
    rounded = to_dtype(reference, dtype)
    finite = np.isfinite(reference) & np.isfinite(rounded)
    error = np.where(finite, rounded - np.where(finite, reference, 0.0), 0.0)
    return float(np.sqrt(np.mean((error / scales(reference)) ** 2)))


@np.errstate(over="ignore", invalid="ignore")
def distance(one: Array, other: Array, reference: Array) -> float:
    """RMS of a difference, scaled as errors are; the largest float where kinds differ."""
    apart = one.astype(np.float64) - other.astype(np.float64)
    both = np.isfinite(one) & np.isfinite(other)
    if (np.isfinite(one) != np.isfinite(other)).any():
        return float(np.finfo(np.float64).max)
    scaled = np.where(both, apart, 0.0) / scales(reference.astype(np.float64))
    return min(float(np.sqrt(np.mean(scaled**2))), float(np.finfo(np.float64).max))


@np.errstate(over="ignore")
def to_dtype(values: Array, dtype: str) -> Array:
    """Round float64 values to `float32`, `float16` or `bfloat16` and return them as float64."""
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        kept = (rounded & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)
        return np.where(np.isfinite(values), kept, values).astype(np.float64)
    if dtype in ("float32", "float16"):
        return values.astype(dtype).astype(np.float64)
    return values.astype(np.float64)
