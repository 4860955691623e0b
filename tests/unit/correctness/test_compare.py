"""Protects the error measures: scaled per slice, blind to nothing, and finite or null."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy")

from fasttrack.correctness import compare  # noqa: E402
from fasttrack.correctness.controls import CONTROLS  # noqa: E402

AXES = ("row", "column")


def reference(rows: int = 4, columns: int = 64) -> np.ndarray:
    """A matrix whose rows differ in size by a factor of ten each."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, columns)) * (10.0 ** np.arange(rows))[:, None]


def test_equal_values_have_no_error() -> None:
    stats = compare.error_stats(reference(), reference(), AXES)
    assert (stats.rms, stats.max, stats.nonfinite, stats.mean_signed) == (0.0, 0.0, 0, 0.0)


def test_error_is_scaled_by_its_own_slice() -> None:
    # The same relative error in the smallest and in the largest row weighs the same.
    for row in (0, 3):
        value = reference()
        value[row] *= 1.01
        stats = compare.error_stats(value, reference(), AXES)
        assert stats.worst_slice_rms == pytest.approx(0.01, rel=1e-6)
        assert stats.worst_slice == f"row={row}"
        assert stats.rms == pytest.approx(0.005, rel=1e-6)


def test_the_worst_element_is_named() -> None:
    value = reference()
    value[2, 17] += 1e3
    stats = compare.error_stats(value, reference(), AXES)
    assert stats.first_bad == "row=2,column=17"
    assert stats.max is not None and stats.max > 5


def test_a_signed_error_shows_its_sign() -> None:
    down = compare.error_stats(reference() - 1e-3, reference(), AXES)
    assert down.mean_signed is not None and down.mean_signed < 0


@pytest.mark.parametrize(
    ("mine", "truth", "count"),
    [
        (math.nan, 1.0, 1),
        (1.0, math.nan, 1),
        (math.inf, 1.0, 1),
        (math.inf, -math.inf, 1),
        (math.nan, math.nan, 0),
        (math.inf, math.inf, 0),
        (-math.inf, -math.inf, 0),
        (math.nan, math.inf, 1),
    ],
)
def test_classes_of_nan_and_inf_must_agree(mine: float, truth: float, count: int) -> None:
    value, expected = reference(), reference()
    value[1, 5], expected[1, 5] = mine, truth
    stats = compare.error_stats(value, expected, AXES)
    assert stats.nonfinite == count
    assert stats.rms == 0.0
    if count:
        assert stats.first_bad == "row=1,column=5"


def test_an_error_beyond_measuring_is_null_and_not_lost() -> None:
    # Any value where the reference is zero throughout: the scale has only its tiny floor.
    stats = compare.error_stats(np.full((2, 4), 1e30), np.zeros((2, 4)), AXES)
    assert stats.max is None and stats.rms is None


def test_a_zero_row_is_scaled_by_the_whole() -> None:
    truth = reference()
    truth[0] = 0.0
    value = truth.copy()
    value[0, 0] = 1.0
    stats = compare.error_stats(value, truth, AXES)
    whole = math.sqrt(float(np.mean(truth**2)))
    assert stats.max == pytest.approx(1.0 / (compare.FLOOR_SHARE * whole))


def test_slices_of_larger_outputs_are_rows_and_heads() -> None:
    truth = np.random.default_rng(1).standard_normal((3, 2, 8, 8))
    value = truth.copy()
    value[1, 1] *= 1.1
    stats = compare.error_stats(value, truth, ("row", "head"))
    assert stats.worst_slice == "row=1,head=1"
    assert stats.first_bad.startswith("row=1,head=1,axis2=")


@pytest.mark.parametrize("shape", [(1,), (7,), (1, 1), (2, 3, 4)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    truth = np.ones(shape)
    assert compare.error_stats(truth * 1.5, truth, ("row",)).rms == pytest.approx(0.5)


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_rounding_is_to_nearest(dtype: str, bits: int) -> None:
    unit = 2.0 ** (1 - bits)
    values = np.array([1.0, 1 + unit, 1 + unit / 4, 1 + 3 * unit / 4, -1 - 3 * unit / 4])
    expected = [1.0, 1 + unit, 1.0, 1 + unit, -1 - unit]
    assert compare.to_dtype(values, dtype).tolist() == expected
    # Ties go to the even neighbour.
    ties = np.array([1 + unit / 2, 1 + 3 * unit / 2])
    assert compare.to_dtype(ties, dtype).tolist() == [1.0, 1 + 2 * unit]


def test_rounding_keeps_what_is_not_finite() -> None:
    values = np.array([math.nan, math.inf, -math.inf])
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        assert np.array_equal(compare.to_dtype(values, dtype), values, equal_nan=True)


def test_rounding_error_of_a_dtype() -> None:
    truth = np.random.default_rng(2).uniform(1, 2, (4, 4096))
    # Uniform error within half a unit in the last place: unit / sqrt(12), over the slice's RMS.
    expected = 2.0**-7 / math.sqrt(12) / math.sqrt(7 / 3)
    assert compare.rounding_rms(truth, "bfloat16") == pytest.approx(expected, rel=0.05)
    assert compare.rounding_rms(truth, "float64") == 0.0


def test_overflow_in_rounding_is_not_an_error_measure() -> None:
    assert compare.rounding_rms(np.array([[1e6, 1.0]]), "float16") == 0.0


@pytest.mark.parametrize("name", sorted(CONTROLS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(1, 256), (8, 256), (2, 4, 64), (300,)])
def test_every_control_is_far_from_stock(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    truth = np.random.default_rng(3).standard_normal(shape)
    stock = compare.to_dtype(truth, dtype)
    planted = CONTROLS[name](stock, dtype)
    if planted is None:
        # One row has no neighbour to change places with, one element per slice is its mean.
        assert (name, shape) in {("rows_swapped", (1, 256)), ("slice_mean", (300,))}
        return
    assert planted.shape == stock.shape
    honest = compare.error_stats(stock, truth, AXES)
    faulty = compare.error_stats(planted, truth, AXES)
    floor = compare.rounding_rms(truth, dtype) or 1e-15
    worst = (faulty.worst_slice_rms or 0.0) / max(honest.worst_slice_rms or 0.0, floor)
    assert worst > 3


@pytest.mark.parametrize("name", sorted(CONTROLS))
def test_a_control_leaves_stock_s_output_alone(name: str) -> None:
    stock = np.ones((3, 8))
    CONTROLS[name](stock, "float32")
    assert (stock == 1).all()
